"""Repositories of web servers and OCI registries: files, folders, archives, artifacts and images."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import logging
import os
import shutil
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tests.ports import free_port
from tests.repositories.announced import running
from tests.repositories.answers import Answer, Answers, answering
from tests.repositories.clouds import opened
from tests.repositories.s3_services import files_in, quiet
from toutates.repositories.artifacts import store
from toutates.repositories.artifacts.layout import artifact_models
from toutates.repositories.artifacts.manifests import chosen_manifest, read_manifest
from toutates.repositories.artifacts.registry_login import RegistryLogin
from toutates.repositories.interface import Repository
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.web.client import Asked, HttpClient, Refused
from toutates.system.errors import ConfigurationError, RepositoryError

MODEL = {"m/1/model.onnx": b"graph", "m/1/model.onnx_data": os.urandom(200_000), "m/config.pbtxt": b'name: "m"\n'}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("NETRC", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class Files:
    """What a web server has, and how it answers.

    Attributes:
        files: by path, with a slash at the beginning.
        headers: of answers, beside those that it has of a file.
        has_etags, has_times: whether it says what a file's content is known by.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.has_etags, self.has_times = True, False
        self.redirects: dict[str, str] = {}

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path in self.redirects:
            return Answer(status=302, headers={"Location": self.redirects[path]})
        if path.endswith("/"):
            below = sorted({key[len(path) :].partition("/")[0] for key in self.files if key.startswith(path)})
            folders = {name for name in below if any(key.startswith(f"{path}{name}/") for key in self.files)}
            links = "".join(f'<a href="{name}{"/" * (name in folders)}">x</a>' for name in below)
            page = f'<a href="../">up</a><a href="?C=N">sort</a><a href="https://example.com/evil/">x</a>{links}'
            return Answer(page.encode(), headers={"Content-Type": "text/html"}) if below else Answer(status=404)
        if path not in self.files:
            return Answer(status=404)
        body = self.files[path]
        more = dict(self.headers)
        if self.has_etags:
            more["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
        if self.has_times:
            more["Last-Modified"] = f"Mon, 01 Jan 2024 00:00:{len(body) % 60:02} GMT"
        at = int(headers["range"].removeprefix("bytes=").removesuffix("-")) if "range" in headers else 0
        if at:
            more["Content-Range"] = f"bytes {at}-{len(body) - 1}/{len(body)}"
        return Answer(body[at:], 206 if at else 200, more)


@pytest.fixture
def served(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Files, Answers]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    files = Files()
    with answering(files, context) as server:
        yield files, server


def fetched(one: Repository, name: str = "m") -> dict[str, bytes]:
    [folder] = one.scan([name])
    folder = one.fetch(folder, quiet)
    assert folder.problem == ""
    return files_in(folder.path)


def inside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix("m/"): body for path, body in files.items()}


def tar(files: Mapping[str, bytes], *more: tarfile.TarInfo, compressed: bool = True) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as opened_tar:
        for one in more:
            opened_tar.addfile(one)
        for path, body in files.items():
            head = tarfile.TarInfo(path)
            head.size = len(body)
            opened_tar.addfile(head, io.BytesIO(body))
    return gzip.compress(out.getvalue(), mtime=0) if compressed else out.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as opened_zip:
        for path, body in files.items():
            opened_zip.writestr(path, body)
    return out.getvalue()


def link(name: str, to: str) -> tarfile.TarInfo:
    head = tarfile.TarInfo(name)
    head.type, head.linkname = tarfile.SYMTYPE, to
    return head


# --- files and folders of web servers --------------------------------------------------------------------------------


