"""Receiving a large unary message straight into its memory.

The ordinary way hands in ``bytes``, and copies what belongs to a message out of them. Once it is known that much more of
a message is to come, the driver asks where to put the next bytes (``views``), receives them there by one system call,
and says how many came (``take``).

    message    [ received | rest of this frame |            | frame 2    | frame 3    |
    views                  ^^^^^^^^^^^^^^^^^^^^  head head    ^^^^^^^^^^   ^^^^^^^^^^

Between the payloads of frames come their heads. The next frames are expected to be as long as this one, so that one
read can bring many of them. Where a head says otherwise, what came behind it is copied, and goes the ordinary way.

What a frame means is settled when all of it has come, as in the ordinary way: the two make the same events and the same
output of the same bytes.
"""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.call import Call
from toutates.h2grpc.events import Event
from toutates.h2grpc.frame_heads import FRAMES_AHEAD
from toutates.h2grpc.frames import DATA, END_STREAM, FRAME_HEAD, FRAME_HEAD_SIZE
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import LARGE_MESSAGE_BYTES
from toutates.h2grpc.messages import PREFIX_SIZE, MessageAssembler
from toutates.h2grpc.receiver import Receiver
from toutates.h2grpc.request_memory import RequestMemory
from toutates.h2grpc.requests import Requests
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.stream_table import StreamTable
from toutates.h2grpc.streams import OPEN
from toutates.h2grpc.windows import Windows

__all__ = ["DirectReceive"]

#: So much of a message has to be missing: a read by several views costs more than a plain one, by what copying this
#: much takes.
LEAST_MISSING: Final = 32_768
#: Bytes that one read brings at most, some 0.3 ms.
MOST_AT_ONCE: Final = 1_048_576
#: Shorter frames are not expected to be followed by others of their length.
LEAST_FRAME: Final = 2_048

#: Frames that are expected of a read although the one before it brought none.
FEWEST_AHEAD: Final = 4

_pack_head = FRAME_HEAD.pack
_unpack_head = FRAME_HEAD.unpack_from


