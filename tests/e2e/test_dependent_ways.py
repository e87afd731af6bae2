"""Graphs whose rows depend on each other, asked by many clients at once: ragged rows, memory, streams, models."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.e2e import python_models
from tests.e2e.dependent_models import add, graph, node, running_sum
from tests.e2e.process import ServerProcess, running
from tests.e2e.regions import own_key
from tests.e2e.support import channel_to, statistics_of, triton

http = pytest.importorskip("tritonclient.http")
shm = pytest.importorskip("tritonclient.utils.shared_memory")

CLIENTS: Final = 12
REQUESTS: Final = 25
#: Requests wait for company, so that those that may share a run do.
SUM: Final = "backend: supertensor\nbatch_size: 64\nnum_executors: 1\nmax_queue_delay_us: 5000\n"
RAGGED: Final = """\
platform: "onnxruntime_onnx"
max_batch_size: 16
input { name: "values" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  target_name: "offsets" data_type: TYPE_INT32 source_input: "values"
}
batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "values" }
%s
"""
DELAY: Final = "dynamic_batching { max_queue_delay_microseconds: 5000 }"
#: Calls the running sum for all of its requests at once.
CALLER: Final = """
async def execute(self, requests):
    import asyncio
    calls = [
        pb_utils.InferenceRequest(
            model_name="sum", requested_output_names=["y"], inputs=[pb_utils.Tensor("x", input_of(request))]
        ).async_exec()
        for request in requests
    ]
    responses = await asyncio.gather(*calls)
    return [
        answer(request, pb_utils.get_output_tensor_by_name(response, "y").as_numpy())
        for request, response in zip(requests, responses)
    ]
"""


def _ragged(*, mixes: bool) -> onnx.ModelProto:
    """What is ragged, less the greatest number of the run, or less one."""
    less = [node("ReduceMax", "values", "m", keepdims=0)] if mixes else [node("Identity", "one", "m")]
    nodes = [*less, node("Sub", "values m", "y")]
    inputs: Any = [("values", 7, ["all"]), ("offsets", 6, ["edges"])]
    return graph(nodes, inputs, [("y", 7, ["all"])], one=np.int64(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("repository")
    add(root, "sum", running_sum(), SUM)
    add(root, "ragged", _ragged(mixes=True), pbtxt=RAGGED % "")
    add(root, "ragged_apart", _ragged(mixes=False), pbtxt=RAGGED % DELAY)
    for isolation in ("process", "thread"):
        more = f"{DELAY} instance_group {{ count: 2 kind: KIND_CPU }}"
        python_models.add_model(root, f"calls_{isolation}", CALLER, dims="[ 2 ]", more=more, isolation=isolation)
    flags = ["--http-addr", "127.0.0.1:0", "--allow-client-shm"]
    with running(root, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def _together(ask: Callable[[int], None]) -> None:
    """Have every client ask at once; the first error of one is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            ask(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _rows(random: np.random.Generator) -> npt.NDArray[Any]:
    return random.integers(0, 100, (int(random.integers(1, 4)), 2)).astype(np.float32)


def _given(module: Any, name: str, array: npt.NDArray[Any], datatype: str = "FP32") -> Any:
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def _most_rows(server: ServerProcess, name: str) -> int:
    with channel_to(server.address) as channel:
        return max(int(batch.batch_size) for batch in statistics_of(channel, name).batch_stats)


@pytest.mark.parametrize("name", ["ragged", "ragged_apart"])
def test_ragged_rows(server: ServerProcess, name: str) -> None:
    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        module = triton if number % 2 else http
        with module.InferenceServerClient(server.address if number % 2 else f"127.0.0.1:{server.rest_port}") as client:
            for _ in range(REQUESTS):
                values = random.integers(0, 1_000, (1, int(random.integers(1, 9))))
                found = client.infer(name, [_given(module, "values", values, "INT64")]).as_numpy("y")
                np.testing.assert_array_equal(found, values - (values.max() if name == "ragged" else 1))

    _together(ask)
    assert (_most_rows(server, name) > 1) == (name == "ragged_apart")
    assert (f"model '{name}' version 1: rows depend on each other" in server.log) == (name == "ragged")


@pytest.mark.parametrize("is_grpc", [True, False], ids=["grpc", "http"])
def test_inputs_and_outputs_in_shared_memory(server: ServerProcess, is_grpc: bool) -> None:
    module: Any = triton if is_grpc else http
    room = 3 * 2 * 4

    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        name = f"dependent_{'grpc' if is_grpc else 'http'}_{number}"
        region = shm.create_shared_memory_region(name, own_key(name), 2 * room)
        try:
            address = server.address if is_grpc else f"127.0.0.1:{server.rest_port}"
            with module.InferenceServerClient(address) as client:
                client.register_system_shared_memory(name, own_key(name), 2 * room)
                for _ in range(REQUESTS):
                    rows = _rows(random)
                    shm.set_shared_memory_region(region, [rows])
                    given = module.InferInput("x", list(rows.shape), "FP32")
                    given.set_shared_memory(name, rows.nbytes)
                    wanted = module.InferRequestedOutput("y")
                    wanted.set_shared_memory(name, rows.nbytes, room)
                    client.infer("sum", [given], outputs=[wanted])
                    found = shm.get_contents_as_numpy(region, np.float32, list(rows.shape), offset=room)
                    np.testing.assert_array_equal(found, rows.cumsum(axis=0))
                client.unregister_system_shared_memory(name)
        finally:
            shm.destroy_shared_memory_region(region)

    _together(ask)
    assert _most_rows(server, "sum") <= 3


def test_streams(server: ServerProcess) -> None:
    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        answers: queue.Queue[Any] = queue.Queue()
        sent = [_rows(random) for _ in range(REQUESTS)]
        with triton.InferenceServerClient(server.address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for at, rows in enumerate(sent):
                client.async_stream_infer("sum", [_given(triton, "x", rows)], request_id=str(at))
            for _ in sent:
                result, error = answers.get(timeout=120)
                assert error is None, error
                rows = sent[int(result.get_response().id)]
                np.testing.assert_array_equal(result.as_numpy("y"), rows.cumsum(axis=0))
            client.stop_stream()

    _together(ask)
    assert _most_rows(server, "sum") <= 3


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_calls_between_models(server: ServerProcess, isolation: str) -> None:
    def ask(number: int) -> None:
        random = np.random.default_rng(number)
        with triton.InferenceServerClient(server.address) as client:
            for _ in range(REQUESTS):
                rows = _rows(random)
                found = client.infer(f"calls_{isolation}", [_given(triton, "x", rows)]).as_numpy("y")
                np.testing.assert_array_equal(found, rows.cumsum(axis=0))

    _together(ask)
    assert _most_rows(server, f"calls_{isolation}") > 3  # the callers' requests come together
    assert _most_rows(server, "sum") <= 3
