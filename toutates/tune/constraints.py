"""What is wanted of a model: an objective and constraints in words, such as ``throughput`` and ``p99<=5ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from toutates.bench.measured import SHARES

__all__ = ["LATENCY", "OBJECTIVES", "THROUGHPUT", "Constraint", "figure_of", "read_constraint", "shown_figure"]

THROUGHPUT: Final = "throughput"
LATENCY: Final = "latency"
OBJECTIVES: Final = (THROUGHPUT, LATENCY)

_CONSTRAINT: Final = re.compile(r"(?:(.+):)?\s*([a-z][a-z0-9.]*)\s*(<=|>=)\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_TIMES: Final = {"us": 1e3, "ms": 1e6, "s": 1e9}
_SIZES: Final = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_EXPECTED: Final = "expected a constraint such as p99<=5ms, memory<=500MB, rate>=1000 or MODEL:p99<=5ms"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What has to hold.

    Attributes:
        text: as it was given.
        figure: a latency's name (p50 to p99.99), "memory" or "rate".
        bound: nanoseconds, bytes or requests per second.
        at_least: whether the figure must not be below the bound; else not above it.
        model: whose figure it is; "" for that of all requests together.
    """

    text: str
    figure: str
    bound: float
    at_least: bool = False
    model: str = ""

    @property
    def key(self) -> str:
        """Of the figure, among those of a sample."""
        return figure_of(self.figure, self.model)

    def excess(self, value: float | None) -> float:
        """By what share of the bound a value misses it; 0 if it holds, infinite for a value that there is not."""
        if value is None:
            return float("inf")
        gap = self.bound - value if self.at_least else value - self.bound
        return max(0.0, gap / self.bound)


def figure_of(name: str, model: str = "") -> str:
    """The key of a model's figure among those of a sample; of all requests together without a model."""
    return f"{model}:{name}" if model else name


def read_constraint(text: str) -> Constraint:
    """Read a constraint.

    Raises:
        ValueError: it is none, with what was expected.
    """
    match = _CONSTRAINT.fullmatch(text.strip())
    if match is None:
        raise ValueError(_EXPECTED)
    model, figure, sign, number, unit = match.groups()
    if figure not in ("memory", "rate", *SHARES):
        raise ValueError(f"{_EXPECTED}; figures are {', '.join(SHARES)}, memory and rate")
    if model and figure == "memory":
        raise ValueError(f"{_EXPECTED}; memory is that of the whole server, and of no model")
    if (sign == ">=") is not (figure == "rate"):
        raise ValueError(f"{_EXPECTED}; a rate is at least something (>=), latency and memory at most (<=)")
    units = {"rate": {"": 1.0}, "memory": _SIZES}.get(figure, _TIMES)
    if unit not in units:
        raise ValueError(f"{_EXPECTED}; units of {figure}: {', '.join(units) if figure != 'rate' else 'none'}")
    if not (bound := float(number) * units[unit]):
        raise ValueError(f"{_EXPECTED}; the bound must be above 0")
    return Constraint(text.strip(), figure, bound, figure == "rate", (model or "").strip())


def shown_figure(figure: str, value: float) -> str:
    """A value with its unit."""
    if figure == "rate":
        return f"{value:,.0f} requests/s"
    if figure == "memory":
        return f"{value / 1e6:,.0f} MB"
    return f"{value / 1e6:.3g} ms"
