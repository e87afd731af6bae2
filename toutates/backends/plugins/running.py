"""Runs batches by instances of a backend of ``backends.interface``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toutates.backends.interface import Array, Instance
from toutates.backends.plugins.importing import MAX_REASON
from toutates.backends.sequences import SLOT_INPUT
from toutates.engine.lane import Batch, PackedLane
from toutates.engine.packing import OtherSizes, OutputArray, OutputPacker
from toutates.engine.result import Outputs
from toutates.protocol.signature import Signature
from toutates.protocol.strings import EncodedStrings, StringTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest
from toutates.system.logs.limit import LineLimit
from toutates.system.text import described, one_line

__all__ = ["PluginFailures", "PluginRunner", "as_objects", "encoded"]

logger = logging.getLogger(__name__)


class PluginRunner:
    """One instance of a model version: the backend of one executor (``engine.servable.Backend``).

    Args:
        instance: what computes.
        signature: the version's tensors.
        model: its name, for errors.
        failures: of the backend.
        other_sizes: of the version.
        quick: see ``backends.interface.Backend``.
        keeps_state: see ``backends.interface.Tensors``.
        on_close: called once no run will follow.
    """

    def __init__(
        self,
        instance: Instance,
        signature: Signature,
        model: str,
        failures: PluginFailures,
        other_sizes: OtherSizes | None = None,
        *,
        quick: bool,
        keeps_state: bool = False,
        on_close: Callable[[], None],
    ) -> None:
        self.started_ns = self.ended_ns = 0
        #: only what is quick may be run by workers; how long others take is not even measured
        self.on_cpu = self.one_thread = quick
        self._run = _by_slot(instance) if keeps_state else instance.run
        self._signature = signature
        self._names = [tensor.name for tensor in signature.inputs]
        self._outputs = [(tensor.name, not tensor.datatype.size) for tensor in signature.outputs]
        self._failures = failures
        self._other_sizes = other_sizes or OtherSizes(model)
        self._packer = OutputPacker(signature, model, self._other_sizes)
        self._model = model
        self._on_close = on_close

    def declare(self, signature: Signature, *, is_told: bool) -> None:
        """Take another signature for the same tensors, with other sizes, before anybody waits for a run.

        Args:
            signature: with these sizes.
            is_told: whether it is said already that outputs have other sizes than is declared.
        """
        self._signature = signature
        self._packer = OutputPacker(signature, self._model, self._other_sizes)
        if is_told:
            self._other_sizes.note_said()

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """See ``engine.servable.Backend``."""
        lane = batch.lane
        known = lane.known_outputs if isinstance(lane, PackedLane) else None
        outputs = self.run_arrays(lane.inputs(batch, first, rows))
        if known is None:
            # A large output is sent from its own memory; that of a view is somebody else's, who may write to it again.
            outputs = [
                array.copy() if isinstance(array, np.ndarray) and array.base is not None else array for array in outputs
            ]
        return self._packer.pack(outputs, rows, known)

    def run_arrays(self, inputs: Mapping[int, Array | StringTensor]) -> list[OutputArray]:
        """Run on arrays by the input's index; returns the outputs in the signature's order.

        Raises:
            InvalidRequest: the backend says that the client is at fault.
            ExecutionFailed: it raised something else, or returned no outputs.
        """
        names = self._names
        arrays: dict[str, Any] = {
            names[index]: as_objects(array) if isinstance(array, StringTensor) else array
            for index, array in inputs.items()
        }
        self.started_ns = time.monotonic_ns()
        try:
            outputs = self._run(arrays)
        except InvalidRequest as error:
            raise InvalidRequest(one_line(error, MAX_REASON)) from error
        except (Exception, SystemExit) as error:
            raise self._failures.of(error) from error
        finally:
            self.ended_ns = time.monotonic_ns()
        try:
            found: list[OutputArray] = []
            for name, of_bytes in self._outputs:
                output = outputs[name]
                if not of_bytes and type(output) is not np.ndarray:
                    raise TypeError(type(output).__name__)
                found.append(encoded(output) if of_bytes else output)
        except Exception as error:
            raise self._failures.wrong_answer(outputs, self._signature) from error
        return found

    def close(self) -> None:
        """See ``engine.servable.Backend``."""
        self._on_close()


def _by_slot(instance: Any) -> Callable[[dict[str, Any]], Mapping[str, Array]]:
    """Runs by an instance that keeps the states of sequences. A run without a slot, as for warm-up, begins one."""

    def run(inputs: dict[str, Any]) -> Mapping[str, Array]:
        given = inputs.pop(SLOT_INPUT, None)
        slot = -1 if given is None else int(given.flat[0])
        outputs: Mapping[str, Array] = instance.run_sequence(inputs, max(slot, ~slot), begins=slot < 0)
        return outputs

    return run


class PluginFailures:
    """What is said of what a backend does wrong, in its log and to clients.

    Args:
        backend, model: names.
    """

    def __init__(self, backend: str, model: str) -> None:
        self._backend, self._model = backend, model
        self._limit: LineLimit[str] = LineLimit()

    def of(self, error: BaseException) -> ExecutionFailed:
        """The error of an exception, which is logged."""
        if not self._limit.count("", time.monotonic_ns()):
            fields = {"backend": self._backend, "model": self._model}
            logger.error(
                "the backend '%s' failed in a run of model '%s'", *fields.values(), exc_info=error, extra=fields
            )
        # Paths and lines are for the log.
        reason = one_line(described(error), 200)
        return ExecutionFailed(f"the backend '{self._backend}' failed to run model '{self._model}': {reason}")

    def wrong_answer(self, outputs: object, signature: Signature, *, some: bool = False) -> ExecutionFailed:
        """The error of an answer that is none.

        Args:
            outputs: what the backend has returned.
            signature: of the model.
            some: whether outputs may be missing.
        """
        who = f"the backend '{self._backend}' of model '{self._model}'"
        names = [tensor.name for tensor in signature.outputs]
        expected = ", ".join(f"'{name}'" for name in names)
        if not isinstance(outputs, Mapping):
            return ExecutionFailed(f"{who} returned {type(outputs).__name__}, expected a dict of {expected}")
        given = ", ".join(f"'{key}'" for key in list(outputs)[:10]) or "none"
        if some and not outputs.keys() <= set(names):
            return ExecutionFailed(f"{who} returned {one_line(given, 200)}, expected some of {expected}")
        for tensor in signature.outputs:
            name, of_bytes = tensor.name, not tensor.datatype.size
            if name not in outputs:
                if some:
                    continue
                return ExecutionFailed(f"{who} returned no output '{name}'; returned were {one_line(given, 200)}")
            if of_bytes or not isinstance(outputs[name], np.ndarray):
                found = type(outputs[name]).__name__
                of = " of bytes or str" if of_bytes else ""
                return ExecutionFailed(f"{who} returned output '{name}' as {found}, expected an array{of}")
        return ExecutionFailed(f"{who} returned what cannot be read")


def as_objects(strings: StringTensor) -> Array:
    """An array of ``bytes`` objects."""
    array = np.empty(len(strings.starts), np.object_)
    array[:] = strings.elements()
    return array.reshape(strings.shape)


def encoded(array: Any) -> EncodedStrings:
    """BYTES of an array of ``bytes`` or ``str`` objects, or of NumPy's own strings.

    Raises:
        TypeError, AttributeError: it is no array, or has other elements.
    """
    elements = [_as_bytes(element) for element in array.flat]
    return EncodedStrings.of(elements, array.shape)


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    return element.encode() if isinstance(element, str) else bytes(memoryview(element))  # type: ignore[arg-type]
