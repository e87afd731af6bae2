"""Messages between the parent and one of its processes, over a socket pair.

A frame is the length of a message, four bytes, and the message: what it is, a number, a name and a body. A question
gets one answer, or an error that is a text. A notice gets none. Answers come in any order.
"""

from __future__ import annotations

import logging
import math
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec
import trio

from toutates.system.text import writable

__all__ = ["HEAD_BYTES", "Channel", "Handlers", "NoAnswer", "frame_of_notice", "frame_size", "write_frame"]

logger = logging.getLogger(__name__)

#: A request to load a model may have two gigabytes, and the length can say four.
_LENGTH: Final = struct.Struct(">I")
HEAD_BYTES: Final = _LENGTH.size
_READ: Final = 2**18


class NoAnswer(Exception):
    """A question has no answer: it took too long, the other side has ended, or it failed there; the text says which."""


class _Kind(IntEnum):
    QUESTION = 0
    ANSWER = 1
    ERROR = 2
    NOTICE = 3


class _Message(msgspec.Struct, array_like=True):
    kind: _Kind
    number: int
    name: str
    body: bytes


_DECODER: Final = msgspec.msgpack.Decoder(_Message)


@dataclass(frozen=True, slots=True)
class Handlers:
    """What one side does with what the other sends.

    Attributes:
        answer: of a question's name and body, the answer. What it raises is logged, and the other side gets an error.
        take: takes the name and body of a notice. Notices come in the order in which they were sent.
    """

    answer: Callable[[str, bytes], Awaitable[bytes]]
    take: Callable[[str, bytes], None]


class Channel:
    """One end. Used in one Trio run.

    Args:
        stream: to the other end.
        handlers: what to do with what comes from there.
    """

    def __init__(self, stream: trio.SocketStream, handlers: Handlers) -> None:
        self._stream = stream
        self._handlers = handlers
        self._frames: deque[bytes] = deque()
        self._has_frames = trio.Event()
        self._number = 0
        #: by number of a question, what waits for its answer
        self._waiting: dict[int, _Waiting] = {}
        self._has_ended = False

    async def run(self) -> None:
        """Send and receive until the other side has ended. What then waits for answers gets NoAnswer."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self._has_ended = True
            for waiting in self._waiting.values():
                waiting.fail("it has ended")
            self._waiting.clear()
            with trio.CancelScope(shield=True, deadline=0):
                await self._stream.aclose()

    def tell(self, name: str, body: bytes = b"") -> None:
        """Send a notice, soon. Does nothing once the other side has ended."""
        self._put(_Message(_Kind.NOTICE, 0, name, body))

    async def ask(self, name: str, body: bytes = b"", *, within_s: float = math.inf) -> bytes:
        """Ask, and return the answer.

        Raises:
            NoAnswer: there is none within the time.
        """
        if self._has_ended:
            raise NoAnswer("it has ended")
        self._number += 1
        number = self._number
        waiting = self._waiting[number] = _Waiting()
        self._put(_Message(_Kind.QUESTION, number, name, body))
        del body  # which may be large
        try:
            with trio.move_on_after(within_s):
                await waiting.done.wait()
        finally:
            self._waiting.pop(number, None)
        if waiting.answer is None:
            raise NoAnswer(waiting.problem or f"it does not answer within {within_s:g} s")
        return waiting.answer

    def give_up(self, why: str) -> None:
        """Have every question that waits fail with NoAnswer."""
        for waiting in self._waiting.values():
            waiting.fail(why)

    def _put(self, message: _Message) -> None:
        if not self._has_ended:
            self._frames.append(_framed(msgspec.msgpack.encode(message)))
            self._has_frames.set()

    async def _send(self) -> None:
        try:
            while True:
                await self._has_frames.wait()
                while self._frames:
                    await self._stream.send_all(self._frames.popleft())
                self._has_frames = trio.Event()
        except trio.BrokenResourceError:
            pass  # the other side has ended, which the one who receives sees too

    async def _receive(self, nursery: trio.Nursery) -> None:
        while (frame := await _read_frame(self._stream)) is not None:
            message = _DECODER.decode(frame)
            del frame
            if message.kind is _Kind.NOTICE:
                self._handlers.take(message.name, message.body)
            elif message.kind is _Kind.QUESTION:
                nursery.start_soon(self._answer, message)
            elif (waiting := self._waiting.get(message.number)) is not None:
                if message.kind is _Kind.ANSWER:
                    waiting.succeed(message.body)
                else:
                    waiting.fail(message.body.decode(errors="replace"))

    async def _answer(self, message: _Message) -> None:
        number, name = message.number, message.name
        body, message.body = message.body, b""
        try:
            answer = _Message(_Kind.ANSWER, number, "", await self._handlers.answer(name, body))
        except NoAnswer as error:
            answer = _Message(_Kind.ERROR, number, "", writable(str(error)).encode())
        except Exception:
            logger.exception("a question of another process ('%s') could not be answered", name)
            answer = _Message(_Kind.ERROR, number, "", b"internal error")
        self._put(answer)


class _Waiting:
    """A question that has no answer yet."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: bytes | None = None
        self.problem = ""

    def succeed(self, answer: bytes) -> None:
        self.answer = answer
        self.done.set()

    def fail(self, problem: str) -> None:
        self.problem = problem
        self.done.set()


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def frame_size(head: bytes) -> int:
    """Bytes of the message that follows these HEAD_BYTES."""
    size: int = _LENGTH.unpack(head)[0]
    return size


def frame_of_notice(name: str, body: bytes) -> bytes:
    """The frame of a notice, to be sent where there is no Channel."""
    return _framed(msgspec.msgpack.encode(_Message(_Kind.NOTICE, 0, name, body)))


async def write_frame(stream: trio.SocketStream, message: bytes) -> None:
    """Send one frame. Not while a Channel uses the stream."""
    await stream.send_all(_framed(message))


async def _read_frame(stream: trio.SocketStream) -> bytes | None:
    """The next frame; None once the other side has ended. What it announces takes memory only as it comes."""
    head = await _read(stream, HEAD_BYTES)
    return None if head is None else await _read(stream, frame_size(head))


async def _read(stream: trio.SocketStream, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        try:
            part = await stream.receive_some(min(size, _READ))
        except trio.BrokenResourceError:
            return None
        if not part:
            return None
        parts.append(bytes(part))
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