class DirectReceive:
    """Receives the DATA of one call at a time.

    Args:
        limits: of the connection.
        receiver: handles frames that have come.
        requests: makes the call's assembler.
        table, windows, held: of the connection.
        shared: with other connections.
    """

    __slots__ = (
        "_ahead",
        "_call",
        "_flags",
        "_heads",
        "_held",
        "_last",
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
        #: of the frame that is received: flags, stream, bytes of its payload, and how many of them are missing
        self._flags = 0
        self._stream_id = 0
        self._length = 0
        self._left = 0
        #: whether all of it has come, and is settled
        self._settled = False
        #: frames that are expected after it by the last ``views``, and bytes of the one that ends the message; 0 for none
        self._ahead = 0
        self._last = 0
        #: so many frames are expected at most: some more than the last read brought
        self._most_ahead = FEWEST_AHEAD
        #: the last stream whose frames were otherwise than expected
        self._surprised = 0
        #: by how many bytes what is held of the call has grown since that was checked
        self._unchecked = 0

    def begin(self, data: bytes, at: int, flags: int, stream_id: int, length: int) -> bool:
        """Whether to receive directly from here on: ``data`` ends with a part of a DATA frame of a large message.

        Args:
            data: what was read.
            at: where the frame's payload begins.
            flags, stream_id, length: of the frame.
        """
        call = self._streams.get(stream_id)
        if (
            call is None
            or flags & ~END_STREAM
            or call.state is not OPEN
            or not call.open
            or call.messages
            or call.head.method is None
            or call.head.method.unary is None
        ):
            return False
        have = len(data) - at
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
        if stream_id == self._surprised and length - have < LEAST_MISSING:
            return False
        if assembler is None:
            assembler = call.assembler = self._requests.assembler(call)
        assembler.feed(memoryview(data)[at:])
        self._call = call
        self._flags = flags
        self._stream_id = stream_id
        self._length = length
        self._left = length - have
        self._settled = False
        self._unchecked = 0
        self._note(call)
        return True

    def views(self) -> list[memoryview]:
        """Where the next bytes belong; they have to be put there, and told to ``take``, before anything else is done.

        None means that they are to go the ordinary way.
        """
        call, left = self._call, self._left
        assert call is not None
        heads = self._heads
        self._ahead = self._last = 0
        if call.assembler is None:  # the call has ended; the rest of the frame is to be dropped
            return [heads.sink[:left]] if left else []
        missing = call.assembler.missing
        room = call.assembler.room()
        most = min(len(room), MOST_AT_ONCE)
        views = [room[: min(left, most)]] if left else []
        length = self._length
        if left < most and missing > left and length >= LEAST_FRAME and self._stream_id != self._surprised:
            ahead = min((most - left) // length, (missing - left - 1) // length, self._most_ahead)
            at = left
            for head in heads.views[:ahead]:
                views.append(head)
                views.append(room[at : at + length])
                at += length
            if missing - at <= min(length, most - at):
                self._last = missing - at
                views.append(heads.views[ahead])
                views.append(room[at:missing])
            self._ahead = ahead
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
        landed = min(count, self._left)
        self._left -= landed
        count -= landed
        if assembler is not None:
            assembler.advance(landed)
            self._note(call)
        if self._left:
            return None
        if assembler is None or not assembler.missing:
            self._finish_frame(now_ns, events)
            return b""
        length, rest, following = self._length, b"", None
        whole = 0
        if count:
            whole, rest, following = self._read_heads(assembler, count)
            self._most_ahead = min(FEWEST_AHEAD + 2 * whole, FRAMES_AHEAD - 1)
            assembler.advance(whole * length)
            self._note(call)
        if not self._settled:
            whole += 1
        self._finish_frames(call, whole, now_ns, events)
        self._settled = True
        if following is None:
            if rest or call.assembler is None or not self._expects_more(assembler.missing):
                return rest
            return None
        self._flags, self._length, landed = following
        self._left = self._length - landed
        self._settled = False
        if call.assembler is not None:
            assembler.advance(landed)
            self._note(call)
        if self._left:
            return None
        self._finish_frame(now_ns, events)
        return b""

    def _expects_more(self, missing: int) -> bool:
        """Whether the next frame is likely to be like this one, and worth to be received directly."""
        long_enough = self._length >= LEAST_FRAME and missing >= LEAST_MISSING
        return long_enough and not self._flags and self._stream_id != self._surprised

    def _read_heads(self, assembler: MessageAssembler, count: int) -> tuple[int, bytes, tuple[int, int, int] | None]:
        """Read the heads among ``count`` bytes that came after a frame.

        Returns:
            How many whole frames came that were as expected; a copy of what came after them and was not; else the
            flags, the length and the bytes received of the frame that came after them, if one did.
        """
        heads, length = self._heads, self._length
        step = FRAME_HEAD_SIZE + length
        expected = _pack_head(length << 8 | DATA, 0, self._stream_id)
        whole = min(self._ahead, count // step)
        if heads.data[: FRAME_HEAD_SIZE * whole] != expected * whole:
            whole = next(at for at in range(whole) if heads.views[at] != expected)
        count -= whole * step
        if not count:
            return whole, b"", None
        if count >= FRAME_HEAD_SIZE:
            word, flags, stream_id = _unpack_head(heads.data, FRAME_HEAD_SIZE * whole)
            is_last = whole == self._ahead
            fits = word == (self._last if is_last else length) << 8 | DATA
            if fits and stream_id == self._stream_id and (flags == 0 or (flags == END_STREAM and is_last)):
                return whole, b"", (flags, word >> 8, count - FRAME_HEAD_SIZE)
            self._surprised = self._stream_id
        # The payloads lie where those of the expected frames belong, and the heads where theirs do.
        at = whole * length
        room = assembler.room() if count > FRAME_HEAD_SIZE else memoryview(b"")
        pieces: list[memoryview] = []
        for index in range(whole, len(heads.views)):
            pieces.append(heads.views[index][:count])
            count -= len(pieces[-1])
            pieces.append(room[at : at + min(count, length if index < self._ahead else self._last)])
            count -= len(pieces[-1])
            at += length
            if not count:
                break
        return whole, b"".join(pieces), None

    def _finish_frame(self, now_ns: int, events: list[Event]) -> None:
        unchecked, self._unchecked = self._unchecked, 0
        self._receiver.receive_landed(self._flags, self._stream_id, self._length, unchecked, now_ns, events)

    def _finish_frames(self, call: Call, count: int, now_ns: int, events: list[Event]) -> None:
        """Settle ``count`` frames like the current one, which do not end the message.

        Of most frames nothing follows but smaller windows.
        """
        windows, length = self._windows, self._length
        if self._unchecked > 0 and count:
            self._finish_frame(now_ns, events)
            count -= 1
        while count:
            plain = 0
            if call.open and call.head.content_length is None:
                plain = min(count, (windows.receive - windows.low) // length, windows.spare_of(call) // length)
            if plain > 0:
                windows.receive -= plain * length
                call.receive_window -= plain * length
                call.received += plain * length
                count -= plain
            if count:
                self._finish_frame(now_ns, events)
                count -= 1

    def _note(self, call: Call) -> None:
        assert call.assembler is not None
        self._unchecked += self._held.note(call, call.assembler.pending_bytes)
