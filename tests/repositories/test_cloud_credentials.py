"""Triton's file of credentials: which of them a place gets, and what is wrong with a file, without its secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.repositories.s3_services import Proxy, S3Service
from tests.repositories.support import repository
from toutates.repositories.cloud_credentials import VARIABLE, S3Credentials, s3_credentials
from toutates.repositories.s3.client import S3Client
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError

SECRET = "hunter2"


def found(path: Path, content: object, place: BucketSpecification) -> S3Credentials | None:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return s3_credentials(place, {VARIABLE: str(path)})


def key(name: str) -> dict[str, str]:
    return {"key_id": name, "secret_key": SECRET}


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (BucketSpecification("s3", "other"), "all"),
        (BucketSpecification("s3", "bucket"), "bucket"),
        (BucketSpecification("s3", "bucket", "models/"), "models"),
        (BucketSpecification("s3", "bucket", "models/deep/"), "models"),
        (BucketSpecification("s3", "bucket", "models2/"), "bucket"),
        (BucketSpecification("s3", "bucket2"), "all"),
        (BucketSpecification("s3", "mine", "a/", "http://minio:9000"), "minio"),
        (BucketSpecification("s3", "bucket", "models/", file="net.onnx"), "models"),
    ],
)
def test_the_longest_path_holds(tmp_path: Path, place: BucketSpecification, name: str) -> None:
    section = {
        "": key("all"),
        "s3://bucket": key("bucket"),
        "s3://bucket/models/": key("models"),
        "s3://http://minio:9000/mine": key("minio"),
    }
    credentials = found(tmp_path / "file", {"s3": section, "gs": {"": "/some/file"}}, place)
    assert credentials is not None
    assert credentials.key_id == name
    assert SECRET not in repr(credentials)


def test_without_a_file_or_a_place_in_it_boto3_decides(tmp_path: Path) -> None:
    place = BucketSpecification("s3", "bucket")
    assert s3_credentials(place, {}) is None
    assert found(tmp_path / "file", {"as": {}}, place) is None
    assert found(tmp_path / "file", {"s3": {"s3://other": key("x")}}, place) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (SECRET, "is no JSON object"),
        ("[" * 100_000, "is no JSON object"),
        ({"s3": [SECRET]}, "s3: is no object"),
        ({"s3": {"": SECRET}}, 's3."": is no object'),
        ({"s3": {"": {"secret_key": SECRET}}}, 's3."": has no key_id'),
        ({"s3": {"s3://bucket": {"key": SECRET}}}, "s3.s3://bucket.key: is unknown"),
        ({"s3": {"": {"key_id": 7, "secret_key": SECRET}}}, "is no text"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_secrets(tmp_path: Path, content: object, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)) as caught:
        found(tmp_path / "file", content, BucketSpecification("s3", "bucket"))
    assert SECRET not in str(caught.value)
    assert str(tmp_path / "file") in str(caught.value)


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        s3_credentials(BucketSpecification("s3", "bucket"), {VARIABLE: "/nowhere/file"})


def test_requests_are_signed_by_the_file_and_not_by_the_environment(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": b"x"})
    signed: list[str] = []
    build = S3Client.__init__

    def listening(client: S3Client, *args: object) -> None:
        build(client, *args)  # type: ignore[arg-type]
        client._client.meta.events.register(
            "before-send.s3", lambda request, **_: signed.append(str(request.headers["Authorization"]))
        )

    monkeypatch.setattr(S3Client, "__init__", listening)
    (tmp_path / "file").write_text(json.dumps({"s3": {f"s3://{bucket}": {**key("FROMFILE"), "region": "eu-west-7"}}}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with repository(proxy, bucket, tmp_path / "cache") as one:
        assert [folder.name for folder in one.scan()] == ["m"]
    assert signed
    assert all("Credential=FROMFILE/" in line and "/eu-west-7/s3/" in line for line in signed)