def test_a_file_with_its_weights(served: tuple[Files, Answers], tmp_path: Path) -> None:
    files, server = served
    files.files = {"/a b/net.onnx": b"graph", "/a b/net.onnx_data": b"weights", "/a b/other.onnx": b""}
    files.files = {path.replace(" ", "%20"): body for path, body in files.files.items()}
    with opened(f"{server.url}/a%20b/net.onnx", tmp_path) as one:
        assert fetched(one, "net") == {"1/model.onnx": b"graph", "1/net.onnx_data": b"weights"}
        [before] = one.scan()
        files.files["/a%20b/net.onnx"] = b"another"
        [after] = one.scan()
        assert after.fingerprint != before.fingerprint
        assert fetched(one, "net")["1/model.onnx"] == b"another"


def test_a_folder_by_its_pages(served: tuple[Files, Answers], tmp_path: Path) -> None:
    files, server = served
    files.files = {f"/models/{path}": body for path, body in MODEL.items()} | {"/secret/1/model.onnx": b""}
    with opened(f"{server.url}/models", tmp_path) as one:
        assert [folder.name for folder in one.scan()] == ["m"]
        assert fetched(one) == inside(MODEL)
    assert not [path for _, path, _ in server.requests if "secret" in path or "evil" in path]


def test_pages_that_lead_deeper_for_ever_are_given_up(served: tuple[Files, Answers], tmp_path: Path) -> None:
    _, server = served
    server.answer = lambda method, path, headers: Answer(b'<a href="x/">', headers={"Content-Type": "text/html"})
    with opened(f"{server.url}/models", tmp_path) as one, pytest.raises(ConfigurationError, match="in each other"):
        one.scan()


def test_a_file_without_an_etag_is_known_by_its_time_or_size(
    served: tuple[Files, Answers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, server = served
    files.has_etags, files.has_times = False, True
    files.files = {"/net.onnx": b"graph"}
    with caplog.at_level(logging.WARNING), opened(f"{server.url}/net.onnx", tmp_path) as one:
        [before] = one.scan()
        files.files["/net.onnx"] = b"graph2"
        assert one.scan()[0].fingerprint != before.fingerprint
        assert not caplog.records
        files.has_times = False
        [before] = one.scan()
        assert fetched(one, "net") == {"1/model.onnx": b"graph2"}
        files.files["/net.onnx"] = b"other3"
        assert one.scan()[0].fingerprint == before.fingerprint
        assert [record.getMessage() for record in caplog.records] == [
            f"{server.url}/net.onnx: the server sends neither ETag nor Last-Modified, so only a change of a file's "
            "size shows"
        ]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(status=404), "there is no such file"),
        (Answer(status=403), r"access is denied \(403\).*netrc"),
        (Answer(b"<html>", headers={"Content-Type": "text/html; charset=x"}), "is a page and no file, as of a login"),
        (Answer(b"x", headers={"Content-Length": "", "Connection": "close"}), "does not say how large the file is"),
        (Answer(b"x", headers={"Content-Length": "9" * 5_000}), "does not say how large the file is"),
        (Answer(status=302, headers={"Location": "file:///etc/passwd"}), "is not followed"),
        (Answer(status=302, headers={"Location": "http://127.0.0.1/"}), "redirects from https to http"),
    ],
)
def test_what_is_no_file_is_refused(
    served: tuple[Files, Answers], tmp_path: Path, answer: Answer, problem: str
) -> None:
    _, server = served
    server.answer = lambda method, path, headers: answer
    url = f"{server.url}/net.onnx"
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match=problem) as caught:
        one.scan()
    assert url in str(caught.value)


def test_a_password_is_that_of_the_host_alone(served: tuple[Files, Answers], tmp_path: Path, environment: Path) -> None:
    files, server = served
    files.files = {"/net.onnx": b"graph"}
    (environment / ".netrc").write_text("machine 127.0.0.1 login me password tellnobody\n")
    (environment / ".netrc").chmod(0o600)
    with opened(f"{server.url}/net.onnx", tmp_path) as one:
        fetched(one, "net")
    expected = "Basic " + base64.b64encode(b"me:tellnobody").decode()
    assert {headers["authorization"] for _, _, headers in server.requests} == {expected}


