"""The models that are served: small, middling and large, and those of the sweeps."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.errors import Unavailable

__all__ = ["MODELS", "Model", "answer_models", "numbered_mlps", "payload_models", "write_model"]

ROOT = Path(__file__).resolve().parent.parent

# What the ONNX Runtime releases of the last years all read.
_OPSET = 17
_IR_VERSION = 8

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a repository, with one input and one output.

    Attributes:
        name: in requests, and of its folder.
        input, output: the tensors' names.
        datatype: of the input, as the protocol spells it; outputs are FP32.
        row: the input's shape without the batch.
        output_row: likewise.
        batch_size: rows that servers which batch may put together.
        path: the ONNX file.
        repository: the folder that Toutates serves, with this and possibly other models.
    """

    name: str
    input: str
    output: str
    datatype: str
    row: tuple[int, ...]
    output_row: tuple[int, ...]
    batch_size: int
    path: Path
    repository: Path

    def random_rows(self, rng: np.random.Generator, count: int) -> Rows:
        """Input for ``count`` rows, [count, *row]."""
        shape = (count, *self.row)
        if self.datatype == "INT32":
            return rng.integers(0, 256, shape).astype("<i4")  # bytes, as magika wants them
        return rng.normal(size=shape).astype("<f4")


def mlp(repository: Path) -> Model:
    """The example model 64-128-8: some microseconds of arithmetic, so that a server's own work shows."""
    examples = _examples_module("make_repository", ROOT / "examples")
    examples.write_repository(repository, ["mlp"])
    return _mlp_named("mlp", repository)


def magika(repository: Path) -> Model:
    """Google's file type detector: 8 KiB in, and a fraction of a millisecond to a few of arithmetic.

    Raises:
        Unavailable: the package is not installed.
    """
    try:
        version = _examples_module("make_repository", ROOT / "examples" / "magika").write_repository(repository)
    except ImportError as error:
        raise Unavailable("PyPI brings it: pip install magika") from error
    graph = onnx.load(version / "model.onnx").graph
    features = graph.input[0].type.tensor_type.shape.dim[1].dim_value or _features_of(version)
    labels = graph.output[0].type.tensor_type.shape.dim[1].dim_value
    return Model(
        "magika", "bytes", "target_label", "INT32", (features,), (labels,), 32, version / "model.onnx", repository
    )


def resnet(repository: Path) -> Model:
    """ResNet-18 at 3x224x224 with random weights: 600 KB in, some tens of milliseconds of arithmetic.

    Batch normalisation is left out, as it is in models made for inference, where it is folded into the convolutions.
    """
    net = _ResNet(np.random.default_rng(18))
    model = Model(
        "resnet", "image", "scores", "FP32", (3, 224, 224), (1000,), 8, _path(repository, "resnet"), repository
    )
    write_model(model, net.nodes, net.weights)
    _write_config(model, capacity=8)
    return model


def numbered_mlps(repository: Path, count: int) -> list[Model]:
    """``count`` models alike, mlp_0 and so on."""
    examples = _examples_module("make_repository", ROOT / "examples")
    example = examples.EXAMPLES["mlp"]()
    content = example.model.SerializeToString()
    models = []
    for number in range(count):
        model = _mlp_named(f"mlp_{number}", repository)
        model.path.parent.mkdir(parents=True, exist_ok=True)
        model.path.write_bytes(content)
        (model.path.parent / "config.yaml").write_text(example.config, encoding="utf-8")
        models.append(model)
    return models


def payload_models(repository: Path, sizes: Sequence[int]) -> list[Model]:
    """The greatest element of a row: next to no arithmetic, an answer of 4 bytes, and requests of any size.

    The graph leaves the row's length open. For each size (bytes) there is a model whose config.yaml fixes it by
    ``input_shapes``, so that Toutates has buffers for its rows, and one that stays dynamic.
    """
    names = [(size, name) for size in sizes for name in (f"greatest_{size}", f"greatest_dynamic_{size}")]
    return [_greatest(repository, name, size, fixed="dynamic" not in name) for size, name in names]


def image(repository: Path) -> Model:
    """The greatest of 150,528 numbers, as many as a picture of 3x224x224 has."""
    return _greatest(repository, "image", 4 * 3 * 224 * 224, fixed=True)


