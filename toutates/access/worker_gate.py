"""The gate as one worker asks it, on its own thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from toutates.access.callers import Caller
from toutates.access.gate import Gate
from toutates.system.errors import Unauthenticated

__all__ = ["Clock", "Visit", "WorkerGate", "authorization_of"]

#: Heads of requests whose caller is remembered. Each keeps some hundred bytes of a connection that may be gone.
MAX_HEADS: Final = 512


class Clock(Protocol):
    """Has the time of the current round, monotonic nanoseconds, as ``net.Worker`` has."""

    now_ns: int


class WorkerGate:
    """Says who sends a request.

    Args:
        gate: of the process.
        clock: of the worker.

    Attributes:
        gate, clock: as given.
        caller: who has sent the request that is being handled just now; None between requests.
    """

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self.gate = gate
        self.clock = clock
        self.caller: Caller | None = None
        self._era = gate.era
        self._callers: dict[Any, Caller] = {}

    def caller_of_head(self, head: Any) -> Caller:
        """Who sends a gRPC call; calls that send the same header block again share its head.

        Raises:
            Unauthenticated: nobody knows, or nobody knows any more.
        """
        era = self.gate.era
        if era is not self._era:
            self._callers.clear()
            self._era = era
        caller = self._callers.get(head)
        if caller is None or caller.until_ns <= self.clock.now_ns:
            caller = self.gate.caller_of(authorization_of(head.fields))
            if len(self._callers) >= MAX_HEADS:
                self._callers.clear()
            self._callers[head] = caller
        return caller


class Visit:
    """What requests with one head of HTTP are for, and who sends them: asked again when that may have changed.

    Args:
        gate: of the worker.
        field: ``Authorization``.
        group: what they do.
        model: that the head names; "" for none.
        of_all: whether they are about all models.
    """

    __slots__ = ("_caller", "_era", "_field", "_gate", "_group", "_model", "_of_all")

    def __init__(self, gate: WorkerGate, field: bytes, group: str, model: str = "", *, of_all: bool = False) -> None:
        self._of_all = of_all
        self._gate = gate
        self._field = field
        self._group = group
        self._model = model
        self._caller: Caller | None = None
        self._era: object = None

    @property
    def caller(self) -> Caller:
        """Who sends them.

        Raises:
            RequestError: they may not do this.
        """
        caller, gate = self._caller, self._gate
        if caller is None or self._era is not gate.gate.era or caller.until_ns <= gate.clock.now_ns:
            era = gate.gate.era
            self._caller = None
            caller = self._caller = self._ask(gate.gate)
            self._era = era
        return caller

    def _ask(self, gate: Gate) -> Caller:
        caller = gate.caller_for(self._group, self._field)
        if self._model:
            caller.check_model(self._model)
        if self._of_all:
            caller.check_all_models()
        return caller


def authorization_of(fields: Iterable[Any]) -> bytes | None:
    """The value of ``authorization`` among header fields, ``h2grpc.HeaderField``; None without one.

    Raises:
        Unauthenticated: there are several.
    """
    found = [field[1].strip(b" \t") for field in fields if field[0] == b"authorization"]
    if len(found) > 1:
        raise Unauthenticated("the field 'Authorization' is there more than once")
    return found[0] if found else None
