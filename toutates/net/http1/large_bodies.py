"""Where large bodies lie in memory of their own, and receiving a large request by one read where the last were like it.

A body lies behind its request's head, so that the place in it that its handler wants aligned (``Head.aligned_at``, the
first tensor) is:

    memory    [        | head | body up to the tensor | tensor ... ]
                              ^ MessageMemory.start   ^ a multiple of ALIGNMENT

A client that sends a large request mostly sends the next one with the same head. So where several were alike, the next
one is *foreseen*: the driver looks whether it begins with that head (``foreseen_bytes``), waits until all of it is
there, and receives it as a whole to where it belongs (``view``). What turns out to be another request goes the ordinary
way, with a copy. ``toutates.h2grpc.foresight`` does the same for gRPC, and says what it is for.
"""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.foresight import DISTRUST
from toutates.h2grpc.message_memory import ALIGNMENT, LargeMessage, MemoryPool, MessageMemory
from toutates.http1 import Connection, Head, Request

__all__ = ["Foresight", "begin_body"]

#: Bytes that one read brings at most: a tensor of a MiB and what is around it. See ``direct_receive.MOST_AT_ONCE``.
MOST_AT_ONCE: Final = 1_048_576 + 4_096


def begin_body(pool: MemoryPool, head: Head, least: int) -> LargeMessage | None:
    """Memory of the body of a request, of which ``least`` bytes are there (``http1.MakeMemory``)."""
    return LargeMessage.begin(pool, head.body_size, least, _start_of(head))


def _start_of(head: Head) -> int:
    """Where the body of such a request begins in its memory."""
    before = len(head.octets)
    return before + -(before + head.aligned_at) % ALIGNMENT


class Foresight:
    """Knows what the next request of one connection is likely to be.

    Args:
        http: of the connection.
        pool: the memory's.

    """

    __slots__ = ("_http", "_like", "_memory", "_pool", "_trust")

    def __init__(self, http: Connection, pool: MemoryPool) -> None:
        self._http = http
        self._pool = pool
        #: of the last large request
        self._like: Head | None = None
        #: how many requests before it had the same
        self._trust = 0
        #: where the next one is received, between ``view`` and ``take``
        self._memory: MessageMemory | None = None

    def note(self, head: Head) -> None:
        """A large request has come, with this head."""
        if head is self._like and head.plain:  # it is remembered, so it has ``octets``
            self._trust += 1
        else:
            self._like = head
            self._trust = min(self._trust, 0)

    @property
    def head(self) -> Head | None:
        """Of the next request, where it is foreseen and may come now; else None."""
        return self._like if self._trust > 0 and self._http.idle else None

    def view(self) -> memoryview | None:
        """Where the next request belongs; None if none is foreseen, or there is no memory for it.

        What has come is told to ``take``, before anything else is done with this or another connection.
        """
        head = self.head
        if head is None:
            return None
        start = _start_of(head)
        memory = self._memory = self._pool.next_one(start + head.body_size)
        if memory is None:
            return None
        at = start - len(head.octets)
        return memoryview(memory)[at : at + min(head.whole_size, MOST_AT_ONCE)]

    def take(self, count: int) -> list[Request] | bytes:
        """What ``count`` bytes in ``view`` are: requests that are whole, or bytes that are to go the ordinary way."""
        memory, head = self._memory, self._like
        assert memory is not None
        assert head is not None
        self._memory = None
        octets, start, size = head.octets, _start_of(head), head.body_size
        at = start - len(octets)
        came = count - len(octets)
        if came <= 0:
            return memory[at : at + count]
        if memory[at:start] != octets:
            self._trust = DISTRUST
            return memory[at : at + count]
        if came < size:
            body = LargeMessage.begin(self._pool, size, size, start)  # which takes what ``next_one`` has given
            assert body is not None
            body.advance(came)
            self._http.begin_in(head, body, came)
            return []
        return self._http.take_whole(head, self._pool.take_next(size, start))
