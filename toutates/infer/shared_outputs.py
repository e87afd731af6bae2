"""Outputs of requests go to shared memory in the thread beside the worker, and their answers when they are there.

No worker touches what belongs to a client, who may hold up whoever writes to it (``shared_path``). What a batch has for
the requests of a port that is small goes there by connections, what is large by requests: a result of their own each,
which waits until its outputs are written and then takes the way of any other. Until then its requests are in flight,
and use their regions.

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
from toutates.infer.shared_tensors import OutputRoom
from toutates.net import Worker
from toutates.net.side_thread import told
from toutates.system.errors import Overloaded, RequestError

__all__ = ["SharedOutputs"]

#: Outputs that are written for one connection before others have their turn, bytes. Where they are new to the object,
#: it is half a millisecond.
AT_ONCE_BYTES: Final = 262_144
#: What a request that waits is counted for beside its outputs, bytes.
REQUEST_BYTES: Final = 4_096

#: Takes results on the worker's thread.
Finish = Callable[[BatchResult], None]
#: Where the rows of a request are: in what outputs, from which row on, and how many.
Parts = list[tuple[Outputs, int, int]]


@dataclass(slots=True, eq=False)
class _Late:
    """A result that waits for outputs to be written, or for an earlier one of the same call.

    Attributes:
        result: of ``requests``; None until these are complete, and once it is passed on.
        requests: of one connection and version, with what is to be written for each, if anything is.
        size: bytes that they are counted for.
        finish: takes the result.
        is_held: whether the version is held.
        is_one_of_several: whether further results of its calls may come.
    """

    result: BatchResult | None
    requests: list[tuple[PendingRequest, Parts]]
    size: int
    finish: Finish
    is_held: bool = False
    is_one_of_several: bool = False


class SharedOutputs:
    """The outputs of one worker and one transport. Used by that worker's thread.

    Args:
        worker: has the thread beside it.

    Attributes:
        room: for outputs of requests under way.
    """

    def __init__(self, worker: Worker) -> None:
        self.room = OutputRoom()
        self._worker = worker
        #: how many results of a call wait
        self._waiting: dict[Any, int] = {}
        #: what has come of split requests: as ``Split.parts``, but readable by several threads
        self._parts: dict[Split, list[tuple[Outputs, int, int] | None]] = {}

    def before(self, finish: Finish) -> Finish:
        """A function that calls ``finish`` when the outputs of a result were written beside the worker."""

        def write_and_finish(result: BatchResult) -> None:
            outputs = result.shared_outputs
            now: list[PendingRequest] = []
            late: list[_Late] = []
            groups: dict[Any, _Late] = {}
            for request in result.pending:
                call = request[0][0]
                parts = self._parts_of(request, outputs)
                if not parts and call not in self._waiting:
                    now.append(request)
                    continue
                size = request[0][1].shared.room if parts else 0
                group = groups.get(call.responder)
                if group is None or group.size + size > AT_ONCE_BYTES:
                    group = groups[call.responder] = _Late(None, [], 0, finish, is_one_of_several=result.more)
                    late.append(group)
                group.requests.append((request, parts))
                group.size += size + REQUEST_BYTES
            # The last of them says that the result is taken.
            for at, group in enumerate(late, 1):
                pending = [request for request, _ in group.requests]
                group.result = _of(result, pending, is_last=at == len(late) and not now)
                self._put(group)
            if now:
                finish(_of(result, now, is_last=True))

        return write_and_finish

    def written(self, result: BatchResult, finish: Finish) -> Callable[[], None]:
        """Write the outputs of a result whose requests are whole, and have one each. Runs in the other thread.

        Args:
            result: nobody else has it.
            finish: takes it.

        Returns:
            What has it taken, on the worker's thread.
        """
        outputs = result.shared_outputs
        requests: list[tuple[PendingRequest, Parts]] = [
            (request, [] if outputs is None else [(outputs, request[1], request[2])]) for request in result.pending
        ]
        return self._write(_Late(result, requests, 0, finish))

    def _parts_of(self, request: PendingRequest, outputs: Outputs | None) -> Parts:
        """Where the rows are whose outputs are to be written for a request.

        Nowhere while other parts of the request are to come, or where it has failed.
        """
        (call, plan, *_), first, rows, part = request
        if outputs is None:
            if part is not None:
                self._parts.pop(part[0], None)
            return []
        parts: list[tuple[Outputs, int, int] | None] = [(outputs, first, rows)]
        if part is not None:
            split, index = part
            known = self._parts.setdefault(split, [None] * len(split.parts))
            known[index] = parts[0]
            if split.left > 1:
                return []
            parts = self._parts.pop(split)
        if not call.open or None in parts or all(index in outputs.missing for index in plan.shared.outputs):
            return []
        return [one for one in parts if one is not None]

    def _put(self, late: _Late) -> None:
        plan = late.requests[0][0][0][1]
        late.is_held = plan.version.calls.hold()
        if late.is_one_of_several:
            for (context, *_), _ in late.requests:
                self._waiting[context[0]] = self._waiting.get(context[0], 0) + 1
        try:
            self._worker.objects.put(late.requests[0][0][0][0].responder, partial(self._write, late))
        except RuntimeError:  # the system has no thread
            failure = Overloaded("the server has no thread for this request")
            self._go_on(late, [failure if parts else None for _, parts in late.requests])

    def _write(self, late: _Late) -> Callable[[], None]:
        """Write the outputs of a result. Runs in the other thread."""
        errors: list[RequestError | None] = []
        for ((call, plan, *_), *_), parts in late.requests:
            error = None
            try:
                if parts and call.open:
                    plan.shared.write(_contents(parts, plan), partial(getattr, call, "open"))
            except Exception as failure:
                error = told(failure, f"writing outputs of model '{plan.version.model}'")
            errors.append(error)
        return partial(self._go_on, late, errors)

    def _go_on(self, late: _Late, errors: list[RequestError | None]) -> None:
        """Pass on a result whose outputs are written. An error is a request's outcome, as if its batch had failed."""
        result, late.result = late.result, None
        assert result is not None
        plan = late.requests[0][0][0][1]
        if late.is_one_of_several:
            for (context, *_), _ in late.requests:
                self._waiting[context[0]] -= 1
                if not self._waiting[context[0]]:
                    del self._waiting[context[0]]
        requests = [request for request, _ in late.requests]
        late.requests = []
        try:
            if not any(errors):
                late.finish(result)
                return
            for at, (request, error) in enumerate(zip(requests, errors, strict=True), 1):
                late.finish(_of(result, [request], is_last=at == len(requests), error=error))
        finally:
            if late.is_held:
                plan.version.calls.let_go()


def _of(
    result: BatchResult, pending: list[PendingRequest], *, is_last: bool, error: RequestError | None = None
) -> BatchResult:
    """A result for some of its requests, or the error that they get instead."""
    if error is None and len(pending) == len(result.pending):
        return result
    some = BatchResult(pending, None if error else result.shared_outputs, error or result.error, result.timing)
    some.more = result.more
    some.taken = result.taken if is_last else None
    return some


def _contents(parts: Parts, plan: Plan) -> list[tuple[int, list[Any]]]:
    """Index and pieces of each output of a request that goes to shared memory, and is there."""
    assert plan.shared is not None
    missing = parts[-1][0].missing
    return [
        (index, [_piece(part, index, plan) for part in parts]) for index in plan.shared.outputs if index not in missing
    ]


def _piece(part: tuple[Outputs, int, int], index: int, plan: Plan) -> Any:
    outputs, first, rows = part
    piece = outputs.rows(index, first, rows, batched=plan.version.signature.batched)
    return bytes(piece) if isinstance(piece, memoryview) else piece
