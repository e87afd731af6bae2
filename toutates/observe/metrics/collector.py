"""Reads the values of all metrics, at scrapes and at no other time.

A scrape first reads the models, one after the other, and then makes the families. Between two models (where ``None`` is
yielded) and between two families the caller may let other threads run.

The values belong to other threads, which write them meanwhile; see ``ServerView`` and ``toutates.engine.counters``. The
only lock taken is that of each model version, for as long as adding a batch takes it.
"""

from __future__ import annotations

import platform
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from prometheus_client import ProcessCollector

from toutates.engine.counters import VersionCounters
from toutates.models.table import UNLOADED, ModelState, ModelTable
from toutates.observe.metrics.busiest import AT_ONCE, Busiest
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Family, Named
from toutates.observe.metrics.gpu import GpuGauges
from toutates.observe.metrics.host import HostGauges
from toutates.observe.metrics.model_families import ModelSnapshot, executor_families, original_families, triton_families
from toutates.observe.metrics.model_metrics import ModelMetrics
from toutates.observe.metrics.snapshot import Retired, VersionSnapshot, read_version
from toutates.observe.processes.resources import ProcessMetrics
from toutates.observe.view import ServerView
from toutates.system.interpreter import gil_enabled

__all__ = ["ServerCollector"]

_NS: Final = 1_000_000_000
_SHADOW_OUTCOMES: Final = ("equal", "different", "failed", "skipped")


