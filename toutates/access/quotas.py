"""Requests and rows per second of each client.

A quota is a token bucket that is kept as one number, the *due time*: when all that was taken will have been earned. An
empty due time is in the past, so a client that was not seen for a while needs no record. A bucket lets a request in
whenever it is not empty, or full where the request is larger than all of it, and may then be in debt. So a request of
more rows than the bucket holds gets through, and the rate holds on average.

A bucket is shared by all threads. Its lock is held for one comparison and one addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Final

__all__ = ["Bucket", "Quota", "Quotas"]

_NS: Final = 1_000_000_000
#: Buckets that are kept; those that are full are forgotten first.
MAX_BUCKETS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a client may ask for.

    Attributes:
        requests_per_second: inferences; None for any number.
        rows_per_second: rows of all of them; None for any number.
        burst_s: how much may come at once after a pause, in seconds' worth; one request at least.
    """

    requests_per_second: float | None = None
    rows_per_second: float | None = None
    burst_s: float = 1.0


class _Rate:
    """One token bucket. ``due_ns`` is changed under the lock of its ``Bucket``."""

    __slots__ = ("_burst_ns", "_unit_ns", "due_ns")

    def __init__(self, per_second: float, burst_s: float) -> None:
        self._unit_ns = _NS / per_second
        self._burst_ns = max(burst_s * _NS, self._unit_ns)
        self.due_ns = 0.0

    def wait_ns(self, units: int, now_ns: int) -> float:
        """How long until ``units`` can be taken; 0 or less for at once."""
        owed = max(self.due_ns - now_ns, 0.0)
        return owed + min(units * self._unit_ns, self._burst_ns) - self._burst_ns

    def take(self, units: int, now_ns: int) -> None:
        self.due_ns = max(self.due_ns, now_ns) + units * self._unit_ns


class Bucket:
    """What one client has left of its quota."""

    __slots__ = ("_lock", "_requests", "_rows")

    def __init__(self, quota: Quota) -> None:
        self._lock = Lock()
        per_second = quota.requests_per_second, quota.rows_per_second
        self._requests, self._rows = (None if rate is None else _Rate(rate, quota.burst_s) for rate in per_second)

    def take(self, rows: int, now_ns: int) -> float:
        """Take a request of ``rows`` rows out; returns 0, or the seconds after which it may come again.

        A request that is refused takes nothing.
        """
        requests, of_rows = self._requests, self._rows
        with self._lock:
            wait_ns = 0.0
            if requests is not None:
                wait_ns = requests.wait_ns(1, now_ns)
            if of_rows is not None:
                wait_ns = max(wait_ns, of_rows.wait_ns(rows, now_ns))
            if wait_ns > 0:
                return wait_ns / _NS
            if requests is not None:
                requests.take(1, now_ns)
            if of_rows is not None:
                of_rows.take(rows, now_ns)
        return 0.0

    def give_back(self, rows: int, now_ns: int) -> None:
        """Put back what ``take`` has just taken out, for a request that comes again."""
        with self._lock:
            if self._requests is not None:
                self._requests.take(-1, now_ns)
            if self._rows is not None:
                self._rows.take(-rows, now_ns)

    def full_from_ns(self) -> float:
        """When nothing is owed any more."""
        return max((rate.due_ns for rate in (self._requests, self._rows) if rate is not None), default=-math.inf)


class Quotas:
    """The buckets of all clients. Any thread may ask.

    Args:
        now_ns: a monotonic clock.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = Lock()
        self._buckets: dict[tuple[Hashable, Quota], Bucket] = {}

    def bucket(self, client: Hashable, quota: Quota) -> Bucket:
        """The client's bucket, the same one each time; a new one where its quota has changed."""
        key = client, quota
        with self._lock:
            found = self._buckets.get(key)
            if found is None:
                if len(self._buckets) >= MAX_BUCKETS:
                    self._forget_some()
                found = self._buckets[key] = Bucket(quota)
            return found

    def _forget_some(self) -> None:
        """Forget those that are full, which loses nothing; without any, the eldest."""
        now_ns = self._now_ns()
        full = [key for key, bucket in self._buckets.items() if bucket.full_from_ns() <= now_ns]
        for key in full or [next(iter(self._buckets))]:
            del self._buckets[key]
