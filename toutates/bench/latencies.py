"""A histogram of latencies, which processes and repeats can add up, and its quantiles."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Latencies", "buckets_of"]

#: Buckets of each power of two, so that a bucket is at most 1/128 wider than its least value.
_PARTS_BITS: Final = 7
_PARTS: Final = 1 << _PARTS_BITS
#: From here on a bucket is wider than a nanosecond.
_EXACT: Final = 2 * _PARTS
_BUCKETS: Final = (63 - _PARTS_BITS) * _PARTS + _EXACT


class Latencies:
    """Counts by latency: exact below 256 ns, and within 0.8 % above.

    Attributes:
        counts: of each bucket.
    """

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self.counts.sum())

    def record(self, latencies_ns: npt.NDArray[np.int64]) -> None:
        """Count latencies, in nanoseconds. A negative one, which clocks must not bring about, is refused.

        Raises:
            ValueError: one is negative.
        """
        self.count_buckets(buckets_of(latencies_ns))

    def count_buckets(self, buckets: npt.NDArray[np.int64]) -> None:
        """Count latencies by their buckets, as ``buckets_of`` has them."""
        if buckets.size:
            counts = np.bincount(buckets)
            self.counts[: counts.size] += counts

    def add(self, other: Latencies) -> None:
        """Count what another histogram has counted, too."""
        self.counts += other.counts

    def quantile(self, share: float) -> int:
        """The latency that a share (0 to 1) of all does not exceed, in nanoseconds: the end of its bucket.

        Raises:
            ValueError: nothing was recorded.
        """
        total = self.count
        if not total:
            raise ValueError("no latency was recorded")
        rank = min(max(1, math.ceil(share * total - 1e-9)), total)
        return _last_of(int(np.searchsorted(np.cumsum(self.counts), rank)))

    def mean(self) -> float:
        """The mean in nanoseconds, within the width of buckets; 0 of nothing."""
        total = self.count
        if not total:
            return 0.0
        filled = np.flatnonzero(self.counts)
        return float(sum(_last_of(int(at)) * int(self.counts[at]) for at in filled) / total)

    def points(self) -> list[tuple[int, int]]:
        """The end of each bucket that is not empty, in nanoseconds, and its count."""
        return [(_last_of(int(at)), int(self.counts[at])) for at in np.flatnonzero(self.counts)]


def buckets_of(latencies_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each latency, in nanoseconds.

    Raises:
        ValueError: one is negative.
    """
    if latencies_ns.size and latencies_ns.min() < 0:
        raise ValueError(f"a latency of {latencies_ns.min()} ns")
    # The exponent of the nearest double may be one too high for values beyond 2^53, so bits are not taken from it.
    excess = np.maximum(np.frexp(np.maximum(latencies_ns, 1) * 1.0)[1].astype(np.int64) - 1 - _PARTS_BITS, 0)
    buckets: npt.NDArray[np.int64] = excess * _PARTS + (latencies_ns >> excess)
    return buckets


def _last_of(bucket: int) -> int:
    """The greatest latency of a bucket."""
    if bucket < _EXACT:
        return bucket
    excess = bucket // _PARTS - 1
    return ((bucket - excess * _PARTS + 1) << excess) - 1
