"""Medians, spreads and ratios out of the figures of several rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import Cell, Figure, Results

__all__ = ["Spread", "Summary"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and the least and greatest of them."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ``statistics.StatisticsError`` if there are none."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        least, median, greatest = (shown(value) for value in (self.least, self.median, self.greatest))
        return median if least == greatest else f"{median} ({least}-{greatest})"


class Summary:
    """What a report asks of results. A server has figures for a cell only if no round of it failed.

    Args:
        results: a run.
    """

    def __init__(self, results: Results) -> None:
        failed = {(failure.server, failure.cell) for failure in results.failures}
        self._figures: dict[tuple[str, Cell], list[Figure]] = {}
        for figure in results.figures:
            if (figure.server, figure.cell) not in failed:
                self._figures.setdefault((figure.server, figure.cell), []).append(figure)
        self.cells = list(dict.fromkeys(cell for _, cell in self._figures))
        self._order = list(results.servers)

    def servers(self, cells: Sequence[Cell]) -> list[str]:
        """Those with a figure for one of the cells, in the run's order."""
        return [name for name in self._order if any((name, cell) in self._figures for cell in cells)]

    def figures(self, server: str, cell: Cell) -> list[Figure]:
        """One per round; none if one of them failed."""
        return self._figures.get((server, cell), [])

    def spread(self, server: str, cell: Cell, value: Callable[[Figure], float | None]) -> Spread | None:
        """Of a value over the rounds, as far as it is known."""
        values = [known for figure in self.figures(server, cell) if (known := value(figure)) is not None]
        return Spread.of(values) if values else None

    def cpu(self, server: str, cell: Cell) -> Spread | None:
        """CPU microseconds of the server per request."""
        return self.spread(server, cell, lambda figure: figure.cpu_us)

    def ratio(self, server: str, cell: Cell, baseline: str) -> Spread | None:
        """How many times the server's CPU the baseline took for the same, round by round."""
        return self._ratio(self.figures(baseline, cell), self.figures(server, cell))

    def ratio_of_cells(self, server: str, cell: Cell, other: Cell) -> Spread | None:
        """How many times the CPU of ``other`` the server took for ``cell``, round by round."""
        return self._ratio(self.figures(server, cell), self.figures(server, other))

    @staticmethod
    def _ratio(figures: Sequence[Figure], others: Sequence[Figure]) -> Spread | None:
        by_round = {figure.round: figure.cpu_us for figure in figures}
        ratios = [by_round[other.round] / other.cpu_us for other in others if other.round in by_round]
        return Spread.of(ratios) if ratios else None


def shown(value: float) -> str:
    """A number with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.95 else f"{value:.2f}"
