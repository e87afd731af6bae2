"""A tuning as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toutates.bench.report import counted
from toutates.tune.constraints import shown_figure
from toutates.tune.scores import objective_figure
from toutates.tune.space import Changes
from toutates.tune.tuning import Trial, Tuning

__all__ = ["front", "to_json", "to_lines", "verdict_lines"]

_FIGURES = ("rate", "p50", "p99", "memory")


def front(trials: list[Trial]) -> list[Trial]:
    """Those that no other one beats in both throughput and p99 (Pareto), from the least throughput on."""
    usable = [one for one in trials if not one.sample.fault and "p99" in one.sample.figures]
    found: list[Trial] = []
    for one in sorted(usable, key=lambda one: (-one.sample.figures["rate"], one.sample.figures["p99"])):
        if not found or one.sample.figures["p99"] < found[-1].sample.figures["p99"]:
            found.append(one)
    return found[::-1]


def to_lines(tuning: Tuning) -> Iterator[str]:
    """For people."""
    wanted = tuning.wanted
    told = "".join(f", {one.text}" for one in wanted.constraints)
    tried = counted(len(tuning.trials), "configuration")
    yield f"{tuning.title}: {wanted.objective}{told}; {tuning.load}; {tried} measured"
    for model, line in tuning.profile.items():
        own = f" of {model}" if len(tuning.models) > 1 else ""
        yield f"  profile      a run{own} takes {line['a']:.1f} us + {line['b']:.2f} us a row"
    for name, figures in zip(("as it is", "best"), tuning.final, strict=False):
        yield f"  {name:12} {_row(figures)}"
    if not tuning.final and tuning.trials:
        yield f"  {'as it is':12} {_row(tuning.trials[0].sample.figures)}"
    if tuning.best:
        yield f"  best sets    {tuning.shown_changes(tuning.best)}"
    if doubts := [one.sample.doubt for one in tuning.trials if one.sample.doubt]:
        yield f"  in {counted(len(doubts), 'load')} of the search {doubts[0]}"
    for model, copies in tuning.copies.items():
        for name, value in copies.items():
            yield f"  {model}: {name}: {value if isinstance(value, str) else tuning.shown_nearness(value)}"
    for text in tuning.notes:
        yield f"  {text}"
    yield from verdict_lines(tuning)


def verdict_lines(tuning: Tuning) -> Iterator[str]:
    """What came of it."""
    if tuning.stopped:
        yield "STOPPED before its time; nothing is written"
        return
    if tuning.failed:
        yield "FAILED; nothing is written"
        return
    for constraint, best in tuning.missed:
        if best is None:
            yield f"IMPOSSIBLE {constraint.text}: it was not measured"
            continue
        gap = abs(best - constraint.bound)
        yield (
            f"IMPOSSIBLE {constraint.text}: the best that was reached is {shown_figure(constraint.figure, best)}, "
            f"{shown_figure(constraint.figure, gap)} {'below' if constraint.at_least else 'above'} the bound"
        )
    if tuning.missed:
        return
    figure = "throughput" if objective_figure(tuning.wanted.objective) == "rate" else "1 / p99"
    if tuning.chosen is None and tuning.verdict is None:
        if tuning.trials:
            yield "The configuration as it is is the best that was found"
    elif tuning.chosen is None and tuning.verdict is not None:
        yield f"The configuration as it is stays: {figure} of the best other one {tuning.verdict.text()}"
    elif tuning.verdict is not None:
        yield f"BETTER: {figure} {tuning.verdict.text()}"


def _row(figures: Mapping[str, float]) -> str:
    shown = [
        f"{'' if name in ('rate', 'memory') else name + ' '}{shown_figure(name, figures[name])}"
        for name in _FIGURES
        if name in figures
    ]
    return ", ".join(shown)


def to_json(tuning: Tuning) -> dict[str, Any]:
    """All of it; latencies in microseconds, memory in bytes."""
    verdict = tuning.verdict
    return {
        "models": list(tuning.models),
        "asked": list(tuning.asked),
        "begun": tuning.begun,
        "objective": tuning.wanted.objective,
        "constraints": [one.text for one in tuning.wanted.constraints],
        "load": tuning.load,
        "profile_us": tuning.profile,
        "copies": tuning.copies,
        "trials": [
            {
                "changes": _plain(one.changes),
                **_in_json(one.sample.figures),
                "fault": one.sample.fault,
                "doubt": one.sample.doubt,
                "holds": not one.score.excess,
            }
            for one in tuning.trials
        ],
        "default": _in_json(tuning.final[0]) if tuning.final else None,
        "best": {"changes": _plain(tuning.best), **_in_json(tuning.final[1])} if tuning.final else None,
        "ratio": {"mean": verdict.ratio, "low": verdict.low, "high": verdict.high, "blocks": verdict.blocks}
        if verdict
        else None,
        "chosen": tuning.chosen is not None,
        "missed": [
            {"constraint": one.text, "best": None if best is None else shown_figure(one.figure, best)}
            for one, best in tuning.missed
        ],
        "notes": tuning.notes,
        "stopped": tuning.stopped,
        "failed": tuning.failed,
    }


def _plain(changes: Changes) -> dict[str, Any]:
    return {model: dict(own) for model, own in changes.items()}


def _in_json(figures: Mapping[str, float]) -> dict[str, float]:
    names = {"rate": "requests_per_second", "memory": "memory_bytes"}
    found = {}
    for key, value in figures.items():
        model, colon, name = key.rpartition(":")
        found[model + colon + names.get(name, f"{name}_us")] = value if name in names else value / 1e3
    return found