def test_a_certificate_that_nobody_knows_is_refused(
    served: tuple[Files, Answers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with (
        opened(f"{served[1].url}/net.onnx", tmp_path) as one,
        pytest.raises(ConfigurationError, match=r"certificate is not trusted.*SSL_CERT_FILE"),
    ):
        one.scan()


# --- archives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["models.tar.gz", "models.tar", "models.zip"])
@pytest.mark.parametrize("above", ["", "all/of/"])
def test_an_archive_is_a_repository(served: tuple[Files, Answers], tmp_path: Path, name: str, above: str) -> None:
    files, server = served
    content = {above + path: body for path, body in {**MODEL, "n/3/model.onnx": b"n"}.items()}
    files.files[f"/{name}"] = zipped(content) if name.endswith("zip") else tar(content, compressed=name.endswith("gz"))
    url = f"{server.url}/{name}"
    with opened(url, tmp_path) as one:
        assert [folder.name for folder in one.scan()] == ["m", "n"]
        assert fetched(one) == inside(MODEL)
        assert fetched(one, "n") == {"3/model.onnx": b"n"}
    server.requests.clear()
    with opened(url, tmp_path) as one:  # after a restart
        assert fetched(one) == inside(MODEL)
    assert {method for method, _, _ in server.requests} == {"HEAD"}
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.name not in ("lock", "authority.pem")]


def test_of_a_new_archive_only_what_changed_is_another_model(served: tuple[Files, Answers], tmp_path: Path) -> None:
    files, server = served
    files.files["/a.tar.gz"] = tar({**MODEL, "n/1/model.onnx": b"n"})
    with opened(f"{server.url}/a.tar.gz", tmp_path) as one:
        before = {folder.name: folder.fingerprint for folder in one.scan()}
        assert fetched(one) == inside(MODEL)
        files.files["/a.tar.gz"] = tar({**MODEL, "n/1/model.onnx": b"newer"})
        after = {folder.name: folder.fingerprint for folder in one.scan()}
        assert after["m"] == before["m"]
        assert after["n"] != before["n"]
        assert fetched(one, "n") == {"1/model.onnx": b"newer"}
        assert one.statistics().objects == len(MODEL) + 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda: tar({"../m/1/model.onnx": b""}), "leaves the archive's directory"),
        (lambda: tar({"/m/1/model.onnx": b""}), "absolute path"),
        (lambda: tar(MODEL, link("m/1/labels", "/etc/passwd")), "is a link or no plain file"),
        (lambda: zipped({"../../x": b""}), "leaves the archive's directory"),
        (lambda: tar({"m/1/model.onnx": bytes(40 * 2**20)}), "more than 16777216 bytes"),
        (lambda: tar(MODEL)[:1_000], "is broken"),
        (lambda: b"<html>", "neither a zip nor a .tar.gz"),
        (lambda: tar({"README.md": b"x"}), "it holds no graph"),
    ],
)
def test_a_hostile_archive_is_refused(
    served: tuple[Files, Answers], tmp_path: Path, content: Callable[[], bytes], problem: str
) -> None:
    files, server = served
    files.files["/a.tar.gz"] = content()
    url = f"{server.url}/a.tar.gz"
    with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match=problem) as caught:
        one.scan()
    assert url in str(caught.value)
    assert "/proc/" not in str(caught.value)


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "models"),
    [
        (["a/1/model.onnx", "b/2/model.onnx"], ["a", "b"]),
        (["x/a/1/model.onnx", "x/b/2/model.onnx"], ["a", "b"]),
        (["1/model.onnx", "config.pbtxt"], ["net"]),
        (["1/model.onnx"], ["net"]),
        (["model.onnx", "model.onnx_data"], ["net"]),
        (["folder/some.onnx"], ["net"]),
        (["modules.json", "tokenizer.json", "onnx/model.onnx"], ["net"]),
        (["7/1/model.onnx"], ["7"]),
    ],
)
def test_layouts(paths: list[str], models: list[str]) -> None:
    found = artifact_models([S3Object(path, path, 1) for path in paths], "oci://r.io/net", "net")
    assert not isinstance(found, str)
    assert list(found[0]) == models
    assert all(model.describe(Path("/x")).versions[0].problem == "" for model in found[0].values())


