"""An instance of a Python model: the backend of one executor, which has the batches run by a process.

Rows are in shared memory already when a batch comes, because its buffers are there (``arena``). The process hears where
they are, and which request has which. Outputs whose shapes the configuration fixes come back in the batch's own
buffers; others in memory of the instance, and their places are checked before anything is read.

A process that has died, or was ended because it hung, is started again: at once the first time, then after a pause that
doubles. Requests that come within the pause fail with what the process said last; those that come while it starts wait.
One that dies while it has nothing to do fails nobody: it is started again when the kernel tells of its end, and a batch
that comes first, and that it has not read, goes to the next process.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from toutates.backends.python.arena import Arena
from toutates.backends.python.child import frames
from toutates.backends.python.deviations import Deviations
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.process import Failed, ModelProcess, ProcessEnded
from toutates.backends.python.process_calls import ProcessCalls
from toutates.backends.python.results import Results
from toutates.backends.rows import Callers, Contents, Row, about, contents_of, rows_of, run_wanted
from toutates.engine.lane import Batch, Lane, PackedLane
from toutates.engine.open_request import Responses
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Consumer
from toutates.models.table import ModelTable
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["Limits", "PythonInstance"]

logger = logging.getLogger(__name__)

#: Pauses before a process is started again; none before the first time.
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
#: A process that has lived so long counts as one that never died.
FORGET_S: Final = 60.0
#: The outputs of one batch.
MAX_OUTPUT_BYTES: Final = 2**31
_ALIGNMENT: Final = 64
#: Questions about other models.
_OF_CALLS: Final = frozenset(("block", "cancel", "ready", "load", "unload"))
#: Under this key of ``Batch.bindings``, where its buffers are.
_OFFSETS: Final = (-1, -1)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a process may take, seconds.

    Attributes:
        start_s: to import model.py, and to initialize.
        execute_s: for one batch; 0 for any time.
        finalize_s: to finalize.
    """

    start_s: float = 600.0
    execute_s: float = 300.0
    finalize_s: float = 30.0


