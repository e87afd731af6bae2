"""Models of clouds, registries and web servers, served by one command and asked by Triton's client."""

from __future__ import annotations

import ssl
from pathlib import Path

import numpy as np
import pytest
import trustme

from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import triton
from tests.optional import skip_without
from tests.repositories.answers import answering
from tests.repositories.clouds import ACCOUNT, KEY, azurite, google_emulator
from tests.repositories.test_artifacts import IMAGE, TAR, Files, Registry, registry, tar, titled
from tests.triton_repository import adder
from tests.waiting import wait_until

skip_without("tritonclient")

NOWHERE = ("--grpc-addr", "127.0.0.1:0", "--http-addr", "off", "--metrics-addr", "off")


def ask(server: ServerProcess, model: str, value: int) -> int:
    with triton.InferenceServerClient(server.address) as client:
        tensor = triton.InferInput("INPUT", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.full((1, 4), value, np.int32))
        answer: int = client.infer(model, [tensor]).as_numpy("OUTPUT")[0, 0]
        return answer


def graph(added: int) -> bytes:
    content: bytes = adder(added).SerializeToString()
    return content


def flags(tmp_path: Path) -> list[str]:
    return ["--model-cache-dir", str(tmp_path / "cache"), "--http-addr", "127.0.0.1:0"]


def test_a_new_artifact_of_a_tag_is_loaded(tmp_path: Path) -> None:
    with registry(tmp_path) as port:
        to = Registry(port)
        to.push("acme/add", titled({"model.onnx": graph(4)}))
        words = ("toutates", "serve", f"oci://{to.host}/acme/add:v1")
        polling = ["--model-control-mode", "poll", "--repository-poll-secs", "0.2"]
        with running(None, tmp_path, [*flags(tmp_path), *polling], module=words) as server:
            assert ask(server, "add", 1) == 5
            to.push("acme/add", [(tar({"models/1/model.onnx": graph(7)}), f"{TAR}+gzip", {})], IMAGE)
            wait_until(lambda: ask(server, "add", 1) == 8)
            assert server.stop() == 0


def test_a_model_in_a_bucket_of_google_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with google_emulator(tmp_path) as service:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
        bucket = service.bucket({"nets/add.onnx": graph(4)})
        with running(
            None, tmp_path, flags(tmp_path), module=("toutates", "serve", f"gs://{bucket}/nets/add.onnx")
        ) as one:
            assert ask(one, "add", 1) == 5
            assert one.stop() == 0


def test_a_repository_on_azure_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with azurite(tmp_path) as service:
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", service.url)
        monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
        container = service.container({"models/add/1/model.onnx": graph(4)})
        words = ("toutates", "serve", f"as://{ACCOUNT}/{container}/models")
        with running(None, tmp_path, flags(tmp_path), module=words) as server:
            assert ask(server, "add", 1) == 5
            assert server.stop() == 0


def test_an_archive_of_a_web_server_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    files = Files()
    files.files["/models.tar.gz"] = tar({"add/1/model.onnx": graph(4)})
    with answering(files, context) as web:
        words = ("toutates", "serve", f"{web.url}/models.tar.gz")
        with running(None, tmp_path, flags(tmp_path), module=words) as server:
            assert ask(server, "add", 1) == 5
            assert server.stop() == 0
        missing = run("serve", f"{web.url}/none.onnx", *NOWHERE)
        assert missing.returncode == 2
        assert "there is no such file (404)" in missing.stderr
