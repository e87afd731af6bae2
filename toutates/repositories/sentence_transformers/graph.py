"""Writing an ONNX graph: nodes, weights as they are needed, and the file.

The package ``onnx`` (extra ``convert``) makes the messages. It is imported by the functions that need it, so that the
command can say what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from toutates.system.errors import ConfigurationError

if TYPE_CHECKING:
    import onnx

__all__ = ["FUSED", "Array", "Graph", "Value", "require_onnx"]

#: The name of a tensor in the graph.
Value = str

#: The domain of ONNX Runtime's own operators.
FUSED: Final = "com.microsoft"
#: LayerNormalization is of 17. ONNX Runtime 1.20 and newer read both.
_OPSET: Final = 17
_IR_VERSION: Final = 8
#: A protobuf message has 2 GiB at most, so weights above this lie in a file of their own.
_MOST_INSIDE: Final = 2**31 - 2**24
_ALIGNMENT: Final = 4096

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Initializer:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Graph:
    """A graph that is being written.

    Weights are given as functions, and computed one at a time when the file is written: a model of 2 GB is never in
    memory twice.
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, _Initializer] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str) -> Value:
        """An input of int64 [batch, length]."""
        from onnx import TensorProto, helper

        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]))
        return name

    def output(self, name: str, value: Value, shape: Sequence[int | str]) -> None:
        """Make a value an output of float32."""
        from onnx import TensorProto, helper

        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, name: str, shape: Sequence[int], make: Callable[[], Array]) -> Value:
        """Weights of float32, once for each name.

        Args:
            name: of the initializer.
            shape: its dimensions.
            make: computes the values, in that shape.
        """
        self._initializers.setdefault(name, _Initializer(name, tuple(shape), np.dtype(np.float32), make))
        return name

    def constant(self, value: Array | int | float | Sequence[int]) -> Value:
        """A small constant: float32 or int64, by the value's kind."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        text = "_".join(str(one).replace("-", "m").replace(".", "p") for one in array.reshape(-1).tolist())
        name = f"{array.dtype}_{'x'.join(map(str, array.shape)) or 'scalar'}_{text}"
        self._initializers.setdefault(name, _Initializer(name, array.shape, array.dtype, lambda: array))
        return name

    def add(self, op: str, *inputs: Value, domain: str = "", **attributes: Any) -> Value:
        """A node with one output, which is returned.

        Args:
            op: the operator.
            inputs: its inputs; "" for an optional one that is left out.
            domain: of the operator.
            attributes: of the node.
        """
        return self.add_many(op, inputs, (True,), domain, **attributes)[0]

    def add_many(
        self, op: str, inputs: Sequence[Value], outputs: Sequence[bool], domain: str = "", **attributes: Any
    ) -> list[Value]:
        """A node with several outputs.

        Args:
            outputs: for each of the operator's outputs, whether it is wanted.

        Returns:
            the outputs that are wanted. For the rest see ``add``.
        """
        from onnx import helper

        name = f"{op}_{len(self._nodes)}"
        results = [f"{name}_{at}" if wanted else "" for at, wanted in enumerate(outputs)]
        self._nodes.append(helper.make_node(op, inputs, results, name=name, domain=domain, **attributes))
        return [result for result in results if result]

    def write(self, path: Path, progress: Callable[[int, int], object] = lambda done, total: None) -> None:
        """Write the file, and ``NAME_data`` beside it where the weights are too large for one.

        Args:
            path: of the file.
            progress: is told how many bytes of weights are written, and of how many.

        Raises:
            OSError: it cannot be written.
        """
        from onnx import checker, helper

        total = sum(one.nbytes for one in self._initializers.values())
        graph = helper.make_graph(self._nodes, "encoder", self._inputs, self._outputs)
        beside = path.with_name(f"{path.name}_data")
        done = 0
        if total <= _MOST_INSIDE:
            for one in self._initializers.values():
                graph.initializer.append(_tensor(one))
                graph.initializer[-1].raw_data = _bytes(one)
                done += one.nbytes
                progress(done, total)
        else:
            with beside.open("wb") as file:
                for one in self._initializers.values():
                    graph.initializer.append(_tensor(one))
                    if one.nbytes < 1024:  # shapes and axes, which ONNX Runtime wants to see in the graph
                        graph.initializer[-1].raw_data = _bytes(one)
                        continue
                    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                    _place(graph.initializer[-1], beside.name, file.tell(), one.nbytes)
                    file.write(_bytes(one))
                    done += one.nbytes
                    progress(done, total)
        model = helper.make_model(
            graph,
            producer_name="toutates",
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(FUSED, 1)],
        )
        model.ir_version = _IR_VERSION
        path.write_bytes(model.SerializeToString())
        if total <= _MOST_INSIDE:
            checker.check_model(model)


def require_onnx() -> None:
    """See that the package ``onnx`` is installed.

    Raises:
        ConfigurationError: it is not, or does not work.
    """
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"onnx cannot be imported: {error}", remedy="install toutates[convert], which brings it"
        ) from None


def _tensor(one: _Initializer) -> onnx.TensorProto:
    import onnx

    data_type = onnx.TensorProto.FLOAT if one.dtype.kind == "f" else onnx.TensorProto.INT64
    return onnx.TensorProto(name=one.name, dims=one.shape, data_type=data_type)


def _place(tensor: onnx.TensorProto, file: str, offset: int, length: int) -> None:
    """Say that a tensor's bytes lie in a file beside the graph."""
    import onnx

    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _bytes(one: _Initializer) -> bytes:
    values = one.make()
    if values.shape != one.shape or values.dtype != one.dtype:
        raise AssertionError(f"{one.name}: {values.dtype}{values.shape} where {one.dtype}{one.shape} was said")
    return values.tobytes()
