"""ModelStreamInfer: messages on streams that stay open, each answer counted. perf_analyzer's streams are no measure."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.client import Outcome, percentile
from bench.errors import NoFigure
from bench.protocols import STREAM
from bench.question import Question

__all__ = ["StreamLoad", "run_streams"]

_PATH: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_HEAD: Final = struct.Struct(">HBBBL")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_LARGEST_WINDOW: Final = 2**31 - 1
_DEFAULT_WINDOW: Final = 65_535
_SILENCE_SECONDS: Final = 30.0
_STREAM: Final = 1


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """A stream on each of some connections, with some messages under way on each.

    Attributes:
        connections: with a stream each.
        under_way: messages without an answer on each.
    """

    connections: int
    under_way: int

    @property
    def name(self) -> str:
        """In tables."""
        return f"stream{self.connections}x{self.under_way}"

    @property
    def concurrency(self) -> int:
        """Messages under way at once."""
        return self.connections * self.under_way

    @property
    def protocol(self) -> str:
        """Of the server's port."""
        return STREAM

    @property
    def timed(self) -> bool:
        """It sends a number of messages."""
        return False

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``. An answer has what the unary one has, and its envelope: at most 64 bytes more."""
        share = -(-requests // self.connections)
        return run_streams(address, [[question.body]] * self.connections, share, self.under_way, answer_bytes)


def run_streams(
    address: str, bodies: Sequence[Sequence[bytes]], share: int, under_way: int, answer_bytes: int
) -> Outcome:
    """Send messages on streams, each on a connection of its own, and wait for all answers.

    Args:
        address: host:port.
        bodies: of each stream, its length-prefixed messages, all of one length, which are sent in turn.
        share: messages of each stream.
        under_way: of them at once.
        answer_bytes: of a unary answer.

    Raises:
        NoFigure: an answer is missing, or has not the right length.
    """
    with contextlib.ExitStack() as stack:
        streams = [_Stream(address, own, share, answer_bytes) for own in bodies]
        poll = select.poll()
        by_fd = {}
        for stream in streams:
            stack.callback(stream.socket.close)
            by_fd[stream.socket.fileno()] = stream
            poll.register(stream.socket, select.POLLIN)
        for stream in streams:
            stream.wait_greeted()
        begin = time.perf_counter()
        for stream in streams:
            stream.send(under_way)
        while by_fd:
            ready = poll.poll(_SILENCE_SECONDS * 1_000)
            if not ready:
                raise NoFigure("the server has stopped answering")
            for fd, _ in ready:
                if by_fd[fd].receive():
                    poll.unregister(fd)
                    del by_fd[fd]
        seconds = time.perf_counter() - begin
        times = sorted([one for stream in streams for one in stream.times])
    return Outcome(len(times), len(times) / seconds, percentile(times, 0.5), percentile(times, 0.99))


class _Stream:
    """One connection with one call.

    Args:
        address: host:port.
        bodies: the length-prefixed requests, all of one length, which are sent in turn.
        count: how many messages are sent.
        answer_bytes: of the unary answer.

    Attributes:
        times: microseconds until each answer.
    """

    def __init__(self, address: str, bodies: Sequence[bytes], count: int, answer_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_SILENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.times: list[int] = []
        self._frames = itertools.cycle([_frame(_DATA, 0, _STREAM, body) for body in bodies])
        self._size = len(bodies[0])
        self._left = count
        self._count = count
        self._answer_bytes = answer_bytes
        self._sent_at: list[float] = []
        self._received = bytearray()
        self._windows = {0: _DEFAULT_WINDOW, _STREAM: 0}
        self._due = 0
        self._greeted = False
        block = b"".join(
            bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", _PATH),
                (":authority", "bench"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        )
        settings = struct.pack(">HL", 4, _LARGEST_WINDOW)
        window = struct.pack(">L", _LARGEST_WINDOW - _DEFAULT_WINDOW)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, window)
            + _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        )

    def wait_greeted(self) -> None:
        """Wait for the server's SETTINGS."""
        while not self._greeted:
            self.receive()

    def send(self, count: int) -> None:
        """Send so many messages, or as many as are left and the windows take; the others when these grow."""
        self._due += count
        count = min(self._due, self._left, min(self._windows.values()) // self._size)
        if count <= 0:
            return
        self._due -= count
        self._left -= count
        for stream in self._windows:
            self._windows[stream] -= count * self._size
        self._sent_at += [time.perf_counter()] * count
        self.socket.sendall(b"".join(itertools.islice(self._frames, count)))

    def receive(self) -> bool:
        """Read once, and send a message for each answer; whether all are there.

        Raises:
            NoFigure: the call has ended, or an answer has not the right length.
        """
        data = self.socket.recv(1 << 18)
        if not data:
            raise NoFigure("the server closed the connection")
        received = self._received
        received += data
        now = time.perf_counter()
        at = answers = 0
        while len(received) >= at + _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(received, at)
            end = at + _HEAD.size + (high << 8 | low)
            if len(received) < end:
                break
            if kind == _DATA:
                if not self._answer_bytes <= end - at - _HEAD.size <= self._answer_bytes + 64:
                    raise NoFigure(f"an answer has {end - at - _HEAD.size} bytes")
                self.times.append(round((now - self._sent_at[len(self.times)]) * 1e6))
                answers += 1
            elif kind in (_RST_STREAM, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
                raise NoFigure("the server ended the call")
            elif kind == _WINDOW_UPDATE:
                self._windows[stream] += int.from_bytes(received[end - 4 : end], "big")
            elif kind == _PING and not flags & _ACK:
                self.socket.sendall(_frame(_PING, _ACK, 0, bytes(received[end - 8 : end])))
            elif kind == _SETTINGS and not flags & _ACK:
                settings = bytes(received[at + _HEAD.size : end])
                pairs = [struct.unpack_from(">HL", settings, place) for place in range(0, len(settings), 6)]
                self._windows[_STREAM] = dict(pairs).get(4, _DEFAULT_WINDOW)
                self._greeted = True
                self.socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            at = end
        del received[:at]
        if answers or self._due:
            self.send(answers)
        return len(self.times) == self._count


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload
