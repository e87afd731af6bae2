"""An instance of a Python model in a thread of the server: nothing is copied, and nothing protects the server.

For models that are trusted as the server is, and for free-threaded Python, where they do not keep its other threads
waiting. A model that hangs keeps its executor's thread, and one that crashes takes the server with it.

The model sees the rows of a batch as they lie in its buffers. A buffer that the model keeps an array of, or that an
answer is still sent from, is not used again: reference counts tell.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.backends.python.child.logger import set_sink
from toutates.backends.python.child.metric_table import MetricTable
from toutates.backends.python.child.metrics import set_metric_table
from toutates.backends.python.child.model import Model, OutputForms
from toutates.backends.python.child.pb_utils import set_model_dir
from toutates.backends.python.child.requests import ReceivedRequest
from toutates.backends.python.child.tensors import Tensor
from toutates.backends.python.deviations import Deviations
from toutates.backends.python.output import PrintedOutput
from toutates.backends.python.results import Results
from toutates.backends.python.thread_caller import note_loading, note_waits
from toutates.backends.rows import Callers, Row, about, contents_of, rows_of, run_wanted
from toutates.engine.lane import Batch, PackedLane
from toutates.engine.open_request import Responses
from toutates.engine.packing import LARGE_OUTPUT_BYTES
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Consumer
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, RequestError
from toutates.system.text import described

__all__ = ["ThreadInstance"]

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


def _references(tensor: Tensor) -> int:
    """References to the array of a tensor."""
    return sys.getrefcount(tensor._array)


#: Of one that only the tensor has.
_OWN: Final = _references(Tensor("x", np.empty(1)))


class ThreadInstance:
    """Runs batches with a model's code in the executor's own thread (``engine.servable.Backend``).

    Args:
        name: of the instance.
        signature: the model's tensors.
        model_name: the model's name.
        model: its code, initialized.
        version_dir: the version's directory.
        output: takes the lines that it logs.
        metrics: that it keeps.
        one_by_one: whether it sees each request alone.
        stacked: whether it sees the batch as one request.
        deviations: of the version; None where each is an error.

    Attributes:
        ports: the consumers of the version; set once these are known.
        responses: those of a decoupled model; set with ``ports``.
    """

    on_cpu = False  # no worker shall run code of the model's
    one_thread = False
    alive = True

    def __init__(
        self,
        name: str,
        signature: Signature,
        model_name: str,
        model: Model,
        version_dir: str,
        output: PrintedOutput,
        metrics: MetricTable,
        *,
        one_by_one: bool = False,
        stacked: bool = False,
        deviations: Deviations | None = None,
    ) -> None:
        self.started_ns = self.ended_ns = 0
        self.ports: Sequence[Consumer] = ()
        self.responses = Responses()
        self.keeps_places = False
        self._name = name
        self._signature = signature
        self._model = model
        self._version_dir = version_dir
        self._output = output
        self._metrics = metrics
        self._one_by_one, self._stacked = one_by_one, stacked
        self._names = [(tensor.name, tensor.datatype.name) for tensor in signature.inputs]
        self._forms = OutputForms(
            [tensor.name for tensor in signature.outputs], [tensor.datatype.name for tensor in signature.outputs]
        )
        self._results = Results(signature, model_name, stacked=stacked, deviations=deviations)
        self._thread = 0

    def enter(self) -> None:
        """Note that the model's code runs in this thread from now on."""
        self._thread = threading.get_ident()
        self._adopt()

    def _adopt(self) -> None:
        """Have what this thread does be the model's."""
        set_model_dir(self._version_dir)
        set_sink(self._output.log)
        set_metric_table(self._metrics)
        note_loading(is_loading=False)

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """Run a batch. See ``Backend``: an error of the model's is the outcome of its requests, and nothing raises."""
        if threading.get_ident() != self._thread:
            self.enter()
        self.started_ns = self.ended_ns = time.monotonic_ns()
        if self._stacked or self.keeps_places:
            return self._run_requests(batch, rows_of(batch))
        return run_wanted(batch, self.ports, self._run_requests)

    def _run_requests(self, batch: Batch, requests: list[Row]) -> Outputs | Separate:
        before = [sys.getrefcount(array) for array in batch.arrays]
        callers = Callers(requests, self.ports)
        before_it = note_waits(callers)
        try:
            outcome = self._run(batch, requests)
        except Exception as error:
            # A bug of this package. If it were raised, each request would be run once more by itself.
            logger.exception("running a batch of %s failed", self._name)
            failure = ExecutionFailed(f"running the batch failed: {type(error).__name__}")
            outcome = Separate([(port, request, failure) for _, _, port, request in requests])
        finally:
            note_waits(before_it)
            callers.end()
        self.ended_ns = time.monotonic_ns()
        if [sys.getrefcount(array) for array in batch.arrays] != before:
            batch.room = -1  # so that it is not used again
        return outcome

    def close(self) -> None:
        """Have the model finalize itself; what it raises is logged."""
        self.enter()
        try:
            self._model.finalize()
        except Exception as error:
            self._output.log("E", f"finalize failed: {described(error)}")

    def _run(self, batch: Batch, rows: list[Row]) -> Outputs | Separate:
        lane = batch.lane
        if not isinstance(lane, PackedLane):
            return self._run_gathered(batch, rows)
        numbers = [(0, batch.rows)] if self._stacked else [(first, own) for first, own, _, _ in rows]
        requests = [self._request(self._slicing(batch, lane, *numbers[at]), rows[at]) for at in range(len(numbers))]
        outcomes = self._model.answers(requests, one_by_one=self._one_by_one)
        requests.clear()
        known = lane.known_outputs
        if known is not None and sum(known.row_bytes) <= LARGE_OUTPUT_BYTES:
            firsts, sizes = zip(*numbers, strict=True)
            if self._forms.write(outcomes, firsts, sizes, batch.outputs, batched=self._signature.batched):
                return lane.take_outputs(batch, 0, batch.rows)
        return self._separate(outcomes, rows, batch.arrays, [])

    def _slicing(self, batch: Batch, lane: PackedLane, first: int, rows: int) -> Callable[[], list[Tensor]]:
        part = slice(first, first + rows) if self._signature.batched else (0, ...)
        names = [self._names[index] for index, _ in lane.row_shapes]
        arrays = tuple(batch.arrays)

        def tensors() -> list[Tensor]:
            return [Tensor.received(*name, array[part]) for name, array in zip(names, arrays, strict=True)]

        return tensors

    def _run_gathered(self, batch: Batch, rows: list[Row]) -> Separate:
        contents, refused = contents_of(batch, rows)
        if not contents:
            return Separate([*refused])
        entries: list[tuple[int, Row, list[Array]]] = [(row[1], row, raws) for row, raws in contents]
        if self._stacked:
            columns = zip(*(raws for _, raws in contents), strict=True)
            joined = [np.concatenate(column) for column in columns]
            entries = [(sum(row[1] for row, _ in contents), contents[0][0], joined)]
        requests = [self._request(self._reading(batch, own, raws), row) for own, row, raws in entries]
        outcomes = self._model.answers(requests, one_by_one=self._one_by_one)
        return self._separate(outcomes, [row for row, _ in contents], [], refused)

    def _reading(self, batch: Batch, rows: int, raws: Sequence[Array]) -> Callable[[], list[Tensor]]:
        inputs, batched = self._signature.inputs, self._signature.batched

        def tensors() -> list[Tensor]:
            found = []
            for raw, (index, shape) in zip(raws, batch.lane.row_shapes, strict=True):
                whole = (rows, *shape) if batched else shape
                spec = inputs[index]
                if spec.datatype.size:
                    found.append(Tensor.received(*self._names[index], raw.view(spec.datatype.numpy).reshape(whole)))
                else:
                    found.append(Tensor.received_strings(spec.name, raw.tobytes(), whole))
            return found

        return tensors

    def _request(self, tensors: Callable[[], list[Tensor]], row: Row) -> ReceivedRequest:
        def wanted() -> bool:
            return self.ports[row[2]].is_wanted(row[3][0], time.monotonic_ns())

        return ReceivedRequest(tensors, self._said(row), wanted)

    def _said(self, row: Row) -> Callable[[], dict[str, Any]]:
        return lambda: {} if self._stacked else about(row, self.ports, self._signature)

    def _separate(
        self,
        outcomes: list[Any],
        rows: list[Row],
        buffers: Sequence[Array],
        refused: list[tuple[int, PendingRequest, RequestError]],
    ) -> Separate:
        """The outcome of each request.

        Args:
            outcomes: of the model.
            rows: the requests.
            buffers: of the batch.
            refused: other requests of the batch, with their errors.
        """
        results = self._results
        found: list[tuple[int, PendingRequest, Outputs | RequestError]] = [*refused]
        if self._stacked:
            whole = results.of_arrays(*self._read(outcomes[0], buffers), sum(own for _, own, _, _ in rows))
            return Separate([*found, *results.cut(whole, rows, self.ports)])
        for outcome, (_, own, port, request) in zip(outcomes, rows, strict=True):
            outputs = results.of_arrays(*self._read(outcome, buffers), own)
            if not isinstance(outputs, RequestError):
                found.append((port, request, results.outputs(outputs, own, self.ports[port], request)))
            else:
                found.append((port, request, outputs))
        return Separate(found)

    def _read(
        self, outcome: Any, buffers: Sequence[Array]
    ) -> tuple[list[Any] | None, dict[int, tuple[str, Sequence[int], bytes | Array]], dict[str, Any] | None]:
        """The error of an outcome, or its outputs and parameters. What the model could still change is copied."""
        error, tensors, parameters = self._forms.read(outcome)
        given: dict[int, tuple[str, Sequence[int], bytes | Array]] = {}
        for index, tensor in tensors.items():
            content: bytes | Array
            if tensor.datatype == "BYTES":
                content = tensor.encoded()
            elif tensor._array.flags.c_contiguous:
                base = tensor._array.base
                is_ours = _references(tensor) <= _OWN if base is None else any(base is buffer for buffer in buffers)
                content = tensor._array if is_ours else tensor._array.copy()
            else:
                content = np.ascontiguousarray(tensor._array)
            given[index] = tensor.datatype, tensor.shape(), content
        return error, given, parameters
