"""Methods for callers who are known (``--access-file``).

A guard looks at the key or token before the request is read, so that a refused one is never buffered. The handler finds
the caller once more, in the memory of its worker, because a token may have ended since its header block was remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.message import Message

from toutates.access.callers import Caller
from toutates.access.worker_gate import WorkerGate, authorization_of
from toutates.api.dataplane.plane import DataPlane
from toutates.api.grpc.statuses import STATUSES
from toutates.api.limited import check_names, only
from toutates.api.restrictions import PROTOCOLS
from toutates.h2grpc import Call, CallRefused, GrpcError, Guard, HeaderField, Method, UnaryHandler
from toutates.system.errors import RequestError

__all__ = ["Limited", "awaiting", "guarded", "limited"]

#: Of a caller who may use some models only, makes what answers its calls.
Limited = Callable[[Caller], UnaryHandler]

#: A refusal for which a signature was checked, 30 to 300 us, counts for so many reset streams: a connection may have
#: ten of them at once, and two a second.
DEAR_COST: Final = 100

_GROUPS = {path: group for group, paths in PROTOCOLS.items() for path in paths}


def guarded(method: Method, gate: WorkerGate, for_limited: Mapping[str, Limited]) -> Method:
    """The same method, for callers whom the gate lets in.

    Args:
        method: it. Inference finds its callers itself (``infer.charging``).
        gate: of the worker.
        for_limited: by path, what answers callers who may use some models only.
    """
    group = _GROUPS[method.path]
    guard = _guard(gate, group, method.guard)
    if method.unary is None or group == "inference":
        return replace(method, guard=guard)
    handler, private = method.unary, for_limited.get(method.path)

    def handle(call: Call) -> None:
        if gate.gate.has_open(group):
            handler(call)
            return
        caller = gate.caller_of_head(call.head)
        caller.check_group(group)
        gate.caller = caller
        try:
            (handler if private is None or not caller.models else private(caller))(call)
        finally:
            gate.caller = None

    return replace(method, guard=guard, unary=handle)


def _guard(gate: WorkerGate, group: str, inner: Guard | None) -> Guard:
    def guard(fields: Sequence[HeaderField]) -> GrpcError | None:
        refusal = None if inner is None else inner(fields)
        if refusal is not None:
            return refusal
        try:
            gate.gate.caller_for(group, authorization_of(fields))
        except RequestError as error:
            if getattr(error, "was_dear", False):
                return CallRefused(STATUSES[type(error)], str(error), DEAR_COST)
            return CallRefused(STATUSES[type(error)], str(error))
        return None

    return guard


def limited(plane: DataPlane, caller: Caller, answer: Callable[[Any], Message]) -> Callable[[Any], Message]:
    """``answer`` of the data plane, for a caller who may use some models only."""

    def answer_limited(request: Any) -> Message:
        check_names(caller, request, plane.get_table().traffic)
        response: Message = only(caller, answer(request))
        return response

    return answer_limited


def awaiting(
    plane: DataPlane, caller: Caller, answer: Callable[[Any], Awaitable[Message]]
) -> Callable[[Any], Awaitable[Message]]:
    """The same of an async function."""

    async def answer_limited(request: Any) -> Message:
        check_names(caller, request, plane.get_table().traffic)
        response: Message = only(caller, await answer(request))
        return response

    return answer_limited