class PythonInstance:
    """Runs batches with one process (``engine.servable.Backend``).

    Args:
        name: of the instance.
        signature: the model's tensors.
        model: its name.
        arena: the memory of the version's batches.
        process: started and initialized.
        start: starts and initializes another one.
        limits: see Limits.
        one_by_one: whether the model sees each request alone.
        stacked: whether it sees the batch as one request.
        deviations: of the version; None where each is an error.
        get_table: returns the models that it may call; None for none.
        loads: loads and unloads models for it; None where nobody does.

    Attributes:
        ports: the consumers of the version; set once these are known.
        responses: those of a decoupled model; set with ``ports``.
        keeps_places: whether requests have their places in a batch, as those of sequences do. Else those that nobody
            waits for any more are not given to the model.
        on_death: called when its process has ended, and what the model kept there is lost. In any thread.
    """

    on_cpu = False  # no worker shall wait for another process
    one_thread = False

    def __init__(
        self,
        name: str,
        signature: Signature,
        model: str,
        arena: Arena,
        process: ModelProcess,
        start: Callable[[], ModelProcess],
        limits: Limits,
        *,
        stacked: bool = False,
        deviations: Deviations | None = None,
        get_table: Callable[[], ModelTable] | None = None,
        loads: LoadsModels | None = None,
    ) -> None:
        self._calls = ProcessCalls(arena, get_table, loads)
        self.started_ns = self.ended_ns = 0
        self.ports: Sequence[Consumer] = ()
        self.responses = Responses()
        self.keeps_places = False
        self.on_death: Callable[[], None] = lambda: None
        self._name = name
        self._signature = signature
        self._arena = arena
        self._process = process
        self._start = start
        self._limits = limits
        self._stacked = stacked
        self._results = Results(signature, model, stacked=stacked, deviations=deviations)
        self._layouts: WeakKeyDictionary[Lane, int] = WeakKeyDictionary()
        self._next_layout = 0
        #: whether the model of this process reads more of requests than their tensors
        self._asks = False
        #: memory for outputs that have no place of their own
        self._room: npt.NDArray[Any] | None = None
        #: buffers of earlier batches that the model has kept arrays of, by where they are
        self._kept: dict[int, npt.NDArray[Any]] = {}
        self._born = time.monotonic()
        self._deaths = 0
        self._retry_at = 0.0
        self._problem = ""
        #: of the process and what is known of its deaths; held while another one is started
        self._lock = threading.Lock()
        self._busy = False
        self._closed = threading.Event()
        #: starts the process again
        self._starter: threading.Thread | None = None
        self._starter_wanted = False
        self._starter_lock = threading.Lock()
        process.on_exit = self._wake_starter

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self._process.alive

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """Run a batch. See ``Backend``: an error of the model's is the outcome of its requests, and nothing raises."""
        self.started_ns = self.ended_ns = time.monotonic_ns()
        if self._stacked or self.keeps_places:
            return self._run_requests(batch, rows_of(batch))
        return run_wanted(batch, self.ports, self._run_requests)

    def _run_requests(self, batch: Batch, requests: list[Row]) -> Outputs | Separate:
        try:
            return self._run_untouched(batch, requests)
        except Failed as error:
            message = str(error)
        except ProcessEnded as error:
            message = f"Stub process '{self._name}' is not healthy: {error}"
        except MemoryError:
            message = "Failed to increase the shared memory pool size: it has no room for the inputs"
        except Exception as error:
            # A bug of this package. If it were raised, each request would be run once more by itself; and nobody knows
            # what the process has read.
            logger.exception("running a batch of %s failed", self._name)
            message = f"running the batch failed: {type(error).__name__}"
            self._process.kill()
            with self._lock:
                self._note_death(error)
        finally:
            self._busy = False
            if not self._process.alive:
                self._wake_starter()
        self.ended_ns = time.monotonic_ns()
        failure = ExecutionFailed(f"Failed to process the request(s) for model '{self._name}', message: {message}")
        return self._failed(requests, failure)

    def _failed(self, requests: list[Row], failure: RequestError) -> Separate:
        """The outcome of a batch that came to nothing."""
        return Separate([(port, request, failure) for _, _, port, request in requests])

    def close(self) -> None:
        """Have the model finalize itself, and end its process."""
        self._closed.set()
        with self._lock:  # so that none is being started
            process = self._process
        process.on_exit = lambda: None  # nothing is left that refers to this instance
        process.finalize(self._limits.finalize_s)
        starter = self._starter
        if starter is not None:
            starter.join()
        self._room = None
        self._kept.clear()
        self._calls.end()

    # --- batches -----------------------------------------------------------------------------------------------------

    def _run_untouched(self, batch: Batch, requests: list[Row]) -> Outputs | Separate:
        try:
            return self._run(batch, requests)
        except ProcessEnded as error:
            if not error.untouched:
                raise
        return self._run(batch, requests)

    def _run(self, batch: Batch, requests: list[Row]) -> Outputs | Separate:
        process = self._usable()
        lane = batch.lane
        blocks: list[npt.NDArray[Any]]
        refused: list[tuple[int, PendingRequest, RequestError]] = []
        if isinstance(lane, PackedLane):
            try:
                frame = self._packed_frame(process, batch, lane, requests)
            except ProcessEnded as error:  # which has not been told of the lane
                self._died(error)
                raise
            kind, blocks = frames.EXECUTE, batch.arrays
        else:
            contents, refused = contents_of(batch, requests)
            requests = [request for request, _ in contents]
            if not requests:
                return Separate([*refused])
            frame, block = self._gathered_frame(lane, contents)
            kind, blocks = frames.GATHERED, [block]
        try:
            said = self._ask(process, kind, frame, requests)
            self.ended_ns = time.monotonic_ns()
            if not said and isinstance(lane, PackedLane) and lane.known_outputs is not None:
                return self._all_in_place(batch, lane)
            outcome = process.parsed(said)
            self._keep(batch, blocks, outcome)
            if "requests" not in outcome and isinstance(lane, PackedLane) and lane.known_outputs is not None:
                return self._all_in_place(batch, lane)
            outcomes = self._outcomes(outcome, requests)
        except ProcessEnded as error:
            self._died(error)
            raise
        finally:
            if self._room is not None and self._room.nbytes > frames.KEPT_ROOM_BYTES:
                self._room = None
        return Separate([*outcomes, *refused])

    def _ask(self, process: ModelProcess, kind: int, frame: bytes, requests: list[Row]) -> bytes:
        """Have the process run a batch; returns what it says then."""
        calls = self._calls
        calls.begin()
        calls.waits = callers = Callers(requests, self.ports)
        try:
            return process.ask(
                kind, frame, self._limits.execute_s, lambda question: self._answer(question, requests), calls
            )
        finally:
            calls.waits = None
            callers.end()

    def _all_in_place(self, batch: Batch, lane: PackedLane) -> Outputs | Separate:
        """The outcome of a batch whose outputs are all in its buffers."""
        return lane.take_outputs(batch, 0, batch.rows)

    def _outcomes(
        self, said: Mapping[str, Any], requests: list[Row]
    ) -> list[tuple[int, PendingRequest, Outputs | RequestError]]:
        """The outcome of each request."""
        return self._results.read(said, self._room, requests, self.ports)

    def _died(self, error: ProcessEnded) -> None:
        """The process has ended while a batch was run."""
        with self._lock:
            self._note_death(error)

    def _packed_frame(self, process: ModelProcess, batch: Batch, lane: PackedLane, requests: list[Row]) -> bytes:
        number = self._layouts.get(lane)
        if number is None:
            number = self._tell_layout(process, lane)
        offsets = batch.bindings.get(_OFFSETS)
        if offsets is None:
            places = [self._arena.offset(array) for array in (*batch.arrays, *batch.outputs)]
            offsets = batch.bindings[_OFFSETS] = struct.pack(f"<{len(places)}Q", *places)
        count = len(requests)
        numbers = [number for first, rows, _, _ in requests for number in (first, rows)]
        parts = [
            frames.EXECUTE_HEAD.pack(self._asks, number, count, batch.rows, batch.room),
            offsets,
            struct.pack(f"<{2 * count}I", *numbers),
        ]
        if self._asks:
            parts.append(json.dumps(self._about(requests)).encode())
        return b"".join(parts)

    def _tell_layout(self, process: ModelProcess, lane: PackedLane) -> int:
        number = self._next_layout
        if number == frames.MAX_LAYOUTS:
            self._layouts.clear()
            number = 0  # which has the process forget the others
        self._next_layout = number + 1
        known = lane.known_outputs
        process.tell(
            frames.LAYOUT,
            {
                "number": number,
                "inputs": lane.row_shapes,
                "outputs": known.row_shapes if known is not None else None,
            },
        )
        self._layouts[lane] = number
        return number

    def _gathered_frame(self, lane: Lane, contents: list[Contents]) -> tuple[bytes, npt.NDArray[Any]]:
        """Copy the arrays of a batch into one block; returns what to say of it, and the block."""
        rows = [request[1] for request, _ in contents]
        if self._stacked:
            # The rows of all requests, one after the other.
            columns = [[raws[at] for _, raws in contents] for at in range(len(lane.row_shapes))]
            entries = [(sum(rows), columns)]
        else:
            entries = [(own, [[raw] for raw in raws]) for own, (_, raws) in zip(rows, contents, strict=True)]
        size = 0
        copies: list[tuple[int, npt.NDArray[Any]]] = []
        described = []
        for own_rows, inputs in entries:
            places = []
            for raws, (_, shape) in zip(inputs, lane.row_shapes, strict=True):
                start = size
                for raw in raws:
                    copies.append((size, raw))
                    size += raw.nbytes
                places.append((start, size - start, (own_rows, *shape) if self._signature.batched else shape))
                size = -(-size // _ALIGNMENT) * _ALIGNMENT
            described.append((own_rows, places))
        block = self._arena.allocate((size,), np.dtype(np.uint8))
        for at, raw in copies:
            block[at : at + raw.nbytes] = raw
        said: dict[str, Any] = {
            "inputs": [index for index, _ in lane.row_shapes],
            "blocks": [(self._arena.offset(block), size)],
            "requests": described,
        }
        if self._asks:
            said["about"] = self._about([request for request, _ in contents])
        return json.dumps(said).encode(), block

    # --- questions of the process ------------------------------------------------------------------------------------

    def _answer(self, question: Mapping[str, Any], requests: list[Row]) -> Any:
        if "about" in question:
            self._asks = True
            return self._about(requests)
        if "memory" in question:
            return self._more_room(question["memory"])
        if not _OF_CALLS.isdisjoint(question):
            return self._calls.answer(question)
        position = question.get("wanted")
        if isinstance(position, int) and 0 <= position < len(requests):
            _, _, port, request = requests[position]
            return self.ports[port].is_wanted(request[0], time.monotonic_ns())
        return None

    def _about(self, requests: list[Row]) -> list[dict[str, Any]]:
        """What the requests say beside their tensors; nothing of a batch that the model sees as one request."""
        if self._stacked:
            return []
        return [about(row, self.ports, self._signature) for row in requests]

    def _more_room(self, size: Any) -> tuple[int, int]:
        """Memory for outputs: where it is, and how much; 0 and 0 if there is none."""
        if not isinstance(size, int) or not 0 < size <= MAX_OUTPUT_BYTES:
            return 0, 0
        self._room = None
        try:
            self._room = self._arena.allocate((1 << (size - 1).bit_length(),), np.dtype(np.uint8))
        except MemoryError:
            return 0, 0
        return self._arena.offset(self._room), self._room.nbytes

    def _keep(self, batch: Batch, blocks: list[npt.NDArray[Any]], outcome: Mapping[str, Any]) -> None:
        """Keep buffers that the model has kept arrays of, and let go of those that it has let go of."""
        released, kept = outcome.get("released", ()), outcome.get("kept", ())
        for offset in released if isinstance(released, list) else ():
            if isinstance(offset, int):
                self._kept.pop(offset, None)
        if not isinstance(kept, list) or not kept:
            return
        for array in blocks:
            offset = self._arena.offset(array)
            if offset in kept:
                self._kept[offset] = array
        batch.room = -1  # so that it is not used again: its next rows would change what the model has kept

    # --- the process -------------------------------------------------------------------------------------------------

    def _usable(self) -> ModelProcess:
        """The process, started again if it has died. It is busy then.

        Raises:
            Failed, ProcessEnded: it cannot be started, or not yet.
        """
        with self._lock:
            self._busy = True
            if self._process.alive:
                return self._process
            left_s = self._retry_at - time.monotonic()
            if left_s > 0:
                raise ProcessEnded(f"{self._problem}; it is started again in {left_s:.1f} s")
            self._start_again()
            return self._process

    def _start_again(self) -> None:
        """Start another process; with the lock held.

        Raises:
            ProcessEnded: it cannot be started.
        """
        logger.info("%s: its process is started again", self._name, extra={"instance": self._name})
        try:
            process = self._start()
        except (Failed, ProcessEnded, OSError) as error:
            self._note_death(error)
            raise ProcessEnded(str(error)) from error
        process.on_exit = self._wake_starter
        self._process = process
        self._born = time.monotonic()

    def _wake_starter(self) -> None:
        """Have somebody see whether there is a process. Takes no lock that is held for long."""
        with self._starter_lock:
            self._starter_wanted = True
            if self._starter is None and not self._closed.is_set():
                self._starter = threading.Thread(target=self._keep_alive, name=f"restart {self._name}", daemon=True)
                self._starter.start()

    def _keep_alive(self) -> None:
        """Start the process again where it has died, as soon as that may be, until there is one."""
        while True:
            with self._starter_lock:
                if not self._starter_wanted or self._closed.is_set():
                    self._starter = None
                    return
                self._starter_wanted = False
            self._closed.wait(max(self._retry_at - time.monotonic(), 0))
            with self._lock:
                self._see_to_process()

    def _see_to_process(self) -> None:
        """Start the process again, if it has died and it is time; with the lock held."""
        if self._closed.is_set() or self._busy:
            return  # what runs a batch hears of the death itself
        try:
            self._process.check()
        except ProcessEnded as error:
            self._note_death(error)
        if self._process.alive:
            return
        if self._retry_at <= time.monotonic():
            try:
                self._start_again()
            except ProcessEnded:
                self._wake_starter()
            except Exception:
                logger.exception("starting the process of %s again failed", self._name)
        else:
            self._wake_starter()

    def _note_death(self, error: Exception) -> None:
        """Note why there is no process, and when there may be another; with the lock held."""
        now = time.monotonic()
        self._deaths = 1 if now - self._born >= FORGET_S else self._deaths + 1
        pause_s = 0.0 if self._deaths == 1 else min(FIRST_PAUSE_S * 2 ** min(self._deaths - 2, 30), MAX_PAUSE_S)
        self._retry_at = now + pause_s
        self._problem = str(error)
        self._layouts.clear()
        self._next_layout = 0
        self._kept.clear()
        self._calls.end()
        self._room = None
        self._asks = False
        self.on_death()
        logger.error(
            "%s: its process is gone (%d in a row): %s; it is started again %s",
            self._name,
            self._deaths,
            error,
            f"in {pause_s:g} s" if pause_s else "now",
            extra={"instance": self._name},
        )