class ServerCollector:
    """Makes the families of a scrape. One scrape at a time.

    Args:
        view: of the server.
        host: gauges of the machine.
        gpus: gauges of its GPUs.
        clock: monotonic seconds.

    Attributes:
        render_s: seconds that the last text took, set by whoever writes it.
    """

    def __init__(
        self, view: ServerView, host: HostGauges, gpus: GpuGauges, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._view = view
        self._host = host
        self._gpus = gpus
        self._clock = clock
        self._retired = Retired()
        self._busiest = Busiest(view.metrics_models)
        self._own = ModelMetrics()
        #: the table that was read last, which is not kept: it holds versions that may have left since
        self._table: Callable[[], ModelTable | None] = lambda: None
        #: of the versions that it serves, by model
        self._counters: dict[str, list[VersionCounters]] = {}
        self._states: Mapping[ModelState, int] = {}
        self._process = ProcessCollector(registry=None)
        self._processes = ProcessMetrics(view.processes) if view.processes() else None
        self._info = (view.identity.version, platform.python_version())
        self._plan_hits = 0
        self._demand_hits = 0
        self.render_s = 0.0

    def scrape(self) -> Iterator[Family | None]:
        """Every family that has series, once; and None while models are read."""
        table = self._view.get_table()
        if self._table() is not table:
            yield from self._read(table)
        counters = self._counters
        self._retired.update(counters, self._clock())
        # Without a yield in between: another scrape may retire a version that this one counts as served.
        retired = {name: list(self._retired.counts(name)) for name in self._retired.models if name in counters}
        busiest = self._busiest
        yield from busiest.choose(counters, retired)
        versions: list[VersionSnapshot] = []
        models: list[ModelSnapshot] = []
        for name in counters:
            if name not in busiest.listed:
                continue
            own: list[VersionSnapshot] = []
            for version in table.models[name].served():
                own.append(read_version(version))
                yield None
            model = ModelSnapshot(name, own, [*(one.counts for one in own), *retired.get(name, ())])
            model.counts = busiest.model(name, model.counts)
            models.append(model)
            versions += [
                replace(one, counts=busiest.version(name, one.number, source, one.counts))
                for one, source in zip(own, counters[name], strict=True)
            ]
        others = busiest.others
        for name, series in chain(
            original_families(models, self._view.infer, others, loaded=len(counters)),
            triton_families(versions, others),
            self._response_cache(),
            self._traffic(),
            self._demand(),
            self._server(),
            self._workers(),
            executor_families(versions, others),
            self._models(),
        ):
            if series:
                yield Family(CATALOGUE[name], series)
        yield from self._own.families(versions)
        yield from self._host.collect()
        yield from self._gpus.collect()
        if self._processes is not None:
            for name, series in self._processes.collect():
                if series:
                    yield Family(CATALOGUE[name], series)
            return
        for metric in self._process.collect():
            yield Family(CATALOGUE[metric.samples[0].name], [((), metric.samples[0].value)])

    def _read(self, table: ModelTable) -> Iterator[None]:
        """Find the counters of a table's versions. As long as nothing is loaded, the next scrapes have these."""
        counters: dict[str, list[VersionCounters]] = {}
        states = dict.fromkeys(ModelState, 0)
        for number, (name, one) in enumerate(table.models.items()):
            if found := one.served():
                counters[name] = [version.servable.counters for version in found]
            for version in one.versions.values():
                if version.reason != UNLOADED:
                    states[version.state] += 1
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
        self._table, self._counters, self._states = weakref.ref(table), counters, states

    def _response_cache(self) -> Iterator[Named]:
        cache = self._view.response_cache()
        if cache is not None:
            yield "nv_cache_util", [((), cache.used_bytes / cache.size_bytes)]
            yield "nv_cache_num_entries", [((), cache.entries)]
            yield "nv_cache_num_lookups", [((), cache.hits + cache.misses)]
            yield "nv_cache_num_hits", [((), cache.hits)]
            yield "nv_cache_num_misses", [((), cache.misses)]
            yield "nv_cache_num_evictions", [((), cache.evictions)]
            yield "nv_cache_lookup_duration", [((), cache.lookup_ns // 1_000)]
            yield "nv_cache_insertion_duration", [((), cache.insertion_ns // 1_000)]

    def _traffic(self) -> Iterator[Named]:
        counts = self._view.traffic()
        yield "toutates_traffic_requests_total", list(counts.requests.items())
        shadows = counts.shadows.items()
        yield (
            "toutates_shadow_requests_total",
            [((*key, what), getattr(one, what)) for key, one in shadows for what in _SHADOW_OUTCOMES],
        )
        yield "toutates_shadow_slower_total", [(key, one.slower) for key, one in shadows]
        yield "toutates_shadow_seconds_total", [(key, one.shadow_ns / _NS) for key, one in shadows]
        yield "toutates_shadowed_seconds_total", [(key, one.sent_ns / _NS) for key, one in shadows]

    def _demand(self) -> Iterator[Named]:
        state = self._view.demand()
        if state is None:
            return
        seen = sum(infer.observer.seen - infer.counters.unknown for infer in self._view.infer)
        self._demand_hits = max(self._demand_hits, state.hits(seen))
        yield "toutates_on_demand_models", [((), state.indexed)]
        yield "toutates_on_demand_loaded_models", [((), state.resident)]
        yield "toutates_on_demand_waiting_models", [((), state.queued)]
        yield "toutates_on_demand_memory_bytes", [((), state.used)]
        if state.budget:
            yield "toutates_on_demand_memory_capacity_bytes", [((), state.budget)]
        yield "toutates_on_demand_hits_total", [((), self._demand_hits)]
        yield "toutates_on_demand_misses_total", [((), state.misses)]
        yield "toutates_on_demand_loads_total", [((), state.loads)]
        yield "toutates_on_demand_load_seconds_total", [((), state.load_ns / _NS)]
        yield "toutates_on_demand_load_failures_total", [((), state.failures)]
        yield "toutates_on_demand_refusals_total", [((), state.refusals)]
        yield "toutates_on_demand_evictions_total", [((), state.evictions)]

    def _server(self) -> Iterator[Named]:
        view = self._view
        yield "toutates_info", [((*self._info, "on" if gil_enabled() else "off"), 1)]
        yield "toutates_ready", [((), int(view.is_ready()))]
        yield "toutates_model_versions", [((state.value,), self._states.get(state, 0)) for state in ModelState]
        yield "toutates_inflight_refusals_total", [((), sum(infer.counters.overloaded for infer in view.infer))]
        answers: Counter[str] = Counter()
        for infer in view.infer:
            answers.update(infer.counters.text_answers)
        series = [((route, status), count) for key, count in answers.items() for status, route in [key.split(" ")]]
        yield "toutates_text_answers_total", series
        misses = sum(infer.counters.parsed for infer in view.infer)
        # A miss counts when the request comes, `seen` when it is answered; so the difference may fall for a moment.
        seen = sum(infer.observer.seen - infer.counters.overloaded for infer in view.infer)  # refused ones had no plan
        self._plan_hits = max(self._plan_hits, seen - misses)
        yield "toutates_plan_cache_hits_total", [((), self._plan_hits)]
        yield "toutates_plan_cache_misses_total", [((), misses)]
        yield "toutates_log_lines_dropped_total", [((), view.dropped_log_lines())]
        sent, lost = view.traces()
        yield "toutates_traces_sent_total", [((), sent)]
        yield "toutates_traces_lost_total", [((), lost)]
        yield "toutates_metrics_render_seconds", [((), self.render_s)]

    def _workers(self) -> Iterator[Named]:
        workers = [(str(number), worker) for number, worker in enumerate(self._view.workers)]
        yield "toutates_connections", [((number,), worker.connections) for number, worker in workers]
        for name, attribute in (
            ("toutates_connections_accepted_total", "connections"),
            ("toutates_open_streams", "open_calls"),
            ("toutates_streams_total", "streams"),
            ("toutates_received_bytes_total", "received_bytes"),
            ("toutates_sent_bytes_total", "sent_bytes"),
        ):
            yield name, [((number,), getattr(worker.traffic, attribute)) for number, worker in workers]
        hits: Counter[str] = Counter()
        for _, worker in workers:
            hits.update(worker.limit_hits.copy())
        yield "toutates_limit_hits_total", [((limit,), count) for limit, count in hits.items()]
        yield (
            "toutates_worker_cpu_seconds_total",
            [((number,), seconds) for number, worker in workers if (seconds := worker.cpu_seconds) is not None],
        )
        yield (
            "toutates_worker_loop_lag_seconds",
            [((number,), worker.lateness.last_ns / _NS) for number, worker in workers],
        )
        yield (
            "toutates_worker_loop_late_seconds_total",
            [((number,), worker.lateness.sum_ns / _NS) for number, worker in workers],
        )

    def _models(self) -> Iterator[Named]:
        loading = self._view.loading
        yield "toutates_executor_deaths_total", [((), loading.executor_deaths)]
        yield "toutates_model_loads_total", [((), loading.loads)]
        yield "toutates_model_load_failures_total", [((), loading.failures)]
        yield "toutates_model_reloads_total", [((), loading.reloads)]
        yield "toutates_model_unloads_total", [((), loading.unloads)]
        yield "toutates_model_load_seconds_total", [((), loading.load_ns / _NS)]
        named = [(repository.name, repository.statistics()) for repository in list(self._view.repositories)]
        yield (
            "toutates_repository_answers",
            [((name,), int(one.answers)) for name, one in named if one.answers is not None],
        )
        now = time.time()
        yield (
            "toutates_repository_listing_age_seconds",
            [((name,), max(0.0, now - one.listed_s)) for name, one in named if one.listed_s is not None],
        )
        repositories = [one for _, one in named]
        yield "toutates_s3_downloads_total", [((), sum(one.objects for one in repositories))]
        yield "toutates_s3_download_bytes_total", [((), sum(one.bytes for one in repositories))]
        yield "toutates_s3_download_failures_total", [((), sum(one.failures for one in repositories))]
        yield "toutates_s3_download_seconds_total", [((), sum(one.duration_ns for one in repositories) / _NS)]
        caches = {one.cache for one in repositories if one.cache is not None}
        yield "toutates_cache_bytes", [((), sum(used for _, used, _ in caches))]
        yield "toutates_cache_capacity_bytes", [((), sum(bound for _, _, bound in caches))]
