"""Large outputs of requests go to shared memory in the thread beside the worker, and their answers when they are there.

A MiB takes 0.1 ms, and some 2 ms where the object's pages were never touched, so that one request could keep the other
clients of a worker waiting for as long as its outputs are large. What a batch has for the requests of a port is written
at once up to ASIDE_BYTES, and up to FILLED_BYTES to objects whose pages are there: the way through the other thread
takes longer than that. The rest becomes results of one request each, which wait until their outputs are written and
then take the way of any other. Until then their requests are in flight, and use their regions.

The worker slices the views of a batch's outputs meanwhile, which no two threads may do at once
(``Outputs.with_views``). So the other thread gets arrays and bytes alone, and never has the last reference to a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split
from toutates.infer.plan import Plan
from toutates.net import Worker
from toutates.net.side_thread import outcome_of
from toutates.system.errors import Overloaded, RequestError

__all__ = ["SharedOutputs"]

#: Outputs of one result and one port that are written on the worker's thread. Where they are new to the object, it is
#: half a millisecond.
ASIDE_BYTES: Final = 262_144
#: The same for objects whose pages are there.
FILLED_BYTES: Final = 1_048_576
#: Bytes of outputs that may wait to be written before requests with large outputs are refused. Those whose requests
#: were taken are written in any case.
MOST_ASIDE_BYTES: Final = 268_435_456

#: Takes results on the worker's thread.
Finish = Callable[[BatchResult], None]
#: Index and pieces of each output of a request that goes to shared memory.
Contents = list[tuple[int, list[Any]]]


@dataclass(slots=True, eq=False)
class _Late:
    """A result of one request that waits for its outputs to be written, or for an earlier one of the same call."""

    result: BatchResult | None
    contents: Contents
    size: int
    is_held: bool
    finish: Finish


class SharedOutputs:
    """The outputs of one worker and one transport. Used by that worker's thread.

    Args:
        worker: writes large outputs beside itself.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._bytes_waiting = 0
        #: how many results of a call wait
        self._waiting: dict[Any, int] = {}
        #: what has come of split requests: as ``Split.parts``, but readable by several threads
        self._parts: dict[Split, list[tuple[Outputs, int, int] | None]] = {}

    def check_room(self, byte_size: int) -> None:
        """See whether a request whose outputs have at most so many bytes may be taken.

        Raises:
            Overloaded: too many bytes wait already.
        """
        if byte_size > ASIDE_BYTES and self._bytes_waiting > MOST_ASIDE_BYTES:
            raise Overloaded(
                f"{self._bytes_waiting} bytes of outputs wait to be written to shared memory, and {MOST_ASIDE_BYTES} "
                "is the most; try again later"
            )

    def before(self, finish: Finish) -> Finish:
        """A function that calls ``finish``, where outputs are large after these were written beside the worker."""

        def write_and_finish(result: BatchResult) -> None:
            if not self._waiting and _are_small(result.pending):
                finish(result)
                return
            outputs = result.shared_outputs
            now: list[PendingRequest] = []
            late: list[tuple[PendingRequest, Contents, int]] = []
            written = 0
            for request in result.pending:
                is_behind = request[0][0] in self._waiting
                room = -1 if is_behind else _room_for(request, written)
                contents, size = self._beyond(room, request, outputs)
                if is_behind or size > room:
                    late.append((request, contents, size))
                else:
                    written += size
                    now.append(request)
            if not late:
                finish(result)
                return
            # The last of them says that the result is taken.
            for at, (request, contents, size) in enumerate(late, 1):
                one = _of(result, [request], is_last=at == len(late) and not now)
                self._put(_Late(one, contents, size, request[0][1].version.calls.hold(), finish))
            if now:
                finish(_of(result, now, is_last=True))

        return write_and_finish

    def _beyond(self, room: int, request: PendingRequest, outputs: Outputs | None) -> tuple[Contents, int]:
        """What is to be written for a request, where that may be more than ``room``, and its size, or the most of it.

        Nothing while other parts of the request are to come, or where it has failed.
        """
        (call, plan, *_), first, rows, part = request
        if outputs is None:
            if part is not None:
                self._parts.pop(part[0], None)
            return [], 0
        parts: list[tuple[Outputs, int, int] | None] = [(outputs, first, rows)]
        if part is not None:
            split, index = part
            known = self._parts.setdefault(split, [None] * len(split.parts))
            known[index] = parts[0]
            if split.left > 1:
                return [], 0
            parts = self._parts.pop(split)
        if not call.open or None in parts:
            return [], 0
        if plan.shared.room <= room:
            return [], plan.shared.room
        contents = [
            (index, [_piece(one, index, plan) for one in parts if one is not None])
            for index in plan.shared.outputs
            if index not in outputs.missing
        ]
        return contents, sum([len(piece) for _, pieces in contents for piece in pieces])

    def _put(self, late: _Late) -> None:
        assert late.result is not None
        call, plan, *_ = late.result.pending[0][0]
        self._bytes_waiting += late.size
        self._waiting[call] = self._waiting.get(call, 0) + 1

        def is_wanted() -> bool:
            return bool(call.open)

        def job() -> Callable[[], None]:
            write = partial(plan.shared.write, late.contents, is_wanted)
            outcome = outcome_of(write, f"writing outputs of model '{plan.version.model}'") if late.contents else None
            return partial(self._go_on, late, call, plan, outcome)

        try:
            self._worker.side.put(call.responder, job)
        except RuntimeError:  # the system has no thread
            job()()

    def _go_on(self, late: _Late, call: Any, plan: Plan, error: RequestError | None) -> None:
        """Pass on a result whose outputs are written. An error is the outcome, as if the batch had failed."""
        result, late.result, late.contents = late.result, None, []
        assert result is not None
        assert plan.shared is not None
        self._bytes_waiting -= late.size
        self._waiting[call] -= 1
        if not self._waiting[call]:
            del self._waiting[call]
        if error is not None:
            failed = BatchResult(result.pending, None, error, result.timing)
            failed.more, failed.taken = result.more, result.taken
            result = failed
        plan.shared.is_written = True
        try:
            late.finish(result)
        finally:
            plan.shared.is_written = False
            if late.is_held:
                plan.version.calls.let_go()


def _are_small(pending: list[PendingRequest]) -> bool:
    """Whether all that these requests may have written can be written at once."""
    room = 0
    for context, _, _, part in pending:
        shared = context[1].shared
        room += shared.room
        if part is not None or (room > ASIDE_BYTES and (room > FILLED_BYTES or not shared.is_filled)):
            return False
    return True


def _room_for(request: PendingRequest, written: int) -> int:
    """The bytes of outputs that a request may have written at once, after so many of others of its batch."""
    shared = request[0][1].shared
    if shared.room > ASIDE_BYTES - written and shared.is_filled:
        return FILLED_BYTES - written
    return ASIDE_BYTES - written


def _of(result: BatchResult, pending: list[PendingRequest], *, is_last: bool) -> BatchResult:
    """A result for some of its requests."""
    if len(pending) == len(result.pending):
        return result
    some = BatchResult(pending, result.shared_outputs, result.error, result.timing)
    some.more = result.more
    some.taken = result.taken if is_last else None
    return some


def _piece(part: tuple[Outputs, int, int], index: int, plan: Plan) -> Any:
    outputs, first, rows = part
    piece = outputs.rows(index, first, rows, batched=plan.version.signature.batched)
    return bytes(piece) if isinstance(piece, memoryview) else piece
