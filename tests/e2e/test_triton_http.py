"""Every method of tritonclient.http and of its aio form, and what their arguments come to at the server."""

from __future__ import annotations

import asyncio
import base64
import copy
import inspect
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.certificates import Files, issue
from tests.e2e.control import EXPLICIT
from tests.e2e.http import peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running

http = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def tensor(name: str, values: Any, datatype: str = "", *, binary: bool = True) -> Any:
    given = http.InferInput(name, list(values.shape), datatype or http.np_to_triton_dtype(values.dtype))
    given.set_data_from_numpy(values, binary_data=binary)
    return given


class Both:
    """Calls a method of the client, and the same of its aio form, whose results have to be equal.

    Attributes:
        called: names of the methods so far.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.called: set[str] = set()

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.called.add(name)
        first = self._outcome(lambda: self._sync(name, *arguments, **named))
        second = self._outcome(lambda: asyncio.run(self._aio(name, *arguments, **named)))
        if name != "get_inference_statistics":
            assert first == second
        if isinstance(first, Exception):
            raise first
        return first

    def _outcome(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except http.InferenceServerException as error:
            return _Refused(error.status(), error.message())

    def _sync(self, name: str, *arguments: Any, **named: Any) -> Any:
        with http.InferenceServerClient(self._address) as client:
            return getattr(client, name)(*arguments, **named)

    async def _aio(self, name: str, *arguments: Any, **named: Any) -> Any:
        async with aio.InferenceServerClient(self._address) as client:
            return await getattr(client, name)(*arguments, **named)


class _Refused(Exception):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Refused) and self.args == other.args

    __hash__ = Exception.__hash__


def test_every_method_answers_or_says_why_not(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "versions", versioned_model(1), 1)
    flags = ["--http-addr", "127.0.0.1:0", *EXPLICIT, "--load-model", "*", "--trace-endpoint", "http://127.0.0.1:1"]
    with running(models, tmp_path, flags) as server:
        both = Both(f"127.0.0.1:{server.rest_port}")
        call = both.call
        assert call("is_server_live") is True
        assert call("is_server_ready", headers={"x-a": "b"}, query_params={"a": "b c", "d": ["e", 1]}) is True
        assert call("is_model_ready", "versions", "1") is True
        assert call("is_model_ready", "versions", "9") is False
        assert call("get_server_metadata")["name"] == "triton"
        assert call("get_model_metadata", "versions", "1")["versions"] == ["1"]
        assert call("get_model_config", "versions")["name"] == "versions"
        assert call("get_model_repository_index")[0]["state"] == "READY"
        assert call("get_inference_statistics", "versions", "1")["model_stats"][0]["version"] == "1"
        assert len(call("get_inference_statistics")["model_stats"]) == 1
        assert call("unload_model", "versions", unload_dependents=True) is None
        assert call("is_model_ready", "versions") is False
        assert call("load_model", "versions") is None
        assert call("load_model", "versions", config='{"max_batch_size": 4}') is None
        assert call("get_model_config", "versions")["max_batch_size"] == 4
        files = {"file:3/model.onnx": versioned_model(7)}
        assert call("load_model", "versions", config="{}", files=files) is None
        assert call("is_model_ready", "versions", "3") is True
        with pytest.raises(_Refused, match="none"):
            call("load_model", "none")
        settings = {"trace_rate": "7", "trace_level": ["TIMESTAMPS"]}
        assert call("update_trace_settings", "versions", settings)["trace_rate"] == "7"
        assert call("get_trace_settings", "versions")["trace_level"] == ["TIMESTAMPS"]
        assert call("update_trace_settings", "versions", {"trace_rate": None})["trace_rate"] != "7"
        assert call("update_log_settings", {"log_verbose_level": 1})["log_verbose_level"] == 1
        assert call("get_log_settings")["log_verbose_level"] == 1
        handle = base64.b64encode(bytes(64))
        assert call("get_system_shared_memory_status") == []
        assert call("get_cuda_shared_memory_status") == []
        assert call("unregister_cuda_shared_memory", "region") is None
        for name, arguments, text in (
            ("register_system_shared_memory", ("region", "/key", 64, 8), "Client shared memory is disabled"),
            ("unregister_system_shared_memory", (), "Client shared memory is disabled"),
            ("register_cuda_shared_memory", ("region", handle, 0, 64), "GPUs not supported"),
        ):
            with pytest.raises(_Refused, match=text):
                call(name, *arguments)
        assert server.stop() == 0
        assert "Traceback" not in server.log
    local = {"close", "plugin", "register_plugin", "unregister_plugin", "generate_request_body", "parse_response_body"}
    public = {name for name, _ in inspect.getmembers(http.InferenceServerClient) if not name.startswith("_")}
    assert public - local - {"infer", "async_infer"} == both.called


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with http.InferenceServerClient(f"127.0.0.1:{server.rest_port}", concurrency=8) as client:
        yield client


def test_many_requests_in_flight_of_one_client(client: Any) -> None:
    asked = [client.async_infer("dynamic", [tensor("INPUT", ROWS + at)], request_id=str(at)) for at in range(64)]
    for at, one in enumerate(asked):
        result = one.get_result()
        assert result.get_response()["id"] == str(at)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -(ROWS + at))
    with pytest.raises(http.InferenceServerException, match="unknown model: 'none'"):
        client.async_infer("none", [tensor("INPUT", ROWS)]).get_result()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_numbers_of_16_bits(client: Any, datatype: str) -> None:
    dtype = np.float16 if datatype == "FP16" else pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([[0.5, -2, 1, 0]], dtype)
    result = client.infer(f"identity_{datatype}", [tensor("INPUT", values, datatype)])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), values)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("elements", [["a", "ü", ""], [b"line\nbreak", b'"\\', b"\x01"]])
def test_strings(client: Any, binary: bool, elements: list[Any]) -> None:
    values = np.array([[*elements, b"end"]], np.object_)
    outputs = [http.InferRequestedOutput("OUTPUT", binary_data=binary)]
    for _ in range(2):
        result = client.infer("identity_BYTES", [tensor("INPUT", values, "BYTES", binary=binary)], outputs=outputs)
        got = [one if isinstance(one, bytes) else one.encode() for one in result.as_numpy("OUTPUT").ravel().tolist()]
        assert got == [one if isinstance(one, bytes) else one.encode() for one in [*elements, b"end"]]


def test_arguments_of_an_inference_that_change_nothing_are_taken(client: Any) -> None:
    for more in (
        {"priority": 1},
        {"timeout": 1_000_000},
        {"sequence_id": 7, "sequence_start": True},
        {"sequence_id": "seven", "sequence_end": True},
        {"parameters": {"mine": 1, "other": "x", "third": True, "fourth": 1.5}},
        {"query_params": {"a": "b"}, "headers": {"X-A": "b", "Authorization": "Bearer x"}},
        {"request_compression_algorithm": "gzip"},
        {"request_compression_algorithm": "deflate", "response_compression_algorithm": "gzip"},
        {"response_compression_algorithm": "deflate"},
    ):
        for binary in (True, False):
            given = copy.deepcopy(more)  # the client adds its own headers to the caller's
            result = client.infer("dynamic", [tensor("INPUT", ROWS, binary=binary)], **given)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -ROWS)


def test_mistakes_raise_the_servers_sentence(client: Any) -> None:
    wrong = http.InferInput("INPUT", [2, 4], "FP32").set_shared_memory("region", 32)
    output = http.InferRequestedOutput("OUTPUT")
    output.set_shared_memory("region", 32)
    for inputs, outputs, status, text in (
        ([wrong], None, "404", "Unable to find shared memory region: 'region'"),
        ([tensor("INPUT", ROWS)], [output], "404", "Unable to find shared memory region: 'region'"),
        ([tensor("INPUT", ROWS.astype(np.int32))], None, "400", "data-type"),
        ([tensor("OTHER", ROWS)], None, "400", "OTHER"),
        ([], None, "400", "expected 1 inputs but got 0"),
    ):
        with pytest.raises(http.InferenceServerException, match=text) as raised:
            client.infer("dynamic", inputs, outputs=outputs)
        assert raised.value.status() == status


def test_bodies_made_and_read_apart_from_the_client(client: Any, server: ServerProcess) -> None:
    """What a client of its own sends with the bytes that ``generate_request_body`` makes."""
    body, size = http.InferenceServerClient.generate_request_body([tensor("INPUT", ROWS)])
    with peer_of(server.port) as peer:
        answer = peer.ask(post("/v2/models/dynamic/infer", body, f"Inference-Header-Content-Length: {size}"))
    length = int(answer.fields["inference-header-content-length"])
    result = http.InferenceServerClient.parse_response_body(answer.body, header_length=length)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -ROWS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return issue(tmp_path_factory.mktemp("certificates"))


def test_both_forms_over_tls(repository: Path, files: Files, tmp_path: Path) -> None:
    flags = ["--http-addr", "127.0.0.1:0", "--load-models", "dynamic"]
    flags += ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    context = ssl.create_default_context(cafile=str(files.ca))
    with running(repository, tmp_path, flags) as server:
        for port in (server.rest_port, server.port):
            with http.InferenceServerClient(
                f"localhost:{port}", ssl=True, ssl_options={"ca_certs": str(files.ca)}
            ) as client:
                result = client.infer("dynamic", [tensor("INPUT", ROWS)])
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), -ROWS)

            async def ask(port: int = port) -> Any:
                async with aio.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_context=context) as client:
                    return await client.infer("dynamic", [tensor("INPUT", ROWS)])

            np.testing.assert_array_equal(asyncio.run(ask()).as_numpy("OUTPUT"), -ROWS)
