"""The deadlines of all calls of a worker."""

from __future__ import annotations

import time
from typing import Final

from toutates.h2grpc.stream import NEVER
from toutates.net.closing import Closing
from toutates.net.schedule import Schedule
from toutates.net.transport import Transport
from toutates.net.transports import Transports

__all__ = ["CallDeadlines"]

#: Looking at the deadlines of all connections pauses for so many times as long as it took, so that it costs 2 % at most
#: however many there are; a call with a deadline is then cut off that much late.
DEADLINE_PAUSE: Final = 50


class CallDeadlines:
    """Fails the calls that are late.

    Args:
        transports, schedule, closing: of the worker.
    """

    def __init__(self, transports: Transports, schedule: Schedule, closing: Closing) -> None:
        self._transports = transports
        self._schedule = schedule
        self._closing = closing
        self._again_ns = 0

    def watch(self, transport: Transport) -> None:
        """A connection has a call with a deadline."""
        self._transports.timed[transport] = None
        self._plan(transport.connection.deadlines.next_ns)

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        timed = self._transports.timed
        if now_ns >= self._again_ns:
            for transport in list(timed):
                deadlines = transport.connection.deadlines
                if deadlines.next_ns <= now_ns:
                    self._expire(transport, now_ns)
                if deadlines.next_ns == NEVER:
                    timed.pop(transport, None)
            self._again_ns = now_ns + DEADLINE_PAUSE * (time.monotonic_ns() - now_ns)
        for transport in timed:
            self._plan(transport.connection.deadlines.next_ns)

    def _expire(self, transport: Transport, now_ns: int) -> None:
        try:
            transport.handle_all(transport.connection.expire(now_ns))
            if transport.connection.behind:
                self._transports.fall_behind(transport, [])
        except Exception as error:
            self._closing.failed(transport, error)

    def _plan(self, at_ns: int) -> None:
        self._schedule.plan(max(at_ns, self._again_ns))
