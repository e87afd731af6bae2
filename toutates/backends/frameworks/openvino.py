"""OpenVINO's models (IR) and ONNX models, run by OpenVINO."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from toutates.backends.interface import Array, Backend, Instance, Source, Tensor, Tensors

__all__ = ["OpenVino"]


def _import() -> Any:
    """The package, without its converter of models: that has a module that switches the GIL on, and sends telemetry."""
    converter = "openvino.tools.ovc"
    hidden = converter not in sys.modules
    if hidden:
        sys.modules[converter] = cast(ModuleType, None)  # which makes its import fail, as where it is not installed
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[converter]
    return openvino


_openvino: Final = _import()

#: Triton's datatypes by OpenVINO's names of types. Strings and BF16 have no NumPy arrays that could be lent.
_DATATYPES: Final = {
    "boolean": "BOOL",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
}
_SUFFIXES: Final = (".xml", ".onnx")
#: Characters of a reason; what OpenVINO says begins with where in its sources.
_MAX_SAID: Final = 500


class OpenVino(Backend):
    """A model of OpenVINO, or an ONNX model. Its tensors are the file's, by their names there."""

    interface = 1
    filenames = ("model.xml", "model.onnx")

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        if source.path.suffix not in _SUFFIXES:
            raise ValueError(f"'{source.path.name}' is of no known form; name a file that ends in .xml or .onnx")
        threads = source.integer("INFERENCE_NUM_THREADS", 1, 1, 1_024)
        streams = source.integer("NUM_STREAMS", 1, 1, 1_024)
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        hint = source.text("PERFORMANCE_HINT", "", ("", "LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"))
        if hint:
            options["PERFORMANCE_HINT"] = hint
        # Unless it is told, OpenVINO computes in BF16 where the processor can.
        options["INFERENCE_PRECISION_HINT"] = "bf16" if source.flag("HINT_BF16", False) else "f32"
        core = _openvino.Core()
        try:
            model = core.read_model(source.path)
            if not source.flag("SKIP_OV_DYNAMIC_BATCHSIZE", False):
                _open_batch(model, source)
            self._compiled = core.compile_model(model, "CPU", options)
        except Exception as error:
            raise ValueError(f"OpenVINO cannot load '{source.path.name}': {_reason(error)}") from error
        # With one thread and one stream a run is the caller's own.
        self.quick = threads == streams == 1
        inputs = [_tensor(port, f"input{at}") for at, port in enumerate(self._compiled.inputs)]
        outputs = [_tensor(port, f"output{at}") for at, port in enumerate(self._compiled.outputs)]
        self._names = [tensor.name for tensor in inputs], [tensor.name for tensor in outputs]
        # A graph may do anything with its rows.
        return Tensors(inputs, outputs, independent_rows=None)

    def instance(self, number: int, device: str) -> Instance:
        """See ``Backend``."""
        return _Request(self._compiled.create_infer_request(), *self._names)

    def free(self) -> None:
        """See ``Backend``."""
        del self._compiled


class _Request:
    """One instance: an infer request of OpenVINO, which reads the batch where it lies."""

    def __init__(self, request: Any, inputs: list[str], outputs: list[str]) -> None:
        self._request, self._inputs, self._outputs = request, inputs, outputs

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        request = self._request
        for at, name in enumerate(self._inputs):
            array = np.ascontiguousarray(inputs[name])
            request.set_input_tensor(at, _openvino.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        # Views of the request's own memory, which the next run writes to.
        return {name: np.array(request.get_output_tensor(at).data) for at, name in enumerate(self._outputs)}


def _open_batch(model: Any, source: Source) -> None:
    """Open the first dimension of each input, where the configuration wants batches and the file fixes it."""
    if source.inputs and all(tuple(tensor.shape[:1]) == (-1,) for tensor in source.inputs):
        shapes = {port: port.get_partial_shape() for port in model.inputs}
        if all(len(shape) and shape[0].is_static for shape in shapes.values()):
            for shape in shapes.values():
                shape[0] = -1
            model.reshape(shapes)


def _tensor(port: Any, default: str) -> Tensor:
    """
    Raises:
        ValueError: it has a type that cannot be carried, or no known number of dimensions.
    """
    names, shape = sorted(port.get_names()), port.get_partial_shape()
    name, element = (names or [default])[0], port.get_element_type().get_type_name()
    if element not in _DATATYPES:
        raise ValueError(f"tensor '{name}' has the type {element}; known ones are {', '.join(_DATATYPES)}")
    if shape.rank.is_dynamic:
        raise ValueError(f"tensor '{name}' has any number of dimensions; convert the model with known ones")
    return Tensor(name, _DATATYPES[element], [-1 if size.is_dynamic else size.get_length() for size in shape])


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return " ".join(lines)[:_MAX_SAID] or type(error).__name__