# --- registries ------------------------------------------------------------------------------------------------------

IMAGE = "application/vnd.oci.image.config.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"


class Registry:
    """A running docker-registry, and what pushes to it."""

    def __init__(self, port: int, password: str = "") -> None:
        self.host = f"127.0.0.1:{port}"
        self._headers = {"Authorization": f"Basic {password}"} if password else {}
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return f"acme/net-{self._names}"

    def push(
        self,
        name: str,
        layers: list[tuple[bytes, str, dict[str, str]]],
        config: str = "application/vnd.oci.empty.v1+json",
        tag: str = "v1",
    ) -> str:
        """Push contents with their kinds and annotations; returns the digest of the manifest."""
        listed = [
            {"mediaType": kind, "digest": self.blob(name, body), "size": len(body), "annotations": notes}
            for body, kind, notes in layers
        ]
        made = {"mediaType": config, "digest": self.blob(name, b"{}"), "size": 2}
        kind = "application/vnd.oci.image.manifest.v1+json"
        return self.manifest(name, tag, {"schemaVersion": 2, "mediaType": kind, "config": made, "layers": listed})

    def blob(self, name: str, body: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        place = self._ask("POST", f"http://{self.host}/v2/{name}/blobs/uploads/", b"").headers["Location"]
        self._ask("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", body)
        return digest

    def manifest(self, name: str, tag: str, manifest: dict[str, Any]) -> str:
        body = json.dumps(manifest).encode()
        self._ask("PUT", f"http://{self.host}/v2/{name}/manifests/{tag}", body, {"Content-Type": manifest["mediaType"]})
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    def _ask(self, method: str, url: str, body: bytes, more: Mapping[str, str] = {}) -> Any:
        kind = {"Content-Type": "application/octet-stream"}
        with urlopen(Request(url, body, {**self._headers, **kind, **more}, method=method), timeout=120) as answer:
            answer.read()
            return answer


def registry(folder: Path, auth: str = "") -> Any:
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("docker-registry is not installed: tests/peers.sh")
    port = free_port()
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {folder}/store}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n{auth}"
    )
    return running([program, "serve", str(folder / "config.yml")], r"listening on 127\.0\.0\.1:(\d+)", folder / "log")


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as port:
        yield Registry(port)


def titled(files: Mapping[str, bytes]) -> list[tuple[bytes, str, dict[str, str]]]:
    """Layers as ORAS pushes files."""
    return [
        (body, "application/octet-stream", {"org.opencontainers.image.title": path}) for path, body in files.items()
    ]


def test_files_that_oras_has_pushed(oci: Registry, tmp_path: Path) -> None:
    name = oci.name()
    oci.push(name, titled(MODEL))
    with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one:
        assert fetched(one) == inside(MODEL)
        [before] = one.scan()
        oci.push(name, titled({**MODEL, "m/1/model.onnx": b"newer"}))
        [after] = one.scan()
        assert after.fingerprint != before.fingerprint
        assert fetched(one)["1/model.onnx"] == b"newer"
        assert one.statistics().objects == len(MODEL) + 1


def test_a_folder_that_oras_has_packed(oci: Registry, tmp_path: Path) -> None:
    name = oci.name()
    notes = {"org.opencontainers.image.title": "all", "io.deis.oras.content.unpack": "true"}
    oci.push(name, [(tar({f"all/{path}": body for path, body in MODEL.items()}), f"{TAR}+gzip", notes)])
    with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one:
        assert fetched(one) == inside(MODEL)


