"""Metadata of calls that Python models see as parameters, and its blanks; by grpcio, bare and within tritonclient."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
http = pytest.importorskip("tritonclient.http")

TELLING: Final = """
def execute(self, requests):
    texts = [np.array([[r.parameters().encode()]], np.object_) for r in requests]
    return [answer(r, text) for r, text in zip(requests, texts)]
"""
TENSORS: Final = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
PATTERN: Final = "^(x-|priority|grpc-|te$|user-agent)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model(root, "telling", TELLING, more=TENSORS, tensors=False)
    flags = ["--processing-cores", "1", "--grpc-header-forward-pattern", PATTERN]
    flags += ["--http-header-forward-pattern", "^x-"]
    with running(root, tmp_path_factory.mktemp("log"), flags=flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as own:
        yield own


def tensors(columns: int = 4, kind: Any = triton) -> list[Any]:
    tensor = kind.InferInput("x", [1, columns], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, columns), np.float32))
    return [tensor]


def seen(result: Any) -> dict[str, Any]:
    [[text]] = result.as_numpy("y")
    told: dict[str, Any] = json.loads(text)
    assert told.pop("user-agent", "grpc-python").startswith("grpc-python")
    return told


def ask(client: Any, headers: dict[str, str], *, columns: int = 4, **more: Any) -> dict[str, Any]:
    return seen(client.infer("telling", tensors(columns), headers=headers, client_timeout=120, **more))


def test_a_model_sees_the_metadata_whose_names_match(client: Any) -> None:
    assert ask(client, {}) == {}
    for tenant in ("a", "b", "b"):
        given = {"x-tenant": tenant, "y-other": "1"}
        assert ask(client, given) == {"x-tenant": tenant}
        assert ask(client, given, request_id="r", parameters={"size": 3}) == {"x-tenant": tenant, "size": 3}
        assert ask(client, given, columns=300_000) == {"x-tenant": tenant}
    assert ask(client, {}) == {}


def test_a_field_goes_before_a_parameter_of_its_name(client: Any) -> None:
    assert ask(client, {"x-user": "checked"}, parameters={"x-user": "claimed"}) == {"x-user": "checked"}


def test_a_name_that_means_something_to_the_server_is_refused(client: Any) -> None:
    for _ in range(2):
        with pytest.raises(triton.InferenceServerException, match="Header 'priority' is reserved") as caught:
            ask(client, {"priority": "1"})
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert ask(client, {"x-a": "1"}) == {"x-a": "1"}


def test_callers_side_by_side_get_their_own(server: ServerProcess) -> None:
    def one(number: int) -> None:
        with triton.InferenceServerClient(server.address, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as own:
            for _ in range(5):
                assert ask(own, {"x-number": str(number)}) == {"x-number": str(number)}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))


def test_requests_of_a_stream_have_the_metadata_of_the_stream(client: Any) -> None:
    answers: Queue[Any] = Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers={"x-stream": " s "})
    for number in range(200):
        client.async_stream_infer("telling", tensors(), parameters={"number": number})
    for number in range(200):
        result, error = answers.get(timeout=120)
        assert error is None
        assert seen(result) == {"x-stream": "s", "number": number}
    client.stop_stream()


@pytest.mark.parametrize("value", [" a", "a ", "  a b  ", " ", ""])
def test_blanks_around_metadata_mean_nothing(client: Any, value: str) -> None:
    assert client.is_server_live(headers={"other": value})
    for _ in range(2):
        assert ask(client, {"x-a": value, "x-b": "b"}) == {"x-a": value.strip(), "x-b": "b"}


def test_rest_forwards_its_own(server: ServerProcess) -> None:
    with http.InferenceServerClient(server.address) as client:
        result = client.infer("telling", tensors(kind=http), headers={"X-Tenant": "a", "user-agent": "me"})
    assert seen(result) == {"X-Tenant": "a"}


def test_a_request_that_waits_for_its_model_keeps_them(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "telling", TELLING, more=TENSORS, tensors=False)
    flags = ["--processing-cores", "1", "--model-control-mode", "on-demand", "--grpc-header-forward-pattern", "^x-"]
    with running(tmp_path / "models", tmp_path, flags) as own, triton.InferenceServerClient(own.address) as client:
        for tenant in "ab":
            assert ask(client, {"x-tenant": tenant}) == {"x-tenant": tenant}
