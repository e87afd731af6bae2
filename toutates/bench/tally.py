"""What a load comes to, counted piece by piece, so that its requests can be forgotten."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from toutates.bench.latencies import Latencies, buckets_of
from toutates.bench.outcome import Outcome, OutcomeOfRequest, Record, Slice, status_name
from toutates.h2grpc import Status

__all__ = ["Tally", "summarise"]

#: Pieces of a load's time.
_SLICES: Final = 50


class Tally:
    """Counts of a load's requests.

    Args:
        kinds: of how many requests the load consists.
        bound_ns: answers that take longer, from the intended time, are late.
        seconds: that the load is to last.
    """

    def __init__(self, kinds: int, bound_ns: int, seconds: float) -> None:
        self._requests = [OutcomeOfRequest() for _ in range(kinds)]
        self._bound_ns, self._seconds = bound_ns, seconds
        self._lag = Latencies()
        self._slices: dict[int, Latencies] = {}
        self._last_ns = self._meanwhile = 0

    def add(self, record: Record) -> None:
        """Count requests. Of the record nothing else matters."""
        right = record.statuses == Status.OK
        if not right.all():
            self._count_statuses(record, right)
            record = record.only(right)
        choices, intended_ns, answered_ns = record.choices, record.intended_ns, record.answered_ns
        took_ns = answered_ns - intended_ns
        # Each latency's bucket is found once. In a closed loop what was sent was sent at its time.
        buckets = buckets_of(took_ns)
        at_once = record.sent_ns is intended_ns
        from_sent = buckets if at_once else buckets_of(answered_ns - record.sent_ns)
        for kind, outcome in enumerate(self._requests):
            own = choices == kind
            count = int(np.count_nonzero(own))
            if not count:
                continue
            outcome.offered += count
            outcome.answered += count
            outcome.in_time += int(np.count_nonzero(took_ns[own] <= self._bound_ns))
            outcome.statuses["OK"] += count
            counted = buckets[own]
            outcome.from_intended.count_buckets(counted)
            outcome.from_sent.count_buckets(counted if at_once else from_sent[own])
        self._lag.record(record.noticed_ns - intended_ns)
        self._last_ns = max(self._last_ns, int(answered_ns.max(initial=0)))
        self._meanwhile += int(np.count_nonzero(answered_ns <= self._seconds * 1e9))
        # By when requests were to be sent.
        pieces = np.minimum(intended_ns * _SLICES // max(1, round(self._seconds * 1e9)), _SLICES - 1)
        for piece in range(int(pieces.min(initial=_SLICES)), int(pieces.max(initial=-1)) + 1):
            self._slices.setdefault(piece, Latencies()).count_buckets(buckets[pieces == piece])

    def _count_statuses(self, record: Record, right: npt.NDArray[np.bool_]) -> None:
        """Count what was not answered with OK."""
        failed = record.only(~right)
        for kind, outcome in enumerate(self._requests):
            statuses = failed.statuses[failed.choices == kind]
            outcome.offered += len(statuses)
            for code, count in zip(*map(np.ndarray.tolist, np.unique(statuses, return_counts=True)), strict=True):
                outcome.statuses[status_name(code)] += count
        self._lag.record(failed.noticed_ns - failed.intended_ns)

    def outcome(self, seconds: float, cpu_seconds: float, waited_seconds: float) -> Outcome:
        """What became of the load.

        Args:
            seconds: that it lasted.
            cpu_seconds, waited_seconds: see ``Record``.
        """
        share = 1 / max(seconds, 1e-9)
        # Of a load that was stopped, what would have come then is left out.
        count = min(_SLICES, max(1, math.ceil(_SLICES * seconds / max(self._seconds, 1e-9) - 1e-6)))
        return Outcome(
            seconds,
            self._requests,
            self._lag,
            cpu_seconds * share,
            waited_seconds * share,
            cpu_seconds,
            [_slice(self._slices.get(piece)) for piece in range(count)],
            self._last_ns / 1e9,
            self._meanwhile,
        )


def _slice(latencies: Latencies | None) -> Slice:
    if latencies is None or not latencies.count:
        return Slice(0, 0, 0)
    return Slice(latencies.count, latencies.quantile(0.5), latencies.quantile(0.99))


def summarise(record: Record, kinds: int, bound_ns: int) -> Outcome:
    """The outcome of a load of which all requests are there.

    Args:
        record: of the load.
        kinds, bound_ns: as for ``Tally``.
    """
    tally = Tally(kinds, bound_ns, record.seconds)
    tally.add(record)
    return tally.outcome(record.seconds, record.cpu_seconds, record.waited_seconds)
