"""Goodput as Markdown: tables, and whether the figures that are to be reached were."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.results import Cell, GoodputFigure, Results
from bench.summary import Spread, shown
from bench.tables import table

__all__ = ["BOUND_MS", "RUNS_US", "Curves", "curves", "goodput_section"]

#: Answers that take longer, from the time at which the request was to be sent, are late.
BOUND_MS = 20.0
#: Microseconds that a run of one row takes, by model. The bound is ten times the longest one: a request to that model
#: has to wait for the run that is under way and for its own, and with bursts for some more.
RUNS_US = {"small": 50, "middle": 300, "large": 2_000}
#: Percent of saturation, and the share of what is offered there that is to be answered in time.
_LIGHT, _LEAST_IN_TIME = 70, 0.99
#: And where three times as much is offered as the server can do, the share of the best goodput that is to be left.
_HEAVY, _LEAST_OF_PEAK = 300, 0.9

#: Of one server and one kind of arrivals, by the way to serve: percent of saturation, and the figures of its rounds.
Curves = Mapping[tuple[str, str], Mapping[str, Mapping[int, Sequence[GoodputFigure]]]]


def curves(results: Results) -> Curves:
    """The figures that have a verdict, of cells that did not fail in any round."""
    failed = {(failure.server, failure.cell) for failure in results.failures}
    found: dict[tuple[str, str], dict[str, dict[int, list[GoodputFigure]]]] = {}
    for figure in results.goodput:
        cell: Cell = figure.cell
        if figure.has_verdict and (figure.server, cell) not in failed:
            ways = found.setdefault((figure.server, cell.load), {})
            ways.setdefault(cell.model, {}).setdefault(cell.x, []).append(figure)
    return found


def goodput_section(results: Results) -> Iterable[str]:
    """The section of the report."""
    yield "### Goodput"
    small, middle, large = RUNS_US.values()
    yield (
        f"What is answered within {BOUND_MS:g} ms of its intended time, against what an open loop offers. Three "
        f"models, whose runs of a row take {small}, {middle} and {large:,} us, are asked 10 : 3 : 1. 100 % is what the "
        "server answers when it is never without requests."
    )
    lagged = sum(not figure.has_verdict for figure in results.goodput)
    if lagged:
        yield f"{lagged} of {len(results.goodput)} loads have no verdict, because the client itself was late."
    for (server, arrivals), ways in curves(results).items():
        points = sorted({x for by_x in ways.values() for x in by_x})
        yield f"**{server}, {arrivals}**: answered in time per second, and the share of what was offered:"
        rows = [[way, *(_entry(by_x.get(x, ())) for x in points)] for way, by_x in ways.items()]
        best = _simulated(ways, points, lambda figure: figure.best_share)
        at_once = _simulated(ways, points, lambda figure: figure.at_once_share)
        for name, shares in (("the best order, simulated", best), ("refused at once, simulated", at_once)):
            if shares:
                rows.append([name, *(f"{shares[x]:.1%}" if x in shares else "-" for x in points)])
        yield table(["", *(f"{x} %" for x in points)], rows)
        yield "\n".join(
            f"- {line}"
            for way, by_x in ways.items()
            for line in _verdicts(way, by_x, best.get(_LIGHT), at_once.get(_LIGHT))
        )
        yield "Share of the requests to each model that was answered in time:"
        models = next(iter(next(iter(ways.values())).values()))[0].in_time_by_model
        rows = [
            [f"{way}, {model}", *(_of_model(by_x.get(x, ()), model) for x in points)]
            for way, by_x in ways.items()
            for model in models
        ]
        yield table(["", *(f"{x} %" for x in points)], rows)


def _entry(figures: Sequence[GoodputFigure]) -> str:
    if not figures:
        return "-"
    return f"{shown(_in_time(figures))} ({_share(figures):.1%})"


def _of_model(figures: Sequence[GoodputFigure], model: str) -> str:
    return f"{statistics.median(one.in_time_by_model[model] for one in figures):.0%}" if figures else "-"


def _in_time(figures: Sequence[GoodputFigure]) -> float:
    return statistics.median(one.in_time_per_second for one in figures)


def _share(figures: Sequence[GoodputFigure]) -> float:
    return statistics.median(one.in_time_per_second / max(one.offered_per_second, 1e-9) for one in figures)


def _simulated(
    ways: Mapping[str, Mapping[int, Sequence[GoodputFigure]]],
    points: Sequence[int],
    share_of: Callable[[GoodputFigure], float | None],
) -> dict[int, float]:
    """What was simulated of the loads at each share of saturation, medians; nothing where nothing was."""
    medians = {}
    for x in points:
        found = [share for by_x in ways.values() for one in by_x.get(x, ()) if (share := share_of(one)) is not None]
        if found:
            medians[x] = statistics.median(found)
    return medians


def _verdicts(
    way: str, by_x: Mapping[int, Sequence[GoodputFigure]], best: float | None, at_once: float | None
) -> Iterable[str]:
    if _LIGHT in by_x:
        share = _share(by_x[_LIGHT])
        reached = "reached" if share >= _LEAST_IN_TIME else "missed"
        told = "" if best is None else f", by simulation at most about {best:.1%}"
        if at_once is not None:
            told += f", or {at_once:.1%} where requests are refused at once"
        yield f"{way}: {share:.1%} in time at {_LIGHT} % of saturation{told}; {_LEAST_IN_TIME:.0%} is {reached}"
    if _HEAVY in by_x:
        peak = max(map(_in_time, by_x.values()))
        left = _in_time(by_x[_HEAVY]) / max(peak, 1e-9)
        reached = "reached" if left >= _LEAST_OF_PEAK else "missed"
        spread = Spread.of([one.in_time_per_second for one in by_x[_HEAVY]])
        told = f"{way}: {left:.1%} of its best goodput at {_HEAVY} % ({spread} a second)"
        yield f"{told}; {_LEAST_OF_PEAK:.0%} is {reached}"
