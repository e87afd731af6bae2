"""Two protocols on one port: the first bytes of a connection tell HTTP/2 from HTTP/1.1, with and without TLS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from toutates.h2grpc.frames import PREFACE
from toutates.h2grpc.stream import Buffer
from toutates.net.connection import Connection, Service

__all__ = ["ByFirstBytes"]

#: How a request of HTTP/1 begins. Methods have upper-case letters; ``PRI`` is the preface of HTTP/2.
_HTTP1: Final = re.compile(rb"(?!PRI )[A-Z]{1,20} ")
#: How a handshake of TLS begins, to which the service of HTTP/2 has an answer.
TLS_RECORD: Final = b"\x16"
_MAYBE_HTTP1: Final = re.compile(rb"[A-Z]{0,20}")


class ByFirstBytes(Service):
    """Serves both protocols to the connections of one worker.

    Args:
        http2: for connections that begin with HTTP/2's preface, or with a handshake of TLS, which it refuses.
        http1: for connections that begin with a request of HTTP/1.
        other: the one of them for what is neither, which it refuses. Where that is HTTP/1's, a peer need not say
            anything before its first request.

    Attributes:
        http2, http1: as given; another one is for connections that have not said what they speak.
    """

    def __init__(self, http2: Service, http1: Service, other: Service) -> None:
        self.http2 = http2
        self.http1 = http1
        self.other = other

    @property
    def parts(self) -> Sequence[Service]:
        """Both."""
        return self.http2, self.http1

    def connect(self) -> Connection:
        """A connection for a socket that was accepted."""
        return Undecided(self)

    def reads_to_the_end(self, link: Any) -> bool:
        """See ``Service``: as the peer's protocol has it."""
        service = self.choose(link.peek(len(PREFACE)))
        return service is None or service.reads_to_the_end(link)

    def handle(self, link: Any, event: Any) -> None:
        """See ``Service``. Not called: there are no events before the protocol is known."""
        raise AssertionError("an event of no protocol")

    def choose(self, start: bytes) -> Service | None:
        """The service for a peer that has sent ``start``; None where more is needed."""
        if _HTTP1.match(start):
            return self.http1
        if start.startswith((PREFACE, TLS_RECORD)):
            return self.http2
        # The preface is looked at by one byte more than its method: there are methods that begin with PRI.
        undecided = PREFACE.startswith(start) if self.other is self.http1 else _MAYBE_HTTP1.fullmatch(start)
        return None if undecided and len(start) < len(PREFACE) else self.other


class Undecided(Connection):
    """A connection whose peer has not said enough. It then gives its place to one of the peer's protocol."""

    closed = False
    has_output = False
    told_by_answers = True
    open_calls = calls_begun = 0

    def __init__(self, services: ByFirstBytes) -> None:
        self._services = services
        self._patient = services.other is services.http1
        self._seen = b""
        self._link: Any = None
        #: what the connection of the protocol is to be told of its end
        self._announced = False
        self._reason: str | None = None
        self._finished = False

    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        """Take the first bytes; once they say enough, returns what the connection of their protocol makes of them."""
        self._seen += data
        service = self._services.choose(self._seen)
        if service is None:
            return []
        connection = self._become(service)
        events: list[Any] = connection.receive_data(self._seen, now_ns)
        # Only now, because how a peer is told may depend on its first request.
        if self._reason is not None:
            connection.begin_shutdown(self._reason)
        elif self._announced:
            connection.announce_end()
        return events

    def _become(self, service: Service) -> Connection:
        self._link.speak(service)
        connection: Connection = self._link.connection
        return connection

    def go_on(self, now_ns: int) -> list[Any]:
        """See ``Connection``: nothing is left to do before the protocol is known."""
        self.behind = False
        return []

    def take_output(self) -> Sequence[Buffer]:
        """See ``Connection``: nothing is sent before the protocol is known."""
        return ()

    def bind(self, link: Any) -> None:
        """See ``Connection``."""
        self._link = link

    def announce_end(self) -> None:
        """Have the connection of the protocol told so."""
        self._announced = True

    def begin_shutdown(self, reason: str) -> None:
        """Have the connection of the protocol told so: a request may be on its way."""
        self._reason = reason

    def finish_shutdown(self) -> None:
        """No request has begun, so the connection can be closed."""
        self._finished = True

    def refuse(self, reason: str) -> None:
        """Refuse as its port mostly does: nobody knows what the peer will speak."""
        self._become(self._services.other).refuse(reason)

    def end(self, reason: str, limit: str) -> list[Any]:
        """End as its port mostly does."""
        return self._become(self._services.other).end(reason, limit)

    def connection_lost(self) -> list[Any]:
        """The socket is gone."""
        return []

    @property
    def established(self) -> bool:
        """Whether the peer may take its time."""
        return self._patient

    @property
    def awaits_request(self) -> bool:
        """Whether the peer owes the rest of what it has begun to say, and has no other limit of time."""
        return self._patient and bool(self._seen)

    @property
    def drained(self) -> bool:
        """Whether the connection may be closed."""
        return self._finished

    @property
    def held_bytes(self) -> int:
        """Bytes received."""
        return len(self._seen)
