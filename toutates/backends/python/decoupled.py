"""Instances of decoupled Python models: a request has any number of responses, at any time after ``execute`` began.

``execute`` returns as soon as it likes, and the next batch may come. What was not answered by then stays *open*
(``engine.open_request``), and responses go to its caller from whatever thread of the model sends them.

A process may send at any time, so a thread of the server's reads what it says for as long as it lives. The executor's
thread tells it of a batch, and waits until that thread has heard that ``execute`` has returned.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np

from toutates.backends.open_requests import DRAIN_S, UNLOADED, OpenRequests
from toutates.backends.python.child import frames
from toutates.backends.python.child.requests import RESCHEDULED_TEXT, ReceivedRequest
from toutates.backends.python.child.senders import DecoupledSender
from toutates.backends.python.instance import PythonInstance
from toutates.backends.python.process import Failed, ModelProcess, ProcessEnded
from toutates.backends.python.thread_caller import note_waits
from toutates.backends.python.threaded import ThreadInstance
from toutates.backends.rows import Row, contents_of
from toutates.engine.lane import Batch, PackedLane
from toutates.engine.open_request import OpenRequest
from toutates.engine.result import Outputs, PendingRequest, Separate
from toutates.engine.servable import Consumer
from toutates.system.errors import ExecutionFailed, RequestError, Rescheduled, anew

__all__ = ["DecoupledInstance", "DecoupledThreadInstance"]

logger = logging.getLogger(__name__)

#: How long a process may take to read what it is told between batches.
_TELL_S: Final = 300.0


def _note_released(batch: Batch, ports: Sequence[Consumer]) -> None:
    """Tell those who want to know that ``execute`` has returned."""
    for consumer, own in zip(ports, batch.pending, strict=False):
        if consumer.released is not None:
            for request in own:
                consumer.released(request[0])


class DecoupledThreadInstance(ThreadInstance):
    """A decoupled model in threads of the server. The Args are those of ``ThreadInstance``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = OpenRequests()

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``."""
        outcome = self._open.refuse_above_limit(batch) or super().run(batch, first, rows)
        _note_released(batch, self.ports)
        return outcome

    def close(self) -> None:
        """Wait for the responses of open requests, and have the model finalize itself."""
        until = time.monotonic() + DRAIN_S
        self._open.wait(lambda: time.monotonic() >= until)
        super().close()
        self._open.fail(ExecutionFailed(UNLOADED))

    def _run(self, batch: Batch, rows: list[Row]) -> Separate:
        lane = batch.lane
        refused: list[tuple[int, PendingRequest, Outputs | RequestError]] = []
        if isinstance(lane, PackedLane):
            tensors = [self._slicing(batch, lane, first, own) for first, own, _, _ in rows]
        else:
            contents, wrong = contents_of(batch, rows)
            refused += wrong
            rows = [row for row, _ in contents]
            tensors = [self._reading(batch, row[1], raws) for row, raws in contents]
        opened = [self._opened(port, request) for _, _, port, request in rows]
        first = self._open.begin(opened)
        requests = [self._open_request(tensors[at], row, opened[at], first + at) for at, row in enumerate(rows)]
        tensors.clear()
        note_waits(None)  # what is answered while it runs has a caller who has not left
        again = self._model.begin(requests, one_by_one=self._one_by_one, enter=self._adopt)
        for at in again:
            self._open.end((first + at) % 2**32, Rescheduled(RESCHEDULED_TEXT))
        return Separate(refused)

    def _opened(self, port: int, request: PendingRequest) -> OpenRequest:
        return OpenRequest(self.ports[port], request, self.started_ns, self.responses, self._open.patience)

    def _open_request(self, tensors: Any, row: Row, request: OpenRequest, number: int) -> ReceivedRequest:
        def wanted() -> bool:
            return request.is_wanted

        def put(response: Any, final: bool) -> None:
            if response is None:
                request.respond(None, final=final)
            else:
                outputs, rows = self._results.response(*self._read(response, []))
                request.respond(outputs, rows, final=final)
            if final:
                self._open.ended(number)

        return ReceivedRequest(tensors, self._said(row), wanted, DecoupledSender(put, wanted))


class DecoupledInstance(PythonInstance):
    """A decoupled model in a process. The Args are those of ``PythonInstance``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = OpenRequests()
        #: reads what the process says, from its first batch on
        self._reader: threading.Thread | None = None
        self._read_process: ModelProcess | None = None
        #: what has come of the batch that the executor waits for: a kind and a content, or why there is none
        self._done: SimpleQueue[tuple[int, bytes] | ProcessEnded] = SimpleQueue()
        #: the requests of the batch that is being run
        self._current: list[OpenRequest] = []

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """See ``Backend``."""
        outcome = self._open.refuse_above_limit(batch) or super().run(batch, first, rows)
        _note_released(batch, self.ports)
        return outcome

    def close(self) -> None:
        """Wait for the responses of open requests, have the model finalize itself, and end its process."""
        process, reader = self._process, self._reader
        if reader is not None:
            until = time.monotonic() + min(DRAIN_S, self._limits.finalize_s)
            self._open.wait(lambda: time.monotonic() >= until or not process.alive or process.is_closing)
            self._closed.set()
            if process is self._read_process and process.alive:
                self._finalize(process)
            reader.join()
        super().close()

    def _finalize(self, process: ModelProcess) -> None:
        try:
            process.tell(frames.FINALIZE, b"", time.monotonic() + self._limits.finalize_s)
            outcome = self._done.get(timeout=self._limits.finalize_s)
            if isinstance(outcome, ProcessEnded):
                logger.error("finalize of %s failed: %s", self._name, outcome)
            elif outcome[0] == frames.FAILED:
                logger.error("finalize of %s failed: %s", self._name, process.parsed(outcome[1]).get("text"))
        except (Empty, ProcessEnded) as error:
            logger.error("finalize of %s failed: %s", self._name, str(error) or "it takes too long")
        process.kill()

    # --- batches -----------------------------------------------------------------------------------------------------

    def _run_untouched(self, batch: Batch, requests: list[Row]) -> Outputs | Separate:
        self._current = []
        return self._run(batch, requests)  # what has begun cannot be run once more

    def _usable(self) -> ModelProcess:
        process = super()._usable()
        if process is not self._read_process:
            if self._reader is not None:
                self._reader.join()  # which has seen the end of the one before
            self._begin_reading(process)
        self._asks = True  # the model may read of requests after their batch
        return process

    def _begin_reading(self, process: ModelProcess) -> None:
        self._open.fail(ExecutionFailed(UNLOADED))  # there are none, and numbers begin anew
        self._done = SimpleQueue()
        self._calls.begin()
        self._read_process = process
        self._reader = threading.Thread(
            target=self._read, args=(process, self._done), name=f"{self._name} reader", daemon=True
        )
        self._reader.start()

    def _ask(self, process: ModelProcess, kind: int, frame: bytes, requests: list[Row]) -> bytes:
        self._current = [self._opened(port, request) for _, _, port, request in requests]
        first = self._open.begin(self._current)
        timeout_s = self._limits.execute_s
        process.tell(kind, frame, time.monotonic() + timeout_s if timeout_s else None)
        try:
            outcome = self._done.get(timeout=timeout_s or None)
        except Empty:
            process.kill()
            raise ProcessEnded(f"it has not answered for {timeout_s:g} s") from None
        if isinstance(outcome, ProcessEnded):
            raise anew(outcome)
        if outcome[0] == frames.FAILED:
            raise Failed(str(process.parsed(outcome[1]).get("text", "")))
        again = process.parsed(outcome[1]).get("again", ())
        for at in again if isinstance(again, list) else ():
            if isinstance(at, int) and 0 <= at < len(self._current):
                self._open.end((first + at) % 2**32, Rescheduled(RESCHEDULED_TEXT))
        return outcome[1]

    def _opened(self, port: int, request: PendingRequest) -> OpenRequest:
        return OpenRequest(self.ports[port], request, self.started_ns, self.responses, self._open.patience)

    def _all_in_place(self, batch: Batch, lane: PackedLane) -> Outputs | Separate:
        return Separate([])

    def _outcomes(
        self, said: Mapping[str, Any], requests: list[Row]
    ) -> list[tuple[int, PendingRequest, Outputs | RequestError]]:
        return []

    def _failed(self, requests: list[Row], failure: RequestError) -> Separate:
        if not self._current:
            return super()._failed(requests, failure)
        for request in self._current:
            request.respond(failure, final=True)
        return Separate([])

    def _died(self, error: ProcessEnded) -> None:
        """The thread that reads has heard of it, or will."""

    def _see_to_process(self) -> None:
        if self._reader is None or not self._reader.is_alive():
            super()._see_to_process()

    # --- what the process says ---------------------------------------------------------------------------------------

    def _read(self, process: ModelProcess, done: SimpleQueue[tuple[int, bytes] | ProcessEnded]) -> None:
        """Read what a process says until it ends."""
        try:
            while True:
                kind, data = process.next_frame(self._calls)
                if kind in (frames.DONE, frames.FAILED):
                    done.put((kind, data))
                else:
                    self._take(process, kind, data)
        except ProcessEnded as error:
            ended = anew(error)
        except Exception as error:
            if process.alive:
                logger.exception("reading what the process of %s says failed", self._name)
                process.kill()
            ended = ProcessEnded(f"its process was ended ({type(error).__name__})")
        self._open.fail(
            ExecutionFailed(
                UNLOADED if self._closed.is_set() else f"Stub process '{self._name}' is not healthy: {ended}"
            )
        )
        done.put(ended)
        if not self._closed.is_set():
            with self._lock:
                self._note_death(ended)
            self._wake_starter()

    def _take(self, process: ModelProcess, kind: int, data: bytes) -> None:
        until = time.monotonic() + _TELL_S
        if kind == frames.RESPONSE:
            self._respond(process, data)
        elif kind == frames.QUERY:
            question = process.parsed(data)
            if "open" in question:
                request = self._open.get(question["open"]) if isinstance(question["open"], int) else None
                answer: Any = request is not None and request.is_wanted
            else:
                answer = self._answer(question, [])
            process.tell(frames.ANSWER, json.dumps(answer).encode(), until)
        elif kind == frames.CALL:
            process.make_call(self._calls, data, until)
        else:
            process.break_off(f"it has sent a frame of kind {kind}")

    def _respond(self, process: ModelProcess, data: bytes) -> None:
        head = frames.RESPONSE_HEAD
        if len(data) < head.size:
            process.break_off("it has sent a response that makes no sense")
        number, flags, size = head.unpack_from(data)
        request = self._open.get(number)
        if request is None:
            return
        final = bool(flags & frames.RESPONSE_FINAL)
        if flags & frames.RESPONSE_CONTENT:
            said = process.parsed(data[head.size : head.size + size])
            contents = np.frombuffer(data, np.uint8, offset=min(head.size + size, len(data)))
            request.respond(*self._results.read_response(said, contents), final=final)
        else:
            request.respond(None, final=final)
        if final:
            self._open.ended(number)
