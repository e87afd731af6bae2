"""Memory that a run has not written does not leave a server of the tests: on no path, and not unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.e2e.poisoned import PATTERNS, VARIABLE, follows
from tests.e2e.process import running
from tests.e2e.regions import own_key
from tests.e2e.streams import answers_of, triton_stream
from tests.graphs import model as graph
from tests.graphs import tensor
from tests.kinds import MadeKind
from tests.server.inside import Inside, serve
from toutates.engine.batched import BatchedServable
from toutates.engine.lane import Batch, PackedLane
from toutates.engine.result import Outputs
from toutates.engine.servable import Servable
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

grpc_client = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
http_client = pytest.importorskip("tritonclient.http", reason="has no wheel for free-threaded Python")
shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")
utils = pytest.importorskip("tritonclient.utils")

CARELESS = "careless.txt"
SIGNATURE = Signature(
    (TensorSpec("x", BY_NAME["FP32"], (4,)),),
    (
        TensorSpec("y", BY_NAME["FP32"], (4,)),
        TensorSpec("mean", BY_NAME["FP32"], (1,)),
        TensorSpec("is_positive", BY_NAME["BOOL"], (1,)),
        TensorSpec("level", BY_NAME["UINT8"], (1,)),
    ),
    batched=True,
)
ROWS = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
#: Models by what they leave unwritten, with the output that is found.
FOUND = {"row": "y", "part": "y", "short": "mean"}


class Careless:
    """A backend that writes its outputs to the batch's buffers, but for what its model's name says."""

    on_cpu = True
    one_thread = True

    def __init__(self, leaves: str) -> None:
        self.started_ns = self.ended_ns = 0
        self._leaves = leaves

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        self.started_ns = time.monotonic_ns()
        lane = batch.lane
        assert isinstance(lane, PackedLane)
        x: Any = lane.inputs(batch, first, rows)[0]
        y, mean, is_positive, level = lane.outputs(batch, first, rows)
        if self._leaves == "row":
            y[:-1] = x[:-1]
        elif self._leaves == "part":
            y[:, :2] = x[:, :2]
        else:
            y[:] = x
        if self._leaves == "short":
            mean[:-1] = x[:-1].mean(1, keepdims=True)
        else:
            mean[:] = x.mean(1, keepdims=True)
        if self._leaves != "flag":
            is_positive[:] = mean > 0
            level[:] = 7
        self.ended_ns = time.monotonic_ns()
        return lane.take_outputs(batch, first, rows)

    def close(self) -> None:
        pass


def careless_servable(model: str, number: int, folder: Path) -> Servable:
    supertensor = SuperTensor(model, SIGNATURE, batch_size=8, capacity=4)
    return BatchedServable(number, supertensor, [Careless((folder / CARELESS).read_text())])


#: Versions with a file that says what is left unwritten.
KIND = MadeKind(CARELESS, careless_servable, "careless")


@pytest.fixture
def careless(tmp_path: Path) -> Path:
    """A repository of careless models, for servers in this process."""
    for name in (*FOUND, "flag", "nothing"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / CARELESS).write_text(name)
    return tmp_path


def inputs_of(client: Any, *, binary: bool = True) -> list[Any]:
    given = client.InferInput("x", list(ROWS.shape), "FP32")
    given.set_data_from_numpy(ROWS, **({} if client is grpc_client else {"binary_data": binary}))
    return [given]


@contextmanager
def clients(inside: Inside) -> Iterator[tuple[Any, Any]]:
    with (
        grpc_client.InferenceServerClient(f"127.0.0.1:{inside.port}") as over_grpc,
        http_client.InferenceServerClient(f"127.0.0.1:{inside.port}") as over_rest,
    ):
        yield over_grpc, over_rest


def unary(inside: Inside, model: str, output: str = "y") -> Any:
    with clients(inside) as (client, _):
        return client.infer(model, inputs_of(grpc_client)).as_numpy(output)


def stream(inside: Inside, model: str, output: str = "y") -> Any:
    with triton_stream(f"127.0.0.1:{inside.port}") as (client, answers):
        client.async_stream_infer(model, inputs_of(grpc_client))
        [(answer, error)] = answers_of(answers, 1)
        if error is not None:
            raise error
        return answer.as_numpy(output)


def rest(inside: Inside, model: str, output: str, *, binary: bool) -> Any:
    wanted = [http_client.InferRequestedOutput(output.name, binary_data=binary) for output in SIGNATURE.outputs]
    with clients(inside) as (_, client):
        return client.infer(model, inputs_of(http_client, binary=binary), outputs=wanted).as_numpy(output)


def json_rest(inside: Inside, model: str, output: str = "y") -> Any:
    return rest(inside, model, output, binary=False)


def binary_rest(inside: Inside, model: str, output: str = "y") -> Any:
    return rest(inside, model, output, binary=True)


def shared(inside: Inside, model: str, output: str = "y") -> Any:
    """Through regions of shared memory, which are as they were after a request that has failed."""
    sizes = {"y": ROWS.nbytes, "mean": 8, "is_positive": 2, "level": 2}
    handle = shared_memory.create_shared_memory_region("poison", own_key("poison"), sum(sizes.values()))
    try:
        with clients(inside) as (client, _):
            client.register_system_shared_memory("poison", own_key("poison"), sum(sizes.values()))
            wanted, at, places = [], 0, {}
            for name, size in sizes.items():
                places[name] = slice(at, at + size)
                wanted.append(grpc_client.InferRequestedOutput(name))
                wanted[-1].set_shared_memory("poison", size, at)
                at += size
            try:
                client.infer(model, inputs_of(grpc_client), outputs=wanted)
            except utils.InferenceServerException:
                nothing = shared_memory.get_contents_as_numpy(handle, np.uint8, [sum(sizes.values())])
                assert not nothing.any()
                raise
            finally:
                client.unregister_system_shared_memory()
            whole = np.array(shared_memory.get_contents_as_numpy(handle, np.uint8, [sum(sizes.values())]))
            found = whole[places[output]]
            return found.view(np.float32).reshape(ROWS.shape) if output == "y" else found
    finally:
        shared_memory.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("ask", [unary, stream, json_rest, binary_rest, shared])
def test_what_a_run_has_not_written_is_an_error_on_every_path(
    careless: Path, ask: Callable[[Inside, str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def visit(inside: Inside) -> None:
        np.testing.assert_array_equal(ask(inside, "nothing"), ROWS)
        for model, output in FOUND.items():
            with pytest.raises(utils.InferenceServerException) as raised:
                ask(inside, model)
            assert f"output '{output}' of model '{model}' has memory that nobody wrote" in str(raised.value)
            status = raised.value.status()
            assert status in ("StatusCode.INTERNAL", "500", None)  # a stream's error of this client has none

    assert serve(careless, visit, kinds=[KIND], finds=True, allow_client_shm=True) == 0
    assert caplog.text.count("memory that nobody wrote") >= len(FOUND)


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "%s" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "nothing" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
] }
"""


