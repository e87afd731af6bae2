"""How long requests wait outside of the engine, as far as it can be known: to be read, and to be answered.

A request waits in its socket until the worker reads it, and nothing tells for how long. What can be measured is how
long a batch that has run waits for the same worker to write its answers. Both wait for the same: that the worker comes
to the end of its round, and that the system lets it run. So a request is taken to have waited as long as answers do.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Around"]

#: A wait counts for so much of what is expected if it is longer than that, and if it is shorter: who is late has lost
#: all, who is early nothing.
_LONGER_SHARE: Final = 1 / 4
_SHORTER_SHARE: Final = 1 / 16
#: Without answers, half of what is expected is forgotten in so long: else who refuses everything would not learn that
#: there is nothing to wait for any more.
_HALF_LIFE_NS: Final = 50_000_000


class Around:
    """What the requests of one worker are expected to wait for it. Used by that worker's thread only."""

    __slots__ = ("_noted_ns", "_wait_ns")

    def __init__(self) -> None:
        self._wait_ns = 0
        self._noted_ns = 0

    def note(self, wait_ns: int, now_ns: int) -> None:
        """Answers have waited for so long, until now."""
        expected_ns = self.wait_ns(now_ns)
        share = _LONGER_SHARE if wait_ns > expected_ns else _SHORTER_SHARE
        self._wait_ns = expected_ns + int((wait_ns - expected_ns) * share)
        self._noted_ns = now_ns

    def wait_ns(self, now_ns: int) -> int:
        """How long the next answers are expected to wait, nanoseconds."""
        return self._wait_ns >> min((now_ns - self._noted_ns) // _HALF_LIFE_NS, 62)

    def time_ns(self, now_ns: int) -> int:
        """What a request that has just been read is expected to have waited, and to wait once it has run."""
        return 2 * self.wait_ns(now_ns)
