"""Runs an attack: its connections, again and again, for some time or until stopped."""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Ended, Peer, Tally

__all__ = ["READY", "STOPPED", "Report", "run_and_print"]

#: What the process prints once its connections stand, and once the server has stopped it for the first time; one line
#: of JSON follows at the end.
READY: Final = "ready"
STOPPED: Final = "stopped"
#: How often it is looked at whether it has been stopped.
_LOOK_S: Final = 0.05
#: After a connection that the system refused.
_REFUSED_PAUSE_S: Final = 0.05
_CONNECT_SECONDS: Final = 5.0
#: After a connection that has broken.
_LAST_WORDS_S: Final = 1.0


@dataclass(slots=True)
class Report:
    """What an attack cost its attacker, and what it was answered.

    Attributes:
        seconds: how long it ran.
        cpu_seconds: of the attacking process, without its start.
        connections, refused_connections, bytes_sent, bytes_received, strikes, answers, endings: see ``peer.Tally``.
    """

    seconds: float
    cpu_seconds: float
    connections: int
    refused_connections: int
    bytes_sent: int
    bytes_received: int
    strikes: int
    answers: dict[str, int]
    endings: dict[str, int]

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that a process printed."""
        return cls(**json.loads(text))


class _Runner:
    def __init__(self, attack: Attack, host: str, port: int, pause_s: float) -> None:
        self.tally = Tally()
        self._attack = attack
        self._address = (host, port)
        self._pause_s = pause_s
        self._ready = 0

    async def run(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
                nursery.start_soon(self._note_stopped)
                for _ in range(self._attack.connections):
                    nursery.start_soon(self._connect_again_and_again)

    async def _connect_again_and_again(self) -> None:
        while True:
            await self._connect_once()
            await trio.sleep(self._pause_s)

    async def _connect_once(self) -> None:
        attack = self._attack
        with trio.socket.socket() as sock:
            if attack.receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, attack.receive_buffer)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                with trio.fail_after(_CONNECT_SECONDS):
                    await sock.connect(self._address)
            except (OSError, trio.TooSlowError):
                self.tally.refused_connections += 1
                await trio.sleep(_REFUSED_PAUSE_S)
                return
            self.tally.connections += 1
            peer = Peer(sock, self.tally, answers_pings=attack.answers_pings, note_ready=self._note_ready)
            ending = "open"
            try:
                async with trio.open_nursery() as nursery:
                    if attack.reads:
                        nursery.start_soon(peer.read)
                    if not attack.freezes:
                        self._note_ready()
                    ending = await self._strike(peer)
                    nursery.cancel_scope.cancel()
            finally:
                peer.end(ending)

    async def _strike(self, peer: Peer) -> str:
        """Returns how the connection ended, for all that the attacker knows."""
        try:
            await self._attack.strike(peer)
        except Ended:
            # The server's last words may still be on their way.
            with trio.move_on_after(_LAST_WORDS_S if self._attack.reads else 0):
                await peer.over.wait()
            return "closed"
        return "left"

    def _note_ready(self) -> None:
        self._ready += 1
        if self._ready == self._attack.connections:
            print(READY, flush=True)

    async def _note_stopped(self) -> None:
        while not self._attack.times_stopped(self.tally.answers, self.tally.endings):  # noqa: ASYNC110  # no event
            await trio.sleep(_LOOK_S)
        print(STOPPED, flush=True)


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


def run_and_print(attack: Attack, host: str, port: int, seconds: float, pause_s: float) -> Report:
    """Run an attack until time is up or SIGTERM comes, and print its report as a line of JSON."""
    # But for the time that ``_stop_on_signal`` listens: whoever sends one in the end shall still get the report.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attack.prepare()
    runner = _Runner(attack, host, port, pause_s)
    started, cpu = time.monotonic(), _cpu_seconds()
    try:
        trio.run(runner.run, seconds)
    finally:
        attack.tidy(host, port)
    tally = runner.tally
    report = Report(
        seconds=time.monotonic() - started,
        cpu_seconds=_cpu_seconds() - cpu,
        connections=tally.connections,
        refused_connections=tally.refused_connections,
        bytes_sent=tally.bytes_sent,
        bytes_received=tally.bytes_received,
        strikes=tally.strikes,
        answers=dict(tally.answers),
        endings=dict(tally.endings),
    )
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    sys.stdout.flush()
    return report


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
