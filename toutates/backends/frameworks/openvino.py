"""OpenVINO's models (IR) and ONNX models, run by OpenVINO."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, cast

import numpy as np

from toutates.backends.interface import (
    Array,
    Backend,
    Instance,
    InvalidRequest,
    SequenceInstance,
    Source,
    Tensor,
    Tensors,
)

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
#: Variables that are named to the operator.
_MOST_NAMED: Final = 5


class OpenVino(Backend):
    """A model of OpenVINO, or an ONNX model. Its tensors are the file's, by their names there.

    A model with variables (ReadValue, Assign) has a state in each infer request. Each sequence has a request of its
    own, or each run begins with the state reset.
    """

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
        # A file that is written while it is mapped changes what is computed, and one that is cut short ends the server.
        core.set_property({"ENABLE_MMAP": False})
        try:
            model = core.read_model(source.path)
            # Rows that the state has no place for are computed wrongly, and end the process at times (2026.4).
            one_row = _states_have_one_row(model)
            if not source.flag("SKIP_OV_DYNAMIC_BATCHSIZE", False) and not one_row:
                _open_batch(model, source)
            self._compiled = core.compile_model(model, "CPU", options)
        except Exception as error:
            raise ValueError(f"OpenVINO cannot load '{source.path.name}': {_reason(error)}") from error
        variables = _variables(model, self._compiled)
        self._keeps_state = bool(variables) and source.keeps_state(
            f"it has the variables {', '.join(variables[:_MOST_NAMED])} (ReadValue, Assign)"
        )
        self._resets = bool(variables)
        # With one thread and one stream a run is the caller's own.
        self.quick = threads == streams == 1
        inputs = [_tensor(port, f"input{at}") for at, port in enumerate(self._compiled.inputs)]
        outputs = [_tensor(port, f"output{at}") for at, port in enumerate(self._compiled.outputs)]
        most_rows = _most_rows(self._compiled.inputs)
        if one_row and _is_batched(source) and all(list(tensor.shape[:1]) == [1] for tensor in (*inputs, *outputs)):
            inputs, outputs = ([_batched(tensor) for tensor in tensors] for tensors in (inputs, outputs))
            # Of sequences no two share a run, and their number is bounded by the size of a batch.
            most_rows = 0 if self._keeps_state else 1
        self._names = [tensor.name for tensor in inputs], [tensor.name for tensor in outputs]
        # A graph may do anything with its rows.
        return Tensors(
            inputs,
            outputs,
            independent_rows=None,
            keeps_state=self._keeps_state,
            max_rows=most_rows,
        )

    def instance(self, number: int, device: str) -> Instance | SequenceInstance:
        """See ``Backend``."""
        if self._keeps_state:
            return _Sequences(self._compiled, *self._names)
        return _Request(self._compiled.create_infer_request(), *self._names, resets=self._resets)

    def free(self) -> None:
        """See ``Backend``."""
        del self._compiled


class _Request:
    """One instance: an infer request of OpenVINO, which reads the batch where it lies."""

    def __init__(self, request: Any, inputs: list[str], outputs: list[str], *, resets: bool = False) -> None:
        self._request, self._inputs, self._outputs, self._resets = request, inputs, outputs, resets

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        request = self._request
        if self._resets:
            request.reset_state()
        try:
            for at, name in enumerate(self._inputs):
                # A scalar stays one.
                array = np.asarray(inputs[name], order="C")
                request.set_input_tensor(at, _openvino.Tensor(array, shared_memory=True))
            request.infer(share_outputs=True)
        except RuntimeError as error:
            _check_shapes(request, inputs, self._inputs, error)
            raise
        # Views of the request's own memory, which the next run writes to.
        return {name: np.array(request.get_output_tensor(at).data) for at, name in enumerate(self._outputs)}


class _Sequences:
    """One instance of a model with variables: an infer request, and so a state, for each sequence that it serves."""

    def __init__(self, compiled: Any, inputs: list[str], outputs: list[str]) -> None:
        self._compiled, self._names = compiled, (inputs, outputs)
        self._requests: dict[int, tuple[Any, _Request]] = {}

    def run_sequence(self, inputs: Mapping[str, Array], slot: int, *, begins: bool) -> Mapping[str, Array]:
        if slot not in self._requests:
            made = self._compiled.create_infer_request()
            self._requests[slot] = made, _Request(made, *self._names)
        request, runner = self._requests[slot]
        if begins:
            request.reset_state()
        return runner.run(inputs)


def _variables(model: Any, compiled: Any) -> list[str]:
    """The names of what a model keeps from run to run."""
    read = [str(variable.get_info().variable_id) for variable in model.get_variables()]
    return sorted(read or [state.name for state in compiled.create_infer_request().query_state()])


def _most_rows(ports: Sequence[Any]) -> int:
    """The upper bound of the first dimension of all inputs; 0 where there is none."""
    shapes = [port.get_partial_shape() for port in ports]
    return min([most for shape in shapes if len(shape) and (most := shape[0].get_max_length()) > 0], default=0)


def _check_shapes(request: Any, inputs: Mapping[str, Array], names: Sequence[str], error: RuntimeError) -> None:
    """
    Raises:
        InvalidRequest: an input is of a shape that the model does not take, which is why a run has failed.
    """
    for port, name in zip(request.get_compiled_model().inputs, names, strict=True):
        shape = port.get_partial_shape()
        if not shape.compatible(_openvino.PartialShape(list(inputs[name].shape))):
            problem = f"input '{name}' is {list(inputs[name].shape)}, and the model takes {shape}"
            raise InvalidRequest(problem) from error


def _states_have_one_row(model: Any) -> bool:
    """Whether the first dimension of what a variable gives is fixed. A variable itself often tells no shape."""
    reads = [operator for operator in model.get_ops() if operator.get_type_name() == "ReadValue"]
    shapes = [operator.get_output_partial_shape(0) for operator in reads]
    return any(not shape.rank.is_dynamic and len(shape) > 0 and shape[0].is_static for shape in shapes)


def _is_batched(source: Source) -> bool:
    """Whether the configuration wants batches."""
    return bool(source.inputs) and all(tuple(tensor.shape[:1]) == (-1,) for tensor in source.inputs)


def _batched(tensor: Tensor) -> Tensor:
    """The tensor of a model that computes one row, as one of a batch."""
    return replace(tensor, shape=[-1, *tensor.shape[1:]])


def _open_batch(model: Any, source: Source) -> None:
    """Open the first dimension of each input, where the configuration wants batches and the file fixes it."""
    if _is_batched(source):
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
