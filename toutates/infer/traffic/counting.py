"""What became of the requests of names with traffic, added up over workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from toutates.infer.service import InferService
from toutates.infer.traffic.copies import Copies, ShadowCounts
from toutates.models.traffic.rules import Target

__all__ = ["NewestOr", "TrafficCounts", "sum_of", "traffic_counts"]

#: Name of the route, name of the model, and its version; "" for the newest.
NewestOr = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class TrafficCounts:
    """Counts since the start, each by the name that was asked for, the model, and its version or "" for the newest.

    Attributes:
        requests: that each version got.
        shadows: what became of copies.
    """

    requests: dict[NewestOr, int] = field(default_factory=dict)
    shadows: dict[NewestOr, ShadowCounts] = field(default_factory=dict)


def traffic_counts(services: Iterable[InferService], copies: Copies | None) -> TrafficCounts:
    """The counts of one process. Any thread may call it."""
    counts = TrafficCounts()
    for service in list(services):
        for key, count in service.divider.counts.items():
            name = _key(*key)
            counts.requests[name] = counts.requests.get(name, 0) + count[0]
    if copies is not None:
        counts.shadows.update({_key(*key): one for key, one in copies.statistics().items()})
    return counts


def sum_of(parts: Iterable[TrafficCounts]) -> TrafficCounts:
    """The sum of several processes."""
    total = TrafficCounts()
    for part in parts:
        for key, count in part.requests.items():
            total.requests[key] = total.requests.get(key, 0) + count
        for key, one in part.shadows.items():
            known = total.shadows.setdefault(key, ShadowCounts())
            for each in fields(ShadowCounts):
                if each.name != "last":
                    setattr(known, each.name, getattr(known, each.name) + getattr(one, each.name))
            known.last = one.last or known.last
    return total


def _key(name: str, target: Target) -> NewestOr:
    return name, target.model, "" if target.version is None else str(target.version)
