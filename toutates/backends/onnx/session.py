"""ONNX Runtime sessions that run batches. How a session is made is in ``opening``."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from toutates.backends.onnx import string_tensors
from toutates.backends.onnx.opening import MAX_REASON
from toutates.backends.onnx.provider_names import CPU, ON_DEVICES
from toutates.backends.onnx.shared_arena import SHRINK_ENTRY, give_back_shared_arena
from toutates.backends.onnx.string_tensors import BlankStrings, read_strings
from toutates.engine.lane import Batch, GatheredLane, PackedLane
from toutates.engine.on_device import DeviceLane
from toutates.engine.packing import OutputArray, OutputPacker
from toutates.engine.result import Outputs
from toutates.protocol.signature import Signature
from toutates.protocol.strings import MANY_ELEMENTS, EncodedStrings, StringTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest
from toutates.system.text import one_line

__all__ = ["ModelSession", "execution_failure"]

logger = logging.getLogger(__name__)

#: One input of a run.
InputArray = npt.NDArray[Any] | StringTensor
#: What is kept of runs on BYTES: a binding, the tensors that are lent bytes by the input's index, and the buffers of
#: outputs that are bound.
StringBinding = tuple[onnxruntime.IOBinding, dict[int, BlankStrings], list[npt.NDArray[Any]]]

#: ONNX Runtime's name of the memory of GPUs.
GPU_MEMORY: Final = "cuda"
#: Options of CUDA's provider and of TensorRT's to record runs.
_GRAPH_OPTIONS: Final = ("enable_cuda_graph", "trt_cuda_graph_enable")
#: Element types of ONNX.
_STRING: Final = 8
_BFLOAT16: Final = 16
#: Bindings of string inputs that a session keeps; beyond it the oldest goes. One is at most 128 KiB.
MAX_STRING_BINDINGS: Final = 16
#: Bindings that each executor keeps per batch; beyond it the oldest goes. One is about 2 KiB.
MAX_BINDINGS: Final = 64
#: How long an arena keeps the memory of its largest run, where runs differ in size, and of large outputs that have been
#: sent: it grows to twice what waits at once.
_SHRINK_NS: Final = 1_000_000_000


@functools.cache
def _shrinking(devices: str) -> onnxruntime.RunOptions:
    """Options of a run after which the arenas of these devices give memory back. Nobody changes them."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(SHRINK_ENTRY, devices)
    return options


_ERROR_CODE = re.compile(r"\[ONNXRuntimeError\] : (\d+)")


def execution_failure(error: Exception) -> ExecutionFailed:
    """ONNX Runtime's exception in Triton's words: ``onnx runtime error N: <text>``."""
    text = one_line(error, MAX_REASON).removeprefix("Error in execution: ")  # which the Python interface adds
    match = _ERROR_CODE.search(text)
    return ExecutionFailed(f"onnx runtime error {match[1] if match else 1}: {text}")


