"""Density as Markdown: what many models take by their number, and whether the figures that are to be reached were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.results import DensityFigure, Results
from bench.summary import Spread, Summary
from bench.tables import table

__all__ = ["ALONE", "AMONG", "PART", "Row", "density_rows", "density_section"]

PART = "density"
#: The model that is asked: among the others, and in the server that has it alone.
AMONG, ALONE = "mlp among others", "mlp alone"

#: What is to be reached.
_MOST_KIB, _MOST_LOAD_MS = 160, 1.0
_MOST_METRICS_BYTES, _MOST_METRICS_MS = 2_000_000, 100
_MOST_P50, _MOST_CPU = 1.1, 1.05


class Row:
    """A server with so many models, and what it has more than the one with the next smaller number.

    Args:
        figure: of it.
        before: of the next smaller number; None for the smallest.
        summary: has the figures of the model that was asked.

    Attributes:
        figure: as given.
        kib, load_ms: memory and CPU of each further model; None for the smallest number.
        p50_us, cpu_us: of the model that was asked.
        p50_ratio, cpu_ratio: of these, round by round, to what it gets alone.
    """

    def __init__(self, figure: DensityFigure, before: DensityFigure | None, summary: Summary) -> None:
        self.figure = figure
        self.kib: float | None = None
        self.load_ms: float | None = None
        if before is not None:
            more = figure.models - before.models
            self.kib = (figure.resident_mib - before.resident_mib) * 1_024 / more
            self.load_ms = (figure.start_cpu_s - before.start_cpu_s) * 1e3 / more
        cells = {cell.model: cell for cell in summary.cells if cell.part == PART and cell.x == figure.models}
        among, alone = (
            {one.round: one for one in summary.figures(figure.server, cells[name])} if name in cells else {}
            for name in (AMONG, ALONE)
        )
        self.p50_us = Spread.of([one.p50_us for one in among.values()]) if among else None
        self.cpu_us = Spread.of([one.cpu_us for one in among.values()]) if among else None
        both = sorted(among.keys() & alone.keys())
        self.p50_ratio = Spread.of([among[at].p50_us / alone[at].p50_us for at in both]) if both else None
        self.cpu_ratio = Spread.of([among[at].cpu_us / alone[at].cpu_us for at in both]) if both else None

    def medians(self) -> tuple[float | None, float | None]:
        """Of the two ratios."""
        p50, cpu = self.p50_ratio, self.cpu_ratio
        return None if p50 is None else p50.median, None if cpu is None else cpu.median


def density_rows(results: Results) -> dict[str, list[Row]]:
    """The rows of each server, the fewest models first."""
    summary = Summary(results)
    found: dict[str, list[Row]] = {}
    for name in dict.fromkeys(figure.server for figure in results.density):
        own = sorted((one for one in results.density if one.server == name), key=lambda one: one.models)
        found[name] = [Row(one, before, summary) for one, before in zip(own, [None, *own], strict=False)]
    return found


def density_section(results: Results) -> Iterable[str]:
    """The section of the report."""
    yield "### Density"
    yield (
        "A server for each number of models, alike, of 37 KB, all loaded at the start. One of them is asked over 16 "
        "connections, in turn with a server that has it alone: ratios are to that one, round by round. Memory and CPU "
        "of a load are those of each further model. Metrics are read while nobody asks, and right after every model "
        "was asked."
    )
    for server, rows in density_rows(results).items():
        yield f"**{server}**"
        head = (
            *("models", "memory, MiB", "KiB per model", "all asked, MiB", "CPU of the start, s", "ms per load"),
            *("threads", "idle, % of a core", "p50, µs", "times alone", "CPU per request, µs", "times alone"),
            *("/metrics, KB", "ms at rest", "ms after all"),
        )
        yield table(head, map(_cells, rows))
        yield "\n".join(f"- {line}" for line in _verdicts(rows))


def _cells(row: Row) -> list[str]:
    figure = row.figure
    return [
        f"{figure.models:,}",
        f"{figure.resident_mib:,.0f}",
        _optional(row.kib, ".0f"),
        f"{figure.asked_mib:,.0f}",
        f"{figure.start_cpu_s:.1f}",
        _optional(row.load_ms, ".2f"),
        str(figure.threads),
        f"{figure.idle_cores:.2%}".removesuffix("%"),
        "-" if row.p50_us is None else f"{row.p50_us.median:,.0f}",
        _ratio(row.p50_ratio),
        "-" if row.cpu_us is None else f"{row.cpu_us.median:.1f}",
        _ratio(row.cpu_ratio),
        f"{figure.metrics_bytes / 1_000:,.0f}",
        f"{figure.metrics_ms:.0f}",
        f"{figure.burst_metrics_ms:.0f}",
    ]


def _verdicts(rows: Sequence[Row]) -> Iterable[str]:
    least, most = rows[0], rows[-1]
    if most.kib is not None and most.load_ms is not None:
        yield _verdict(f"{most.kib:.0f} KiB for each further model", f"{_MOST_KIB}", most.kib <= _MOST_KIB)
        yield _verdict(f"{most.load_ms:.2f} ms of CPU for a load", f"{_MOST_LOAD_MS:g}", most.load_ms <= _MOST_LOAD_MS)
        threads = [row.figure.threads for row in rows]
        told = f"{least.figure.threads} threads with {least.figure.models:,} and {threads[-1]} with "
        yield _verdict(f"{told}{most.figure.models:,} models", "as many", threads[-1] <= threads[0])
    size, slowest = most.figure.metrics_bytes, max(most.figure.metrics_ms, most.figure.burst_metrics_ms)
    told = f"metrics of {size / 1e6:.2f} MB in {slowest:.0f} ms"
    reached = size <= _MOST_METRICS_BYTES and slowest <= _MOST_METRICS_MS
    yield _verdict(told, f"{_MOST_METRICS_BYTES / 1e6:g} MB in {_MOST_METRICS_MS} ms", reached)
    for what, ratio, bound in (("p50", most.p50_ratio, _MOST_P50), ("CPU", most.cpu_ratio, _MOST_CPU)):
        if ratio is not None:
            told = f"{what} of a model among {most.figure.models:,} is {ratio.median:.2f} times that alone"
            yield _verdict(told, f"{bound:g}", ratio.median <= bound)


def _verdict(told: str, bound: str, reached: bool) -> str:
    return f"{told}; {bound} is {'reached' if reached else 'missed'}"


def _ratio(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.least:.2f}-{spread.greatest:.2f})"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:,{form}}"
