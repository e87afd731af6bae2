"""Makes the families of models and their versions from snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from itertools import chain
from operator import add
from typing import Final

from toutates.engine.counters import BUCKET_NS, BUCKETS, BatchCounters, Durations, WorkerCounters
from toutates.engine.statistics import Occupancy
from toutates.infer.observing import FirstSteps
from toutates.observe.metrics.busiest import OTHERS
from toutates.observe.metrics.families import Distribution, Named, Series, bucket_bounds
from toutates.observe.metrics.snapshot import Counts, VersionSnapshot
from toutates.observe.view import WatchedInfer

__all__ = ["ModelSnapshot", "executor_families", "original_families", "triton_families"]

_NS: Final = 1_000_000_000
#: The original's 18 buckets, 100 us x 2^0..17, and three below, because small models run in less than 100 us.
_TIME_BUCKETS: Final = 21
_TIMES: Final = bucket_bounds([(BUCKET_NS << bucket) / _NS for bucket in range(_TIME_BUCKETS)])
_SIZE_BUCKETS: Final = 12
_SIZES: Final = bucket_bounds([1 << bucket for bucket in range(_SIZE_BUCKETS)])


class ModelSnapshot:
    """One model as it was at a scrape.

    Args:
        name: the model's.
        versions: those that are served, ascending.
        counts: of these versions, and of the model's former ones.
    """

    def __init__(self, name: str, versions: Sequence[VersionSnapshot], counts: Iterable[Counts]) -> None:
        self.name = name
        self.versions = versions
        self.counts = reduce(add, counts)


def _times(buckets: Sequence[int], total_ns: int) -> Distribution:
    return Distribution(_TIMES, [*buckets[:_TIME_BUCKETS], sum(buckets[_TIME_BUCKETS:])], total_ns / _NS)


def _sizes(buckets: Sequence[int], total: int) -> Distribution:
    return Distribution(_SIZES, [*buckets[:_SIZE_BUCKETS], sum(buckets[_SIZE_BUCKETS:])], total)


def _reply_ns(requests: WorkerCounters) -> int:
    """Time from the end of the run to the answer: the whole time without the other steps."""
    return requests.success_ns - requests.queue_ns - requests.input_ns - requests.infer_ns


_NOTHING: Final = Occupancy(**{each.name: 0 for each in fields(Occupancy)})

_HISTOGRAMS: Final[Mapping[str, Callable[[Counts], Distribution]]] = {
    "inference_batch_items": lambda counts: _sizes(counts.batch_sizes, counts.batch_rows),
    "inference_client_batch_size": lambda counts: _sizes(counts.requests.sizes, counts.requests.rows),
    "inference_request_duration_seconds": lambda counts: _times(counts.requests.durations, counts.requests.success_ns),
    "inference_batch_duration_seconds": lambda counts: _times(counts.batch_durations, _busy_ns(counts.batches)),
    "inference_model_execution_seconds": lambda counts: _times(counts.batch_runs, counts.batches.infer_ns),
    "inference_inference_in_queue_seconds": lambda counts: _times(counts.requests.queued, counts.requests.queue_ns),
    "inference_exec_start_seconds": lambda counts: _times(counts.requests.starts, counts.requests.input_ns),
    "inference_exec_end_seconds": lambda counts: _times(counts.requests.runs, counts.requests.infer_ns),
    "inference_output_processed_seconds": lambda counts: _times(counts.requests.replies, _reply_ns(counts.requests)),
}

#: Histograms that single models have where there are too many for one series each.
_OF_MANY: Final = frozenset(
    {
        "inference_client_batch_size",
        "inference_request_duration_seconds",
        "inference_inference_in_queue_seconds",
        "inference_model_execution_seconds",
    }
)

_MODEL_GAUGES: Final[Mapping[str, Callable[[Sequence[VersionSnapshot]], int]]] = {
    "inference_inflight": lambda versions: sum(one.occupancy.rows for one in versions),
    "inference_capacity": lambda versions: sum(one.occupancy.row_capacity for one in versions),
    "inference_executors_in_use": lambda versions: sum(_executors_in_use(one) for one in versions),
    "inference_configured_batch_size": lambda versions: versions[-1].batch_size,
}


def original_families(
    models: Sequence[ModelSnapshot], infer: Sequence[WatchedInfer], others: Counts | None = None, *, loaded: int
) -> Iterator[Named]:
    """The metrics of the original Toutates.

    Args:
        models: those that have series of their own.
        infer: of each worker.
        others: what all other models have counted; None where there are none.
        loaded: models of which something is served.
    """
    counted = [*models, *([] if others is None else [ModelSnapshot(OTHERS, (), [others])])]
    yield "inference_requests_total", [*chain(*map(_outcomes, counted)), *_outcomes_without_model(infer)]
    yield "inference_batches_total", [((one.name,), one.counts.batches.count) for one in counted]
    for name, read in _HISTOGRAMS.items():
        # One model has 2 KB of each.
        chosen = counted if others is None or name in _OF_MANY else counted[-1:]
        yield name, [((one.name,), read(one.counts)) for one in chosen]
    for name, choose in _FIRST_STEPS.items():
        yield name, [((one.name,), _first_step(infer, one.name, choose)) for one in ([] if others else models)]
    for name, measure in _MODEL_GAUGES.items():
        yield name, [((one.name,), measure(one.versions)) for one in models]
    yield "loaded_models", [((), loaded)]


def _outcomes_without_model(infer: Sequence[WatchedInfer]) -> list[Series]:
    """Outcomes of requests that came to no model."""
    counters = [one.counters for one in infer]
    return [
        (("", "error"), sum(one.invalid for one in counters)),
        (("", "not_found"), sum(one.unknown for one in counters)),
        (("", "resource_exhausted"), sum(one.overloaded for one in counters)),
    ]


def _first_step(infer: Sequence[WatchedInfer], model: str, choose: Callable[[FirstSteps], Durations]) -> Distribution:
    buckets, total_ns = [0] * BUCKETS, 0
    for one in infer:
        steps = one.observer.steps.get(model)
        if steps is not None:
            durations = choose(steps)
            buckets = list(map(add, buckets, durations.buckets))
            total_ns += durations.sum_ns
    return _times(buckets, total_ns)


_FIRST_STEPS: Final[Mapping[str, Callable[[FirstSteps], Durations]]] = {
    "inference_request_model_proxy_aquired_seconds": lambda steps: steps.to_plan,
    "inference_serialization_done_seconds": lambda steps: steps.to_copy,
}


def _outcomes(model: ModelSnapshot) -> list[Series]:
    requests = model.counts.requests
    return [
        ((model.name, "ok"), requests.success),
        ((model.name, "error"), requests.fail + requests.cancel + requests.refused),
        ((model.name, "resource_exhausted"), requests.overloaded),
        ((model.name, "late"), requests.late),
    ]


def _executors_in_use(version: VersionSnapshot) -> int:
    return max(version.executors - version.occupancy.idle_executors, 0)


def _busy_ns(batches: BatchCounters) -> int:
    return batches.input_ns + batches.infer_ns + batches.output_ns


def triton_families(versions: Sequence[VersionSnapshot], others: Counts | None = None) -> Iterator[Named]:
    """Triton's metrics of models: those of ModelStatistics, in microseconds.

    Args:
        versions: of the models that have series of their own.
        others: see ``original_families``.
    """
    counted = _with_others(versions, others)
    requests = [(one.triton_labels(), one.counts.requests) for one in counted]
    yield "nv_inference_request_success", [(labels, own.success) for labels, own in requests]
    yield (
        "nv_inference_request_failure",
        [
            (one.triton_labels(reason), count)
            for one, (_, own) in zip(counted, requests, strict=True)
            for reason, count in (
                ("REJECTED", own.rejected + own.late),
                ("CANCELED", own.cancel),
                ("BACKEND", own.broken),
                ("OTHER", own.other),
            )
        ],
    )
    yield "nv_inference_count", [(labels, own.rows) for labels, own in requests]
    yield "nv_inference_exec_count", [(one.triton_labels(), one.counts.batches.count) for one in counted]
    yield "nv_inference_request_duration_us", [(labels, own.success_ns // 1_000) for labels, own in requests]
    yield "nv_inference_queue_duration_us", [(labels, own.queue_ns // 1_000) for labels, own in requests]
    yield "nv_inference_compute_input_duration_us", [(labels, own.input_ns // 1_000) for labels, own in requests]
    yield "nv_inference_compute_infer_duration_us", [(labels, own.infer_ns // 1_000) for labels, own in requests]
    yield "nv_inference_compute_output_duration_us", [(labels, own.output_ns // 1_000) for labels, own in requests]
    yield "nv_inference_pending_request_count", [(one.triton_labels(), one.occupancy.waiting) for one in versions]
    cached = [(one.triton_labels(), one.cache) for one in versions if one.cache is not None]
    yield "nv_cache_num_hits_per_model", [(labels, own.hits) for labels, own in cached]
    yield "nv_cache_num_misses_per_model", [(labels, own.misses) for labels, own in cached]
    yield "nv_cache_hit_duration_per_model", [(labels, own.hit_ns // 1_000) for labels, own in cached]
    yield "nv_cache_miss_duration_per_model", [(labels, own.miss_ns // 1_000) for labels, own in cached]
    yield "nv_model_load_duration_secs", [(one.triton_labels(), one.load_ns / _NS) for one in versions]


def executor_families(versions: Sequence[VersionSnapshot], others: Counts | None = None) -> Iterator[Named]:
    """Our own metrics of model versions; for the arguments see ``triton_families``."""
    counted = _with_others(versions, others)
    yield "toutates_executors", [(one.labels, one.executors) for one in versions]
    yield "toutates_executor_busy_seconds_total", [(one.labels, _busy_ns(one.counts.batches) / _NS) for one in counted]
    yield "toutates_batch_fill_ratio", [(one.labels, _fill_ratio(one)) for one in versions]
    padded = [one for one in counted if one.counts.batches.padded_elements]
    yield "toutates_real_elements_total", [(one.labels, one.counts.batches.real_elements) for one in padded]
    yield "toutates_padded_elements_total", [(one.labels, one.counts.batches.padded_elements) for one in padded]
    forecasts = [(one.labels, one.forecast) for one in versions if one.forecast is not None]
    yield "toutates_latency_target_seconds", [(labels, own.target_ns / 1e9) for labels, own in forecasts]
    yield "toutates_run_fixed_seconds", [(labels, own.fixed_ns / 1e9) for labels, own in forecasts]
    yield "toutates_run_row_seconds", [(labels, own.row_ns / 1e9) for labels, own in forecasts]
    yield "toutates_batches_in_flight", [(one.labels, one.occupancy.in_flight) for one in versions]
    yield "toutates_batches_capacity", [(one.labels, one.occupancy.capacity) for one in versions]
    yield "toutates_lanes", [(one.labels, one.occupancy.lanes) for one in versions]
    yield "toutates_model_memory_bytes", [(one.labels, one.occupancy.buffer_bytes) for one in versions]


def _with_others(versions: Sequence[VersionSnapshot], others: Counts | None) -> list[VersionSnapshot]:
    """Versions, and what stands for all others where counts are shown."""
    if others is None:
        return list(versions)
    return [*versions, VersionSnapshot(OTHERS, "", 1, 0, 0, others, _NOTHING)]


def _fill_ratio(version: VersionSnapshot) -> float:
    counts = version.counts
    return counts.batch_rows / (version.batch_size * counts.batches.count) if counts.batches.count else 0.0
