"""Copies of an ONNX model in int8 and fp16, made by ONNX Runtime's own tools.

Each is a file beside the model's in the repository of the server that candidates are loaded into. Whether one is worth
anything is measured: how near its answers are by ``accuracy``, and how fast it is by the search.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.system.text import one_line

__all__ = ["KINDS", "NotMade", "make_copy", "require_tools"]

Array = npt.NDArray[Any]

#: What is made: weights in int8, with what they are multiplied by quantized at each run; all of it in int8, by ranges
#: that are measured beforehand; and floating point of 16 bits.
KINDS: Final = ("int8", "int8-static", "fp16")

_MOST_BYTES: Final = 1_800_000_000  # protobuf ends at 2 GB
#: Operators whose presence says that a model is quantized already.
_QUANTIZED: Final = frozenset(
    {"DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"}
)
_INSTALL: Final = "pip install 'toutates[cpu,convert]'"


class NotMade(Exception):
    """There is no such copy of the model."""


def require_tools() -> None:
    """Look for what makes copies.

    Raises:
        NotMade: it is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime.quantization
        import onnxruntime.transformers.float16  # noqa: F401
    except ImportError as error:
        raise NotMade(f"copies in int8 and fp16 need the package onnx: {_INSTALL} ({error})") from None


def make_copy(kind: str, source: Path, target: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    """Make a copy of a model.

    Args:
        kind: one of KINDS.
        source: the model's file.
        target: the copy's, which must not be there.
        samples: inputs of the graph by their names, for ranges of values; may be empty.

    Raises:
        NotMade: it cannot be made, and why.
    """
    import onnx

    if target.exists():
        raise NotMade(f"there is a file {target.name} already")
    try:
        if _size(source) > _MOST_BYTES:
            raise NotMade("the model is too large: a copy is one file of 2 GB at most")
        model = onnx.load(source)
        if {node.op_type for node in model.graph.node} & _QUANTIZED:
            raise NotMade("the model is quantized already")
        if not any(one.data_type == onnx.TensorProto.FLOAT for one in model.graph.initializer):
            raise NotMade("the model has no weights in float32")
        with _without_advice():
            _MAKERS[kind](model, source, target, samples)
    except NotMade:
        target.unlink(missing_ok=True)
        raise
    except Exception as error:  # the tools raise whatever they like
        target.unlink(missing_ok=True)
        raise NotMade(one_line(error, 300) or type(error).__name__) from error


def _size(source: Path) -> int:
    """Of a model with the weights that lie beside it."""
    return sum(one.stat().st_size for one in source.parent.glob(f"{source.name}*") if one.is_file())


def _dynamic(model: Any, source: Path, target: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    del samples
    if not {"MatMul", "Gemm", "LSTM", "Attention"} & {node.op_type for node in model.graph.node}:
        raise NotMade("nothing in it is multiplied by a matrix of weights")
    quantize_dynamic(
        source,
        target,
        # Not convolutions: those are slower so than in float32.
        op_types_to_quantize=["MatMul", "Gemm", "LSTM", "Attention"],
        per_channel=True,
        # Processors without VNNI instructions add products of 8 bits in 16, which would overflow.
        reduce_range=True,
        weight_type=QuantType.QInt8,
        # ONNX's inference of shapes does not know ONNX Runtime's own operators.
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def _static(model: Any, source: Path, target: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    names = {one.name for one in model.graph.input} - {one.name for one in model.graph.initializer}
    if not samples or not all(names == sample.keys() for sample in samples):
        raise NotMade("requests do not hold the inputs of the graph, by which ranges of values are measured")

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self._left, None)

    quantize_static(
        source,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,  # see above
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _half(model: Any, source: Path, target: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    del source, samples
    # Inputs and outputs stay as clients know them.
    onnx.save(convert_float_to_float16(model, keep_io_types=True), target)


_MAKERS: Final[Mapping[str, Callable[[Any, Path, Path, Sequence[Mapping[str, Array]]], None]]] = {
    "int8": _dynamic,
    "int8-static": _static,
    "fp16": _half,
}


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep the tools from logging advice, and NumPy from warning of values that fp16 does not have."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logging.disable(before)