@pytest.mark.parametrize("member", ["row", "nothing"])
def test_a_tensor_between_the_steps_of_an_ensemble_is_searched(careless: Path, member: str) -> None:
    (careless / "both" / "1").mkdir(parents=True)
    (careless / "both" / "config.pbtxt").write_text(ENSEMBLE % member)

    def visit(inside: Inside) -> None:
        if member == "nothing":
            np.testing.assert_array_equal(unary(inside, "both"), ROWS)
            return
        with pytest.raises(utils.InferenceServerException) as raised:
            unary(inside, "both")
        assert "output 'y' of model 'row' has memory that nobody wrote" in str(raised.value)

    assert serve(careless, visit, kinds=[KIND], finds=member != "nothing") == 0


#: In JSON any BOOL but 0 is ``true``, whatever its byte is.
SHORT = [
    (ask, output)
    for ask in (unary, stream, json_rest, binary_rest, shared)
    for output in ("is_positive", "level")
    if (ask, output) != (json_rest, "is_positive")
]


def test_outputs_below_four_bytes_are_compared_between_two_servers(
    careless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[tuple[str, int], list[bytes]] = {}

    def visit(inside: Inside) -> None:
        for model in ("flag", "nothing"):
            for at, (ask, output) in enumerate(SHORT):
                answers.setdefault((model, at), []).append(ask(inside, model, output).tobytes())

    for pattern in PATTERNS:
        monkeypatch.setenv(VARIABLE, pattern)
        assert serve(careless, visit, kinds=[KIND], allow_client_shm=True) == 0
    for (model, at), (first, second) in answers.items():
        assert len(first) == len(second) == len(ROWS)
        assert follows((first, second)) is (model == "flag"), SHORT[at]


NEG_AND_INPUT = graph(
    [helper.make_node("Neg", ["x"], ["y"])],
    [tensor("x", ["n", 4])],
    [tensor("y", ["n", 4]), tensor("x", ["n", 4])],
)


def test_an_output_that_is_an_input_of_the_graph_has_the_values_of_this_request(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "negating" / "1").mkdir(parents=True)
    (repository / "negating" / "1" / "model.onnx").write_bytes(NEG_AND_INPUT)
    with running(repository, tmp_path) as server, grpc_client.InferenceServerClient(server.address) as client:
        for factor in range(1, 4):
            given = grpc_client.InferInput("x", [2, 4], "FP32")
            given.set_data_from_numpy(ROWS * factor)
            answer = client.infer("negating", [given])
            np.testing.assert_array_equal(answer.as_numpy("x"), ROWS * factor)
            np.testing.assert_array_equal(answer.as_numpy("y"), -ROWS * factor)
