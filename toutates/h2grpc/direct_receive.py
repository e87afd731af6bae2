"""Receiving a large unary message straight into its memory.

The ordinary way hands in ``bytes``, and copies what belongs to a message out of them. Once it is known that much more
of a message is to come, the driver asks where to put the next bytes (``views``), receives them there by one system
call, and says how many came (``take``).

    message    [ received | rest of this frame |            | frame 2    | frame 3    |
    views                  ^^^^^^^^^^^^^^^^^^^^  head ^^^^^^^^^^^^  head ^^^^^^^^^^^^

Between the payloads of frames come their heads. The next frames are expected to be as long as this one, so that one
read can bring many of them; behind a long frame, one that is as long as what comes. Where a head says otherwise, what
came behind it is copied, and goes the ordinary way.

What a frame means is settled when all of it has come, as in the ordinary way: the two make the same events and the same
output of the same bytes. Only the bounds on memory may be met a frame earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from toutates.h2grpc.call import Call
from toutates.h2grpc.events import Event
from toutates.h2grpc.frame_heads import FRAMES_AHEAD
from toutates.h2grpc.frames import DATA, END_STREAM, FRAME_HEAD, FRAME_HEAD_SIZE
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import LARGE_MESSAGE_BYTES, MessageMemory
from toutates.h2grpc.messages import PREFIX_SIZE, Assembler
from toutates.h2grpc.plain import PlainCall
from toutates.h2grpc.receiver import Receiver
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.requests import Requests
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.streams import OPEN
from toutates.h2grpc.windows import Windows

__all__ = ["LEAST_FRAME", "DirectReceive", "Like"]

#: So much of a message has to be missing: a read by several views costs more than a plain one, by what copying this
#: much takes.
LEAST_MISSING: Final = 32_768
#: Bytes that one read brings at most, some 0.3 ms: a message of 1 MiB and what is around its tensor.
MOST_AT_ONCE: Final = 1_048_576 + 4_096
#: Shorter frames are not expected to be followed by others of their length.
LEAST_FRAME: Final = 2_048

#: Behind a frame of this length or more one frame of any length is expected.
LONG_FRAME: Final = 65_536
#: Frames that are expected of a read although the one before it brought none.
FEWEST_AHEAD: Final = 4

_pack_head = FRAME_HEAD.pack
_unpack_head = FRAME_HEAD.unpack_from


class Like(NamedTuple):
    """What a large request was like.

    Attributes:
        head: bytes that came before those of its message.
        flags, length: of its first frame.
        size: of its message, bytes.
    """

    head: int
    flags: int
    length: int
    size: int


class DirectReceive:
    """Receives the DATA of one call at a time.

    Args:
        limits: of the connection.
        receiver: handles frames that have come.
        requests: makes the call's assembler.
        table, windows, held: of the connection.
        shared: with other connections.

    Attributes:
        ahead: frames that the last ``views`` expect behind the current one.
        last: bytes of the one behind these that ends the message or the read; 0 for none.
        began: what the last request was like that began.
    """

    __slots__ = (
        "_call",
        "_cut",
        "_cut_as",
        "_ended",
        "_flags",
        "_heads",
        "_held",
        "_left",
        "_length",
        "_max_message_size",
        "_most_ahead",
        "_pool",
        "_receiver",
        "_requests",
        "_settled",
        "_stream_id",
        "_streams",
        "_surprised",
        "_unchecked",
        "_windows",
        "ahead",
        "began",
        "last",
    )

    def __init__(
        self,
        limits: Limits,
        receiver: Receiver,
        requests: Requests,
        table: StreamTable[Call],
        windows: Windows,
        held: RequestMemory,
        shared: Shared,
    ) -> None:
        self._max_message_size = limits.max_message_size
        self._receiver = receiver
        self._requests = requests
        self._streams = table.streams
        self._windows = windows
        self._held = held
        self._heads = shared.frame_heads
        self._pool = shared.pool
        #: whose message is received
        self._call: Call | None = None
        #: whose message was received last
        self._ended: Call | None = None
        #: of the frame that is received: flags, stream, bytes of its payload, and how many of them are missing
        self._flags = 0
        self._stream_id = 0
        self._length = 0
        self._left = 0
        #: whether all of it has come, and is settled
        self._settled = False
        #: frames that the last ``views`` expect after it, and bytes of the one that ends the message; 0 for none
        self.ahead = 0
        self.last = 0
        #: cuts the payloads of the last ``views`` out of a message's room, and of which frames: mostly the next message
        #: has the same
        self._cut: Callable[[memoryview], tuple[memoryview, ...]]
        self._cut_as: tuple[int, int, int, int] | None = None
        #: so many frames are expected at most: some more than the last read brought
        self._most_ahead = FEWEST_AHEAD
        #: the last stream whose frames were otherwise than expected
        self._surprised = 0
        #: by how many bytes what is held of the call has grown since that was checked
        self._unchecked = 0
        #: the last request that began
        self.began = Like(0, 0, 0, 0)

    def begin(self, data: bytes, at: int, flags: int, stream_id: int, length: int) -> bool:
        """Whether to receive directly from here on: ``data`` ends with a part of a DATA frame of a large message.

        Args:
            data: what was read.
            at: where the frame's payload begins.
            flags, stream_id, length: of the frame.
        """
        call = self._streams.get(stream_id)
        if call is None or flags & ~END_STREAM or call.state is not OPEN or not call.open or call.messages:
            return False
        have = len(data) - at
        method = call.head.method
        if isinstance(call, PlainCall):
            if call.assembler is None and self._requests.plain.begin_large(call, have) is None:
                return False
        elif method is None or method.unary is None:
            return False
        assembler = call.assembler
        if assembler is None:
            if have <= PREFIX_SIZE or data[at]:
                return False
            size = int.from_bytes(data[at + 1 : at + PREFIX_SIZE], "big")
            if not LARGE_MESSAGE_BYTES <= size <= self._max_message_size or not self._pool.has_room:
                return False
            missing = PREFIX_SIZE + size
        else:
            missing = assembler.missing
        if length > missing or missing - have < LEAST_MISSING:
            return False
        if flags and length < missing:
            return False  # the request ends in the middle of its message
        if stream_id == self._surprised and length - have < LEAST_MISSING:
            return False
        if assembler is None:
            made = self._requests.assembler(call)
            made.begin_large(memoryview(data)[at:], size)
            assembler = call.assembler = made
            self.began = Like(at + PREFIX_SIZE, flags, length, size)
        else:
            assembler.feed(memoryview(data)[at:])
        self._call = call
        self._flags = flags
        self._stream_id = stream_id
        self._length = length
        self._left = length - have
        self._settled = False
        self._unchecked = self._held.note(call, assembler.pending_bytes)
        return True

    @property
    def under_way(self) -> bool:
        """Whether a message is received directly."""
        return self._call is not None

    @property
    def idle(self) -> bool:
        """Whether no message is received directly, nor one whose beginning was."""
        return self._call is None and (self._ended is None or self._ended.assembler is None)

    @property
    def awaited_bytes(self) -> int:
        """Bytes that are missing of the message, or of the frame if its call has ended; 0 for none."""
        call = self._call
        if call is None:
            return 0
        return self._left if call.assembler is None else call.assembler.missing

    def end(self) -> None:
        """Nothing is received directly any more."""
        self._ended, self._call = self._call, None

    @property
    def ends(self) -> bool:
        """Whether the last bytes of a message that was received directly are still to come."""
        return self._ended is not None and self._ended.assembler is not None

    def has_begun(self, memory: MessageMemory, length: int, missing: int) -> bool:
        """Whether a message is received into ``memory``: ``missing`` bytes, in frames of ``length``."""
        call = self._call
        if call is None or call.assembler is None or self._length != length or call.assembler.missing != missing:
            return False
        room = call.assembler.room()
        return room.obj is memory and len(room) == missing

    def views(self) -> list[memoryview]:
        """Where the next bytes belong; they have to be put there, and told to ``take``, before anything else is done.

        None means that they are to go the ordinary way.
        """
        call, left = self._call, self._left
        assert call is not None
        if call.assembler is None:  # the call has ended; the rest of the frame is to be dropped
            return [self._heads.sink[:left]] if left else []
        length = self._length if self._stream_id != self._surprised else 0
        return self.lay_out(call.assembler.room(), left, length, call.assembler.missing, self._most_ahead)

    def lay_out(self, room: memoryview, left: int, length: int, missing: int, most_ahead: int) -> list[memoryview]:
        """Views of ``left`` bytes of a frame, and of others of its ``length`` if it is long enough, with their heads.

        Args:
            room: where they belong.
            left, length: of the current frame.
            missing: bytes of the message.
            most_ahead: frames that are expected behind it, at most.
        """
        self.ahead = self.last = 0
        most = min(len(room), MOST_AT_ONCE)
        if not (left < most and missing > left and length >= LEAST_FRAME):
            return [room[: min(left, most)]] if left else []
        ahead = last = 0
        if length < LONG_FRAME:
            ahead = min((most - left) // length, (missing - left - 1) // length, most_ahead)
        at = left + ahead * length
        if missing - at <= min(length, most - at) or (length >= LONG_FRAME and most - at >= LEAST_FRAME):
            last = min(missing, most) - at
        if not (ahead or last):
            return [room[:left]] if left else []
        self.ahead = ahead
        self.last = last
        cut_as = (left, length, ahead, last)
        if cut_as != self._cut_as:
            self._cut = _cutter(*cut_as)
            self._cut_as = cut_as
        payloads = self._cut(room)
        views = [*payloads, *payloads[1:]]
        views[0::2] = payloads
        views[1::2] = self._heads.views[: len(payloads) - 1]
        if not left:
            del views[0]
        return views

    def take(self, count: int, now_ns: int, events: list[Event]) -> bytes | None:
        """Take ``count`` bytes that were put into ``views``, one at least.

        Returns:
            None to go on directly; else bytes that are to go the ordinary way, before anything else is received.

        Raises:
            ConnectionFault: the connection has to end.
        """
        call = self._call
        assert call is not None
        assembler = call.assembler
        left = self._left
        if assembler is None:  # the call has ended, and these are dropped
            self._left = left - count
            if self._left:
                return None
            self._finish_frame(now_ns, events)
            return b""
        if count < left:
            self._left = left - count
            assembler.advance(count)
            self._unchecked += self._held.note(call, assembler.pending_bytes)
            return None
        count -= left
        if self.last and self._take_the_rest(call, assembler, count, now_ns, events):
            return b""
        whole, rest, following = 0, b"", None
        if count:
            whole, rest, following = self._read_heads(assembler, left, count)
            self._most_ahead = min(FEWEST_AHEAD + 2 * whole, FRAMES_AHEAD - 1)
        assembler.advance(left + whole * self._length)
        self._unchecked += self._held.note(call, assembler.pending_bytes)
        if not self._settled:
            whole += 1
            self._settled = True
        if whole:
            self._finish_frames(call, assembler.missing, whole, now_ns, events)
        if following is not None:
            self._flags, self._length, landed = following
            self._left = self._length - landed
            self._settled = False
            if call.assembler is not None:
                assembler.advance(landed)
                self._unchecked += self._held.note(call, assembler.pending_bytes)
            if self._left:
                return None
            self._finish_frame(now_ns, events)
            self._settled = True
        else:
            self._left = 0
        if rest or call.assembler is None or not self._expects_more(assembler.missing):
            return rest
        return None

    def _take_the_rest(self, call: Call, assembler: Assembler, count: int, now_ns: int, events: list[Event]) -> bool:
        """Take the rest of a request if all of it has come in the frames that were expected, as it mostly does.

        Then the windows and the message are settled once, and not frame by frame. What a frame would have its own
        effect on goes the other way.

        Args:
            call: whose request it is.
            assembler: of the message.
            count: bytes that came after the current frame.

        Returns:
            Whether it was taken.
        """
        ahead, last, length = self.ahead, self.last, self._length
        before, windows = self._left + ahead * length, self._windows
        # Of the current frame, what came earlier is counted in the windows only now.
        frames = ahead if self._settled else ahead + 1
        size = frames * length + last
        announced = call.head.content_length
        if (
            count != ahead * length + last + FRAME_HEAD_SIZE * (ahead + 1)
            or before + last != assembler.missing
            or not call.open
            or call.state is not OPEN
            or size > windows.low
            or windows.spare_of(call) < size
            or (announced is not None and announced != call.received + size)
        ):
            return False
        heads = self._heads.data
        end = FRAME_HEAD_SIZE * ahead
        if heads[end : end + FRAME_HEAD_SIZE] != _pack_head(last << 8 | DATA, END_STREAM, self._stream_id):
            return False
        if ahead and heads[:end] != _pack_head(length << 8 | DATA, 0, self._stream_id) * ahead:
            return False
        self._most_ahead = min(FEWEST_AHEAD + 2 * ahead, FRAMES_AHEAD - 1)
        windows.take_frames(frames, length, last)
        call.receive_window -= size
        call.received += size
        assembler.advance(before + last)
        unchecked = self._unchecked + self._held.note(call, assembler.pending_bytes)
        self._unchecked = self._left = 0
        self._receiver.receive_rest(call, unchecked, now_ns, events)
        return True

    def _expects_more(self, missing: int) -> bool:
        """Whether the next frame is likely to be like this one, and worth to be received directly."""
        long_enough = self._length >= LEAST_FRAME and missing >= LEAST_MISSING
        return long_enough and not self._flags and self._stream_id != self._surprised

    def _read_heads(self, assembler: Assembler, at: int, count: int) -> tuple[int, bytes, tuple[int, int, int] | None]:
        """Read the heads among ``count`` bytes that came after a frame.

        Args:
            assembler: of the message.
            at: where, in its room, the payload of the first of these frames is expected.
            count: bytes of heads and payloads.

        Returns:
            How many whole frames came that were as expected; a copy of what is to go the ordinary way; the flags, the
            length and the bytes received of the frame that came between the two, if one did.
        """
        heads, length = self._heads, self._length
        whole = min(self.ahead, count // (FRAME_HEAD_SIZE + length))
        if whole:
            expected = _pack_head(length << 8 | DATA, 0, self._stream_id)
            if heads.data[: FRAME_HEAD_SIZE * whole] != expected * whole:
                whole = next(index for index in range(whole) if heads.views[index] != expected)
            count -= whole * (FRAME_HEAD_SIZE + length)
            at += whole * length
        if count >= FRAME_HEAD_SIZE:
            word, flags, stream_id = _unpack_head(heads.data, FRAME_HEAD_SIZE * whole)
            size = word >> 8
            have = count - FRAME_HEAD_SIZE
            if word & 0xFF != DATA or flags & ~END_STREAM or stream_id != self._stream_id:
                self._surprised = self._stream_id
            elif flags and size < assembler.missing - at:
                pass  # the request ends in the middle of its message
            elif whole < self.ahead:
                if size == length and not flags:
                    return whole, b"", (flags, size, have)
            elif size == self.last or (length >= LONG_FRAME and 0 < size <= assembler.missing - at):
                tail = bytes(assembler.room()[at + size : at + have]) if have > size else b""
                return whole, tail, (flags, size, min(have, size))
        return whole, b"".join(self.pieces(assembler.room(), length, at, whole, count)), None

    def pieces(self, room: memoryview, length: int, at: int, index: int, count: int) -> list[memoryview]:
        """The last ``count`` bytes of a read: heads of frames from ``index`` on, payloads from ``at`` on."""
        # The payloads lie where those of the expected frames belong, and the heads where theirs do.
        heads, pieces = self._heads.views, list[memoryview]()
        while count:
            pieces.append(heads[index][:count])
            count -= len(pieces[-1])
            pieces.append(room[at : at + min(count, length if index < self.ahead else self.last)])
            count -= len(pieces[-1])
            at += length
            index += 1
        return pieces

    def _finish_frame(self, now_ns: int, events: list[Event]) -> None:
        unchecked, self._unchecked = self._unchecked, 0
        self._receiver.receive_landed(self._flags, self._stream_id, self._length, unchecked, now_ns, events)

    def _finish_frames(self, call: Call, missing: int, count: int, now_ns: int, events: list[Event]) -> None:
        """Settle ``count`` frames like the current one, of which the last may be the message's: ``missing`` says.

        Of most frames nothing follows but smaller windows.
        """
        windows, length = self._windows, self._length
        while count:
            plain = 0
            if call.open and missing and self._unchecked <= 0:
                plain = min(count, (windows.receive - windows.low) // length, windows.spare_of(call) // length)
                announced = call.head.content_length
                if announced is not None:
                    plain = min(plain, (announced - call.received) // length)
            if plain > 0:
                windows.receive -= plain * length
                call.receive_window -= plain * length
                call.received += plain * length
                count -= plain
            if count:
                self._finish_frame(now_ns, events)
                count -= 1


def _cutter(left: int, length: int, ahead: int, last: int) -> Callable[[memoryview], tuple[memoryview, ...]]:
    """Cuts a room into ``left`` bytes, ``ahead`` pieces of ``length``, and one of ``last`` where that is not 0."""
    at = left + ahead * length
    pieces: list[Any] = [slice(start, start + length) for start in range(left, at, length)]
    if last:
        pieces.append(slice(at, at + last))
    return itemgetter(slice(0, left), *pieces)
