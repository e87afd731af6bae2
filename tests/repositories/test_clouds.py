"""Repositories on Google Cloud Storage and Azure, by emulators that others have written."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.repositories.answers import Answer, Answers, answering, dripping
from tests.repositories.clouds import ACCOUNT, KEY, Azurite, GoogleEmulator, azurite, google_emulator, opened
from tests.repositories.s3_services import Fault, Proxy, files_in, quiet
from tests.repositories.support import QUICK
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.cloud_credentials import VARIABLE
from toutates.repositories.interface import Repository
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import BucketSpecification, read_specifications
from toutates.repositories.web import azure as azure_blobs
from toutates.repositories.web import gs
from toutates.repositories.web.client import tls_context
from toutates.repositories.web.gs import GoogleStore
from toutates.repositories.web.redirects import followed
from toutates.system.errors import ConfigurationError, RepositoryError

MODEL = {"m/1/model.onnx": b"graph", "m/1/config.yaml": b"batch_size: 4\n", "m/config.pbtxt": b'name: "m"\n'}
LARGE = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleEmulator]:
    with google_emulator(tmp_path_factory.mktemp("google")) as service:
        yield service


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite(tmp_path_factory.mktemp("azure")) as service:
        yield service


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AZURE_", "GOOGLE_", "TRITON_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")


class Place:
    """A new bucket or container: its address, and how a file gets there."""

    def __init__(self, url: str, put: Callable[[str, bytes], None], service: str) -> None:
        self.url, self.put, self.service = url, put, service


def google_place(service: GoogleEmulator, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
    bucket = service.bucket()
    return Place(f"gs://{bucket}", lambda key, body: service.put(bucket, key, body), "STORAGE_EMULATOR_HOST")


def azure_place(service: Azurite, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    container = service.container()
    return Place(
        f"as://{ACCOUNT}/{container}",
        lambda key, body: service.put(container, key, body),
        "AZURE_STORAGE_SERVICE_ENDPOINT",
    )


@pytest.fixture(params=["google", "azure"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    service = request.getfixturevalue(request.param)
    return (google_place if request.param == "google" else azure_place)(service, monkeypatch)


def fetched(repository: Repository, name: str = "m") -> dict[str, bytes]:
    [folder] = repository.scan([name])
    folder = repository.fetch(folder, quiet)
    assert folder.problem == ""
    return files_in(folder.path)


# --- as on S3 --------------------------------------------------------------------------------------------------------


def test_models_are_listed_and_fetched(place: Place, tmp_path: Path) -> None:
    files = {**MODEL, "m/1/model.onnx_data": LARGE, "é ü+%/2/model.onnx": b"odd", "readme": b"x"}
    for key, body in files.items():
        place.put(f"a/b/{key}", body)
    place.put("other/1/model.onnx", b"x")
    with opened(f"{place.url}/a/b", tmp_path) as one:
        assert [folder.name for folder in one.scan()] == ["m", "é ü+%"]
        assert fetched(one) == {key.removeprefix("m/"): body for key, body in files.items() if key.startswith("m/")}
        assert fetched(one, "é ü+%") == {"2/model.onnx": b"odd"}
        statistics = one.statistics()
        assert statistics.answers
        assert statistics.bytes == sum(len(body) for key, body in files.items() if key != "readme")


def test_what_is_here_is_not_downloaded_again(place: Place, tmp_path: Path) -> None:
    for key, body in MODEL.items():
        place.put(key, body)
    for expected in (len(MODEL), 0):
        with opened(place.url, tmp_path) as one:
            fetched(one)
            assert one.statistics().objects == expected


def test_a_changed_file_is_another_fingerprint_and_another_directory(place: Place, tmp_path: Path) -> None:
    for key, body in MODEL.items():
        place.put(key, body)
    with opened(place.url, tmp_path) as one:
        [before] = one.scan()
        old = one.fetch(before, quiet)
        assert one.scan()[0].fingerprint == before.fingerprint
        place.put("m/1/model.onnx", b"newer")
        [after] = one.scan()
        assert after.fingerprint != before.fingerprint
        new = one.fetch(after, quiet)
        assert (old.path / "1/model.onnx").read_bytes() == b"graph"
        assert (new.path / "1/model.onnx").read_bytes() == b"newer"
        assert one.statistics().objects == len(MODEL) + 1


def test_keys_that_cannot_be_files_are_never_used(place: Place, tmp_path: Path) -> None:
    for key, body in MODEL.items():
        place.put(key, body)
    place.put("m/2/a//b", b"x")
    with opened(place.url, tmp_path) as one:
        [folder] = one.scan()
        problems = {version.number: version.problem for version in folder.versions}
        assert problems[1] == ""
        assert "cannot be a file" in problems[2]


def test_a_place_that_is_not_there_is_refused(place: Place, tmp_path: Path) -> None:
    with (
        opened(place.url + "none", tmp_path) as one,
        pytest.raises(ConfigurationError, match=r"there is no such (bucket|container)") as caught,
    ):
        one.scan()
    assert place.url + "none" in str(caught.value)
    assert "correct the" in caught.value.remedy


def test_a_service_that_is_not_there_may_be_there_later(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(place.service, "http://127.0.0.1:1")
    with opened(place.url, tmp_path) as one:
        with pytest.raises(RepositoryError, match=f"cannot be listed now: .*refused.*; check.*{place.service}"):
            one.scan()
        assert one.statistics().answers is False


def test_a_download_that_is_cut_goes_on(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("m/1/model.onnx", LARGE)
    service = os.environ[place.service]
    port = str(urlsplit(service).port)
    proxy = Proxy(int(port))
    proxy.faults.append(Fault("GET .*model.onnx", times=2, cut_at=1_000_000))
    monkeypatch.setenv(place.service, service.replace(port, str(urlsplit(proxy.endpoint).port)))
    try:
        with opened(place.url, tmp_path) as one:
            assert fetched(one) == {"1/model.onnx": LARGE}
        assert len([line for line in proxy.requests if "model.onnx" in line]) == 3
    finally:
        proxy.close()


# --- credentials -----------------------------------------------------------------------------------------------------


def sas(key: str) -> str:
    """A token that may read and list everything for an hour, as Azure's documentation has it."""
    expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3_600))
    version = "2021-12-02"
    text = "\n".join([ACCOUNT, "rl", "b", "sco", "", expiry, "", "https,http", version, "", ""])
    signature = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
    given = {"sv": version, "ss": "b", "srt": "sco", "sp": "rl", "se": expiry, "spr": "https,http", "sig": signature}
    return urlencode(given)


