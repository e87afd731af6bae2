"""The socket to the server, which any thread of the model may ask through."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from toutates.backends.python.child import frames
from toutates.backends.python.child.errors import TritonModelException, check_process

__all__ = ["Channel", "Expected"]


class Expected:
    """Something that the server will send.

    Attributes:
        content: of its frame; None until it is there.
        given_up: whether it will not come any more.
        parts: what has come and was not taken, of a call that takes any number of responses; None of others.
    """

    __slots__ = ("content", "given_up", "parts")

    def __init__(self, *, is_many: bool = False) -> None:
        self.content: bytes | None = None
        self.given_up = False
        self.parts: deque[bytes] | None = deque() if is_many else None


class Channel:
    """Sends and receives frames.

    While the model runs, several threads may wait for frames. One of them at a time reads, and hands out what comes to
    the others; when it has its own, the next one reads.

    Args:
        control: the socket.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = bytearray()
        self._sending, self._asking = threading.Lock(), threading.Lock()
        #: of all that follows
        self._state = threading.Condition()
        self._may_ask = self._is_read = False
        #: threads that wait for frames, and those of them that do not read
        self._users = self._sleepers = 0
        self._answer = Expected()
        self._calls: dict[int, Expected] = {}
        self._number = 0
        #: frames that are no answers, where ``receive_order`` is used
        self._orders: deque[tuple[int, bytes]] = deque()
        self._takes_orders = False
        # What the model forks shall not answer in its place, nor keep the socket open after its end.
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Let go of the socket in a process that the model has forked, and of what others may have held there."""
        self._control.close()
        self._sending, self._asking, self._state = threading.Lock(), threading.Lock(), threading.Condition()
        self._is_read = False

    def receive(self) -> tuple[int, bytes]:
        """The next frame; ends the process where the server has closed the socket."""
        while True:
            if len(self._buffer) >= 5:
                length, kind = frames.HEAD.unpack_from(self._buffer)
                if len(self._buffer) >= 5 + length:
                    content = bytes(self._buffer[5 : 5 + length])
                    del self._buffer[: 5 + length]
                    return kind, content
            try:
                data = self._control.recv(frames.RECEIVE_BYTES)
            except OSError:
                data = b""
            if not data:
                os._exit(0)
            if not self._buffer and len(data) >= 5:  # a whole frame and nothing else, as nearly always
                length, kind = frames.HEAD.unpack_from(data)
                if len(data) == 5 + length:
                    return kind, data[5:]
            self._buffer += data

    def send(self, kind: int, content: bytes = b"") -> None:
        """Send a frame; ends the process where nobody takes it."""
        try:
            with self._sending:
                self._control.sendall(frames.HEAD.pack(len(content), kind) + content)
        except OSError:
            os._exit(0)

    def allow(self, may_ask: bool) -> None:
        """Say whether the server answers now. If it does not any more, waits for the threads that still wait."""
        with self._state:
            self._may_ask = may_ask
            while not may_ask and self._users:
                self._sleepers += 1
                self._state.wait()
                self._sleepers -= 1
            for call in self._calls.values():
                call.given_up = True
            self._calls.clear()

    def ask(self, **question: Any) -> Any:
        """Ask the server while it waits for the end of ``execute``; any thread may. Returns its answer."""
        check_process()
        with self._asking:
            with self._state:
                self._check()
                self._answer = Expected()
            self.send(frames.QUERY, json.dumps(question).encode())
            return json.loads(self.wait(self._answer))

    def call(self, block: int, said: bytes, form: bytes, *, is_many: bool = False) -> tuple[int, Expected]:
        """Begin a call of another model.

        Args:
            block: number of the block with its inputs.
            said: what it says beside its tensors, JSON; b"" for nothing.
            form: the rest of the frame.
            is_many: whether it takes any number of responses.

        Returns:
            Its number, and what is expected of it.
        """
        with self._state:
            self._check()
            self._number = number = (self._number + 1) % 2**32
            call = self._calls[number] = Expected(is_many=is_many)
        self.send(frames.CALL, frames.CALL_HEAD.pack(number, block, len(said)) + said + form)
        return number, call

    def _check(self) -> None:
        check_process()
        if not self._may_ask:
            raise TritonModelException("BLS is only supported during the 'execute' function.")

    def wait(self, expected: Expected) -> bytes:
        """Wait for what the server sends."""

        def is_there() -> bool:
            if expected.given_up and expected.content is None:
                raise TritonModelException("BLS is only supported during the 'execute' function.")
            return expected.content is not None

        self._read_until(is_there)
        assert expected.content is not None
        return expected.content

    def wait_part(self, expected: Expected) -> bytes:
        """Wait for the next response of a call that takes any number of them."""
        parts = expected.parts
        assert parts is not None

        def is_there() -> bool:
            if expected.given_up and not parts:
                raise TritonModelException("BLS is only supported during the 'execute' function.")
            return bool(parts)

        self._read_until(is_there)
        return parts.popleft()

    def receive_order(self) -> tuple[int, bytes]:
        """The next frame that is no answer, while other threads may wait for answers: of decoupled models."""
        self._takes_orders = True
        self._read_until(lambda: bool(self._orders))
        return self._orders.popleft()

    def _read_until(self, is_there: Callable[[], bool]) -> None:
        """Read, or wait for what others read, until something is there."""
        check_process()
        state = self._state
        with state:
            self._users += 1
            try:
                while not is_there():
                    if self._is_read:
                        self._sleepers += 1
                        state.wait()
                        self._sleepers -= 1
                        continue
                    self._is_read = True
                    state.release()
                    try:
                        kind, content = self.receive()
                    finally:
                        state.acquire()
                        self._is_read = False
                    self._hand_out(kind, content)
            finally:
                self._users -= 1
                if self._sleepers:
                    state.notify_all()

    def _hand_out(self, kind: int, content: bytes) -> None:
        if kind == frames.ANSWER:
            self._answer.content = content
        elif kind == frames.RETURN:
            number, what, _ = frames.RETURN_HEAD.unpack_from(content)
            call = self._calls.get(number) if what == frames.RETURNED_PART else self._calls.pop(number, None)
            if call is not None and call.parts is not None:
                call.parts.append(content)
            elif call is not None:
                call.content = content
        elif self._takes_orders:
            self._orders.append((kind, content))
        else:
            os._exit(70)
        if self._sleepers:
            self._state.notify_all()
