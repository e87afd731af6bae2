"""ModelStatistics: the statistics of model versions as messages."""

from __future__ import annotations

from toutates.engine.counters import CacheCounters
from toutates.engine.response_counters import ResponseStatistics
from toutates.engine.statistics import VersionStatistics
from toutates.models.table import ModelTable, ServedVersion, parse_version
from toutates.models.traffic.rules import Target
from toutates.protocol.grpc_service_pb2 import (
    InferBatchStatistics,
    InferResponseStatistics,
    InferStatistics,
    MemoryUsage,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    StatisticDuration,
)
from toutates.system.errors import InvalidRequest

__all__ = ["model_statistics"]


def model_statistics(table: ModelTable, request: ModelStatisticsRequest) -> ModelStatisticsResponse:
    """Answer ModelStatistics; an empty name asks for all models.

    Raises:
        InvalidRequest: the model or version is unknown or not ready. This is the one RPC in which Triton calls that an
            invalid argument.
    """
    return ModelStatisticsResponse(model_stats=[_statistics(version) for version in _asked_for(table, request)])


def _asked_for(table: ModelTable, request: ModelStatisticsRequest) -> list[ServedVersion]:
    if not request.name:
        return table.served()
    name = table.spelling(request.name)
    targets = _targets(table, name, request.version)
    if targets:
        return [table.find_target(name, target) for target in targets]
    number = parse_version(request.version)
    model = table.models.get(name)
    loaded = model.served() if model is not None else []
    if not loaded:
        raise InvalidRequest(f"requested model '{request.name}' is not available")
    chosen = [version for version in loaded if number in (None, version.number)]
    if not chosen:
        raise InvalidRequest(f"requested model version is not available for model '{request.name}'")
    return chosen


def _targets(table: ModelTable, name: str, version: str) -> list[Target]:
    """The versions that a name stands for which is no model."""
    if name in table.models:
        return []
    route = None if version else table.traffic.routes.get(name)
    if route is not None:
        return list(route.arms)
    alias = table.target_of(name, version)
    return [] if alias is None else [alias]


def _statistics(version: ServedVersion) -> ModelStatistics:
    statistics = version.servable.statistics()
    requests, batches = statistics.requests, statistics.batches
    cache = statistics.cache or CacheCounters()
    computed = requests.success - requests.cached

    def duration(ns: int, count: int = requests.success) -> StatisticDuration:
        return StatisticDuration(count=count, ns=ns)

    return ModelStatistics(
        name=version.model,
        version=str(version.number),
        last_inference=requests.last_ms,
        inference_count=requests.rows,
        execution_count=sum(batch.count for batch in batches.values()),
        inference_stats=InferStatistics(
            success=duration(requests.success_ns),
            fail=duration(requests.fail_ns, requests.fail + requests.cancel),
            queue=duration(requests.queue_ns),
            compute_input=duration(requests.input_ns, computed),
            compute_infer=duration(requests.infer_ns, computed),
            compute_output=duration(requests.output_ns, computed),
            cache_hit=duration(cache.hit_ns, cache.hits),
            cache_miss=duration(cache.miss_ns, cache.misses),
        ),
        batch_stats=[
            InferBatchStatistics(
                batch_size=rows,
                compute_input=duration(batch.input_ns, batch.count),
                compute_infer=duration(batch.infer_ns, batch.count),
                compute_output=duration(batch.output_ns, batch.count),
            )
            for rows, batch in batches.items()
        ],
        memory_usage=_memory(statistics),
        response_stats={str(place): _responses(counters) for place, counters in statistics.responses.items()},
    )


def _responses(counters: ResponseStatistics) -> InferResponseStatistics:
    # Responses of models come whole: nothing is computed of them afterwards.
    computed = counters.success + counters.fail
    return InferResponseStatistics(
        compute_infer=StatisticDuration(count=computed, ns=counters.success_ns + counters.fail_ns),
        compute_output=StatisticDuration(count=computed, ns=0),
        success=StatisticDuration(count=counters.success, ns=counters.success_ns),
        fail=StatisticDuration(count=counters.fail, ns=counters.fail_ns),
        empty_response=StatisticDuration(count=counters.empty, ns=counters.empty_ns),
        cancel=StatisticDuration(count=counters.cancel, ns=counters.cancel_ns),
    )


def _memory(statistics: VersionStatistics) -> list[MemoryUsage]:
    """The memory of batch buffers. The memory of gathered arrays, and that of the backend, are not known."""
    size = statistics.occupancy.buffer_bytes
    return [MemoryUsage(type=statistics.memory_kind, id=0, byte_size=size)] if size else []
