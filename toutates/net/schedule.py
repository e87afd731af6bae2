"""A worker's time: when it has to wake up by itself, and how late it is."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.h2grpc.stream import NEVER
from toutates.net.mailbox import Mailbox

__all__ = ["Lateness", "Schedule"]


@dataclass(slots=True)
class Lateness:
    """How long after their time a thread's tasks get their turn, nanoseconds. Written by that thread.

    Attributes:
        count: how often that was measured, every few seconds at least.
        sum_ns: of all times.
        last_ns: the last time.
    """

    count: int = 0
    sum_ns: int = 0
    last_ns: int = 0

    def note(self, ns: int) -> None:
        """A task was so late."""
        self.last_ns = max(ns, 0)
        self.sum_ns += self.last_ns
        self.count += 1


class Schedule:
    """The next time at which something is due.

    Args:
        mailbox: wakes the worker where a task of Trio's plans something while it sleeps.

    Attributes:
        next_ns: that time, monotonic.
        in_round: whether the worker is in a round, and looks at ``next_ns`` by itself.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.next_ns = NEVER
        self.in_round = False

    def plan(self, at_ns: int) -> None:
        """Something is due at ``at_ns``."""
        if at_ns < self.next_ns:
            self.next_ns = at_ns
            self.wake()

    def wake(self) -> None:
        """Have a round soon."""
        if not self.in_round:
            self._mailbox.put(_nothing)


def _nothing() -> None:
    pass
