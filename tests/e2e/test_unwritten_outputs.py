"""Graphs whose runs do not write all outputs, and many clients: nobody gets what somebody else's run has left there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.models import CONFIG, DATATYPES, add_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import triton

http = pytest.importorskip("tritonclient.http")
memory = pytest.importorskip("tritonclient.utils.shared_memory")
utils = pytest.importorskip("tritonclient.utils")

Array = npt.NDArray[Any]

CLIENTS: Final = 12
REQUESTS: Final = 12
#: By which requests come and answers go.
WAYS: Final = ("grpc", "binary", "json", "grpc_region", "http_region", "stream")
#: Bytes of a region that each tensor has.
ROOM: Final = 500_000
#: Operators of ``y``, by the datatype; Identity for those that have none on the CPU.
OPERATORS: Final = {
    "FP32": "Neg",
    "FP16": "Neg",
    "INT64": "Neg",
    "BOOL": "Not",
    "BYTES": "Identity",
    "BF16": "Identity",
}
#: Datatypes, and how many elements a row has: few, and so many that requests run where they were received.
MODELS: Final = [*[(datatype, 3) for datatype in OPERATORS], ("FP32", 30_000), ("BOOL", 90_000)]


def _tensor(name: str, datatype: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, DATATYPES[datatype], shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> bytes:
    graph = helper.make_graph(nodes, "model", inputs, outputs, constants or [])
    octets: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return octets


def passing_model(datatype: str, width: int) -> bytes:
    """y = OPERATORS(x); the outputs are y and x itself."""
    x = _tensor("x", datatype, "n", width)
    return _model([helper.make_node(OPERATORS[datatype], ["x"], ["y"])], [x], [_tensor("y", datatype, "n", width), x])


def mixed_model() -> bytes:
    """number = what the text says; x is an output, too."""
    x = _tensor("x", "FP32", "n", 2)
    return _model(
        [helper.make_node("Cast", ["text"], ["number"], to=TensorProto.FLOAT)],
        [_tensor("text", "BYTES", "n", 1), x],
        [_tensor("number", "FP32", "n", 1), x],
    )


def branching_model() -> bytes:
    """y = x where its first element is above 0, else -x; the outputs are y and x."""
    x = _tensor("x", "FP32", 1, 3)

    def branch(operator: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(operator, ["x"], ["own"])], operator, [], [_tensor("own", "FP32", 1, 3)]
        )

    nodes = [
        helper.make_node("Slice", ["x", "zeros", "ones"], ["corner"]),
        helper.make_node("ReduceSum", ["corner"], ["first"], keepdims=0),
        helper.make_node("Greater", ["first", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("Identity"), else_branch=branch("Neg")),
    ]
    constants = [
        numpy_helper.from_array(np.zeros(2, np.int64), "zeros"),
        numpy_helper.from_array(np.ones(2, np.int64), "ones"),
        numpy_helper.from_array(np.zeros((), np.float32), "zero"),
    ]
    return _model(nodes, [x], [_tensor("y", "FP32", 1, 3), x], constants)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for datatype, width in MODELS:
        add_model(models, f"{datatype}_{width}", passing_model(datatype, width))
    add_model(models, "mixed", mixed_model())
    add_model(models, "branching", branching_model(), config=CONFIG.format(8, 64))
    flags = ("--http-addr", "127.0.0.1:0", "--allow-client-shm")
    with running(models, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def values_of(rng: np.random.Generator, datatype: str, *shape: int) -> Array:
    """Values that no other request has."""
    if datatype == "BYTES":
        texts = [rng.bytes(int(rng.integers(1, 40))).hex().encode() for _ in range(int(np.prod(shape)))]
        return np.array(texts, np.object_).reshape(shape)
    if datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if datatype == "BF16":  # which clients have as the float32 whose upper half it is
        return (rng.integers(0x3F80, 0x4080, shape, np.uint32) << 16).view(np.float32)
    kinds = {"FP32": np.float32, "FP16": np.float16, "INT64": np.int64}
    return rng.integers(-2_000, 2_000, shape).astype(kinds[datatype])


def expected_of(datatype: str, x: Array) -> Array:
    if OPERATORS[datatype] == "Identity":
        return x
    return ~x if datatype == "BOOL" else -x


class Asker:
    """A client by one of the ways that there are."""

    def __init__(self, server: ServerProcess, way: str) -> None:
        self._way = way
        self._module = http if way in ("binary", "json", "http_region") else triton
        address = f"127.0.0.1:{server.rest_port}" if self._module is http else server.address
        self._client = self._module.InferenceServerClient(address)
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._region: Any = None
        if way == "stream":
            self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        if way.endswith("region"):
            self._name = f"r{uuid.uuid4().hex}"
            self._region = memory.create_shared_memory_region(self._name, f"/{self._name}", 4 * ROOM)
            self._client.register_system_shared_memory(self._name, f"/{self._name}", 4 * ROOM)

    def close(self) -> None:
        if self._way == "stream":
            self._client.stop_stream()
        if self._region is not None:
            self._client.unregister_system_shared_memory(self._name)
            memory.destroy_shared_memory_region(self._region)
        self._client.close()

    def ask(self, model: str, inputs: Mapping[str, tuple[str, Array]], outputs: Mapping[str, str]) -> dict[str, Array]:
        """The outputs of a model by name; what is given of them is their datatypes."""
        tensors, wanted = [], []
        for at, (name, (datatype, values)) in enumerate(inputs.items()):
            tensors.append(self._module.InferInput(name, values.shape, datatype))
            if self._region is None:
                tensors[-1].set_data_from_numpy(values, **({"binary_data": False} if self._way == "json" else {}))
            else:
                content = serialized(datatype, values)
                memory.set_shared_memory_region(self._region, [np.frombuffer(content, np.uint8)], at * ROOM)
                tensors[-1].set_shared_memory(self._name, len(content), at * ROOM)
        for at, name in enumerate(outputs, 2):
            binary = {"binary_data": self._way != "json"} if self._module is http else {}
            wanted.append(self._module.InferRequestedOutput(name, **binary))
            if self._region is not None:
                wanted[-1].set_shared_memory(self._name, ROOM, at * ROOM)
        if self._way == "stream":
            self._client.async_stream_infer(model, tensors, outputs=wanted)
            result, error = self._answers.get(timeout=120)
            assert error is None, error
        else:
            result = self._client.infer(model, tensors, outputs=wanted)
        if self._region is None:
            found = {name: result.as_numpy(name) for name in outputs}
            texts = [name for name, datatype in outputs.items() if datatype == "BYTES" and self._way == "json"]
            return {**found, **{name: np.char.encode(found[name].astype(str)).astype(np.object_) for name in texts}}
        found = {}
        for at, (name, datatype) in enumerate(outputs.items(), 2):
            said = result.get_output(name)
            shape = [int(size) for size in (said["shape"] if isinstance(said, dict) else said.shape)]
            kind = {"BYTES": np.object_, "BF16": np.uint16}.get(datatype) or utils.triton_to_np_dtype(datatype)
            own = np.array(memory.get_contents_as_numpy(self._region, kind, shape, at * ROOM))
            found[name] = (own.astype(np.uint32) << 16).view(np.float32) if datatype == "BF16" else own
        return found


def serialized(datatype: str, values: Array) -> bytes:
    if datatype == "BYTES":
        content: bytes = utils.serialize_byte_tensor(values).item()
        return content
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes() if datatype == "BF16" else values.tobytes()


def at_once(
    server: ServerProcess, work: Callable[[Asker, np.random.Generator], None], ways: Sequence[str] = WAYS
) -> None:
    """Have all clients work at the same time, each with numbers of its own."""

    def run(number: int) -> None:
        asker = Asker(server, ways[number % len(ways)])  # tritonclient's for HTTP belong to one thread
        try:
            work(asker, np.random.default_rng(number))
        finally:
            asker.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(run, range(CLIENTS)))


@pytest.mark.parametrize(("datatype", "width"), MODELS)
def test_an_output_that_is_an_input_is_the_callers_own(server: ServerProcess, datatype: str, width: int) -> None:
    def work(asker: Asker, rng: np.random.Generator) -> None:
        for _ in range(REQUESTS if width < 100 else REQUESTS // 4):
            x = values_of(rng, datatype, int(rng.integers(1, 8 if width < 100 else 4)), width)
            found = asker.ask(f"{datatype}_{width}", {"x": (datatype, x)}, {"y": datatype, "x": datatype})
            np.testing.assert_array_equal(found["x"], x)
            np.testing.assert_array_equal(found["y"], expected_of(datatype, x))

    # tritonclient has its own arrays of BF16, which are not needed for what it puts into regions.
    at_once(server, work, ("grpc_region", "http_region") if datatype == "BF16" else WAYS)


def test_numbers_beside_texts_are_the_callers_own(server: ServerProcess) -> None:
    def work(asker: Asker, rng: np.random.Generator) -> None:
        for _ in range(REQUESTS):
            rows = int(rng.integers(1, 8))
            x = values_of(rng, "FP32", rows, 2)
            numbers = rng.integers(0, 1_000, (rows, 1))
            texts = np.array([str(number).encode() for number in numbers.ravel()], np.object_).reshape(rows, 1)
            given = {"text": ("BYTES", texts), "x": ("FP32", x)}
            found = asker.ask("mixed", given, {"number": "FP32", "x": "FP32"})
            np.testing.assert_array_equal(found["x"], x)
            np.testing.assert_array_equal(found["number"], numbers)

    at_once(server, work)


def test_branches_of_a_graph_leave_the_callers_own(server: ServerProcess) -> None:
    def work(asker: Asker, rng: np.random.Generator) -> None:
        for _ in range(REQUESTS):
            x = values_of(rng, "FP32", 1, 3)
            found = asker.ask("branching", {"x": ("FP32", x)}, {"y": "FP32", "x": "FP32"})
            np.testing.assert_array_equal(found["x"], x)
            np.testing.assert_array_equal(found["y"], x if x[0, 0] > 0 else -x)

    at_once(server, work)
