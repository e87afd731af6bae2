"""Fails the calls of a worker whose deadline has passed."""

from __future__ import annotations

import time
from typing import Final

from toutates.h2grpc.stream import NEVER
from toutates.net.closing import Closing
from toutates.net.schedule import Schedule
from toutates.net.transport import Transport
from toutates.net.transports import Transports

__all__ = ["CallDeadlines"]

#: After the deadlines of all connections have been looked at, the next look waits for so many times the CPU time that
#: this one took. So it costs 2 % of the time at most; a call with a deadline is then cut off that much late. What the
#: thread waited for the CPU is none of it, or calls would be late for that too, many times over.
DEADLINE_PAUSE: Final = 50


class CallDeadlines:
    """Watches the connections that have calls with a deadline.

    Args:
        transports, schedule, closing: of the worker.
    """

    def __init__(self, transports: Transports, schedule: Schedule, closing: Closing) -> None:
        self._transports = transports
        self._schedule = schedule
        self._closing = closing
        self._again_ns = 0

    def watch(self, transport: Transport) -> None:
        """Watch a connection that has a call with a deadline."""
        self._transports.timed[transport] = None
        self._plan(transport.connection.deadlines.next_ns)

    def tick(self, now_ns: int) -> None:
        """Do what is due by time."""
        timed = self._transports.timed
        if now_ns >= self._again_ns:
            began_ns = time.thread_time_ns()
            for transport in list(timed):
                deadlines = transport.connection.deadlines
                if deadlines.next_ns <= now_ns:
                    self._expire(transport, now_ns)
                if deadlines.next_ns == NEVER:
                    timed.pop(transport, None)
            self._again_ns = time.monotonic_ns() + DEADLINE_PAUSE * (time.thread_time_ns() - began_ns)
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
