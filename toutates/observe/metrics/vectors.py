"""Counts as vectors: what thousands of models have counted is added up in a tenth of the time that records take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from operator import add, attrgetter
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.engine.counters import BUCKETS, BatchCounters, VersionCounters, WorkerCounters, size_bucket
from toutates.observe.metrics.snapshot import Counts

__all__ = ["Vector", "nothing", "record_of", "vector_of", "vector_of_counters"]

#: All numbers of a ``Counts`` in the order of its fields, int64.
Vector = npt.NDArray[np.int64]

_EMPTY: Final = WorkerCounters()
_NUMBERS: Final = tuple(each.name for each in fields(WorkerCounters) if isinstance(getattr(_EMPTY, each.name), int))
_LISTS: Final = tuple(each.name for each in fields(WorkerCounters) if each.name not in _NUMBERS)
_BATCH: Final = tuple(each.name for each in fields(BatchCounters))
_OWN_LISTS: Final = ("batch_sizes", "batch_durations", "batch_runs")
_read_numbers: Final = attrgetter(*_NUMBERS)
_read_lists: Final = attrgetter(*_LISTS)
_read_batch: Final = attrgetter(*_BATCH)
_REQUESTS: Final = len(_NUMBERS) + BUCKETS * len(_LISTS)
_SIZES: Final = _REQUESTS + len(_BATCH) + 1
_SIZE: Final = _SIZES + BUCKETS * len(_OWN_LISTS)
_pack_requests: Final = Struct(f"{_REQUESTS}q").pack
_pack_batches: Final = Struct(f"{_SIZE - _REQUESTS}q").pack


def nothing() -> Vector:
    """The vector of counts that are all 0."""
    return np.zeros(_SIZE, np.int64)


def vector_of_counters(counters: VersionCounters) -> Vector:
    """The sum of the counts of all threads."""
    total = nothing()
    for worker in counters.workers:
        numbers = _read_numbers(worker)
        if any(numbers):
            of_requests = total[:_REQUESTS]
            of_requests += _packed(_pack_requests, numbers, _read_lists(worker))
    for executor in counters.executors:
        by_rows = executor.by_rows
        if not by_rows:
            continue
        batches, all_rows, sizes = [0] * len(_BATCH), 0, [0] * BUCKETS
        for rows, batch in by_rows.items():
            batches = list(map(add, batches, _read_batch(batch)))
            all_rows += (rows or 1) * batch.count
            sizes[size_bucket(rows or 1)] += batch.count
        of_batches = total[_REQUESTS:]
        of_batches += _packed(_pack_batches, (*batches, all_rows), (sizes, executor.durations, executor.runs))
    return total


def vector_of(counts: Counts) -> Vector:
    """The vector of a record."""
    requests = counts.requests
    numbers = (*_read_batch(counts.batches), counts.batch_rows)
    own = [getattr(counts, name) for name in _OWN_LISTS]
    return np.concatenate(
        (
            _packed(_pack_requests, _read_numbers(requests), _read_lists(requests)),
            _packed(_pack_batches, numbers, own),
        )
    )


def record_of(vector: Vector) -> Counts:
    """The record of a vector."""
    numbers: list[int] = vector.tolist()
    at = len(_NUMBERS)
    of_requests: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=False))
    for name in _LISTS:
        of_requests[name] = numbers[at : at + BUCKETS]
        at += BUCKETS
    batches = BatchCounters(*numbers[at : at + len(_BATCH)])
    rows = numbers[at + len(_BATCH)]
    lists = [numbers[_SIZES + place * BUCKETS : _SIZES + (place + 1) * BUCKETS] for place in range(len(_OWN_LISTS))]
    return Counts(WorkerCounters(**of_requests), batches, rows, *lists)


def _packed(pack: Callable[..., bytes], numbers: Iterable[int], lists: Iterable[Sequence[int]]) -> Vector:
    # In a third of the time that NumPy takes for a list.
    return np.frombuffer(pack(*numbers, *chain.from_iterable(lists)), np.int64)