def answer_models(repository: Path, sizes: Sequence[int]) -> list[Model]:
    """One number, repeated: requests of 4 bytes, answers of any size (bytes)."""
    models = []
    for size in sizes:
        name = f"repeated_{size}"
        batch_size = max(1, min(64, 2**24 // size))
        model = Model(
            name, "number", "numbers", "FP32", (1,), (size // 4,), batch_size, _path(repository, name), repository
        )
        shape = np.array([1, size // 4], np.int64)
        write_model(model, [helper.make_node("Expand", ["number", "shape"], ["numbers"])], {"shape": shape})
        _write_config(model, capacity=8)
        models.append(model)
    return models


#: The models of the loads, smallest first.
MODELS: dict[str, Callable[[Path], Model]] = {"mlp": mlp, "image": image, "magika": magika, "resnet": resnet}


def write_model(
    model: Model,
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Rows],
    row: Sequence[int | str] | None = None,
) -> None:
    """Write the ONNX file of a model with FP32 tensors.

    Args:
        row: the input's shape without the batch as the graph tells it, if otherwise than ``model.row``.
    """
    shape: list[int | str] = ["batch", *(model.row if row is None else row)]
    graph = helper.make_graph(
        nodes,
        model.name,
        [helper.make_tensor_value_info(model.input, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(model.output, TensorProto.FLOAT, ["batch", *model.output_row])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    model.path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, model.path)


def _greatest(repository: Path, name: str, size: int, *, fixed: bool) -> Model:
    # 16 MiB of buffers per batch at most.
    batch_size = max(1, min(64, 2**24 // size))
    model = Model(name, "row", "greatest", "FP32", (size // 4,), (1,), batch_size, _path(repository, name), repository)
    node = helper.make_node("ReduceMax", ["row"], ["greatest"], axes=[1], keepdims=1)
    write_model(model, [node], {}, row=("n",))
    if fixed:
        _write_config(model, capacity=8, shapes=True)
    return model


class _ResNet:
    """Nodes and weights of ResNet-18 (He et al. 2015, table 1), from ``image`` to ``scores``."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Rows] = {}
        self._rng = rng
        top = self._node("Relu", self._convolution("image", 3, 64, kernel=7, stride=2))
        top = self._node("MaxPool", top, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        channels = 64
        for width in (64, 128, 256, 512):
            for block in range(2):
                top = self._block(top, channels, width, stride=2 if block == 0 and width > 64 else 1)
                channels = width
        flat = self._node("Flatten", self._node("GlobalAveragePool", top))
        self.weights["classes"] = rng.normal(0, 0.05, (512, 1000)).astype(np.float32)
        self.nodes.append(helper.make_node("MatMul", [flat, "classes"], ["scores"]))

    def _block(self, top: str, channels: int, width: int, stride: int) -> str:
        inner = self._node("Relu", self._convolution(top, channels, width, kernel=3, stride=stride))
        inner = self._convolution(inner, width, width, kernel=3, stride=1)
        if channels != width:
            top = self._convolution(top, channels, width, kernel=1, stride=stride)
        return self._node("Relu", self._node("Add", inner, top))

    def _convolution(self, top: str, channels: int, width: int, kernel: int, stride: int) -> str:
        name = f"kernel_{len(self.weights)}"
        deviation = (1 / (channels * kernel * kernel)) ** 0.5
        self.weights[name] = self._rng.normal(0, deviation, (width, channels, kernel, kernel)).astype(np.float32)
        return self._node("Conv", top, name, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


def _mlp_named(name: str, repository: Path) -> Model:
    return Model(name, "INPUT", "OUTPUT", "FP32", (64,), (8,), 64, _path(repository, name), repository)


def _path(repository: Path, name: str) -> Path:
    return repository / name / "1" / "model.onnx"


def _write_config(model: Model, capacity: int, shapes: bool = False) -> None:
    text = f"backend: supertensor\nbatch_size: {model.batch_size}\ncapacity: {capacity}\n"
    text += "num_executors: 1\nallocator: cpu\n"
    if shapes:
        text += f"input_shapes:\n  {model.input}: [-1, {', '.join(map(str, model.row))}]\n"
    (model.path.parent / "config.yaml").write_text(text, encoding="utf-8")


def _features_of(version: Path) -> int:
    """The length of magika's rows, which the example writes into config.yaml from the package's own settings."""
    import yaml

    return int(yaml.safe_load((version / "config.yaml").read_text(encoding="utf-8"))["input_shapes"]["bytes"][1])


def _examples_module(name: str, folder: Path) -> Any:
    """A module of the examples, which are scripts beside each other, two of them of one name."""
    spec = importlib.util.spec_from_file_location(f"bench_examples_{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses and NamedTuple look for it
    spec.loader.exec_module(module)
    return module
