"""ONNX Runtime sessions that run batches. How a session is made is in ``opening``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from toutates.backends.onnx import string_tensors
from toutates.backends.onnx.device_runs import bind_on_device, device_of, placed_outputs
from toutates.backends.onnx.failures import RunFailed, execution_failure, is_of_shape
from toutates.backends.onnx.named_dimensions import difference
from toutates.backends.onnx.opening import MAX_REASON
from toutates.backends.onnx.provider_names import CPU
from toutates.backends.onnx.shared_arena import SHRINK_ENTRY, give_back_shared_arena
from toutates.backends.onnx.string_tensors import BlankStrings
from toutates.backends.onnx.values import as_array, as_ort_value, as_texts, encoded
from toutates.engine.lane import Batch, GatheredLane, PackedLane
from toutates.engine.on_device import DeviceLane
from toutates.engine.packing import OtherSizes, OutputArray, OutputPacker
from toutates.engine.result import Outputs
from toutates.protocol.signature import Signature
from toutates.protocol.strings import MANY_ELEMENTS, StringTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest, anew
from toutates.system.poison import Refilled, current
from toutates.system.text import one_line

__all__ = ["ModelSession"]

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=OutputArray | None)
R = TypeVar("R")

#: One input of a run.
InputArray = npt.NDArray[Any] | StringTensor
#: What is kept of runs on BYTES: a binding, the tensors that are lent bytes by the input's index, and the buffers of
#: outputs that are bound.
StringBinding = tuple[onnxruntime.IOBinding, dict[int, BlankStrings], list[npt.NDArray[Any]]]

#: Bindings of string inputs that a session keeps; beyond it the oldest goes. One is at most 128 KiB.
MAX_STRING_BINDINGS: Final = 16
#: Bindings that each executor keeps per batch; beyond it the oldest goes. One is about 2 KiB.
MAX_BINDINGS: Final = 64
#: How long an arena keeps the memory of its largest run, where runs differ in size, and of large outputs that have been
#: sent: it grows to twice what waits at once.
_SHRINK_NS: Final = 1_000_000_000


@cache
def _shrinking(devices: str) -> onnxruntime.RunOptions:
    """Options of a run after which the arenas of these devices give memory back. Nobody changes them."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(SHRINK_ENTRY, devices)
    return options


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
        has_subgraphs: tells whether an operator of the graph has a graph of its own, so that one run may write to other
            places than the next. Asked after a run on bound outputs.
        other_sizes: of the version; None for its own.
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
        has_subgraphs: Callable[[], bool] = lambda: False,
        other_sizes: OtherSizes | None = None,
    ) -> None:
        self.session = session
        self.signature = signature
        self.model = model
        self._number = number
        self._shares_arena = shares_arena
        self._has_subgraphs = has_subgraphs
        self._other_sizes = other_sizes
        self._packer = OutputPacker(signature, model, other_sizes, any_rows=True)
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
        #: outputs that are inputs, where ONNX Runtime does not allocate them: it returns the very memory that went in
        self._returned = frozenset(index for index, name in enumerate(self._output_names) if name in inputs)
        #: whether BYTES are bytes; else they go in and out as str, which is UTF-8
        self._lends_strings = (
            any(not tensor.datatype.size for tensor in (*signature.inputs, *signature.outputs))
            and string_tensors.usable()
        )
        self._as_array = partial(as_array, reads_strings=self._lends_strings)
        self._string_bindings: dict[object, StringBinding] = {}
        self._allocate = np.empty
        self._blanks: Callable[[tuple[int, ...]], BlankStrings] = BlankStrings
        poison = current()
        if poison is not None:
            self._allocate = poison.filling(np.empty)  # type: ignore[assignment]
            self._string_bindings = Refilled(poison, lambda binding: binding[2])
            self._blanks = partial(BlankStrings, own=poison.string)
        # run() has no NumPy type for BF16, so its tensors go in and out as OrtValues.
        self._needs_ort_values = any(
            tensor.datatype.name == "BF16" for tensor in (*signature.inputs, *signature.outputs)
        )

    def declare(self, signature: Signature) -> None:
        """Take another signature for the same tensors, with other sizes. No run has begun that anybody waits for."""
        self.signature = signature
        self._packer = OutputPacker(signature, self.model, self._other_sizes, any_rows=True)

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """Run some rows of a batch: on the CPU, on bindings to its buffers that are kept for the whole batch.

        On a device ONNX Runtime copies an input when it is bound, so that no binding can be kept.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
            InvalidRequest: BYTES are not UTF-8, where this ONNX Runtime takes nothing else; or it has failed, and
                inputs differ in a dimension that has one name in the graph.
        """
        try:
            lane = batch.lane
            if not self.on_cpu or not isinstance(lane, PackedLane):
                if isinstance(lane, DeviceLane):
                    return self._run_on_device(lane, batch, rows)
                if isinstance(lane, GatheredLane) and self._may_bind_strings(lane, rows):
                    return self._run_strings(lane, batch, first, rows)
                return self._packer.pack(self.run_raw(batch, first, rows), rows)
            key = (self._number, rows)
            if rows != batch.rows:
                binding = self._bind(lane, batch, first, rows)
            else:
                kept = batch.bindings.get(key)
                if kept is None:
                    if len(batch.bindings) >= MAX_BINDINGS:
                        del batch.bindings[next(iter(batch.bindings))]
                    kept = batch.bindings[key] = self._bind(lane, batch, first, rows)
                binding = kept
            in_place = lane.outputs_in_place
            if in_place is False:
                outputs = self._packer.pack(self.run_bound_dynamic(binding), rows)
                self._has_grown |= outputs.in_arrays
                return outputs
            try:
                self.run_bound(binding)
                own = None if in_place else self._own_outputs(lane, binding, lane.outputs(batch, first, rows))
            except ExecutionFailed as error:
                batch.bindings.pop(key, None)
                own = self._run_otherwise(lane, binding, error)
            if own is not None:
                batch.bindings.pop(key, None)  # its outputs are not the batch's any more
                outputs = self._packer.pack(own, rows)
                self._has_grown |= outputs.in_arrays
                return outputs
            return lane.take_outputs(batch, first, rows)
        except RunFailed as error:
            self._explain(error, self._shapes(batch, first, rows))
            raise

    def _own_outputs(
        self, lane: PackedLane | GatheredLane, binding: onnxruntime.IOBinding, buffers: Sequence[npt.NDArray[Any]]
    ) -> list[OutputArray] | None:
        """Look where a run has left its bound outputs: None if they are in their buffers, else all of them, copied.

        An output that is an input of the graph is not written, for one: the run's value is the input. The buffer then
        holds what somebody else's run has left there, and no byte of it may go out.
        """
        values = binding.get_outputs()
        places = [buffer.__array_interface__["data"][0] for buffer in buffers]
        if [value.data_ptr() for value in values] == places:
            if not self._has_subgraphs():
                lane.note_places(in_place=True)
            return None
        lane.note_places(in_place=False)
        return [np.array(self._as_array(value)) for value in values]

    def _run_otherwise(
        self, lane: PackedLane | GatheredLane, binding: onnxruntime.IOBinding, error: ExecutionFailed
    ) -> list[OutputArray]:
        """Run anew what has failed because an output has another shape than its buffer.

        Raises:
            ExecutionFailed: ``error``, where that was not the reason, or what the run fails with now.
        """
        if not is_of_shape(error):
            raise anew(error)
        lane.note_places(in_place=False)
        return self.run_bound_dynamic(binding)

    def run_raw(self, batch: Batch, first: int, rows: int) -> list[OutputArray]:
        """Run some rows of a batch on arrays that are made now; the outputs come as they are.

        Raises:
            ExecutionFailed, InvalidRequest: as ``run``.
        """
        if self._sometimes is not None:
            self._shrink_in_time()
        inputs = batch.lane.inputs(batch, first, rows)
        try:
            return self.run_arrays(inputs)
        except RunFailed as error:
            self._explain(error, {index: array.shape for index, array in inputs.items()})
            raise

    def _shapes(self, batch: Batch, first: int, rows: int) -> Mapping[int, Sequence[int]]:
        """The shapes of the inputs of a run, by index."""
        lane = batch.lane
        if isinstance(lane, DeviceLane):
            lead = (rows,) if self.signature.batched else ()
            return {index: (*lead, *shape) for index, shape in lane.row_shapes}
        return {index: array.shape for index, array in lane.inputs(batch, first, rows).items()}

    def _explain(self, error: RunFailed, shapes: Mapping[int, Sequence[int]]) -> None:
        """Look for the reason of a run that has failed in the names of dimensions.

        Raises:
            InvalidRequest: two inputs differ in one of them.
        """
        tensors = self.signature.inputs
        given = {tensors[index].name: shape for index, shape in shapes.items()}
        problem = difference(self.session, given, self.model)
        if problem:
            raise InvalidRequest(problem) from error

    @property
    def device(self) -> int | None:
        """See ``device_of``."""
        return device_of(self.session)

    def _run_on_device(self, lane: DeviceLane, batch: Batch, rows: int) -> Outputs:
        """Run a request whose rows a GPU has. Its outputs go where they are wanted on the GPU, or to the host.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
        """
        given: Any = batch.pieces[0][2][0]
        in_place = lane.outputs_in_place
        placed = {} if in_place is False else placed_outputs(self.signature, given.outputs, rows)
        binding = self.session.io_binding()
        bind_on_device(binding, self.signature, self.device or 0, lane.row_shapes, rows, given, placed)
        is_placed = True
        try:
            self.run_bound(binding)
        except ExecutionFailed as error:
            is_placed = not (placed and is_of_shape(error))
            if is_placed:
                raise
        else:
            binding.synchronize_outputs()  # another process reads them
            values = binding.get_outputs()
            if not in_place and placed:
                is_placed = all(values[index].data_ptr() == given.outputs[index][0] for index in placed)
        if not is_placed:
            lane.note_places(in_place=False)  # as in ``_own_outputs``; so this run's come to the host, and all others'
            return self._run_on_device(lane, batch, rows)
        if in_place is None and placed and not self._has_subgraphs():
            lane.note_places(in_place=True)
        arrays = [None if index in placed else self._as_array(value) for index, value in enumerate(values)]
        return self._packer.pack(self._not_the_inputs(arrays), rows, elsewhere=placed)

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
            return self._not_the_inputs([self._as_array(value) for value in binding.get_outputs()])
        finally:
            binding.clear_binding_outputs()

    def _not_the_inputs(self, arrays: list[A]) -> list[A]:
        """Copy those outputs that lie in the memory of inputs, which is written to again."""
        for index in self._returned:
            array = arrays[index]
            if isinstance(array, np.ndarray):
                arrays[index] = array.copy()
        return arrays

    def run_arrays(self, inputs: Mapping[int, InputArray]) -> list[OutputArray]:
        """Run on arrays, and on StringTensors for BYTES, which cannot be bound beforehand.

        Raises:
            ExecutionFailed: with ONNX Runtime's reason.
            InvalidRequest: BYTES are not UTF-8, where this ONNX Runtime takes nothing else.
        """
        if self._lends_strings:
            return self._run_lending(inputs, 0, lambda binding, _: self.run_bound_dynamic(binding))
        tensors = self.signature.inputs
        arrays = {
            index: as_texts(array, tensors[index].name, self.model) if isinstance(array, StringTensor) else array
            for index, array in inputs.items()
        }
        self.started_ns = time.monotonic_ns()
        try:
            if not self._needs_ort_values:
                feed = {tensors[index].name: array for index, array in arrays.items()}
                outputs = self.session.run(self._output_names, feed, self._run_options)
                results = [encoded(np.asarray(output)) for output in outputs]
            else:
                feeds = {tensors[index].name: as_ort_value(array, tensors[index]) for index, array in arrays.items()}
                values = self.session.run_with_ort_values(self._output_names, feeds, self._run_options)
                results = self._not_the_inputs([self._as_array(value) for value in values])
        except Exception as error:
            raise execution_failure(error) from error
        finally:
            self.ended_ns = time.monotonic_ns()
        if self._profile_batches_left is not None:
            self._count_profiled_batch()
        return results

    def _run_strings(self, lane: GatheredLane, batch: Batch, first: int, rows: int) -> Outputs:
        """Run rows with BYTES where the outputs have a known form, into buffers that stay bound."""
        if self._sometimes is not None:
            self._shrink_in_time()
        return self._run_lending(lane.inputs(batch, first, rows), rows, partial(self._run_known, lane, rows))

    def _may_bind_strings(self, lane: GatheredLane, rows: int) -> bool:
        return self._lends_strings and lane.outputs_in_place is not False and rows > 0 and self.on_cpu

    def _run_known(
        self, lane: GatheredLane, rows: int, binding: onnxruntime.IOBinding, buffers: list[npt.NDArray[Any]]
    ) -> Outputs:
        """Run rows into buffers that are bound."""
        try:
            self.run_bound(binding)
            own = None if lane.outputs_in_place else self._own_outputs(lane, binding, buffers)
        except ExecutionFailed as error:
            self._string_bindings.clear()
            own = self._run_otherwise(lane, binding, error)
        if own is not None:
            self._string_bindings.clear()  # the outputs of this one are not bound any more
            return self._packer.pack(own, rows)
        known = lane.known_outputs
        assert known is not None
        return Outputs(tuple([array.tobytes() for array in buffers]), known.row_bytes, known.row_shapes, fixed=True)

    def _run_lending(
        self,
        inputs: Mapping[int, InputArray],
        rows: int,
        run: Callable[[onnxruntime.IOBinding, list[npt.NDArray[Any]]], R],
    ) -> R:
        """Run where string tensors can hold any bytes: through a binding, which is kept if it is small.

        Args:
            inputs: as of ``run_arrays``.
            rows: how many, where the outputs are to be in buffers that the next run writes to; else 0.
            run: is given the binding, and the buffers that are bound.
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
            # An output may be the very tensor that went in; so outputs are read before the bytes are taken back.
            return run(binding, outputs)
        finally:
            for blank in blanks.values():
                blank.take_back()

    def _bind_strings(self, key: object, strings: Mapping[int, StringTensor], rows: int) -> StringBinding:
        """A binding whose string inputs are blanks of these shapes, and the outputs buffers for ``rows`` rows."""
        lead = (rows,) if self.signature.batched else ()
        tensors = self.signature.outputs if rows else ()
        outputs = [self._allocate((*lead, *tensor.graph_shape), tensor.datatype.numpy) for tensor in tensors]
        binding = self.bind({}, outputs)
        blanks = {index: self._blanks(tensor.shape) for index, tensor in strings.items()}
        for index, blank in blanks.items():
            binding.bind_ortvalue_input(self.signature.inputs[index].name, blank.value)
        if all(blank.count <= MANY_ELEMENTS for blank in blanks.values()):
            if len(self._string_bindings) >= MAX_STRING_BINDINGS:
                del self._string_bindings[next(iter(self._string_bindings))]
            self._string_bindings[key] = binding, blanks, outputs
        return binding, blanks, outputs

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
