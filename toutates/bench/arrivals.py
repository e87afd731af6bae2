"""When the requests of an open loop are to be sent, and which: made beforehand, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["CONSTANT", "POISSON", "Arrivals", "Schedule", "gamma", "make_schedule"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests of an open loop come, at a rate that is given elsewhere.

    Attributes:
        variation: the coefficient of variation of the gaps, their standard deviation over their mean; they are
            distributed by Gamma. 0 is a constant gap, 1 are Poisson arrivals, and more are bursts.
        burst: so many come at once, so many times more seldom.
        ramp_to: the rate at the end, to which it rises or falls evenly; None for a rate that stays.
        gaps_ns: of a trace, taken in turn and over and over; then the rate and all else do not matter.
    """

    variation: float = 1.0
    burst: int = 1
    ramp_to: float | None = None
    gaps_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 100:
            raise ValueError(f"the coefficient of variation is {self.variation:g}; it must be from 0 to 100")
        if not 1 <= self.burst <= 1_000_000:
            raise ValueError(f"a burst of {self.burst} requests; it must be from 1 to 1000000")
        if self.ramp_to is not None and not 0 < self.ramp_to < np.inf:
            raise ValueError(f"a ramp to {self.ramp_to:g}/s; the rate must be positive and finite")
        if self.gaps_ns and (min(self.gaps_ns) < 0 or sum(self.gaps_ns) <= 0):
            raise ValueError("the gaps of a trace must be at least 0, and not all 0")

    def gaps(self, mean_ns: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """``count`` gaps, in nanoseconds, of what has a rate that stays."""
        if self.variation == 0:
            return np.full(count, mean_ns)
        shape = self.variation**-2
        return rng.gamma(shape, mean_ns / shape, count)

    def times(self, rate: float, seconds: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """When requests come, in nanoseconds, ascending, before the end of so many seconds."""
        end_ns = seconds * 1e9
        if self.gaps_ns:
            turns = int(end_ns // sum(self.gaps_ns)) + 1
            whole = np.cumsum(np.tile(np.array(self.gaps_ns, np.float64), turns))
            return whole[whole < end_ns]
        last_rate = rate if self.ramp_to is None else self.ramp_to
        mean = (rate + last_rate) / 2
        even = self._even(1e9 * self.burst / mean, end_ns, rng)
        if last_rate != rate:
            # At the time t so many were to come: rate * t + (last_rate - rate) * t^2 / 2 seconds. Solved for t.
            come = even / 1e9 * mean
            steep = (last_rate - rate) / seconds
            even = (np.sqrt(rate**2 + 2 * steep * come) - rate) / steep * 1e9
        return np.repeat(even, self.burst)

    def _even(self, mean_ns: float, end_ns: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        pieces: list[npt.NDArray[np.float64]] = []
        last = 0.0
        while last < end_ns:
            piece = last + np.cumsum(self.gaps(mean_ns, max(16, int((end_ns - last) / mean_ns * 1.1)), rng))
            pieces.append(piece)
            last = float(piece[-1])
        whole = np.concatenate(pieces)
        return whole[whole < end_ns]


CONSTANT = Arrivals(0)
POISSON = Arrivals(1)


def gamma(variation: float) -> Arrivals:
    """Bursts, with a coefficient of variation of the gaps.

    Raises:
        ValueError: it is not from 0 to 100.
    """
    return Arrivals(variation)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests to be sent, whatever becomes of those before.

    Attributes:
        times_ns: the intended time of each, from the beginning of the load, ascending.
        choices: which request is sent then, as an index.
    """

    times_ns: npt.NDArray[np.int64]
    choices: npt.NDArray[np.int64]

    def part(self, number: int, of: int) -> Schedule:
        """Every ``of``-th request, from one on: the part of one of several clients."""
        return Schedule(self.times_ns[number::of], self.choices[number::of])


def make_schedule(
    arrivals: Arrivals, rate: float, seconds: float, weights: Sequence[float], seed: int | Sequence[int]
) -> Schedule:
    """The requests of a load.

    Args:
        arrivals: the distribution of gaps.
        rate: requests per second, on average.
        seconds: length of the load.
        weights: how often each request is chosen, as a share of their sum.
        seed: of chance; the same makes the same schedule.

    Raises:
        ValueError: the rate, the seconds or the weights cannot be used.
    """
    if not 0 < rate < np.inf or not 0 < seconds < np.inf:
        raise ValueError(f"a rate of {rate:g}/s for {seconds:g} s; both must be positive and finite")
    shares = np.asarray(weights, np.float64)
    if shares.size == 0 or not np.isfinite(shares).all() or shares.min() < 0 or shares.sum() <= 0:
        raise ValueError(f"weights {list(weights)}; expected numbers of at least 0, one of them above")
    rng = np.random.default_rng(seed)
    times = arrivals.times(rate, seconds, rng).astype(np.int64)
    return Schedule(times, rng.choice(shares.size, times.size, p=shares / shares.sum()))
