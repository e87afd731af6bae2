"""When the requests of an open loop are to be sent, and which: made beforehand, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["CONSTANT", "POISSON", "Arrivals", "Schedule", "gamma", "make_schedule"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How the gaps between requests are distributed: Gamma, which has constant gaps and Poisson arrivals as cases.

    Attributes:
        variation: the coefficient of variation of the gaps, their standard deviation over their mean. 0 is a constant
            gap, 1 are Poisson arrivals, and more are bursts.
    """

    variation: float

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 100:
            raise ValueError(f"the coefficient of variation is {self.variation:g}; it must be from 0 to 100")

    def gaps(self, mean_ns: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """``count`` gaps, in nanoseconds."""
        if self.variation == 0:
            return np.full(count, mean_ns)
        shape = self.variation**-2
        return rng.gamma(shape, mean_ns / shape, count)


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
    mean_ns, end_ns = 1e9 / rate, seconds * 1e9
    pieces: list[npt.NDArray[np.float64]] = []
    last = 0.0
    while last < end_ns:
        piece = last + np.cumsum(arrivals.gaps(mean_ns, max(16, int((end_ns - last) / mean_ns * 1.1)), rng))
        pieces.append(piece)
        last = float(piece[-1])
    whole = np.concatenate(pieces)
    times = whole[whole < end_ns].astype(np.int64)
    return Schedule(times, rng.choice(shares.size, times.size, p=shares / shares.sum()))
