"""How the end of the server is asked for, and whether something failed before it."""

from __future__ import annotations

from collections.abc import Callable

import trio

__all__ = ["Shutdown"]


class Shutdown:
    """The state of the server's end. Used on the main thread.

    Args:
        delay_s: how long the server goes on, and says that it is not ready, before it drains.

    Attributes:
        leaving: set when the server has to stop; it is not ready from then on.
        begun: set when it drains, ``delay_s`` later.
        grace_ended: set when calls under way get no more time.
        failed: whether the exit code has to say that something failed.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.leaving = trio.Event()
        self.begun = trio.Event()
        self.grace_ended = trio.Event()
        self.failed = False
        self._delay_s = delay_s

    def begin(self) -> None:
        """The server has to stop. A second call changes nothing."""
        self.leaving.set()
        if not self._delay_s:
            self.begun.set()

    def request(self) -> None:
        """Begin the shutdown; the second call ends its delay and its grace."""
        if self.leaving.is_set():
            self.begun.set()
            self.grace_ended.set()
        else:
            self.begin()

    def fail(self) -> None:
        """Begin the shutdown because of a failure, at once."""
        self.failed = True
        self.leaving.set()
        self.begun.set()

    async def wait_delay(self, serves: Callable[[], bool]) -> None:
        """Wait until the server has to stop, and for the delay; then have it drain.

        Args:
            serves: whether anybody has been told of the server. One that is still starting has no delay.
        """
        await self.leaving.wait()
        if serves():
            with trio.move_on_after(self._delay_s):
                await self.begun.wait()
        self.begun.set()
