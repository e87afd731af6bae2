"""A finished measurement: its loads, and what was searched for or compared; as text for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toutates.bench.comparison import Difference
from toutates.bench.knee import Knee
from toutates.bench.load import Load
from toutates.bench.measured import Condition, Measured

__all__ = ["Point", "Report", "counted", "name_of_load"]


def counted(count: int, noun: str) -> str:
    """So many of something, whose plural has an s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def name_of_load(load: Load) -> str:
    """How a load is shown."""
    if load.rate is None:
        return f"{counted(load.under_way, 'sequence' if load.sequences else 'request')} at a time"
    arrivals = load.arrivals
    if arrivals.gaps_ns:
        return "requests at the times of a trace"
    ramp = f" to {arrivals.ramp_to:g}" if arrivals.ramp_to else ""
    kind = {0.0: ", constant", 1.0: ""}.get(arrivals.variation, f", variation {arrivals.variation:g}")
    burst = f", {arrivals.burst} at once" if arrivals.burst > 1 else ""
    return f"{load.rate:,.6g}{ramp} requests/s{kind}{burst}"


@dataclass(frozen=True, slots=True)
class Point:
    """A load that was measured.

    Attributes:
        server: its URL.
        load: how it was asked.
        measured: what came of it.
        batch: rows of each request.
    """

    server: str
    load: Load
    measured: Measured
    batch: int = 1

    @property
    def name(self) -> str:
        """How it is shown."""
        return name_of_load(self.load)


@dataclass(slots=True)
class Report:
    """What was measured.

    Attributes:
        title: the models and the server.
        begun: when, in UTC, as ISO 8601 writes it.
        points: the loads.
        targets: that a knee was searched for.
        knee: what was found.
        differences: of two servers.
        failed: conditions that hold and should not.
        notes: what else there is to say.
    """

    title: str
    begun: str
    points: list[Point] = field(default_factory=list)
    targets: Sequence[Condition] = ()
    knee: Knee | None = None
    differences: list[Difference] | None = None
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def doubt(self) -> str:
        """Why there is no verdict; "" if there is one."""
        if self.knee is not None:
            return self.knee.doubt
        return next((doubt for one in self.points if (doubt := one.measured.doubt())), "")

    def wrong(self) -> bool:
        """Whether an answer was wrong."""
        return any(one.measured.wrong for one in self.points)

    def answered(self) -> bool:
        """Whether each load had an answer with OK."""
        return bool(self.points) and all(one.measured.statuses()["OK"] for one in self.points)

    def verdict(self) -> Iterator[str]:
        """What the measurement comes to, after its loads."""
        if self.knee is not None:
            wanted = " and ".join(one.text.replace(">", " at most ") for one in self.targets)
            if self.knee.rate:
                yield f"KNEE: {self.knee.rate:,.0f} requests/s hold {wanted}"
            elif self.knee.trials:
                least = min(self.knee.trials, key=lambda one: one.rate)
                fault = least.fault or least.measured.doubt()
                yield f"NO KNEE: at {least.rate:,.3g} requests/s already {fault}; wanted {wanted}"
        for one in self.differences or ():
            yield f"  {one.text()}"
        if self.differences is not None:
            real = [one.figure for one in self.differences if one.real]
            yield f"DIFFERENT in {', '.join(real)}" if real else "NO DIFFERENCE that can be told from chance"
        for text in self.notes:
            yield f"  note: {text}"
        for text in self.failed:
            yield f"FAILED: {text}"
        if doubt := self.doubt():
            yield f"NO VERDICT: {doubt}"

    def to_json(self) -> dict[str, Any]:
        """All there is. A single load's figures are at the top."""
        loads = [{"url": one.server, "load": one.name, **one.measured.to_json()} for one in self.points]
        told: dict[str, Any] = {"title": self.title, "begun": self.begun}
        if len(loads) == 1 and self.knee is None:
            told |= loads[0]
        else:
            told["loads"] = loads
        if self.knee is not None:
            told["knee"] = {
                "targets": [one.text for one in self.targets],
                "requests_per_second": self.knee.rate,
                "trials": [{"rate": one.rate, "fault": one.fault} for one in self.knee.trials],
            }
        if self.differences is not None:
            told["differences"] = [
                {"figure": one.figure, "ratio": one.ratio, "interval": [one.low, one.high], "different": one.real}
                for one in self.differences
            ]
        return {**told, "notes": self.notes, "failed": self.failed, "doubt": self.doubt()}
