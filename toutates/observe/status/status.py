"""Makes /status.json: everything that the status page shows, in one object of bounded size."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toutates.engine.counters import BUCKET_NS
from toutates.models.table import ModelEntry, ModelState, ServedVersion, VersionEntry
from toutates.observe.status.history import NOTHING
from toutates.observe.status.names import names_shown
from toutates.observe.status.sampling import (
    ERROR_KINDS,
    HISTORY,
    LONG_STEP,
    MODEL_HISTORY,
    SERIES,
    Sampler,
    VersionSample,
    percentile_ms,
)
from toutates.observe.view import ServerView
from toutates.system.cpu_quota import usable_cpus
from toutates.system.interpreter import describe_interpreter
from toutates.system.json_text import encode_json
from toutates.system.logs.recent import RecentWarning

__all__ = ["ALL", "SORTS", "Asked", "Status", "unready_reason"]

SORTS: Final = ("importance", "name")

#: Most versions of models that are listed; first those that fail, then the busiest.
MAX_VERSIONS: Final = 200
MAX_WARNINGS: Final = 20
MAX_WORKERS: Final = 256
MAX_TEXT: Final = 400
#: Most tensors of a model that are listed, and most characters of their names.
MAX_TENSORS: Final = 16
MAX_NAME: Final = 100
#: Versions in one piece of the text.
AT_ONCE: Final = 16


def unready_reason(view: ServerView) -> str:
    """Why the server is not ready for requests, a sentence without a full stop; "" if it is."""
    return view.unready_reason() or ("" if view.workers else "the server is starting")


@dataclass(frozen=True, slots=True)
class Asked:
    """Which versions are listed.

    Attributes:
        find: a part of the models' names, whatever the case; "" for all.
        sort: "importance", or "name".
        page: of MAX_VERSIONS versions each, from 0.
    """

    find: str = ""
    sort: str = "importance"
    page: int = 0


ALL: Final = Asked()


class Status:
    """Makes the text. Used in the sampler's Trio run.

    Args:
        view: of the server.
        sampler: has the numbers.
        warnings: returns the last warnings of the log, the oldest first.
    """

    def __init__(self, view: ServerView, sampler: Sampler, warnings: Callable[[], Iterable[RecentWarning]]) -> None:
        self._view = view
        self._sampler = sampler
        self._warnings = warnings

    def pieces(self, points: int, asked: Asked = ALL) -> Iterator[bytes]:
        """The JSON in pieces, with the last ``points`` of every history.

        Args:
            points: how many.
            asked: which versions are listed.
        """
        sampler = self._sampler
        listed = self._by_importance(asked)
        yield b""
        shown = listed[asked.page * MAX_VERSIONS : (asked.page + 1) * MAX_VERSIONS]
        head = {
            "server": self._server(),
            "sequence": sampler.sequence,
            "interval_s": round(sampler.interval_s, 3),
            "now": self._now(),
            "history": {name: getattr(sampler, name).last(min(points, HISTORY)) for name in SERIES},
            "history_size": HISTORY,
            "long_history": {name: series.last(min(points, HISTORY)) for name, series in sampler.long.items()},
            "long_step": LONG_STEP,
            "latency": _histogram(sampler.durations, lambda bucket: (BUCKET_NS << bucket) / 1e6),
            "batches": _histogram(sampler.batches, lambda bucket: 1 << bucket),
            "workers": [
                {
                    "name": worker.name,
                    "load": round(worker.load, 3),
                    "late_ms": round(worker.late_ms, 2),
                    "connections": worker.connections,
                    "open_calls": worker.open_calls,
                }
                for worker in sampler.workers[:MAX_WORKERS]
            ],
            "errors": [
                {"kind": kind, "count": count, "per_s": round(now / sampler.interval_s, 2)}
                for kind, count, now in zip(ERROR_KINDS, sampler.errors, sampler.total.errors, strict=True)
                if count
            ],
            "limits": self._limits(),
            "warnings": [
                {"time_s": round(one.time_s, 1), "level": one.level, "area": one.area, "text": one.text[:MAX_TEXT]}
                for one in reversed(list(self._warnings())[-MAX_WARNINGS:])
            ],
            "on_demand": self._on_demand(),
            "names": names_shown(self._view.get_table(), self._view.traffic()),
            "versions_left_out": len(listed) - len(shown),
            "page": asked.page,
            "pages": -(-len(listed) // MAX_VERSIONS),
        }
        yield _json(head)[:-1] + b',"versions":['
        for start in range(0, len(shown), AT_ONCE):
            some = [self._version(*one, points=min(points, MODEL_HISTORY)) for one in shown[start : start + AT_ONCE]]
            yield (b"," if start else b"") + b",".join(map(_json, some))
        yield b"]}"

    def _server(self) -> dict[str, Any]:
        view = self._view
        table = view.get_table()
        return {
            "name": view.identity.name,
            "version": view.identity.version,
            "host": socket.gethostname()[:MAX_NAME],
            "interpreter": describe_interpreter(),
            "started_s": view.started_s,
            "now_s": round(time.time(), 1),
            "live": view.is_live(),
            "ready": not unready_reason(view),
            "loading": not table.complete or not view.workers,
            "processes": [
                {"name": one.name, "pid": one.pid, "serves": one.serves, "restarts": one.restarts}
                for one in list(view.processes())[:MAX_WORKERS]
            ],
        }

    def _now(self) -> dict[str, float]:
        sampler = self._sampler
        seconds = sampler.interval_s
        batches = sum(sampler.total.batches)
        samples = sampler.versions.values()
        return {
            "requests_per_s": round(sampler.total.success / seconds, 2),
            "rows_per_s": round(sampler.total.rows / seconds, 2),
            "failures_per_s": round(sum(sampler.total.errors) / seconds, 2),
            "mean_batch": round(sampler.total.rows / batches, 1) if batches else NOTHING,
            **{f"p{share}_ms": round(percentile_ms(sampler.durations, share / 100), 3) for share in (50, 90, 99)},
            "waiting": sum(sample.occupancy.waiting for sample in samples),
            "in_flight": sum(sample.occupancy.rows for sample in samples),
            "capacity": sum(sample.occupancy.row_capacity for sample in samples),
            "executors": sum(sample.executors for sample in samples),
            "busy": round(sum(sample.busy for sample in samples), 2),
            "connections": sum(worker.connections for worker in sampler.workers),
            "open_calls": sum(worker.open_calls for worker in sampler.workers),
            "received_per_s": round(sampler.received_per_s),
            "sent_per_s": round(sampler.sent_per_s),
            "memory_bytes": sampler.memory_bytes,
            "cpu_load": round(sampler.cpu_load, 3),
            "cpus": usable_cpus(),
        }

    def _on_demand(self) -> dict[str, int | float] | None:
        """How it stands with loading on demand; None where models are not."""
        state = self._view.demand()
        if state is None:
            return None
        return {
            "models": state.indexed,
            "in_memory": state.resident,
            "waiting": state.queued,
            "memory_bytes": state.used,
            "memory_capacity_bytes": state.budget,
            "hits": state.hits(sum(infer.observer.seen - infer.counters.unknown for infer in self._view.infer)),
            "misses": state.misses,
            "loads": state.loads,
            "mean_load_ms": round(state.load_ns / 1e6 / state.loads, 3) if state.loads else NOTHING,
            "load_failures": state.failures,
            "refusals": state.refusals,
            "evictions": state.evictions,
        }

    def _limits(self) -> list[dict[str, Any]]:
        hits: dict[str, int] = {}
        for worker in list(self._view.workers):
            for name, count in list(worker.limit_hits.items()):
                hits[name] = hits.get(name, 0) + count
        return [{"name": name, "count": count} for name, count in hits.items() if count]

    def _by_importance(self, asked: Asked) -> list[tuple[ModelEntry, VersionEntry | None]]:
        """The versions that are asked for; a model without versions is listed with None.

        Those that cannot answer come first, unless they are sorted by name. Up to MAX_VERSIONS versions are in the
        order of their names, so that rows of the page do not move.
        """
        find = asked.find.casefold()
        listed: list[tuple[ModelEntry, VersionEntry | None]] = []
        for model in self._view.get_table().models.values():
            if find and find not in model.name.casefold():
                continue
            versions = list(model.versions.values())
            listed += [(model, version) for version in versions] if versions else [(model, None)]
        if asked.sort == "name":
            return listed
        by_load = len(listed) > MAX_VERSIONS

        def rank(one: tuple[ModelEntry, VersionEntry | None]) -> tuple[bool, float]:
            _, version = one
            if version is None or version.state is not ModelState.READY:
                return False, 0.0
            sample = self._sample(version)
            return True, -sample.requests_per_s if by_load and sample is not None else 0.0

        return sorted(listed, key=rank)

    def _sample(self, version: VersionEntry) -> VersionSample | None:
        return self._sampler.versions.get(version.served) if version.served is not None else None

    def _version(self, model: ModelEntry, version: VersionEntry | None, *, points: int) -> dict[str, Any]:
        if version is None:
            return {
                "model": model.name,
                "version": "",
                "state": ModelState.UNAVAILABLE.value,
                "reason": model.problem[:MAX_TEXT] or "it has no version that can be served",
            }
        shown: dict[str, Any] = {
            "model": model.name,
            "version": str(version.number),
            "state": version.state.value,
            "reason": (version.reason or model.problem)[:MAX_TEXT],
        }
        sample = self._sample(version)
        if sample is None or version.served is None:
            return shown
        occupancy = sample.occupancy
        shown |= {
            "requests_per_s": round(sample.requests_per_s, 2),
            "rows_per_s": round(sample.rows_per_s, 2),
            "failures_per_s": round(sample.failed_per_s, 2),
            "success": sample.success,
            "failed": sample.failed,
            "p50_ms": round(percentile_ms(sample.durations, 0.5), 3),
            "p99_ms": round(percentile_ms(sample.durations, 0.99), 3),
            "batches": _histogram(sample.batches, lambda bucket: 1 << bucket),
            "batch_size": sample.batch_size,
            "waiting": occupancy.waiting,
            "in_flight": occupancy.rows,
            "capacity": occupancy.row_capacity,
            "executors": sample.executors,
            "advice": version.served.advice,
            "is_ensemble": version.served.stated.HasField("ensemble_scheduling"),
            "busy": round(sample.busy, 2),
            "history": sample.history.last(points),
            **_tensors(version.served),
        }
        return shown


def _tensors(served: ServedVersion) -> dict[str, list[str]]:
    """Inputs and outputs, a line for each: name, datatype, and shape without the batch dimension."""
    tensors: dict[str, list[str]] = {}
    for kind, specs in (("inputs", served.signature.inputs), ("outputs", served.signature.outputs)):
        tensors[kind] = [
            f"{spec.name[:MAX_NAME]} {spec.datatype.name} [{', '.join(map(str, spec.shape))}]"
            f"{', optional' if spec.optional else ''}"
            for spec in specs[:MAX_TENSORS]
        ]
        if len(specs) > MAX_TENSORS:
            tensors[kind].append(f"and {len(specs) - MAX_TENSORS} more")
    return tensors


def _histogram(buckets: Sequence[int], end_of: Callable[[int], float]) -> list[tuple[float, int]]:
    """Pairs of a bucket's upper bound and its count, from the first bucket with a count to the last."""
    filled = [bucket for bucket, count in enumerate(buckets) if count]
    if not filled:
        return []
    return [(end_of(bucket), buckets[bucket]) for bucket in range(filled[0], filled[-1] + 1)]


def _json(value: Any) -> bytes:
    return encode_json(value)
