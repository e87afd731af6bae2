"""A text that is made once for all who ask within some time; the longer it took to make, the longer it is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import trio

__all__ = ["REUSE", "ReusedText"]

#: A text is kept for REUSE times as long as it took to make, so that making it costs 2 % of the time at most.
REUSE: Final = 50


class ReusedText:
    """One text, made again when it is asked for and no longer fresh. Used in one Trio run.

    Args:
        make: begins to make it; the text comes in pieces, between which others may run.
        least_s: seconds for which it is kept in any case.
        clock: seconds.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[bytes]],
        *,
        least_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._least_s = least_s
        self._clock = clock
        self._text = b""
        self._fresh_until_s = -1.0
        self._turn = trio.Lock()

    async def get(self) -> bytes:
        """The text, fresh or kept. Raises whatever ``make`` raises."""
        async with self._turn:
            if self._clock() >= self._fresh_until_s:
                took_s = 0.0
                pieces: list[bytes] = []
                began_s = self._clock()
                for piece in self._make():
                    took_s += self._clock() - began_s
                    pieces.append(piece)
                    # Trio asks the kernel for news here, without the GIL: a worker that waits for it gets it.
                    await trio.lowlevel.checkpoint()
                    began_s = self._clock()
                self._text = b"".join(pieces)
                self._fresh_until_s = self._clock() + max(self._least_s, REUSE * took_s)
            return self._text
