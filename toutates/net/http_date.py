"""The field ``Date`` of answers (RFC 9110 section 6.6.1): one text for all answers of a worker in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Final

__all__ = ["HttpDate"]

_SECOND_NS: Final = 1_000_000_000


class HttpDate:
    """Has the field, as it is sent. Used in one thread: that of a worker, whose rounds renew it.

    Attributes:
        field: gives the field. It is read for each answer, and so it is no function of Python.
        until_ns: monotonic nanoseconds from which on it is to be renewed.
    """

    __slots__ = ("_text", "field", "until_ns")

    def __init__(self) -> None:
        self._text = {"date": b""}
        self.field: Callable[[], bytes] = partial(self._text.__getitem__, "date")
        self.until_ns = 0
        self.renew(time.monotonic_ns())

    def renew(self, now_ns: int) -> None:
        """Look at the time of day, and so follow its changes."""
        second, rest_ns = divmod(time.time_ns(), _SECOND_NS)
        self._text["date"] = b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")
        self.until_ns = now_ns + _SECOND_NS - rest_ns
