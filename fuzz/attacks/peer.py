"""One connection of an attacker, and the tally of what all of them spent and were answered."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from hpack import Decoder

from fuzz.attacks.wire import ACK, END_STREAM, Code, Kind, frame

__all__ = ["Ended", "Peer", "Tally"]

_HTTP1: Final = re.compile(rb"HTTP/1\.[01] (\d{3})")
_CHUNK: Final = 65_536


class Ended(Exception):
    """The server has ended the connection."""


@dataclass(slots=True)
class Tally:
    """See the module.

    Attributes:
        connections: that were accepted.
        refused_connections: that the system did not make.
        strikes: what the attack counts: requests, frames or probes.
        answers: frames of the server that say something of a call or the connection, such as ``RST_STREAM CANCEL``,
            ``grpc-status 8`` or ``HTTP/1.1 400``.
        endings: how connections ended: the GOAWAY's code, ``closed`` or ``reset`` by the server without one, ``left``
            by the attacker, or ``open`` when time was up.
    """

    connections: int = 0
    refused_connections: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    strikes: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)


class Peer:
    """A connection.

    Args:
        sock: connected.
        tally: shared by all connections of the attacker.
        answers_pings: whether PINGs are answered.
        note_ready: see ``note_ready``.
    """

    def __init__(
        self,
        sock: trio.socket.SocketType,
        tally: Tally,
        *,
        answers_pings: bool,
        note_ready: Callable[[], None],
    ) -> None:
        self.tally = tally
        #: to be called once the connection stands, by attacks that are suspended then
        self.note_ready = note_ready
        #: set once the server's SETTINGS are here
        self.greeted = trio.Event()
        #: set once the server has sent GOAWAY, or ended the connection
        self.over = trio.Event()
        #: calls that were answered or reset
        self.answered = 0
        self._sock = sock
        self._answers_pings = answers_pings
        self._sending = trio.Lock()
        self._received = b""
        self._speaks_http2 = True
        self._ending = ""
        self._answer = trio.Event()
        self._statuses: dict[bytes, str] = {}

    @property
    def port(self) -> int:
        """Of the server."""
        return int(self._sock.getpeername()[1])

    # --- what attacks do ---------------------------------------------------------------------------------------------

    async def send(self, data: bytes, strikes: int = 0) -> None:
        """Send all of ``data``, which counts as so many strikes.

        Raises:
            Ended: the server has had enough.
        """
        async with self._sending:
            view = memoryview(data)
            while view:
                if self.over.is_set():
                    raise Ended
                try:
                    sent = await self._sock.send(view[:_CHUNK])
                except OSError:
                    raise Ended from None
                self.tally.bytes_sent += sent
                view = view[sent:]
        self.tally.strikes += strikes

    async def dribble(self, data: bytes, pause_s: float, size: int = 1) -> None:
        """Send ``data`` in pieces of ``size`` bytes with pauses between them.

        Raises:
            Ended: see ``send``.
        """
        for at in range(0, len(data), size):
            await self.send(data[at : at + size])
            await self.pause(pause_s)

    async def pause(self, seconds: float) -> None:
        """Wait, or until the server ends the connection.

        Raises:
            Ended: it has.
        """
        with trio.move_on_after(seconds):
            await self.wait_over()

    async def wait_over(self) -> None:
        """Wait for the server to end the connection."""
        await self.over.wait()
        raise Ended

    async def wait_answer(self) -> None:
        """Wait for the next answer to a call.

        Raises:
            Ended: the server has ended the connection instead.
        """
        self._answer = trio.Event()
        if not self.over.is_set():
            await self._answer.wait()
        if self.over.is_set():
            raise Ended

    async def receive(self) -> bytes:
        """The next bytes, for attacks that have none read.

        Raises:
            Ended: there are none; the server has ended the connection.
        """
        ending, data = "closed", b""
        try:
            data = await self._sock.recv(_CHUNK)
        except OSError:
            ending = "reset"
        if not data:
            self.end(ending)
            raise Ended
        self.tally.bytes_received += len(data)
        return data

    def end_writing(self) -> None:
        """Send FIN."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def end_by_reset(self) -> None:
        """Close with RST instead of FIN."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    # --- what the runner does ----------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read and count until the connection ends."""
        try:
            while True:
                await self._take(await self.receive())
        except Ended:
            self.end("closed")  # by the answer to a PING

    def end(self, ending: str) -> None:
        """Count how the connection ended; the first to say so is right."""
        self.over.set()
        self._answer.set()
        if not self._ending:
            self._ending = ending
            self.tally.endings[ending] += 1

    async def _take(self, data: bytes) -> None:
        self._received += data
        if not self.greeted.is_set():
            for found in _HTTP1.finditer(self._received):
                self._note_answer(f"HTTP/1.1 {found[1].decode()}")
                self._speaks_http2 = False
        at = 0
        while self._speaks_http2 and len(self._received) >= at + 9:
            end = at + 9 + int.from_bytes(self._received[at : at + 3], "big")
            if end > len(self._received):
                break
            kind, flags = self._received[at + 3], self._received[at + 4]
            await self._take_frame(kind, flags, self._received[at + 9 : end])
            at = end
        self._received = self._received[at:] if self._speaks_http2 else b""

    async def _take_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == Kind.SETTINGS and not flags & ACK:
            self.greeted.set()
        elif kind == Kind.PING and not flags & ACK and self._answers_pings:
            await self.send(frame(Kind.PING, ACK, 0, payload))
        elif kind == Kind.GOAWAY:
            self.end(f"GOAWAY {_code(payload[4:8])}")
        elif kind == Kind.RST_STREAM:
            self._note_answer(f"RST_STREAM {_code(payload)}")
        elif kind == Kind.HEADERS and flags & END_STREAM:
            self._note_answer(self._status(payload))

    def _note_answer(self, text: str) -> None:
        self.answered += 1
        self.tally.answers[text] += 1
        self._answer.set()

    def _status(self, block: bytes) -> str:
        # The server uses none of the dynamic table, so that a block means the same at any time.
        status = self._statuses.get(block)
        if status is None:
            fields = {str(name): str(value) for name, value in Decoder().decode(block)}
            status = f"grpc-status {fields.get('grpc-status', '?')}"
            if ":status" in fields and fields[":status"] != "200":
                status = f"HTTP {fields[':status']}"
            self._statuses[block] = status
        return status


def _code(payload: bytes) -> str:
    number = int.from_bytes(payload, "big")
    try:
        return Code(number).name
    except ValueError:
        return str(number)
