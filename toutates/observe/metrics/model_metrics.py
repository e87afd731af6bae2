"""Metrics that single models keep beside those of every model: the server's own, of kinds of models, and those of the
models' code. Names of the latter are the models' choice, so what clashes with a metric of the server's, or of a model
that came first, is left out, and the log says so once."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Final

from toutates.engine.model_metrics import HISTOGRAM, ModelSeries, sum_series
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Distribution, Family, Series, bucket_bounds
from toutates.observe.metrics.snapshot import VersionSnapshot
from toutates.observe.metrics.spec import Kind, MetricSpec

__all__ = ["ModelMetrics"]

logger = logging.getLogger(__name__)

#: Beginnings of names that are the server's, those of later releases too.
_RESERVED: Final = ("toutates_", "nv_", "process_")
#: Names that have been complained of; then no more are.
_MAX_COMPLAINTS: Final = 100


class ModelMetrics:
    """Makes the families of a scrape. One scrape at a time."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._server = {claim for spec in CATALOGUE.values() for claim in _claims(spec.name, spec.kind)}

    def families(self, versions: Iterable[VersionSnapshot]) -> Iterator[Family]:
        """The families of all models; series of the same family and labels are added up, as in Triton."""
        by_name: dict[str, list[ModelSeries]] = {}
        whose: dict[str, str] = {}
        ours: dict[str, list[Series]] = {}
        for version in versions:
            for series in version.own_metrics:
                if series.ours:
                    labels = tuple([value for _, value in series.labels])
                    ours.setdefault(series.name, []).append((labels, _value(series)))
                    continue
                whose.setdefault(series.name, version.model)
                by_name.setdefault(series.name, []).append(series)
        for name, found in ours.items():
            yield Family(CATALOGUE[name], found)
        taken = set(self._server)
        for name, all_series in by_name.items():
            first = all_series[0]
            claims = _claims(name, Kind(first.kind))
            if claims & taken or name.startswith(_RESERVED):
                self._complain(whose[name], name)
                continue
            taken |= claims
            own = [one for one in all_series if one.kind == first.kind]
            if len(own) < len(all_series):
                self._complain(whose[name], name)
            spec = MetricSpec(name, Kind(first.kind), (), "", first.help, "")
            # A family has one series of the same labels, whatever bounds the buckets have.
            by_labels = {one.labels: one for one in reversed(sum_series(own))}
            yield Family(spec, [(labels, _value(one)) for labels, one in reversed(by_labels.items())])

    def _complain(self, model: str, name: str) -> None:
        if name not in self._told and len(self._told) < _MAX_COMPLAINTS:
            self._told.add(name)
            logger.warning(
                "metric '%s' of model '%s' is left out: the server or another model has one of this name",
                name,
                model,
                extra={"model": model},
            )


def _claims(name: str, kind: Kind) -> set[str]:
    """Names of a family and of its samples, in both formats of the text."""
    if kind is Kind.HISTOGRAM:
        return {name, *(name + suffix for suffix in ("_bucket", "_count", "_sum", "_created"))}
    return {name, name.removesuffix({Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(kind, "")), name + "_created"}


def _value(series: ModelSeries) -> float | Distribution:
    if series.kind == HISTOGRAM:
        counts = [int(value) for value in series.values[:-1]]
        return Distribution(bucket_bounds(series.bounds), counts, _Number(series.values[-1]))
    return _Number(series.values[0])


class _Number(float):
    """A number that is written as Prometheus has it, whatever it is."""

    def __repr__(self) -> str:
        if math.isfinite(self):
            return float.__repr__(self)
        return "NaN" if math.isnan(self) else "+Inf" if self > 0 else "-Inf"