class ModelSession:
    """An ONNX Runtime session of a model version: the backend of one executor (``engine.servable.Backend``).

    Args:
        session: the loaded session. Several executors may have the same one: ``run`` of it may be called in several
            threads, and what belongs to one run is the executor's own.
        signature: the model's tensors.
        model: its name, for errors.
        number: of the executor, among those of this version.
        profile_batches: after so many runs the profile is written; None where the session was loaded without one.
        arena_shrinkage: devices whose arenas give memory back after each run, such as ``cpu:0``; "" for none.
        shrinks_in_time: whether the arena of the CPU gives memory back after a run once a second, for models whose
            runs differ in size.
        shares_arena: whether it uses the arena of all small models.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        signature: Signature,
        model: str,
        number: int = 0,
        *,
        profile_batches: int | None = None,
        arena_shrinkage: str = "",
        shrinks_in_time: bool = False,
        shares_arena: bool = False,
    ) -> None:
        self.session = session
        self.signature = signature
        self.model = model
        self._number = number
        self._shares_arena = shares_arena
        self._packer = OutputPacker(signature, model)
        self._profile_batches_left = profile_batches
        #: when ONNX Runtime last began and ended a run, monotonic nanoseconds
        self.started_ns = 0
        self.ended_ns = 0
        #: whether every operator runs on the CPU: only then may buffers be bound beforehand
        self.on_cpu = session.get_providers() == [CPU]
        options = session.get_session_options()
        #: whether a run uses no thread but the caller's
        self.one_thread = options.intra_op_num_threads == 1 and (
            options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        )
        self._run_options = _shrinking(arena_shrinkage) if arena_shrinkage else None
        self._sometimes = _shrinking("cpu:0") if shrinks_in_time else None
        self._shrunk_ns = 0
        #: the same for a run after large outputs, of any model whose arena would keep what they had
        keeps = self.on_cpu and options.enable_cpu_mem_arena and not arena_shrinkage and not shrinks_in_time
        self._after_large = _shrinking("cpu:0") if keeps else None
        #: whether large outputs have come from the arena since it last gave memory back, and when that was
        self._has_grown = False
        self._given_back_ns = time.monotonic_ns()
        self._output_names = [tensor.name for tensor in signature.outputs]
        inputs = {tensor.name for tensor in signature.inputs}
        #: outputs that are inputs: ONNX Runtime returns the very memory that is bound
        self._returned = frozenset(index for index, name in enumerate(self._output_names) if name in inputs)
        #: whether BYTES are bytes; else they go in and out as str, which is UTF-8
        self._lends_strings = (
            any(not tensor.datatype.size for tensor in (*signature.inputs, *signature.outputs))
            and string_tensors.usable()
        )
        self._string_bindings: dict[object, StringBinding] = {}
        # run() has no NumPy type for BF16, so its tensors go in and out as OrtValues.
        self._needs_ort_values = any(
            tensor.datatype.name == "BF16" for tensor in (*signature.inputs, *signature.outputs)
        )

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """Run some rows of a batch: on the CPU, on bindings to its buffers that are kept for the whole batch.

        On a device ONNX Runtime copies an input when it is bound, so that no binding can be kept.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
            InvalidRequest: BYTES are not UTF-8, where this ONNX Runtime takes nothing else.
        """
        lane = batch.lane
        if not self.on_cpu or not isinstance(lane, PackedLane):
            if isinstance(lane, DeviceLane):
                return self._run_on_device(lane, batch, rows)
            if self.on_cpu and self._lends_strings and isinstance(lane, GatheredLane):
                known = lane.known_outputs
                if known is not None and rows:
                    return self._run_strings(lane.inputs(batch, first, rows), rows, known)
            return self._packer.pack(self.run_raw(batch, first, rows), rows)
        if rows != batch.rows:
            binding = self._bind(lane, batch, first, rows)
        else:
            key = (self._number, rows)
            kept = batch.bindings.get(key)
            if kept is None:
                if len(batch.bindings) >= MAX_BINDINGS:
                    del batch.bindings[next(iter(batch.bindings))]
                kept = batch.bindings[key] = self._bind(lane, batch, first, rows)
            binding = kept
        if lane.known_outputs is None:
            outputs = self._packer.pack(self.run_bound_dynamic(binding), rows)
            self._has_grown |= outputs.in_arrays
            return outputs
        self.run_bound(binding)
        return lane.take_outputs(batch, first, rows)

    def run_raw(self, batch: Batch, first: int, rows: int) -> list[OutputArray]:
        """Run some rows of a batch on arrays that are made now; the outputs come as they are.

        Raises:
            ExecutionFailed, InvalidRequest: as ``run``.
        """
        if self._sometimes is not None:
            self._shrink_in_time()
        return self.run_arrays(batch.lane.inputs(batch, first, rows))

    @property
    def device(self) -> int | None:
        """Number of the GPU that its runs are on and may bind memory of; None for the CPU.

        Runs that were recorded as a CUDA graph use the memory that they were recorded with, so they may not.
        """
        provider = self.session.get_providers()[0]
        if provider not in ON_DEVICES:
            return None
        options = self.session.get_provider_options()[provider]
        if any(options.get(name, "0").lower() in ("1", "true") for name in _GRAPH_OPTIONS):
            return None
        return int(options["device_id"])

    def _run_on_device(self, lane: DeviceLane, batch: Batch, rows: int) -> Outputs:
        """Run a request whose rows a GPU has. Its outputs go where they are wanted on the GPU, or to the host.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
        """
        given: Any = batch.pieces[0][2][0]
        signature, device = self.signature, self.device or 0
        lead = (rows,) if signature.batched else ()
        binding = self.session.io_binding()
        for index, row_shape in lane.row_shapes:
            tensor = signature.inputs[index]
            shape, address = (*lead, *row_shape), given.inputs[index]
            binding.bind_input(tensor.name, GPU_MEMORY, device, tensor.datatype.onnx_type, shape, address)
        placed: dict[int, tuple[int, ...]] = {}
        for index, tensor in enumerate(signature.outputs):
            address, room = given.outputs.get(index, (0, -1))
            row_shape = tensor.graph_shape
            # No shape at all may be a scalar's, or a rank that the graph leaves open.
            is_known = -1 not in row_shape and bool(lead or row_shape)
            if is_known and 0 < rows * prod(row_shape) * tensor.datatype.size <= room:
                placed[index] = row_shape
                shape = (*lead, *row_shape)
                binding.bind_output(tensor.name, GPU_MEMORY, device, tensor.datatype.onnx_type, shape, address)
            else:
                binding.bind_output(tensor.name, "cpu")
        self.run_bound(binding)
        binding.synchronize_outputs()  # another process reads them
        arrays = [
            None if index in placed else self._as_array(value) for index, value in enumerate(binding.get_outputs())
        ]
        return self._packer.pack(arrays, rows, elsewhere=placed)

    def _shrink_in_time(self) -> None:
        """Have the next run give memory back if none has for a while: after each run it would cost a tenth of it."""
        now_ns = time.monotonic_ns()
        is_due = now_ns - self._shrunk_ns >= _SHRINK_NS
        self._run_options = self._sometimes if is_due else None
        if is_due:
            self._shrunk_ns = now_ns

    def _bind(self, lane: PackedLane, batch: Batch, first: int, rows: int) -> onnxruntime.IOBinding:
        return self.bind(lane.inputs(batch, first, rows), lane.outputs(batch, first, rows))

    def close(self) -> None:
        """Write the profile, if there is one, and give back what runs have had of the shared arena; no run follows."""
        self._end_profiling()
        if self._shares_arena:
            give_back_shared_arena()

    def bind(self, inputs: Mapping[int, Any], outputs: Sequence[npt.NDArray[Any]]) -> onnxruntime.IOBinding:
        """Bind buffers for ``run_bound``.

        Args:
            inputs: C-contiguous arrays by the input's index; they must outlive the binding.
            outputs: likewise, in the signature's order; none leaves the outputs to ``run_bound_dynamic``.
        """
        binding = self.session.io_binding()
        for index, array in inputs.items():
            tensor = self.signature.inputs[index]
            binding.bind_input(tensor.name, "cpu", 0, tensor.datatype.onnx_type, array.shape, array.ctypes.data)
        for tensor, array in zip(self.signature.outputs, outputs, strict=False):
            binding.bind_output(tensor.name, "cpu", 0, tensor.datatype.onnx_type, array.shape, array.ctypes.data)
        return binding

    def run_bound(self, binding: onnxruntime.IOBinding) -> None:
        """Run on bound inputs and outputs.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
        """
        self.started_ns = now_ns = time.monotonic_ns()
        options = self._run_options
        if self._has_grown and now_ns - self._given_back_ns >= _SHRINK_NS and self._after_large is not None:
            self._has_grown = False
            self._given_back_ns = now_ns
            options = self._after_large
        try:
            self.session.run_with_iobinding(binding, options)
        except Exception as error:
            raise execution_failure(error) from error
        finally:
            self.ended_ns = time.monotonic_ns()
        if self._profile_batches_left is not None:
            self._count_profiled_batch()

    def run_bound_dynamic(self, binding: onnxruntime.IOBinding) -> list[OutputArray]:
        """Run on bound inputs; ONNX Runtime allocates the outputs.

        They are bound anew each time: a binding that has run keeps its outputs, and would write over them.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
        """
        for name in self._output_names:
            binding.bind_output(name, "cpu")
        try:
            self.run_bound(binding)
            arrays = [self._as_array(value) for value in binding.get_outputs()]
            for index in self._returned:
                array = arrays[index]
                arrays[index] = array.copy() if isinstance(array, np.ndarray) else array
            return arrays
        finally:
            binding.clear_binding_outputs()

    def run_arrays(self, inputs: Mapping[int, InputArray]) -> list[OutputArray]:
        """Run on arrays, and on StringTensors for BYTES, which cannot be bound beforehand.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
            InvalidRequest: BYTES are not UTF-8, where this ONNX Runtime takes nothing else.
        """
        if self._lends_strings:
            return self._run_lending(inputs)
        tensors = self.signature.inputs
        arrays = {
            index: _as_texts(array, tensors[index].name, self.model) if isinstance(array, StringTensor) else array
            for index, array in inputs.items()
        }
        self.started_ns = time.monotonic_ns()
        try:
            if not self._needs_ort_values:
                feed = {tensors[index].name: array for index, array in arrays.items()}
                outputs = self.session.run(self._output_names, feed, self._run_options)
                results = [_encoded(np.asarray(output)) for output in outputs]
            else:
                feeds = {tensors[index].name: _as_ort_value(array, tensors[index]) for index, array in arrays.items()}
                values = self.session.run_with_ort_values(self._output_names, feeds, self._run_options)
                results = [self._as_array(value) for value in values]
        except Exception as error:
            raise execution_failure(error) from error
        finally:
            self.ended_ns = time.monotonic_ns()
        if self._profile_batches_left is not None:
            self._count_profiled_batch()
        return results

    def _run_strings(self, inputs: Mapping[int, InputArray], rows: int, known: Outputs) -> Outputs:
        """Run rows with BYTES where the outputs have a known form, into buffers that stay bound."""
        if self._sometimes is not None:
            self._shrink_in_time()
        arrays = self._run_lending(inputs, rows)
        return Outputs(tuple([array.tobytes() for array in arrays]), known.row_bytes, known.row_shapes, fixed=True)

    def _run_lending(self, inputs: Mapping[int, InputArray], rows: int = 0) -> list[Any]:
        """``run_arrays`` where string tensors can hold any bytes: through a binding, which is kept if it is small.

        Args:
            inputs: as of ``run_arrays``.
            rows: how many, where the outputs have a known form: then they are in buffers that the next run writes to.
                0 leaves them to ONNX Runtime.
        """
        strings = {index: tensor for index, tensor in inputs.items() if isinstance(tensor, StringTensor)}
        key = (rows, *inputs, *[tensor.shape for tensor in strings.values()])
        binding, blanks, outputs = self._string_bindings.get(key) or self._bind_strings(key, strings, rows)
        arrays = []  # which must outlive the run
        for index, array in inputs.items():
            if not isinstance(array, StringTensor):
                tensor = self.signature.inputs[index]
                arrays.append(np.ascontiguousarray(array))
                address = arrays[-1].ctypes.data
                binding.bind_input(tensor.name, "cpu", 0, tensor.datatype.onnx_type, array.shape, address)
        try:
            for index, lent in strings.items():
                blanks[index].lend(lent)
            if outputs:
                self.run_bound(binding)
                return outputs
            # An output may be the very tensor that went in; so outputs are read before the bytes are taken back.
            return self.run_bound_dynamic(binding)
        finally:
            for blank in blanks.values():
                blank.take_back()

    def _bind_strings(self, key: object, strings: Mapping[int, StringTensor], rows: int) -> StringBinding:
        """A binding whose string inputs are blanks of these shapes, and the outputs buffers for ``rows`` rows."""
        lead = (rows,) if self.signature.batched else ()
        tensors = self.signature.outputs if rows else ()
        outputs = [np.empty((*lead, *tensor.graph_shape), tensor.datatype.numpy) for tensor in tensors]
        binding = self.bind({}, outputs)
        blanks = {index: BlankStrings(tensor.shape) for index, tensor in strings.items()}
        for index, blank in blanks.items():
            binding.bind_ortvalue_input(self.signature.inputs[index].name, blank.value)
        if all(blank.count <= MANY_ELEMENTS for blank in blanks.values()):
            if len(self._string_bindings) >= MAX_STRING_BINDINGS:
                del self._string_bindings[next(iter(self._string_bindings))]
            self._string_bindings[key] = binding, blanks, outputs
        return binding, blanks, outputs

    def _as_array(self, value: onnxruntime.OrtValue) -> OutputArray:
        """An OrtValue in CPU memory as an array, BF16 as the uint16 of the same bits, BYTES encoded."""
        element = value.element_type()
        if element == _STRING:
            return read_strings(value) if self._lends_strings else _encoded(value.numpy())
        if element != _BFLOAT16:
            return np.asarray(value.numpy())
        shape = value.shape()
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, np.uint16)
        return np.array((ctypes.c_uint16 * count).from_address(value.data_ptr()), np.uint16).reshape(shape)

    def _count_profiled_batch(self) -> None:
        assert self._profile_batches_left is not None
        self._profile_batches_left -= 1
        if self._profile_batches_left <= 0:
            self._end_profiling()

    def _end_profiling(self) -> None:
        """Write the profile, if it was not written yet. One that cannot be written is logged, and fails no request."""
        if self._profile_batches_left is None:
            return
        self._profile_batches_left = None
        try:
            problem = _problem_of_profile(str(self.session.end_profiling()))
        except Exception as error:
            problem = one_line(error, MAX_REASON)
        if problem:
            logger.error("the profile of model '%s' could not be written: %s", self.model, problem)


def _problem_of_profile(path: str) -> str:
    """What is wrong with a profile that was written; "" if it is whole. ONNX Runtime does not check that itself."""
    with open(path, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 2, 0))
        return "" if file.read() == b"]\n" else f"'{path}' is cut short"


def _as_ort_value(array: npt.NDArray[Any], tensor: Any) -> onnxruntime.OrtValue:
    if tensor.datatype.name == "BF16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.datatype.onnx_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _as_texts(strings: StringTensor, tensor: str, model: str) -> npt.NDArray[np.object_]:
    """BYTES as ``str``, the only strings that ONNX Runtime's Python interface takes.

    Raises:
        InvalidRequest: an element is not UTF-8.
    """
    texts: list[str] = []
    try:
        for element in strings.elements():
            texts.append(element.decode())  # noqa: PERF401 - the error names the element by how far this came
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"string element {len(texts)} of inference input '{tensor}' for model '{model}' is not valid UTF-8 "
            f"({error.reason} at byte {error.start}); this server's ONNX Runtime takes no other strings"
        ) from error
    return np.array(texts, np.object_).reshape(strings.shape)


def _encoded(array: npt.NDArray[Any]) -> OutputArray:
    """Encoded strings for an array of texts; any other array as it is."""
    if not array.dtype.hasobject:
        return array
    return EncodedStrings.of([text.encode() for text in array.ravel().tolist()], array.shape)