def test_one_graph_is_a_model_by_the_name_of_the_repository(oci: Registry, tmp_path: Path) -> None:
    digest = oci.push("acme/mobilenet", titled({"model.onnx": b"graph"}))
    with opened(f"oci://{oci.host}/acme/mobilenet@{digest}", tmp_path) as one:
        assert fetched(one, "mobilenet") == {"1/model.onnx": b"graph"}
        oci.push("acme/mobilenet", titled({"model.onnx": b"newer"}))
        assert fetched(one, "mobilenet") == {"1/model.onnx": b"graph"}


@pytest.mark.parametrize("compressed", [False, True])
def test_an_image_as_kserves_modelcars_are(oci: Registry, tmp_path: Path, compressed: bool) -> None:
    name, kind = oci.name(), TAR + ("+gzip" if compressed else "")
    system = tar({"etc/passwd": b"root"}, link("bin/sh", "/bin/busybox"), compressed=compressed)
    old = tar({"models/m/1/model.onnx": b"old", "models/gone/1/model.onnx": b"x"}, compressed=compressed)
    new = {f"models/{path}": body for path, body in MODEL.items()}
    last = tar({**new, "models/.wh.gone": b""}, compressed=compressed)
    oci.push(name, [(system, kind, {}), (old, kind, {}), (last, kind, {})], IMAGE)
    with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one:
        assert [folder.name for folder in one.scan()] == ["m"]
        assert fetched(one) == inside(MODEL)
    with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one:
        assert fetched(one) == inside(MODEL)
        assert one.statistics().objects == 0


def test_an_index_of_several_machines(oci: Registry, tmp_path: Path) -> None:
    name = oci.name()
    oci.push(name, titled({"m/1/model.onnx": b"other"}), tag="other")
    digest = oci.push(name, titled(MODEL), tag="mine")
    size = len(digest)
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifests = [{"mediaType": kind, "digest": digest, "size": size, "platform": {"os": "x", "architecture": "y"}}]
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    oci.manifest(name, "all", index)
    with opened(f"oci://{oci.host}/{name}:all", tmp_path) as one:
        assert fetched(one) == inside(MODEL)


def test_what_a_registry_does_not_have(oci: Registry, tmp_path: Path) -> None:
    name = oci.name()
    oci.push(name, titled(MODEL))
    for missing in (f"{name}:v2", "acme/none:v1", f"{name}@sha256:{'0' * 64}"):
        url = f"oci://{oci.host}/{missing}"
        with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="no such repository, tag") as caught:
            one.scan()
        assert url in str(caught.value)


def test_an_image_with_links_or_steps_up_is_refused(oci: Registry, tmp_path: Path) -> None:
    for layer in (tar(MODEL, link("models/m/1/x", "/etc/passwd")), tar({"models/../../m/1/model.onnx": b""})):
        name = oci.name()
        oci.push(name, [(layer, TAR + "+gzip", {})], IMAGE)
        with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one, pytest.raises(ConfigurationError, match="in it"):
            one.scan()


def test_titles_that_cannot_be_files_are_never_used(oci: Registry, tmp_path: Path) -> None:
    name = oci.name()
    oci.push(name, titled({"m/1/model.onnx": b"graph", "m/2/../../../x": b"x", "/m/3/model.onnx": b"x"}))
    with opened(f"oci://{oci.host}/{name}:v1", tmp_path) as one:
        [folder] = one.scan()
        problems = {version.number: version.problem for version in folder.versions}
        assert problems[1] == ""
        assert "cannot be a file" in problems[2]
        assert 3 not in problems


