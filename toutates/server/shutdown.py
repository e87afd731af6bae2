"""How the end of the server is asked for, and whether something failed before it."""

from __future__ import annotations

import trio

__all__ = ["Shutdown"]


class Shutdown:
    """The state of the server's end. Used on the main thread.

    Attributes:
        begun: set when the server has to stop; it then drains.
        grace_ended: set when calls under way get no more time.
        failed: whether the exit code has to say that something failed.
    """

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.grace_ended = trio.Event()
        self.failed = False

    def request(self) -> None:
        """Begin the shutdown; the second call ends its grace."""
        (self.grace_ended if self.begun.is_set() else self.begun).set()

    def fail(self) -> None:
        """Begin the shutdown because of a failure."""
        self.failed = True
        self.begun.set()
