"""The least rate of downloads: a server that sends a byte now and then would hold one, and its thread, for ever.

What waits for a certain number of bytes would not see that: so content is read as it comes.
"""

from __future__ import annotations

import http.client
import io
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CHUNK", "LEAST_RATE", "USUAL", "Pace", "PacedResponse", "Patience", "TooSlow", "paced_pools"]

#: Bytes per second of one file that have to come unless --download-min-rate says otherwise: what a modem had in 1990.
LEAST_RATE: Final = 1024
#: Bytes of a piece, and seconds after which a smaller one is given out.
CHUNK: Final = 128 * 1024
_PIECE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How slowly downloads may come, and how long is waited, in seconds.

    Attributes:
        least_rate: bytes per second of one file that have to come; 0 for any.
        window_s: of waiting over which they are counted, so that a short pause ends nothing.
        head_s: within which the head of an answer has to come, however many informational ones are before it.
        whole_s: for a short content as a whole, which could come a byte at a time.
        first_wait_s: before what has failed is tried again; doubled each time, and up to twice that at random.
    """

    least_rate: int = LEAST_RATE
    window_s: float = 60.0
    head_s: float = 20.0
    whole_s: float = 60.0
    first_wait_s: float = 0.2

    def wait_s(self, failures: int) -> float:
        """How long to wait before the next try, after so many that have failed."""
        return self.first_wait_s * 2.0 ** (failures - 1) * (1 + random.random())


USUAL: Final = Patience()


class TooSlow(TimeoutError):
    """The content comes too slowly; asked again, another server may answer."""


class Pace:
    """How one file comes, by however many answers. Used by one thread at a time.

    Args:
        patience: how slowly it may come.
        clock: tells the time, monotonic seconds.

    Attributes:
        misses: windows of time in which less has come.
    """

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._window_s = patience.least_rate, patience.window_s
        self._clock = clock
        self._waited_s = 0.0
        self._came = 0
        self.misses = 0

    def chunks(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """The content of an answer until its end, in pieces of CHUNK bytes, or of less where it comes slowly.

        Args:
            read: waits for some bytes, at most as many as it is given; empty at the end. The time it takes counts, that
                of whoever uses the pieces does not.

        Raises:
            TooSlow: less has come than has to.
        """
        piece = b"-"
        while piece:
            pieces: list[bytes] = []
            left, waited_s = CHUNK, 0.0
            try:
                while left > 0 and waited_s < _PIECE_S:
                    began = self._clock()
                    piece = read(left)
                    took_s = self._clock() - began
                    if not piece:
                        break
                    pieces.append(piece)
                    left -= len(piece)
                    waited_s += took_s
                    self.count(len(piece), took_s)
            finally:  # what came before an answer was cut off is content too, or one cut early each time never gets on
                if pieces:
                    yield pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def count(self, size: int, took_s: float) -> None:
        """Note what has come, and how long it was waited for.

        Raises:
            TooSlow: less has come than has to.
        """
        self._waited_s += took_s
        self._came += size
        if self._waited_s < self._window_s:
            return
        came, waited_s = self._came, self._waited_s
        self._came, self._waited_s = 0, 0.0
        if came < self._least * waited_s:
            self.misses += 1
            raise TooSlow(
                f"{came} bytes of it have come in {waited_s:.0f} s, less than the {self._least} bytes per second of "
                "--download-min-rate"
            )


class PacedResponse(http.client.HTTPResponse):
    """An answer that comes by a pace, and its head within some time. A connection's ``response_class`` makes it.

    Args:
        pace: of the bytes, those of the head among them.
        head_s: seconds.
    """

    def __init__(self, pace: Pace, *arguments: Any, head_s: float = USUAL.head_s, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_s = head_s
        self._bytes = _Paced(self.fp.detach(), pace)
        self.fp = io.BufferedReader(self._bytes)

    def begin(self) -> None:
        """Read the head."""
        self._bytes.ends = time.monotonic() + self._head_s
        super().begin()
        self._bytes.ends = math.inf


def paced_pools(pools: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
    """urllib3's classes of pools, by scheme, with connections whose answers are paced, each by itself.

    urllib3's own time limit is for single bytes.
    """

    def answer(*arguments: Any, **named: Any) -> PacedResponse:
        return PacedResponse(Pace(patience), *arguments, head_s=patience.head_s, **named)

    def paced(pool: Any) -> Any:
        connection = type("PacedConnection", (pool.ConnectionCls,), {"response_class": staticmethod(answer)})
        return type("PacedPool", (pool,), {"ConnectionCls": connection})

    return {scheme: paced(pool) for scheme, pool in pools.items()}


class _Paced(io.RawIOBase):
    """The bytes of a connection, until the time ``ends``."""

    def __init__(self, source: Any, pace: Pace) -> None:
        self._source = source
        self._pace = pace
        self.ends = math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        began = time.monotonic()
        size: int = self._source.readinto(buffer)
        now = time.monotonic()
        self._pace.count(size, now - began)
        if now > self.ends:
            raise TooSlow("the head of its answer has not come in time")
        return size

    def close(self) -> None:
        self._source.close()
        super().close()
