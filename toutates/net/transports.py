"""The connections of one worker, in tables by their state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from toutates.net.mailbox import Mailbox
from toutates.net.transport import Transport

__all__ = ["Transports"]


class Transports:
    """Tables that the parts of a worker share.

    Args:
        mailbox: of the worker.

    Attributes:
        open: all of them, by their socket's file descriptor.
        closing: those that end, in the order in which their time is over.
        leaving: those whose peers were told to leave; they are closed once their calls have ended.
        timed: those that have calls with a deadline.
        awaiting: those whose peer is in the middle of a large message, and of which the epoll tells later; with when
            that was decided.
        behind: those whose turn ended before their work did, the next one first, with the events that are left. One
            whose socket is closed stays here until all its calls are ended.
        catch_up: goes on with those that are behind.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.open: dict[int, Transport] = {}
        self.closing: dict[Transport, None] = {}
        self.leaving: dict[Transport, None] = {}
        self.timed: dict[Transport, None] = {}
        self.awaiting: dict[Transport, int] = {}
        self.behind: OrderedDict[Transport, list[Any]] = OrderedDict()
        self.catch_up: Callable[[], None]
        self._catching_up = False

    def remove(self, transport: Transport) -> bool:
        """Remove one whose socket is to be closed. Returns False if it was removed before."""
        if self.open.pop(transport.fd, None) is None:
            return False
        transport.dropped = True
        self.behind.pop(transport, None)
        self.closing.pop(transport, None)
        self.leaving.pop(transport, None)
        self.timed.pop(transport, None)
        self.awaiting.pop(transport, None)
        return True

    def fall_behind(self, transport: Transport, events: list[Any]) -> None:
        """Have the next round go on with a connection: with ``events``, and then with its ``go_on``."""
        left = self.behind.setdefault(transport, [])
        left += events
        transport.connection.behind = True
        if not transport.dropped:
            transport.pause(True)
        self.plan_catching_up()

    def plan_catching_up(self) -> None:
        """Have ``catch_up`` run in the next round."""
        if not self._catching_up:
            self._catching_up = True
            self._mailbox.put(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        self.catch_up()
