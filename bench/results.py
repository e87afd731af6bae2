"""Everything a run measured, kept on disk as it comes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = [
    "Cell",
    "DensityFigure",
    "Failure",
    "Figure",
    "GoodputFigure",
    "LeftOut",
    "MemoryFigure",
    "Results",
    "utc_now",
]


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared between servers.

    Attributes:
        part: ``loads``, or the name of a sweep.
        model: the model asked.
        load: the name of the load.
        x: where on the sweep's axis; 0 in part ``loads``.
    """

    part: str
    model: str
    load: str
    x: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {self.load}" + (f", {self.part} {self.x:,}" if self.part != "loads" else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """What one load of one server came to.

    Attributes:
        round: counted from 1.
        requests: how many were sent and answered.
        user_us, system_us: CPU of the server per request, child processes included.
        requests_per_second: as the client saw it.
        p50_us, p99_us: latency as the client saw it.
        mean_batch: rows per run of the model, where the server counts them.
        peak_mib: most memory resident during the load.
        padded: tokens computed for each real one, in part ``text``; None where that is not told.
        tokenizing_us, inference_us: of one short text in a request, what of the server's time its tokenizer and its
            runs took; None for other loads.
    """

    server: str
    cell: Cell
    round: int
    requests: int
    user_us: float
    system_us: float
    requests_per_second: float
    p50_us: float
    p99_us: float
    mean_batch: float | None
    peak_mib: float
    padded: float | None = None
    tokenizing_us: float | None = None
    inference_us: float | None = None

    @property
    def cpu_us(self) -> float:
        return self.user_us + self.system_us

    @property
    def rest_us(self) -> float | None:
        """CPU per text beside tokenizing and inference; None where these are not told."""
        if self.tokenizing_us is None or self.inference_us is None:
            return None
        return self.cpu_us - self.tokenizing_us - self.inference_us


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """Memory of a server at one point of its life."""

    server: str
    stage: str
    resident_mib: float
    open_files: int


@dataclass(frozen=True, slots=True)
class GoodputFigure:
    """What one load of part ``goodput`` came to; its cell has the way to serve, the arrivals, percent of saturation.

    Attributes:
        round: counted from 1.
        saturated_per_second: what the server answered in this round when it was never without requests.
        offered_per_second: how many requests were to be sent.
        in_time_per_second: how many were answered within the bound, counted from the intended time.
        answered_per_second: how many were answered at all.
        statuses: how many requests ended with each status.
        in_time_by_model: share of the requests to each model that were answered in time.
        lag_ms: how late the client was itself, 99th percentile.
        client_cpu: of the client, as a share of one core.
        has_verdict: False if the client was so late that the figure says nothing of the server.
        best_share: of the same requests, the share that the best order answers in time by simulation (``best_order``),
            where runs and all else take the CPU that they have taken; None where that was not simulated.
        at_once_share: the same where requests are refused when they come.
    """

    server: str
    cell: Cell
    round: int
    saturated_per_second: float
    offered_per_second: float
    in_time_per_second: float
    answered_per_second: float
    statuses: dict[str, int]
    in_time_by_model: dict[str, float]
    lag_ms: float
    client_cpu: float
    has_verdict: bool
    best_share: float | None = None
    at_once_share: float | None = None


@dataclass(frozen=True, slots=True)
class DensityFigure:
    """A server with many models, of part ``density``; what one of them gets is in ``Figure``s.

    Attributes:
        models: how many it has loaded.
        resident_mib: of its memory, before anybody asks.
        asked_mib: the same after every model was asked.
        start_cpu_s: CPU time until it was ready, the interpreter's included.
        threads: that it has.
        idle_cores: share of a core that it uses while nobody asks.
        metrics_bytes: of the text of its metrics.
        metrics_ms, burst_metrics_ms: how long these take at rest, and right after every model was asked.
    """

    server: str
    models: int
    resident_mib: float
    asked_mib: float
    start_cpu_s: float
    threads: int
    idle_cores: float
    metrics_bytes: int
    metrics_ms: float
    burst_metrics_ms: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A load that gave no figure, and takes the server's other figures for the same cell with it."""

    server: str
    cell: Cell
    round: int
    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A server, tool or part that did not take part."""

    what: str
    why: str


@dataclass(slots=True)
class Results:
    """A run, complete or not.

    Attributes:
        name: what its files are called.
        started, finished: UTC, ISO 8601; ``finished`` is empty until the run is complete.
        machine: what it ran on.
        versions: of tools, and by server of what it is made of.
        options: of the run.
        servers: name and description, in the order of tables.
    """

    name: str
    started: str
    finished: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    memory: list[MemoryFigure] = field(default_factory=list)
    goodput: list[GoodputFigure] = field(default_factory=list)
    density: list[DensityFigure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return bool(self.figures or self.memory or self.goodput or self.density)

    def parts(self) -> set[str]:
        """The parts that have a figure or a failure, as ``--parts`` names them."""
        cells = [entry.cell for entries in (self.figures, self.goodput, self.failures) for entry in entries]
        more = {"memory": self.memory, "density": self.density}
        return {cell.part for cell in cells} | {part for part, figures in more.items() if figures}

    def without(self, parts: Set[str]) -> Results:
        """This run but for what those parts measured."""
        return replace(
            self,
            figures=[figure for figure in self.figures if figure.cell.part not in parts],
            goodput=[figure for figure in self.goodput if figure.cell.part not in parts],
            failures=[failure for failure in self.failures if failure.cell.part not in parts],
            memory=[] if "memory" in parts else self.memory,
            density=[] if "density" in parts else self.density,
        )

    def leave_out(self, what: str, why: str) -> None:
        """Note once that something does not take part."""
        entry = LeftOut(what, why)
        if entry not in self.left_out:
            self.left_out.append(entry)

    def save(self, path: Path) -> None:
        """Replace the file as a whole, so that an end at any moment leaves a readable one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """The run that ``save`` wrote there.

        Raises:
            OSError: the file cannot be read.
            ValueError, KeyError, TypeError: it holds something else.
        """
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kinds: dict[str, Any] = {"figures": Figure, "failures": Failure, "goodput": GoodputFigure}
        for key, kind in kinds.items():
            stored[key] = [kind(**{**entry, "cell": Cell(**entry["cell"])}) for entry in stored.get(key, [])]
        stored["memory"] = [MemoryFigure(**entry) for entry in stored["memory"]]
        stored["density"] = [DensityFigure(**entry) for entry in stored.get("density", [])]
        stored["left_out"] = [LeftOut(**entry) for entry in stored["left_out"]]
        return cls(**stored)


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
