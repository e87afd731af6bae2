"""Finds the knee: the highest rate of an open loop at which targets hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from toutates.bench.measured import Condition, Measured

__all__ = ["Knee", "Trial", "find_knee", "shortfall"]

#: The least rate that is tried, as a share of the most that a closed loop gets.
_LEAST: Final = 0.01
#: The most that is tried, likewise: a closed loop of few requests does not get all.
_MOST: Final = 1.5
#: The search ends when the rates that hold and that do not are nearer than that.
_NEAR: Final = 0.03
#: Requests that are not answered with OK, where no target says how many may not be.
_ERRORS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Trial:
    """A load of the search.

    Attributes:
        rate: that was offered.
        measured: what came of it.
        fault: why targets do not hold, or "".
    """

    rate: float
    measured: Measured
    fault: str


@dataclass(slots=True)
class Knee:
    """What the search has found.

    Attributes:
        rate: the highest at which targets hold; 0 if they hold at none.
        trials: in their order.
        doubt: why the knee is the client's, and not the server's; or "".
        measured: of the load at the knee; None if there is none.
    """

    rate: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    doubt: str = ""
    measured: Measured | None = None


def shortfall(measured: Measured, targets: Sequence[Condition]) -> str:
    """The first target that does not hold, and by how much; "" if all do."""
    figures = measured.figures()
    bounds = [*targets]
    if all(one.figure != "errors" for one in targets):
        bounds.append(Condition("errors", "errors", True, _ERRORS))
    for one in bounds:
        had = figures.get(one.figure)
        if had is None:
            return f"nothing was answered, so there is no {one.figure}"
        if had > one.bound:
            if one.figure == "errors":
                return f"{had:.2%} of requests were not answered with OK, at most {one.bound:.2%} may not be"
            return f"{one.figure} is {had / 1e6:.3g} ms, {(had - one.bound) / 1e6:.3g} ms above {one.bound / 1e6:g} ms"
    return ""


def find_knee(
    measure: Callable[[float], Measured],
    targets: Sequence[Condition],
    most: float,
    tell: Callable[[Trial], None] = lambda _: None,
    within: tuple[float, float] | None = None,
) -> Knee:
    """Search by halves. A rate that does not hold is tried twice: one bad moment of the machine is no knee.

    Args:
        measure: makes an open loop of a rate.
        targets: what must hold.
        most: requests per second that a closed loop gets.
        tell: is called after each load.
        within: the least rate and the greatest that are tried; None for what the closed loop suggests.
    """
    knee = Knee()

    def holds(rate: float) -> bool:
        doubts = []
        for _ in range(2):
            measured = measure(rate)
            doubt = measured.doubt()
            trial = Trial(rate, measured, shortfall(measured, targets))
            knee.trials.append(trial)
            tell(trial)
            if measured.stopped:
                raise _Stopped
            # Latency counts from the time at which a request was to be sent: what a client that is late or busy does to
            # it makes it longer. So where targets hold, they hold.
            if not trial.fault:
                knee.rate, knee.measured = rate, measured
                return True
            doubts.append(doubt)
        # That of the least rate which does not hold, next to the knee.
        knee.doubt = f"at {rate:,.0f}/s {doubts[-1]}" if all(doubts) else ""
        return False

    least = most * _LEAST
    low, high, rate = 0.0, most * _MOST, most / 2
    try:
        if within is not None:
            least, high = within
            if holds(high) or least == high:
                return knee
            rate = least
        while True:
            if holds(rate):
                low = rate
            else:
                high = rate
            if high - low <= _NEAR * high or high <= least:
                break
            rate = max((low + high) / 2, least)
    except _Stopped:
        pass
    return knee


class _Stopped(Exception):
    """The search was interrupted."""
