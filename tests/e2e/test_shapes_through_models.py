"""Tensors of no elements, reshapes and classes through ONNX and Python models, alone and in ensembles with or without a
batch, over gRPC and REST: what goes in comes out, with the shape of the metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest
from onnx import TensorProto, helper

from tests.e2e.process import ServerProcess, running
from tests.ensembles import add_ensemble, add_graph, pbtxt, step
from tests.graphs import model

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
triton_http = pytest.importorskip("tritonclient.http")

DATATYPES = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64, "STRING": TensorProto.STRING}
#: Dims of a configuration, and those that the model sees.
RESHAPES: dict[str, tuple[list[int], list[int]]] = {
    "scalar": ([1], []),
    "flat": ([2, 3], [6]),
    "deep": ([4, 2], [2, 2, 2]),
    "open": ([-1, 1], [-1]),
}
IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            [x] = request.inputs()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]))
        return responses
"""


def declared(datatype: str, dims: list[int], reshape: list[int] | None = None) -> str:
    more = "" if reshape is None else f"reshape {{ shape: {reshape} }}"
    tensors = [f"{role} {{ name: '{name}' data_type: TYPE_{datatype} dims: {dims} {more} }}" for role, name in _ROLES]
    return "\n".join(tensors) + "\n"


_ROLES = (("input", "x"), ("output", "y"))


def add_identity(
    root: Path, name: str, datatype: str, dims: list[int], *, batch: int, python: bool, reshape: list[int] | None = None
) -> None:
    """A model that gives what it gets."""
    text = f"max_batch_size: {batch}\n{declared(datatype, dims, reshape)}"
    if python:
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(IDENTITY)
        (root / name / "config.pbtxt").write_text(f'backend: "python"\n{text}')
        return
    own: list[Any] = ["n"] if batch else []
    own += [f"k{at}" if size < 0 else size for at, size in enumerate(dims if reshape is None else reshape)]
    ends = [helper.make_tensor_value_info(name, DATATYPES[datatype], own) for name in ("x", "y")]
    add_graph(root, name, model([helper.make_node("Identity", ["x"], ["y"])], ends[:1], ends[1:]))
    (root / name / "config.pbtxt").write_text(text)


def names() -> Iterator[tuple[str, str, bool, int, bool]]:
    for datatype in DATATYPES:
        for python in (False, True):
            for batch in (0, 4):
                for in_ensemble in (False, True):
                    kind = "python" if python else "onnx"
                    name = f"{'ensemble_' * in_ensemble}{kind}_{datatype}_{batch}".lower()
                    yield name, datatype, python, batch, in_ensemble


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, datatype, python, batch, in_ensemble in names():
        if not in_ensemble:
            add_identity(root, name, datatype, [-1, -1], batch=batch, python=python)
            continue
        # The ensemble has a batch where its model has none, and the other way round.
        member, own = name.removeprefix("ensemble_"), "[-1,-1]"
        steps = [step(member, "x=IN", "y=t"), step(member, "x=t", "y=OUT")]
        add_ensemble(root, name, pbtxt([f"IN {datatype} {own}"], [f"OUT {datatype} {own}"], steps, batch=4 - batch))
    for shape, (dims, reshape) in RESHAPES.items():
        for python in (False, True):
            for batch in (0, 4):
                name = f"{shape}_{'python' if python else 'onnx'}_{batch}"
                add_identity(root, name, "FP32", dims, batch=batch, python=python, reshape=reshape)
                ends = [f"IN FP32 {dims}"], [f"OUT FP32 {dims}"]
                add_ensemble(root, f"over_{name}", pbtxt(*ends, [step(name, "x=IN", "y=OUT")], batch=4 - batch))
    with running(root, tmp_path_factory.mktemp("log"), flags=["--http-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.fixture(scope="module")
def clients(server: ServerProcess) -> Iterator[list[tuple[Any, Any]]]:
    rest = f"127.0.0.1:{server.rest_port}"
    with triton.InferenceServerClient(server.address) as grpc, triton_http.InferenceServerClient(rest) as http:
        yield [(grpc, triton), (http, triton_http)]


def echo(client: Any, module: Any, name: str, rows: Any, datatype: str = "FP32", **more: Any) -> Any:
    ins, outs = ("IN", "OUT") if name.startswith(("ensemble_", "over_")) else ("x", "y")
    sent = module.InferInput(ins, rows.shape, "BYTES" if datatype == "STRING" else datatype)
    sent.set_data_from_numpy(rows)
    asked = [module.InferRequestedOutput(outs, **more)]
    return client.infer(name, [sent], outputs=asked).as_numpy(outs)


@pytest.mark.parametrize(("name", "datatype", "python", "batch", "in_ensemble"), list(names()))
@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0), (1, 2)], ids=str)
def test_tensors_of_no_elements(
    clients: Any, name: str, datatype: str, python: bool, batch: int, in_ensemble: bool, shape: tuple[int, ...]
) -> None:
    whole = (1, *shape) if (4 - batch if in_ensemble else batch) else shape
    rows = np.ones(whole, np.float32 if datatype == "FP32" else np.int64)
    if datatype == "STRING":
        rows = np.full(whole, b"text", object)
    for client, module in clients:
        found = echo(client, module, name, rows, datatype)
        assert found.shape == whole
        npt.assert_array_equal(found, rows)


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("kind", ["onnx", "python"])
@pytest.mark.parametrize("over", ["", "over_"])
@pytest.mark.parametrize("shape", RESHAPES)
def test_reshapes(clients: Any, shape: str, over: str, kind: str, batch: int) -> None:
    dims = [3 if size < 0 else size for size in RESHAPES[shape][0]]
    whole = [1, *dims] if (4 - batch if over else batch) else dims
    rows = np.arange(np.prod(whole), dtype=np.float32).reshape(whole)
    for client, module in clients:
        found = echo(client, module, f"{over}{shape}_{kind}_{batch}", rows)
        assert found.shape == tuple(whole)
        npt.assert_array_equal(found, rows)


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("kind", ["onnx", "python"])
@pytest.mark.parametrize("over", ["", "over_"])
def test_classes_of_reshaped_outputs(clients: Any, over: str, kind: str, batch: int) -> None:
    batched = bool(4 - batch if over else batch)
    rows = np.arange(6, dtype=np.float32).reshape([1, 2, 3] if batched else [2, 3])
    for client, module in clients:
        found = echo(client, module, f"{over}flat_{kind}_{batch}", rows, class_count=2).tolist()
        expected = [b"5.000000:5", b"4.000000:4"]
        assert found == ([expected] if batched else expected)
