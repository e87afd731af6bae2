"""How good a measured configuration is: first whether constraints hold, then the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toutates.tune.constraints import THROUGHPUT, Constraint

__all__ = ["UNUSABLE", "Score", "objective_figure", "score_of"]


@dataclass(frozen=True, slots=True)
class Score:
    """Of a configuration.

    Attributes:
        excess: by what share bounds are missed, summed up over constraints; 0 if all hold, infinite for a
            configuration that cannot be used.
        value: of the objective; the greater, the better.
    """

    excess: float
    value: float

    def beats(self, other: Score, margin: float = 0.0) -> bool:
        """Whether this one is better by more than a share, which noise alone would not make."""
        if self.excess or other.excess:
            return self.excess < other.excess * (1 - margin)
        return self.value > other.value * (1 + margin)


UNUSABLE: Final = Score(float("inf"), 0.0)


def objective_figure(objective: str) -> str:
    """The figure that an objective is about: requests per second, or the 99th percentile."""
    return "rate" if objective == THROUGHPUT else "p99"


def score_of(figures: Mapping[str, float], objective: str, constraints: Sequence[Constraint]) -> Score:
    """The score of measured figures.

    Args:
        figures: requests per second ("rate"), nanoseconds ("p50" to "p99.99") and bytes ("memory"); those of single
            models by ``figure_of``.
        objective: one of OBJECTIVES.
        constraints: that should hold.
    """
    value = figures.get(objective_figure(objective), 0.0)
    if not value:
        return UNUSABLE
    excess = sum(one.excess(figures.get(one.key)) for one in constraints)
    return Score(excess, value if objective == THROUGHPUT else 1e9 / value)
