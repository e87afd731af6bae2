"""When a worker has to wake up by itself, and its event-loop lag."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.h2grpc.stream import NEVER
from toutates.net.mailbox import Mailbox

__all__ = ["Lateness", "Schedule"]


@dataclass(slots=True)
class Lateness:
    """Event-loop lag: how much later than planned a thread's tasks run, in nanoseconds. Written by that thread.

    Attributes:
        count: how often it was measured; every few seconds at least.
        sum_ns: all measured lags together.
        last_ns: the last measured lag.
    """

    count: int = 0
    sum_ns: int = 0
    last_ns: int = 0

    def note(self, ns: int) -> None:
        """Count a lag that was measured."""
        self.last_ns = max(ns, 0)
        self.sum_ns += self.last_ns
        self.count += 1


class Schedule:
    """The next time at which the worker has something to do.

    Args:
        mailbox: wakes the worker if a Trio task plans something while the worker sleeps.

    Attributes:
        next_ns: that time, monotonic.
        in_round: whether the worker is in a round, and looks at ``next_ns`` by itself.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.next_ns = NEVER
        self.in_round = False

    def plan(self, at_ns: int) -> None:
        """Have the worker wake up at ``at_ns``, monotonic, or earlier."""
        if at_ns < self.next_ns:
            self.next_ns = at_ns
            self.wake()

    def wake(self) -> None:
        """Have the worker begin a round now."""
        if not self.in_round:
            self.go_on()

    def go_on(self) -> None:
        """Have the worker begin a round as soon as this one, if there is one, is over."""
        self._mailbox.put(_nothing)


def _nothing() -> None:
    pass
