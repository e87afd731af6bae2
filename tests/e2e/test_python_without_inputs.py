"""Requests without inputs: of models that have none, or whose inputs are all optional."""

from __future__ import annotations

import json
import queue
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.e2e import python_models
from tests.e2e.process import ServerProcess, running

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")

ONES = """
def execute(self, requests):
    assert not any(request.inputs() for request in requests)
    return [answer(request, np.ones(%s, np.float32)) for request in requests]
"""
SENDING = """
def execute(self, requests):
    for request in requests:
        request.get_response_sender().send(answer(request, np.ones((1, 4), np.float32)), flags=1)
"""
CALLING = """
def execute(self, requests):
    responses = []
    for request in requests:
        call = pb_utils.InferenceRequest(model_name="none", requested_output_names=["y"], inputs=[])
        responses.append(answer(request, pb_utils.get_output_tensor_by_name(call.exec(), "y").as_numpy()))
    return responses
"""
_DECLARED = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
_OPTIONAL = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ]\n'
_BATCHING = {
    "": "",
    "dynamic_": "dynamic_batching {}\n",
    "policies_": "dynamic_batching { max_queue_delay_microseconds: 100 preferred_batch_size: [ 4 ] }\n",
}
NAMES = [f"{prefix}{name}" for prefix in _BATCHING for name in ("none", "optional")]
NAMES += ["unbatched", "calling", "decoupled"]


@pytest.fixture(scope="module", params=["process", "thread"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model = partial(python_models.add_model, tensors=False, isolation=request.param)
    for prefix, batching in _BATCHING.items():
        add_model(root, f"{prefix}none", ONES % "(1, 4)", more=_DECLARED + batching)
        add_model(root, f"{prefix}optional", ONES % "(1, 4)", more=_DECLARED + _OPTIONAL + batching)
    add_model(root, "unbatched", ONES % "4", rows=0, more=_DECLARED)
    add_model(root, "calling", CALLING, more=_DECLARED)
    add_model(root, "decoupled", SENDING, more=_DECLARED + _OPTIONAL + "model_transaction_policy { decoupled: true }\n")
    with running(root, tmp_path_factory.mktemp("log"), flags=["--http-addr", "127.0.0.1:0"]) as process:
        yield process
        assert "Traceback" not in process.log


@pytest.mark.parametrize("name", NAMES[:-1])
def test_one_row_over_grpc_and_rest(server: ServerProcess, name: str) -> None:
    shape = [4] if name == "unbatched" else [1, 4]
    with triton.InferenceServerClient(server.address) as client:
        for _ in range(3):
            assert list(client.infer(name, []).as_numpy("y").shape) == shape
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/{name}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, b'{"inputs": []}')) as answer:
        [output] = json.load(answer)["outputs"]
    assert (output["shape"], output["data"]) == (shape, [1.0] * 4)


def test_on_a_stream_beside_other_calls(server: ServerProcess) -> None:
    with triton.InferenceServerClient(server.address) as client:
        got: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: got.put(error or result))
        for name in NAMES:
            client.async_stream_infer(name, [], request_id=name)
        found = {}
        for _ in NAMES:
            result = got.get(timeout=120)
            found[result.get_response().id] = result.as_numpy("y")
        client.stop_stream()
    assert found.keys() == set(NAMES)
    assert all(np.array_equal(values.ravel(), np.ones(4)) for values in found.values())
