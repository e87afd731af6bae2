"""Limits of frames that carry no request or response: a token bucket per kind of frame and connection.

Frames like PING, SETTINGS or RST_STREAM are cheap to send and make the receiver work; the attacks of CVE-2019-9511 to
9518, CVE-2023-44487 (rapid reset) and CVE-2025-8671 (made you reset) are floods of them. A correct peer sends more of
them the more calls it makes. So a bucket fills with time and with work: a call opened, or a KiB of a large response
sent.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Allowance", "Meter"]

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many frames of one kind a peer may send.

    Attributes:
        burst: frames at once.
        per_second: frames per second in the long run, of a peer that makes no calls.
        per_call: further frames for each call, and for each KiB of a large response.
    """

    burst: int
    per_second: float
    per_call: float

    def __post_init__(self) -> None:
        if self.burst < 1 or self.per_second < 0 or self.per_call < 0:
            raise ValueError(f"{self} must have a burst of 1 or more, and no negative rate")


class Meter:
    """The token bucket of one allowance; it starts full."""

    __slots__ = ("_allowance", "_at_ns", "_left", "_work")

    def __init__(self, allowance: Allowance, now_ns: int, work: int) -> None:
        self._allowance = allowance
        self._left = float(allowance.burst)
        self._at_ns = now_ns
        self._work = work

    def take(self, now_ns: int, work: int, cost: float = 1) -> bool:
        """Take a frame's tokens; whether there were enough.

        Args:
            now_ns: the time, monotonic.
            work: calls of the connection so far, and KiB of large responses sent.
            cost: how many frames it counts for.
        """
        allowance = self._allowance
        earned = (now_ns - self._at_ns) * allowance.per_second / _NS_PER_S + (work - self._work) * allowance.per_call
        self._at_ns = now_ns
        self._work = work
        self._left = min(self._left + earned, float(allowance.burst)) - cost
        return self._left >= 0

    @property
    def left(self) -> float:
        """Tokens left after the last ``take``; negative if they were not enough."""
        return self._left
