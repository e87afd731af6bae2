"""The field ``Date`` of answers (RFC 9110 section 6.6.1): one text for all answers of a worker in a second."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Final, Protocol

__all__ = ["HttpDate"]

_SECOND_NS: Final = 1_000_000_000


class Clock(Protocol):
    """What knows the time.

    Attributes:
        now_ns: monotonic nanoseconds; it may be a little behind.
    """

    now_ns: int


class HttpDate:
    """Gives the field, as it is sent. Used in one thread: that of a worker, whose clock is read anyway.

    Args:
        clock: says when a second is over. The time of day is looked at then, and follows its changes.

    Attributes:
        until_ns: when the field is to be another one, on the clock.
    """

    __slots__ = ("_clock", "_field", "until_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._field = b""
        self.until_ns = clock.now_ns

    def __call__(self) -> bytes:
        """The field of now."""
        now_ns = self._clock.now_ns
        if now_ns >= self.until_ns:
            second, rest_ns = divmod(time.time_ns(), _SECOND_NS)
            self._field = b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")
            self.until_ns = now_ns + _SECOND_NS - rest_ns
        return self._field
