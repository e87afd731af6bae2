"""Buckets that anybody may read, and what is said where nobody has credentials."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.repositories.answers import Answer, Answers, answering
from tests.repositories.s3_services import files_in, quiet
from tests.repositories.support import s3_repository
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError

GRAPH = b"graph"
ETAG = f'"{hashlib.md5(GRAPH).hexdigest()}"'
LISTING = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>public</Name><Prefix></Prefix>'
    "<KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>m/1/model.onnx</Key>"
    f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{ETAG}</ETag><Size>{len(GRAPH)}</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"
).encode()


def refusal(code: str, status: int = 403, **headers: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return Answer(text, status, {name.replace("_", "-"): value for name, value in headers.items()})


def public(method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """A bucket that anybody may read, without a signature alone."""
    if "authorization" in headers or "X-Amz-Signature" in path:
        return refusal("AccessDenied")
    return Answer(LISTING) if "list-type" in path else Answer(GRAPH, headers={"ETag": ETAG})


def opened(service: Answers, cache: Path) -> S3Repository:
    place = BucketSpecification("s3", "public", "", service.url, flag="--s3-bucket")
    return s3_repository(place, ModelCache(cache, 2**40))


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials anywhere."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


def test_a_bucket_that_anybody_may_read_is_read_without_credentials(nobody: None, tmp_path: Path) -> None:
    with answering(public) as service:
        remote = opened(service, tmp_path)
        [found] = remote.scan()
        folder = remote.fetch(found, quiet)
        assert files_in(folder.path) == {"1/model.onnx": GRAPH}
        remote.release(folder)
        remote.stop()
        assert len(service.requests) >= 2
        assert not any("authorization" in headers for _, _, headers in service.requests)


def test_where_there_are_credentials_every_request_is_signed(tmp_path: Path) -> None:
    with answering(public) as service:
        remote = opened(service, tmp_path)
        with pytest.raises(ConfigurationError, match=r"access is denied \(AccessDenied\).*use other credentials"):
            remote.scan()
        remote.stop()
        assert service.requests
        assert all("authorization" in headers for _, _, headers in service.requests)


def test_a_redirect_to_the_buckets_region_is_followed_unsigned(nobody: None, tmp_path: Path) -> None:
    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if len(service.requests) == 1:
            return refusal("PermanentRedirect", 301, x_amz_bucket_region="eu-central-1")
        return public(method, path, headers)

    with answering(answer) as service:
        remote = opened(service, tmp_path)
        assert [folder.name for folder in remote.scan()] == ["m"]
        remote.stop()
        assert not any("authorization" in headers for _, _, headers in service.requests)


@pytest.mark.parametrize(("code", "status"), [("AccessDenied", 403), ("InvalidAccessKeyId", 403), ("Odd", 401)])
def test_a_refusal_says_that_no_credentials_were_found(nobody: None, tmp_path: Path, code: str, status: int) -> None:
    with answering(lambda *_: refusal(code, status)) as service:
        remote = opened(service, tmp_path)
        with pytest.raises(ConfigurationError, match=r"no credentials were found.*AWS_ACCESS_KEY_ID") as caught:
            remote.scan()
        remote.stop()
        assert code in str(caught.value)