def test_a_login_of_docker(tmp_path: Path, environment: Path) -> None:
    bcrypt = "$2y$05$QT.ngCvSFdiFoaBEUtQ3..mQKLuDmJRGbZxQjWMr0HRYtgmOs6LGq"  # of no password that is used
    (tmp_path / "htpasswd").write_text(f"me:{bcrypt}\n")
    with registry(tmp_path, f"auth: {{htpasswd: {{realm: r, path: {tmp_path}/htpasswd}}}}\n") as port:
        url = f"oci://127.0.0.1:{port}/acme/net:v1"
        with opened(url, tmp_path / "cache") as one, pytest.raises(ConfigurationError, match="docker login") as caught:
            one.scan()
        assert url in str(caught.value)
        given = base64.b64encode(b"me:tellnobody").decode()
        (environment / ".docker").mkdir()
        (environment / ".docker" / "config.json").write_text(
            json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": given}}})
        )
        with opened(url, tmp_path / "cache") as one, pytest.raises(ConfigurationError, match="does not accept"):
            one.scan()


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_token_that_a_registry_gives_for_the_password(
    oci: Registry, tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch, is_apart: bool
) -> None:
    name = oci.name()
    oci.push(name, titled(MODEL))
    tokens: list[str] = []

    def token(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if headers.get("authorization") != "Basic " + base64.b64encode(b"me:tellnobody").decode():
            return Answer(status=401)
        tokens.append(path)
        # One that is over at once, so that each request needs another.
        return Answer(json.dumps({"token": f"t{len(tokens)}", "expires_in": 0}).encode())

    def front(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            return token(method, path, headers)
        if headers.get("authorization") not in {f"Bearer t{number + 1}" for number in range(len(tokens))}:
            tokens_at = realm.url if is_apart else server.url
            asks = f'Bearer realm="{tokens_at}/token",service="r",scope="repository:{name}:pull"'
            return Answer(status=401, headers={"WWW-Authenticate": asks})
        kinds = {"Accept": headers["accept"]} if "accept" in headers else {}
        try:
            with urlopen(Request(f"http://{oci.host}{path}", headers=kinds, method=method), timeout=120) as answer:
                return Answer(answer.read(), headers={"Docker-Content-Digest": answer.headers["Docker-Content-Digest"]})
        except HTTPError as error:
            return Answer(status=error.code)

    with answering(token) as realm, answering(front) as server:
        host = server.url.removeprefix("http://")
        with opened(f"oci://{host}/{name}:v1", tmp_path) as one, pytest.raises(ConfigurationError, match="a token"):
            one.scan()
        (environment / "config.json").write_text(
            json.dumps({"auths": {f"https://{host}": {"username": "me", "password": "tellnobody"}}})
        )
        monkeypatch.setenv("DOCKER_CONFIG", str(environment))
        with opened(f"oci://{host}/{name}:v1", tmp_path) as one:
            assert fetched(one) == inside(MODEL)
        assert len(tokens) > 1
        assert "scope=repository%3A" in tokens[0]
        given = [(path, headers["authorization"]) for _, path, headers in server.requests if "authorization" in headers]
        assert not [path for path, header in given if header.startswith("Basic") and not path.startswith("/token")]


def test_a_server_of_tokens_that_redirects_does_not_hand_the_password_on(tmp_path: Path, environment: Path) -> None:
    def front(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            return Answer(status=307, headers={"Location": f"{elsewhere.url}/token"})
        return Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="{server.url}/token"'})

    with answering(lambda method, path, headers: Answer(status=401)) as elsewhere, answering(front) as server:
        host = server.url.removeprefix("http://")
        (environment / ".docker").mkdir()
        (environment / ".docker" / "config.json").write_text(
            json.dumps({"auths": {host: {"username": "me", "password": "tellnobody"}}})
        )
        with opened(f"oci://{host}/acme/net:v1", tmp_path) as one, pytest.raises(ConfigurationError, match="a token"):
            one.scan()
        assert [path for _, path, headers in server.requests if "authorization" in headers] == ["/token?"]
        assert [(path, "authorization" in headers) for _, path, headers in elsewhere.requests] == [("/token", False)]


def test_a_password_is_not_asked_for_by_where_a_registry_redirects_to(tmp_path: Path, environment: Path) -> None:
    def thief(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        return Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="{elsewhere.url}/token"'})

    def front(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        return Answer(status=307, headers={"Location": f"{elsewhere.url}{path}"})

    with answering(thief) as elsewhere, answering(front) as server:
        host = server.url.removeprefix("http://")
        (environment / ".docker").mkdir()
        (environment / ".docker" / "config.json").write_text(
            json.dumps({"auths": {host: {"username": "me", "password": "tellnobody"}}})
        )
        with opened(f"oci://{host}/acme/net:v1", tmp_path) as one, pytest.raises(ConfigurationError, match="a login"):
            one.scan()
        assert {path for _, path, _ in elsewhere.requests} == {"/v2/acme/net/manifests/v1"}
        assert not any("authorization" in headers for _, _, headers in elsewhere.requests)


def test_a_password_is_not_sent_without_tls_for_a_registry_with_it() -> None:
    asked = Asked("--model-repository", "oci://r.io/net", "an OCI registry", "the network")
    login = RegistryLogin(asked, "r.io", "https://r.io")
    challenge = {"WWW-Authenticate": 'Bearer realm="http://r.io/token"'}
    refused = Refused(401, challenge, ("https", "r.io", 443))
    http = HttpClient(asked, lambda refused: None, threading.Event(), 1)
    with pytest.raises(ConfigurationError, match="to a server without TLS"):
        login.answer(refused, http)


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"token": 7}', b'{"token": "a", "expires_in": 1' + b"0" * 400 + b"}"])
def test_what_is_no_token_is_refused(tmp_path: Path, answer: bytes) -> None:
    def front(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if path.startswith("/token"):
            return Answer(answer)
        return Answer(status=401, headers={"WWW-Authenticate": f'Bearer realm="{server.url}/token"'})

    with answering(front) as server:
        url = f"oci://{server.url.removeprefix('http://')}/acme/net:v1"
        with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="what answers gives none"):
            one.scan()


def image(*layers: bytes) -> Callable[[str, str, Mapping[str, str]], Answer]:
    """A registry with one image."""
    blobs = {f"sha256:{hashlib.sha256(body).hexdigest()}": body for body in layers}
    listed = [{"mediaType": TAR, "digest": digest, "size": len(body)} for digest, body in blobs.items()]
    manifest = json.dumps({"config": {"mediaType": IMAGE}, "layers": listed}).encode()

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        return Answer(manifest if "/manifests/" in path else blobs[path.rpartition("/")[2]])

    return answer


@pytest.mark.parametrize("what", ["packed", "bytes", "files"])
def test_layers_are_bounded_in_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(store, "MAX_FILES", 5)
    size, files = (1, 3) if what == "files" else (20_000, 1)
    content = os.urandom(size) if what == "packed" else bytes(size)
    layers = [
        tar({f"models/m/{layer}/{file}": content for file in range(files)}, compressed=what != "files")
        for layer in range(2)
    ]
    with (
        answering(image(*layers)) as server,
        opened(f"oci://{server.url[7:]}/net:v1", tmp_path, size=30_000) as one,
        pytest.raises(ConfigurationError, match=rf"more than \d+ {'bytes' if what == 'packed' else what}"),
    ):
        one.scan()
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.name != "lock"]


def test_a_layer_empties_folders_of_those_before(tmp_path: Path) -> None:
    before = tar({f"models/{name}/{version}/model.onnx": b"old" for name in "ab" for version in (1, 2)})
    after = tar({"models/a/.wh..wh..opq": b"", "models/a/3/model.onnx": b"new", "models/b/.wh.1": b""})
    with answering(image(before, after)) as server, opened(f"oci://{server.url[7:]}/net:v1", tmp_path) as one:
        found = {folder.name: [version.number for version in folder.versions] for folder in one.scan()}
        assert found == {"a": [3], "b": [2]}
        assert fetched(one, "a") == {"3/model.onnx": b"new"}


@pytest.mark.parametrize("body", [b"<!DOCTYPE html><html>Sign in</html>", b"", b"[]", b"{}", b'{"layers": [{}]}'])
def test_what_is_no_registry_is_refused(tmp_path: Path, body: bytes) -> None:
    with answering(lambda method, path, headers: Answer(body, headers={"Content-Type": "text/html"})) as server:
        url = f"oci://{server.url.removeprefix('http://')}/acme/net:v1"
        with opened(url, tmp_path) as one, pytest.raises(ConfigurationError, match="is no registry") as caught:
            one.scan()
        assert url in str(caught.value)


@pytest.mark.parametrize("is_manifest", [True, False])
def test_a_content_with_another_digest_is_refused(tmp_path: Path, is_manifest: bool) -> None:
    layer = {"mediaType": "x", "digest": f"sha256:{'1' * 64}", "size": 5}
    layer["annotations"] = {"org.opencontainers.image.title": "m/1/model.onnx"}
    manifest = json.dumps({"config": {}, "layers": [layer]}).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if "/manifests/" in path:
            return Answer(manifest + b" " * is_manifest)
        return Answer(b"graph")

    with answering(answer) as server, opened(f"oci://{server.url[7:]}/net@{digest}", tmp_path) as one:
        if is_manifest:
            with pytest.raises(ConfigurationError, match="has another digest"):
                one.scan()
            return
        [folder] = one.scan()
        with pytest.raises(RepositoryError, match=f"does not have the digest sha256:{'1' * 64}"):
            one.fetch(folder, quiet)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"layers": 7},
        {"layers": [], "config": 7},
        {"layers": [{}]},
        {"layers": [{"digest": "sha256:../../x", "size": 1}]},
        {"layers": [{"digest": f"md5:{'0' * 64}", "size": 1}]},
        {"layers": [{"digest": f"sha256:{'0' * 64}", "size": -1}]},
        {"layers": [{"digest": f"sha256:{'0' * 64}", "size": True}]},
        {"layers": [{"digest": f"sha256:{'0' * 64}"}] * 501},
    ],
)
def test_manifests_that_are_none(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says another thing
        read_manifest(json.dumps(given).encode())
    for body in (b"", b"[]", b"[" * 100_000, b'{"manifests": []}', b'{"manifests": [{}]}'):
        with pytest.raises(ValueError):  # noqa: PT011
            chosen_manifest(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(f"sha256:{'0' * 64}"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["layers", "config", "digest", "size", "mediaType", "annotations", "manifests", "platform"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_a_manifest_is_read_or_refused(document: Any) -> None:
    body = json.dumps(document).encode()
    for read in (read_manifest, chosen_manifest):
        with suppress(ValueError):
            read(body)


def test_a_stop_ends_the_download_of_an_archive(served: tuple[Files, Answers], tmp_path: Path) -> None:
    _, server = served
    asked = threading.Event()

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if method == "GET":
            asked.set()
        return Answer(b"" if method == "HEAD" else b"x", headers={"ETag": '"1"', "Content-Length": "1000"})

    server.answer = answer
    failed: list[Exception] = []

    def scan() -> None:
        try:
            one.scan()
        except Exception as error:
            failed.append(error)

    with opened(f"{server.url}/models.tar.gz", tmp_path) as one:
        thread = threading.Thread(target=scan)
        thread.start()
        assert asked.wait(120)
        one.stop()
        thread.join(120)
        assert not thread.is_alive()
    assert "stopping" in str(failed[0])
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.name not in ("lock", "authority.pem")]


def test_an_archive_that_is_larger_than_announced_is_refused(served: tuple[Files, Answers], tmp_path: Path) -> None:
    files, server = served
    files.files["/a.tar.gz"] = tar(MODEL)

    def answer(method: str, path: str, headers: Mapping[str, str]) -> Answer:
        given = files(method, path, headers)
        return Answer(b"", headers={**given.headers, "Content-Length": "1000"}) if method == "HEAD" else given

    server.answer = answer
    with (
        opened(f"{server.url}/a.tar.gz", tmp_path) as one,
        pytest.raises(RepositoryError, match="longer than its 1000 bytes"),
    ):
        one.scan()
