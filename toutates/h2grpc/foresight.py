"""Receiving a large request as a whole, by one read, where the last ones were like it.

A client that sends a large message mostly sends the next one alike: header blocks as long, frames of the same lengths.
So where two requests were alike, the next one is *foreseen*: the driver looks at its first bytes (``head_bytes``),
waits for as many as follow (``foreseen_bytes``), and receives its head into a small buffer and all else to where it
belongs (``views``). If all is as foreseen, which a few comparisons tell, the request is settled at once (``take``).
What is not goes the ordinary way, with a copy of what came behind the head.

It makes the same events and the same output of the same bytes as the ordinary way does.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from toutates.h2grpc.call import Call
from toutates.h2grpc.direct_receive import LEAST_FRAME, DirectReceive
from toutates.h2grpc.events import LargeRequest
from toutates.h2grpc.frame_heads import FRAMES_AHEAD, MOST_HEAD
from toutates.h2grpc.frames import DATA, END_HEADERS, END_STREAM, FRAME_HEAD, FRAME_HEAD_SIZE, HEADERS
from toutates.h2grpc.message_memory import ALIGNMENT, MessageMemory
from toutates.h2grpc.messages import PREFIX_SIZE
from toutates.h2grpc.parts import Parts
from toutates.h2grpc.streams import HALF_CLOSED_REMOTE
from toutates.h2grpc.vector import Vector

__all__ = ["Foresight"]

#: Bytes of a message that come with its head, as of one that is not foreseen: what ``DirectReceive`` begins with.
WITH_HEAD: Final = 64
#: So many more requests have to be alike once one was not as foreseen.
DISTRUST: Final = -16

#: The head of a DATA frame and the prefix of a message.
_pack_start = Struct(">IBIBI").pack
_pack_head = FRAME_HEAD.pack


class Foresight:
    """Knows what the next request of one connection is likely to be.

    Args:
        parts: of the connection.
        direct: receives the message where only a part of it has come.
    """

    __slots__ = ("_block", "_direct", "_heads", "_like", "_memory", "_most_bytes", "_parts", "_pool", "_trust")

    def __init__(self, parts: Parts, direct: DirectReceive) -> None:
        self._parts = parts
        self._direct = direct
        self._heads = parts.shared.frame_heads
        self._pool = parts.shared.pool
        #: the last request that was received directly
        self._like = direct.began
        #: the header block of the last request that was as foreseen
        self._block = b""
        #: how many requests before it were like it
        self._trust = 0
        #: where the next one is received, between ``views`` and what is made of it
        self._memory: MessageMemory | None = None
        #: bytes of DATA of a request that can come at once: they need no window to be opened again
        self._most_bytes = min(parts.limits.stream_window, parts.limits.connection_window) >> 1

    def note_end(self) -> bool:
        """A message was received directly, or a part of it; whether the next request is foreseen."""
        last, like = self._like, self._direct.began
        if like is last:
            return self._trust > 0  # the same message
        self._like = like
        head, _, length, size = like
        fits = head <= MOST_HEAD and size + PREFIX_SIZE <= self._most_bytes
        if like == last and fits and length >= max(LEAST_FRAME, PREFIX_SIZE + WITH_HEAD):
            self._trust += 1
        else:
            self._trust = min(self._trust, 0)
        return self._trust > 0

    @property
    def head_bytes(self) -> int:
        """Bytes that tell whether a request is as foreseen, by its head and the first bytes of its message."""
        return self._like.head + WITH_HEAD

    @property
    def next_bytes(self) -> int:
        """Bytes that come at least if the next request is as foreseen."""
        return self._like.head + self._like.size

    def foreseen_bytes(self, head: bytes) -> int:
        """Bytes that come at least where a request begins with these ``head_bytes``; 0 if it is not as foreseen."""
        before, flags, length, size = self._like
        at, data_at = 0, before - PREFIX_SIZE - FRAME_HEAD_SIZE
        while at < data_at:
            at += FRAME_HEAD_SIZE + int.from_bytes(head[at : at + 3], "big")
        stream_id = int.from_bytes(head[data_at + 5 : data_at + FRAME_HEAD_SIZE], "big")
        start = _pack_start(length << 8 | DATA, flags, stream_id, 0, size)
        if len(head) < before + WITH_HEAD or at != data_at or head[data_at:before] != start:
            return 0
        return before + size

    def views(self) -> list[memoryview]:
        """Where the next request belongs; none if there is no memory for it.

        What has come is told to ``take``, before anything else is done with this or another connection.
        """
        before, _, length, size = self._like
        start = -size % ALIGNMENT
        memory = self._memory = self._pool.next_one(start + size)
        if memory is None:
            return []
        heads, direct = self._heads, self._direct
        room = memoryview(memory)[start + WITH_HEAD : start + size]
        views = direct.lay_out(room, length - PREFIX_SIZE - WITH_HEAD, length, len(room), FRAMES_AHEAD - 1)
        views.insert(0, heads.head[: before + WITH_HEAD])
        # Made once it is likely to be used: requests of two kinds may come in turns.
        memory.vector = Vector(heads, views, direct.ahead, direct.last) if memory.kind == self._like else None
        memory.kind = self._like
        return views

    def vector(self) -> Vector | None:
        """The same as ``views``, made when an earlier request like this one was received; None if it was not."""
        _, _, _, size = self._like
        memory = self._pool.next_one(-size % ALIGNMENT + size)
        if memory is None or memory.kind != self._like:
            return None
        vector = memory.vector
        if vector is None or vector.heads is not self._heads:
            return None
        direct = self._direct
        direct.ahead, direct.last = vector.ahead, vector.last
        self._memory = memory
        return vector

    def take(self, count: int, now_ns: int) -> LargeRequest | None:
        """The request that ``count`` bytes in ``views`` are, if they are all of it and nothing about it is unusual."""
        direct = self._direct
        before, flags, length, size = self._like
        # Frames of ``length`` bytes, and one of the rest.
        whole, last = divmod(size + PREFIX_SIZE - 1, length)
        last += 1
        if count != before + size + whole * FRAME_HEAD_SIZE:
            return None
        head = self._heads.head
        stream_id = self._parts.table.last_id + 2
        block = self._block_of(bytes(head[:before]), stream_id)
        if block is None:
            return None
        if whole:
            # The head of the first came before the message.
            if flags or direct.ahead != whole - 1 or direct.last != last:
                return None
            expected = _pack_head(length << 8 | DATA, 0, stream_id) * (whole - 1)
            expected += _pack_head(last << 8 | DATA, END_STREAM, stream_id)
            if not self._heads.data.startswith(expected):
                return None
        elif flags != END_STREAM:
            return None
        call = self._open(stream_id, block, size + PREFIX_SIZE, now_ns)
        if call is None:
            return None
        self._parts.windows.take_frames(whole, length, last)
        start = -size % ALIGNMENT
        memory = self._pool.take_next(size, start)
        assert memory is self._memory
        memory[start : start + WITH_HEAD] = head[before : before + WITH_HEAD]
        self._memory = None
        call.buffer = memory  # type: ignore[assignment]  # it is read like bytes
        call.start = start
        call.end = start + size
        return LargeRequest(call)

    def _block_of(self, head: bytes, stream_id: int) -> bytes | None:
        """The header block of a request on the next stream; None if it does not begin as foreseen.

        Args:
            head: what came before its message.
            stream_id: of the stream.
        """
        _, flags, length, size = self._like
        start = _pack_start(length << 8 | DATA, flags, stream_id, 0, size)
        for block in (self._block, head[FRAME_HEAD_SIZE : -len(start)]):  # mostly it is the same again
            if head == _pack_head(len(block) << 8 | HEADERS, END_HEADERS, stream_id) + block + start:
                self._block = block
                return block
        return None

    def _open(self, stream_id: int, block: bytes, size: int, now_ns: int) -> Call | None:
        """Open a stream with a whole request of ``size`` bytes of DATA, as ``FrameLoop`` does for small ones."""
        parts = self._parts
        table, settings, held = parts.table, parts.settings, parts.held
        head = parts.header_reader.memory.get(block)
        if (
            head is None
            or head.method is None
            or head.method.unary is None
            or not settings.seen
            or parts.blocks.stream_id
            or parts.queue.bytes_waiting
            or len(table.streams) >= table.few
            or not stream_id & 1
            or stream_id > table.highest_accepted_id
            or (head.content_length is not None and head.content_length != size)
            or size > self._most_bytes
            or not held.has_room(size)
        ):
            return None
        table.last_id = stream_id
        call = Call(parts.responder, stream_id, head, settings.stream_window, parts.limits.stream_window - size)
        table.streams[stream_id] = call
        if head.timeout_ns is not None:
            parts.deadlines.set(call, now_ns)
        call.state = HALF_CLOSED_REMOTE
        call.received = size
        call.messages = 1
        return call

    def take_head(self, count: int) -> bytes:
        """Of ``count`` bytes in ``views``, those that are to go the ordinary way first.

        They are all of them where the request is not as foreseen, by the heads of its frames.
        """
        known = self.head_bytes
        head = bytes(self._heads.head[: min(known, count)])
        if count > known and not self.foreseen_bytes(head):
            return head + self.take_surprise(count - known)
        return head

    def goes_on(self) -> bool:
        """Whether the head, gone the ordinary way, has begun the message in the memory where the rest of it is."""
        memory, (_, _, length, size) = self._memory, self._like
        return memory is not None and self._direct.has_begun(memory, length, size - WITH_HEAD)

    def take_surprise(self, count: int) -> bytes:
        """A copy of ``count`` bytes that came behind the head of a request that is not as foreseen."""
        memory, (_, _, length, size) = self._memory, self._like
        assert memory is not None
        self.distrust()
        start = -size % ALIGNMENT
        room = memoryview(memory)[start + WITH_HEAD : start + size]
        left = length - PREFIX_SIZE - WITH_HEAD
        rest = self._direct.pieces(room, length, left, 0, max(count - left, 0))
        return b"".join([room[: min(left, count)], *rest])

    def distrust(self) -> None:
        """A request was not as foreseen, so that some of it was copied; that may happen again."""
        self._trust = DISTRUST

    def forget(self) -> None:
        """What came in ``views`` is taken."""
        self._memory = None
