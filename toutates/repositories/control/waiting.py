"""What the start of the server is waiting for, for the log and for readiness."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

__all__ = ["Waiting"]

logger = logging.getLogger(__name__)

#: When the log says for the first time what is waited for, and how often from then on. Seconds.
_FIRST_LINE_S: Final = 1.0
_LINES_S: Final = 10.0


class Waiting:
    """What the start is waiting for. Written by the main thread, read by any.

    Attributes:
        names: of the repositories that have not answered; replaced as a whole.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.names: tuple[str, ...] = ()
        self._clock = clock
        self._since_s = clock()

    def begin(self, names: Sequence[str]) -> None:
        """These are waited for from now on, if they are not already."""
        wanted = tuple(dict.fromkeys(names))
        if wanted != self.names:
            self._since_s = self._clock()
            self.names = wanted

    def end(self, name: str = "") -> None:
        """One has answered; or, without a name, none is waited for any more."""
        self.names = tuple(one for one in self.names if name and one != name)

    def __str__(self) -> str:
        names = self.names
        if not names:
            return ""
        seconds = self._clock() - self._since_s
        return f"waiting for {', '.join(names)}: the first listing, {seconds:.0f} s so far"

    @asynccontextmanager
    async def logged(self) -> AsyncIterator[None]:
        """Say in the log what is waited for, soon and then again and again, for as long as the block lasts."""

        async def log() -> None:
            pause, level = _FIRST_LINE_S, logging.INFO
            while True:
                await trio.sleep(pause)
                if text := str(self):
                    logger.log(level, "%s", text)
                pause, level = _LINES_S, logging.WARNING

        async with trio.open_nursery() as nursery:
            nursery.start_soon(log)
            yield
            nursery.cancel_scope.cancel()
