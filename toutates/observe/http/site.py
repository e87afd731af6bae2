"""The endpoints of the HTTP thread, by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote

from toutates.http1 import Head
from toutates.observe.http.responses import Response, refusal

__all__ = ["MAX_BODY", "MAX_TARGET", "Asked", "Endpoint", "Site"]

#: Bytes of a request's path and query; more is answered with 414.
MAX_TARGET: Final = 2_048
#: Bytes of a request's body. It means nothing here, but some clients send one.
MAX_BODY: Final = 65_536

_METHODS: Final = ("GET", "HEAD")


class Asked:
    """A request as endpoints see it.

    Args:
        head: its request line and fields.
        peer: the IP address at the other end.
        wait_gone: returns when the client has left; may never return.
    """

    __slots__ = ("head", "peer", "wait_gone")

    def __init__(self, head: Head, peer: str | None, wait_gone: Callable[[], Awaitable[None]]) -> None:
        self.head = head
        self.peer = peer
        self.wait_gone = wait_gone

    def parameter(self, name: str, default: str) -> str:
        """The last value of a query parameter, which may be empty."""
        return dict(parse_qsl(self.head.query, keep_blank_values=True)).get(name, default)


Endpoint = Callable[[Asked], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Site:
    """The endpoints, and the tasks that run as long as they are served. Made in the thread that serves it.

    Attributes:
        endpoints: by path; for GET and HEAD.
        nothing_here: what a request for another path is answered, without the end of its line.
        beside: run in the thread's nursery.
        check: refuses a request whose caller may not see what is at its path; None lets everybody in.
    """

    endpoints: Mapping[str, Endpoint]
    nothing_here: str
    beside: Sequence[Callable[[], Awaitable[None]]] = ()
    check: Callable[[Head], None] | None = None

    def admit(self, head: Head) -> int:
        """The bytes that a request's body may have.

        Raises:
            Refused: no endpoint takes such a request.
        """
        if len(head.target) > MAX_TARGET:
            raise refusal(414, "the path and its parameters are too long")
        if unquote(head.path) not in self.endpoints:
            raise refusal(404, self.nothing_here)
        if head.method not in _METHODS:
            raise refusal(405, "only GET and HEAD are understood", {"allow": ", ".join(_METHODS)})
        return MAX_BODY

    async def answer(self, asked: Asked) -> Response:
        """The answer to a request that was admitted.

        Raises:
            Refused: an error for the client.
        """
        if self.check is not None:
            self.check(asked.head)
        return await self.endpoints[unquote(asked.head.path)](asked)
