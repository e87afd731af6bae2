"""A request over HTTP as handlers of a worker see it, whatever version brought it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toutates.h2grpc.stream import NEVER
from toutates.http1 import Request

__all__ = ["Carrier", "HttpCall", "LargeRequest"]


class Carrier(Protocol):
    """The connection that a request came by.

    Attributes:
        waiting: requests of it that wait for those before them.
    """

    waiting: int

    def before(self, call: Any, /) -> int:
        """How many requests there are whose answers go out before that to ``call``."""
        ...

    def keep(self, call: Any, size: int, /) -> None:
        """Count bytes that are kept for a request; negative ones when they are let go."""
        ...

    def unread_bytes(self, call: Any, /) -> int:
        """Bytes of answers that wait until the peer reads, and hold up this request's."""
        ...

    def give_up(self, call: Any, reason: str, limit: str, /) -> None:
        """End an answer that has begun: because of ``limit``, or for a mistake of ours where that is ""."""
        ...

    def leave_if_ended(self) -> None:
        """Have the connection closed, if its last answer is complete."""
        ...


class HttpCall(Request):
    """A request and its answer; ``http1.Request`` says how that is given."""

    __slots__ = ()

    #: HTTP has none
    deadline_ns = NEVER

    @property
    def connection(self) -> Carrier:
        """The connection that it came by."""
        connection: Carrier = self.responder.owner
        return connection

    @property
    def link(self) -> Any:
        """The driver's object for the connection; None once that is gone."""
        return self.responder.link

    def hold(self, size: int) -> None:
        """Count bytes that are kept for this request beside its connection; negative ones when they are let go."""
        self.connection.keep(self, size)

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that wait until the peer reads, and hold this one up."""
        return self.connection.unread_bytes(self)

    def give_up(self, reason: str, limit: str = "") -> None:
        """End an answer that has begun: because of ``limit``, or for a mistake of ours where that is ""."""
        self.connection.give_up(self, reason, limit)

    def reply(self, status: int, fields: bytes, body: bytes) -> None:
        """Answer in full; does nothing once the request is no longer open. Arguments as for ``respond``.

        Where another answer has begun, as when something goes wrong in the middle of it, that is cut short.
        """
        if not self.open:
            return
        if self.begun:
            self.give_up("an answer could not be completed")
        else:
            self.respond(status, fields, body)

    def reply_in_parts(self, fields: bytes, parts: Sequence[bytes], length: int) -> None:
        """Answer a request that succeeded; arguments as for ``respond_in_parts``."""
        if self.open:
            self.respond_in_parts(fields, parts, length)

    def reply_in_chunks(self, status: int, fields: bytes, pieces: Sequence[bytes]) -> None:
        """Answer with a chunk for each piece."""
        if self.open:
            self.begin(status, fields)
            for piece in pieces:
                self.send(piece)
            self.end()
            self.connection.leave_if_ended()


@dataclass(frozen=True, slots=True)
class LargeRequest:
    """A request whose body is in memory of its own, which is used again when its handler has returned."""

    call: HttpCall