@pytest.fixture
def azure_model(azure: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a container with the model, and no credentials."""
    place = azure_place(azure, monkeypatch)
    for key, body in MODEL.items():
        place.put(key, body)
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    return place.url


def test_azure_by_a_sas_token(azure_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas(KEY))
    with opened(azure_model, tmp_path) as one:
        assert len(fetched(one)) == len(MODEL)


def test_azure_by_tritons_file(azure_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    wrong, right = ({"account_str": ACCOUNT, "account_key": key} for key in ("bm9uZQ==", KEY))
    file.write_text(json.dumps({"as": {"": wrong, azure_model: right}}))
    monkeypatch.setenv(VARIABLE, str(file))
    with opened(azure_model, tmp_path / "cache") as one:
        assert len(fetched(one)) == len(MODEL)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("AZURE_STORAGE_KEY", "bm9uZQ==", "(not accepted|access is denied)"),
        ("AZURE_STORAGE_KEY", "no base64", "the account's key is not base64"),
        ("AZURE_STORAGE_SAS_TOKEN", "sv=2021-12-02&sig=tellnobody", "(is denied|not accepted)"),
        ("OTHER", "", "access is denied"),
    ],
)
def test_azure_with_wrong_credentials_is_refused(
    azure_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)  # as where it is not installed
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=problem) as caught, opened(azure_model, tmp_path) as one:
        one.scan()
    assert "AZURE_STORAGE_KEY" in caught.value.remedy
    assert azure_model in str(caught.value)
    assert not value or value not in str(caught.value)


def test_a_key_of_another_account_is_not_used(
    azure_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "another")
    with pytest.raises(ConfigurationError, match="access is denied"), opened(azure_model, tmp_path) as one:
        one.scan()


def test_azure_by_the_identity_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.identity")

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            assert headers["x-identity-header"] == "secret"
            given = {"access_token": "tok", "expires_on": str(int(time.time()) + 3_600), "resource": "r"}
            return Answer(json.dumps(given).encode(), headers={"Content-Type": "application/json"})
        return Answer(LISTING % b"") if headers.get("authorization") == "Bearer tok" else Answer(status=403)

    with answering(answer) as service:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{service.url}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "secret")
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        with opened("as://account/container", tmp_path) as one:
            assert [one.scan(), one.scan()] == [[], []]
        assert len([path for _, path, _ in service.requests if path.startswith("/token")]) == 1


@pytest.mark.parametrize("has_identity", [False, True])
def test_azure_gets_no_token_in_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_identity: bool) -> None:
    pytest.importorskip("azure.identity")

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            given = {"access_token": "tok", "expires_on": str(int(time.time()) + 3_600), "resource": "r"}
            return Answer(json.dumps(given).encode(), headers={"Content-Type": "application/json"})
        return Answer(LISTING % b"")

    with answering(answer) as service:
        monkeypatch.setenv("http_proxy", service.url)  # so that it is asked for whatever host
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", "http://blobs.example")
        if has_identity:
            monkeypatch.setenv("IDENTITY_ENDPOINT", f"{service.url}/token")
            monkeypatch.setenv("IDENTITY_HEADER", "secret")
            with opened("as://account/container", tmp_path) as one:
                for _ in range(2):
                    with pytest.raises(ConfigurationError, match="a token of the identity would go there") as caught:
                        one.scan()
            assert "https://HOST" in str(caught.value)
        else:
            monkeypatch.setitem(sys.modules, "azure.identity", None)
            with opened("as://account/container", tmp_path) as one:
                assert one.scan() == []  # as anybody may
        asked = [headers for _, path, headers in service.requests if "blobs.example" in path]
        assert len(asked) == (0 if has_identity else 1)
        assert not any("authorization" in headers for headers in asked)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021-12-02&sig=tellnobody")
    with (
        pytest.raises(ConfigurationError, match="AZURE_STORAGE_SAS_TOKEN would go there") as caught,
        opened("as://account/container", tmp_path),
    ):
        pass
    assert "tellnobody" not in str(caught.value)


@contextmanager
def google_at(endpoint: str, url: str, cache: Path) -> Iterator[Repository]:
    """A repository of Google Cloud Storage, where that is at ``endpoint`` and wants credentials."""
    [place] = read_specifications([url], endpoint=None, region=None)
    assert isinstance(place, BucketSpecification)
    kept = ModelCache(cache, 2**40)
    one = S3Repository(place, kept, GoogleStore(place, kept.stopping, QUICK, endpoint), QUICK)
    try:
        yield one
    finally:
        one.stop()


@pytest.mark.parametrize("by_file", [False, True])
def test_google_by_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool) -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path == "/token":
            given = {"access_token": "tok", "expires_in": 3_600, "token_type": "Bearer"}
            return Answer(json.dumps(given).encode(), headers={"Content-Type": "application/json"})
        return Answer(b"{}") if headers.get("authorization") == "Bearer tok" else Answer(status=401)

    with answering(answer) as service:
        with google_at(service.url, "gs://bucket", tmp_path / "cache") as one:
            with pytest.raises(ConfigurationError, match="credentials are missing or not accepted") as caught:
                one.scan()  # as anybody
            assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.remedy
        key = rsa.generate_private_key(65_537, 2_048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        account = {"type": "service_account", "client_email": "a@b", "private_key": pem, "private_key_id": "1"}
        file = tmp_path / "key.json"
        file.write_text(json.dumps({**account, "token_uri": f"{service.url}/token"}))
        if by_file:
            (tmp_path / "triton").write_text(json.dumps({"gs": {"gs://bucket": str(file)}}))
            monkeypatch.setenv(VARIABLE, str(tmp_path / "triton"))
        else:
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with google_at(service.url, "gs://bucket/models", tmp_path / "cache") as one:
            assert [one.scan(), one.scan()] == [[], []]
        assert len([path for _, path, _ in service.requests if path == "/token"]) == 1


def test_credentials_that_come_late_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.identity")
    credentials: Any = pytest.importorskip("google.auth.credentials")
    exceptions: Any = pytest.importorskip("google.auth.exceptions")

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            given = {"access_token": "tok", "expires_on": str(int(time.time()) + 3_600), "resource": "r"}
            return Answer(json.dumps(given).encode(), headers={"Content-Type": "application/json"})
        if headers.get("authorization") != "Bearer tok":
            return Answer(status=403)
        return Answer(b"{}" if "/storage/" in path else LISTING % b"")

    with answering(answer) as service:
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        failed = [exceptions.DefaultCredentialsError("the machine does not tell yet")]

        class Found(credentials.AnonymousCredentials):  # type: ignore[misc]  # of no type
            valid = True

        found = Found()
        found.token = "tok"

        def default(**_: object) -> tuple[Any, None]:
            if failed:
                raise failed.pop()
            return found, None

        monkeypatch.setattr("google.auth.default", default)
        for url in URLS:
            at_google = url.startswith("gs:")
            with google_at(service.url, url, tmp_path) if at_google else opened(url, tmp_path) as one:
                with monkeypatch.context() as without:
                    without.setitem(sys.modules, "azure.identity", None)
                    with pytest.raises(ConfigurationError, match="access is denied"):
                        one.scan()
                monkeypatch.setenv("IDENTITY_ENDPOINT", f"{service.url}/token")
                monkeypatch.setenv("IDENTITY_HEADER", "secret")
                assert one.scan() == []


@pytest.mark.parametrize("content", [None, "no JSON", "{}", '{"type": "service_account"}'])
def test_google_with_a_wrong_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with (
        opened("gs://bucket", tmp_path / "cache") as one,
        pytest.raises(ConfigurationError, match=r"key\.json' holds no credentials of Google Cloud") as caught,
    ):
        one.scan()
    assert "gs://bucket" in str(caught.value)


# --- services that are none, or that fail ----------------------------------------------------------------------------

LISTING = b"<?xml version='1.0'?><EnumerationResults><Blobs>%s</Blobs><NextMarker/></EnumerationResults>"
HTML = b"<!DOCTYPE html><html><body>Sign in</body></html>"
URLS = ("gs://bucket", "as://account/container")


@pytest.fixture(params=URLS)
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Answers]]:
    """An address, and a server that answers for its service."""
    with answering(lambda method, path, headers: Answer()) as service:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
        yield request.param, service


def listing(url: str, key: str, size: int, following: str = "") -> bytes:
    if url.startswith("gs"):
        entry = {"name": key, "size": str(size), "generation": "7"}
        return json.dumps({"items": [entry], "nextPageToken": following}).encode()
    blob = f"<Blob><Name>{key}</Name><Properties><Etag>0x7</Etag><Content-Length>{size}</Content-Length></Properties>"
    return (LISTING % f"{blob}</Blob>".encode()).replace(
        b"<NextMarker/>", f"<NextMarker>{following}</NextMarker>".encode()
    )


@pytest.mark.parametrize(
    "body",
    [HTML, b"", b"[]", b'{"items": 7}', b'{"items": [{}]}', LISTING % b"<Blob/>", b"<a/>", b"{", LISTING[:40], b"\0"],
)
def test_what_lists_as_no_service_does_is_refused(fake: tuple[str, Answers], tmp_path: Path, body: bytes) -> None:
    url, service = fake
    service.answer = lambda method, path, headers: Answer(body)
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="lists objects as no ") as caught:
        one.scan()
    assert url in str(caught.value)


def test_entities_of_xml_are_not_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: tuple[str, Answers]
) -> None:
    url, service = fake
    body = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + LISTING % b"<Blob><Name>&b;</Name></Blob>"
    service.answer = lambda method, path, headers: Answer(body)
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="lists objects as no "):
        one.scan()


def test_a_document_type_cannot_hide_in_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY b "x">]>'
    body = (text + LISTING.decode().partition("?>")[2].replace("%s", "")).encode("utf-16")
    with answering(lambda method, path, headers: Answer(body)) as service:
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        with (
            opened("as://account/container", tmp_path) as one,
            pytest.raises(ConfigurationError, match="lists objects as no "),
        ):
            one.scan()


def test_a_byte_order_mark_is_no_part_of_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "as://account/container"
    body = b"\xef\xbb\xbf" + listing(url, "m/1/model.onnx", 1)
    with answering(lambda method, path, headers: Answer(body)) as service:
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        with opened(url, tmp_path) as one:
            assert [folder.name for folder in one.scan()] == ["m"]


@pytest.mark.parametrize("size", [str(2**63), "1e999", "9" * 5_000, "-1"])
def test_sizes_that_no_object_has_are_refused(fake: tuple[str, Answers], tmp_path: Path, size: str) -> None:
    url, service = fake
    body = listing(url, "m/1/model.onnx", 12345).replace(b'"12345"', b"12345").replace(b"12345", size.encode())
    service.answer = lambda method, path, headers: Answer(body)
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="lists objects as no "):
        one.scan()


def test_names_that_no_object_has_are_refused(fake: tuple[str, Answers], tmp_path: Path) -> None:
    """A listing of names of megabytes each would fill memory."""
    url, service = fake
    service.answer = lambda method, path, headers: Answer(listing(url, "m/1/" + "x" * 4_100, 1))
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="lists objects as no "):
        one.scan()


def test_a_listing_that_never_ends_is_given_up(fake: tuple[str, Answers], tmp_path: Path) -> None:
    url, service = fake
    service.answer = lambda method, path, headers: Answer(listing(url, "m/1/model.onnx", 1, "again"))
    with opened(url, tmp_path) as one, pytest.raises(RepositoryError, match="its listing never ends") as caught:
        one.scan()
    assert url in str(caught.value)
    assert len(service.requests) == 2


def test_a_listing_that_is_too_long_is_given_up(
    fake: tuple[str, Answers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, service = fake
    for module in (gs, azure_blobs):
        monkeypatch.setattr(module, "MAX_PAGE", 100)
    service.answer = lambda method, path, headers: Answer(b" " * 200)
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="longer than 100 bytes"):
        one.scan()


@pytest.mark.parametrize("status", [200, 302, 403, 503])
def test_an_answer_of_a_byte_now_and_then_is_given_up(fake: tuple[str, Answers], tmp_path: Path, status: int) -> None:
    """Each byte comes long before anybody stops waiting for it."""
    url, service = fake
    slow = Answer(bytes(16_000), status, {"Location": "/"} if status == 302 else {}, pause_s=0.01)
    service.answer = lambda method, path, headers: slow
    brief = replace(QUICK, whole_s=0.1)
    with opened(url, tmp_path, brief) as one, pytest.raises(RepositoryError, match="it takes longer than"):
        one.scan()


@pytest.mark.parametrize("cut", [None, 3])
def test_a_download_that_is_slower_than_allowed_is_given_up(
    fake: tuple[str, Answers], tmp_path: Path, cut: int | None
) -> None:
    """Also where the server ends each answer before its time is over, so that some bytes of it are always new."""
    url, service = fake
    body = bytes(2_000)

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if "comp=list" in path or path.partition("?")[0].endswith("/o"):
            return Answer(listing(url, "m/1/model.onnx", len(body)))
        at = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        more = {"Content-Range": f"bytes {at}-{len(body) - 1}/{len(body)}"} if at else {}
        return Answer(body[at:], 206 if at else 200, more, cut=cut, pause_s=0.01)

    service.answer = answer
    with opened(url, tmp_path, replace(QUICK, least_rate=10**9, window_s=0.05)) as one:
        [folder] = one.scan()
        with pytest.raises(RepositoryError, match=r"cannot be read now: .*less than the 1000000000 bytes per second"):
            one.fetch(folder, quiet)
    if cut is None:
        assert len([path for _, path, _ in service.requests if "model.onnx" in path]) == 4


def test_an_answer_whose_head_comes_by_the_byte_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = replace(QUICK, head_s=0.2)
    with dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x") as endpoint:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        with opened("gs://bucket", tmp_path, brief) as one, pytest.raises(RepositoryError, match="Read timed out"):
            one.scan()


def test_a_download_goes_on_where_each_answer_is_cut_after_a_few_bytes(
    fake: tuple[str, Answers], tmp_path: Path
) -> None:
    """More often than the same bytes are asked for."""
    url, service = fake
    body = b"0123456789abcdef"

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if "comp=list" in path or path.partition("?")[0].endswith("/o"):
            return Answer(listing(url, "m/1/model.onnx", len(body)))
        at = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        more = {"Content-Range": f"bytes {at}-{len(body) - 1}/{len(body)}"} if at else {}
        return Answer(body[at:], 206 if at else 200, more, cut=3)

    service.answer = answer
    with opened(url, tmp_path) as one:
        assert fetched(one) == {"1/model.onnx": body}


def test_a_download_may_be_as_slow_as_it_is_where_no_rate_is_asked_for(
    fake: tuple[str, Answers], tmp_path: Path
) -> None:
    url, service = fake
    service.answer = lambda method, path, headers: (
        Answer(listing(url, "m/1/model.onnx", 30))
        if "comp=list" in path or path.partition("?")[0].endswith("/o")
        else Answer(bytes(30), pause_s=0.01)
    )
    with opened(url, tmp_path, replace(QUICK, least_rate=0, window_s=0.05)) as one:
        assert fetched(one) == {"1/model.onnx": bytes(30)}


@pytest.mark.parametrize("sent", [b"longer than it was", b"short"])
def test_an_object_of_another_size_is_never_served(fake: tuple[str, Answers], tmp_path: Path, sent: bytes) -> None:
    url, service = fake

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if "comp=list" in path or path.partition("?")[0].endswith("/o"):
            return Answer(listing(url, "m/1/model.onnx", 10))
        return Answer(sent) if "range" not in headers else Answer(status=416)

    service.answer = answer
    with opened(url, tmp_path) as one:
        [folder] = one.scan()
        with pytest.raises(RepositoryError, match="kept changing"):
            one.fetch(folder, quiet)
    assert not [path for path in tmp_path.glob("models/*/files/**/*") if path.is_file()]


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("file:///etc/passwd", "(no host|to file)"),
        ("ftp://example.com/", "to ftp"),
        ("//user:secret@127.0.0.1/", "with a user name"),
        ("/again", "redirects more than 5 times"),
    ],
)
def test_redirects_that_are_not_followed(
    fake: tuple[str, Answers], tmp_path: Path, location: str, problem: str
) -> None:
    url, service = fake
    service.answer = lambda method, path, headers: Answer(status=302, headers={"Location": location})
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match=problem) as caught:
        one.scan()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("https://8.8.8.8/a", "/b", "https://8.8.8.8/b"),
        ("https://8.8.8.8/a", "https://1.1.1.1/b", "https://1.1.1.1/b"),
        ("https://8.8.8.8/a", "http://1.1.1.1/b", ""),
        ("https://8.8.8.8/a", "https://169.254.169.254/", ""),
        ("https://8.8.8.8/a", "https://10.0.0.1/", ""),
        ("https://8.8.8.8/a", "https://localhost/", ""),
        ("https://8.8.8.8/a", "https://[::1]/", ""),
        ("https://8.8.8.8/a", "https://[::ffff:10.0.0.1]/", ""),
        ("https://8.8.8.8/a", "https://[64:ff9b::a00:1]/", ""),
        ("https://8.8.8.8/a", "https://[64:ff9b::808:808]/", "https://[64:ff9b::808:808]/"),
        ("https://8.8.8.8/a", "https://[2002:a00:1::]/", ""),
        ("https://8.8.8.8/a", "https://x:port/", ""),
        ("https://10.0.0.1/a", "https://10.0.0.2/b", "https://10.0.0.2/b"),
        ("http://10.0.0.1/a", "http://10.0.0.1/b", "http://10.0.0.1/b"),
    ],
)
def test_redirects_lead_to_https_and_not_inside(url: str, location: str, target: str) -> None:
    if target:
        assert followed(url, location, by_proxy=False) == target
        return
    with pytest.raises(ValueError):  # noqa: PT011 - each says another thing
        followed(url, location, by_proxy=False)


def test_a_key_is_not_sent_to_another_host(fake: tuple[str, Answers], tmp_path: Path) -> None:
    url, service = fake
    with answering(lambda method, path, headers: Answer(HTML)) as other:
        service.answer = lambda method, path, headers: Answer(status=302, headers={"Location": other.url})
        with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="lists objects as no "):
            one.scan()
        assert "authorization" not in other.requests[0][2]
    if url.startswith("as"):
        assert service.requests[0][2]["authorization"].startswith("SharedKey account:")


def test_a_stop_ends_what_is_being_read(fake: tuple[str, Answers], tmp_path: Path) -> None:
    url, service = fake
    asked, goes_on = threading.Event(), threading.Event()

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        asked.set()
        return Answer(b"x", headers={"Content-Length": "1000"}) if not goes_on.is_set() else Answer()

    service.answer = answer
    failed: list[Exception] = []

    def scan() -> None:
        try:
            one.scan()
        except Exception as error:
            failed.append(error)

    with opened(url, tmp_path) as one:
        thread = threading.Thread(target=scan)
        thread.start()
        assert asked.wait(120)
        one.stop()
        thread.join(120)
        assert not thread.is_alive()
    assert [type(error) for error in failed] == [RepositoryError]
    assert "stopping" in str(failed[0])


@pytest.mark.parametrize("module", ["google.oauth2.service_account", "google.auth"])
def test_without_google_auth_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=r"toutates\[gcs\]"), opened("gs://bucket", tmp_path):
        pass


def test_where_there_are_no_authorities_those_of_botocore_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: Any = ssl.get_default_verify_paths()
    for folder in (None, str(tmp_path)):
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda at=folder: paths._replace(cafile=None, capath=at))
        monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        assert tls_context().cert_store_stats()["x509_ca"] > 50
    (tmp_path / "authority.pem").touch()
    assert tls_context().cert_store_stats()["x509_ca"] == 0
