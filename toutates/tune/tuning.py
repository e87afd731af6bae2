"""Tunes models: a short profile, a measured search, and the best against the configuration as it is, in turns."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.comparison import block_order
from toutates.bench.report import counted
from toutates.tune.accuracy import Accuracy
from toutates.tune.constraints import Constraint
from toutates.tune.finalists import order, still_in
from toutates.tune.measuring import Bench, Sample
from toutates.tune.scores import UNUSABLE, Score, score_of
from toutates.tune.search import Point, batch_of_profile, climb, fit_line
from toutates.tune.space import Changes, Configs, Space
from toutates.tune.turns import NARROW, Verdict, block_ratio, verdict_of

__all__ = ["MOST_BLOCKS", "Trial", "Tuning", "Wanted", "tune"]

#: Blocks of four loads that best and default are compared by, at most.
MOST_BLOCKS: Final = 8
#: Rows of the larger requests of the profile, at most.
_PROFILE_ROWS: Final = 16
#: Rows of a batch of a model without a configuration.
_USUAL_ROWS: Final = 64
#: How notes on the loads of each begin.
_IN_TURNS: Final = ("in turns, as it is", "in turns, the best")
#: So many of the best of the search are measured again, so often at most, if they are near the best one.
_AGAIN: Final = 4
_ROUNDS: Final = 4
_NEAR: Final = 0.15
#: Candidates that are compared with the configuration as it is, if constraints do not hold for the first one there.
_FINALISTS: Final = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched.

    Attributes:
        objective: one of OBJECTIVES.
        constraints: that have to hold.
        points: configurations to measure, at most.
        accuracy: that copies in other types have to hold; None where there are none.
    """

    objective: str
    constraints: Sequence[Constraint]
    points: int
    accuracy: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration that was measured.

    Attributes:
        changes: of each model, keys that differ from the configuration as it is.
        sample: what came of it.
        score: of that.
    """

    changes: Changes
    sample: Sample
    score: Score


@dataclass(slots=True)
class Tuning:
    """What there is, also while it is being found.

    Attributes:
        models: their names.
        asked: the models that requests are to: these, or an ensemble of them.
        wanted: what was searched.
        load: in words.
        profile: of each model "a" and "b" of time = a + b x rows, in microseconds; without those that do not batch.
        copies: what was measured of copies in other types, by model and file: how near their answers are, or why there
            is none.
        trials: in their order; the first is the configuration as it is.
        best: changes of the best; empty for none.
        final: figures of both, over the loads in turns: as it is, and the best.
        verdict: of these; None if there was nothing to compare.
        chosen: the configurations to write, all keys of those models that are changed; None for those that there are.
        missed: which constraints do not hold whatever is set, and the best value that was reached.
        notes: what else is to be known.
        missed_in_turns: whether the last comparison ended because constraints did not hold, or a load failed.
        stopped: whether it was interrupted.
        failed: whether it was ended by an error.
        begun: when.
    """

    models: Sequence[str]
    asked: Sequence[str]
    wanted: Wanted
    load: str
    profile: dict[str, dict[str, float]] = field(default_factory=dict)
    copies: dict[str, dict[str, float | str]] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    best: Changes = field(default_factory=dict)
    final: list[dict[str, float]] = field(default_factory=list)
    verdict: Verdict | None = None
    chosen: Configs | None = None
    missed: list[tuple[Constraint, float | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missed_in_turns: bool = False
    stopped: bool = False
    failed: bool = False
    begun: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    @property
    def title(self) -> str:
        """The names of the models that are asked."""
        return ", ".join(self.asked)

    def shown_nearness(self, value: float) -> str:
        """How near a copy's answers are, in words."""
        accuracy = self.wanted.accuracy
        assert accuracy is not None
        return f"{accuracy.shown(value)}, which {'holds' if accuracy.holds(value) else 'does not hold'}"

    def shown_changes(self, changes: Changes) -> str:
        """Keys with their values, for people."""
        return "; ".join(
            (f"{model}: " if len(self.models) > 1 else "")
            + ", ".join(f"{name.removeprefix('session.')} {_value(value)}" for name, value in own.items())
            for model, own in changes.items()
        )


def tune(bench: Bench, space: Space, tuning: Tuning, tell: Callable[[str], None] = lambda _: None) -> None:
    """Fill a tuning. What was found until an interrupt is in it.

    Args:
        bench: with the configuration as it is loaded.
        space: what to try.
        tuning: without trials.
        tell: is told what happens, a line each.

    Raises:
        ServerFailed: the server ended, and does not start again.
        Unreachable, LoadFailed: the profile cannot be made.
        KeyboardInterrupt: it was interrupted.
    """
    starts = [space.start]
    if sizes := _profile(bench, space, tuning, tell):
        starts.append(space.near(space.start, "batch_size", sizes))
    by_point = _search(bench, space, starts, {}, tuning, tell)
    if not (ranked := _ranked(by_point)):
        tuning.missed = _missed(tuning)
        return
    finalists = _again(bench, space, ranked, by_point, tuning, tell)
    if finalists[0] != ranked[0] and len(by_point) < tuning.wanted.points:
        # The search climbed from a lucky load, or the machine is another one than it was then.
        count = len(by_point)
        by_point = _search(bench, space, finalists[:1], by_point, tuning, tell)
        if len(by_point) > count and (ranked := _ranked(by_point))[0] != finalists[0]:
            finalists = _again(bench, space, ranked, by_point, tuning, tell)
    for point in finalists[:_FINALISTS]:
        # One that is no better than the configuration as it is, is not compared with it.
        if point == space.start:
            return
        tuning.best = space.changes(point)
        tell(f"in turns: as it is, and {tuning.shown_changes(tuning.best)}")
        if _compare(bench, space, point, tuning, tell):
            configs = space.configs(point)
            tuning.chosen = {model: configs[model] for model in tuning.best}
            return
        if not tuning.missed_in_turns:
            return


def _profile(bench: Bench, space: Space, tuning: Tuning, tell: Callable[[str], None]) -> dict[str, float]:
    """Rows of a batch to begin with, by models, by what a run costs by itself, and for each row."""
    bound_us = min((one.bound / 1e3 for one in tuning.wanted.constraints if one.figure.startswith("p")), default=None)
    found = {}
    for axis in space.axes:
        if axis.name != "batch_size":
            continue
        rows = min(_PROFILE_ROWS, int(space.base[axis.model]["batch_size"]))
        if rows < 2:
            # Requests of several rows are refused as it is. Batches of two rows may gain nothing, and of many much.
            found[axis.model] = float(_USUAL_ROWS)
            continue
        if axis.model not in tuning.asked:  # a member of an ensemble, whose requests nobody knows
            continue
        try:
            samples = [(count, bench.of_rows(axis.model, count)) for count in (1, rows)]
        except Refused as error:  # rows of the data that differ in shape cannot be one request
            tuning.notes.append(f"no profile of {axis.model}: {error}")
            continue
        times = [(float(count), one.infer_us) for count, one in samples if one.infer_us is not None and not one.fault]
        if len(times) < 2:
            tuning.notes.append(f"no profile of {axis.model}: the server does not count how long the model computes")
            continue
        fixed, per_row = fit_line(times)
        tuning.profile[axis.model] = {"a": fixed, "b": per_row}
        tell(f"profile of {axis.model}: a run takes {fixed:.1f} us and {per_row:.2f} us for each row")
        found[axis.model] = float(batch_of_profile(fixed, per_row, max(axis.values), bound_us))
    return found


def _search(
    bench: Bench,
    space: Space,
    starts: Sequence[Point],
    measured: Mapping[Point, Trial],
    tuning: Tuning,
    tell: Callable[[str], None],
) -> dict[Point, Trial]:
    """Climb from some points on; returns what was measured before and now."""
    wanted, by_point = tuning.wanted, dict(measured)
    known = {point: trial.score for point, trial in measured.items()}
    lengths = [len(axis.values) for axis in space.axes]
    steps = climb(lengths, starts, wanted.points, space.pairs, known=known)
    best = known[starts[0]] if known else None
    try:
        point = next(steps)
        while True:
            trial = _try(bench, space, point, wanted)
            if best is None or trial.score.beats(best):
                # One load may be a lucky one, which nothing better would beat afterwards.
                trial = _both(trial, _try(bench, space, point, wanted))
                best = trial.score if best is None or trial.score.beats(best) else best
            by_point[point] = trial
            tuning.trials.append(trial)
            tell(f"{len(by_point):3}  {_figures(trial.sample)}  {tuning.shown_changes(trial.changes) or 'as it is'}")
            point = steps.send(trial.score)
    except StopIteration:
        pass
    if len(by_point) >= wanted.points:
        tuning.notes.append(f"the search ended after {counted(wanted.points, 'configuration')}; --points allows more")
    return by_point


def _ranked(by_point: Mapping[Point, Trial]) -> list[Point]:
    """The points that hold the constraints, from the best on."""
    return sorted(
        (point for point in by_point if not by_point[point].score.excess),
        key=lambda point: -by_point[point].score.value,
    )


def _again(
    bench: Bench,
    space: Space,
    ranked: Sequence[Point],
    by_point: dict[Point, Trial],
    tuning: Tuning,
    tell: Callable[[str], None],
) -> list[Point]:
    """The points in their order, the first of them by further loads alone: of many loads the best was a lucky one.

    The configuration as it is, is among these. Scores of all become what they would have been in these loads.
    """
    first = [point for point in ranked if by_point[point].score.beats(by_point[ranked[0]].score, -_NEAR)]
    first = [point for point in first if point != space.start][:_AGAIN]
    first += [space.start] * (space.start in ranked)
    if len(first) < 2:
        return list(ranked)
    values: dict[Point, list[float]] = {point: [] for point in first}
    running, rng = list(first), np.random.default_rng()
    for _ in range(_ROUNDS):
        for place in rng.permutation(len(running)):
            point = running[place]
            trial = _try(bench, space, point, tuning.wanted)
            values[point].append(0.0 if trial.score.excess else trial.score.value)
        running = still_in({point: values[point] for point in running})
        if len(running) < 2:
            break
    # Who was measured to the end is before those who were out earlier.
    rounds = max(map(len, values.values()))
    found = order({point: own for point, own in values.items() if len(own) == rounds})
    found += order({point: own for point, own in values.items() if len(own) < rounds})
    tell(f"the first {len(first)} of the search were measured again; first is {_name(space, found[0], tuning)}")
    _correct(by_point, values)
    return [*found, *(point for point in ranked if point not in first)]


def _correct(by_point: dict[Point, Trial], values: Mapping[Point, Sequence[float]]) -> None:
    """Give points that were measured again the scores of that, and all others such as they would have had then."""
    means = {point: fmean(held) for point, own in values.items() if (held := [value for value in own if value])}
    if not means:
        return
    drift = math.exp(fmean(math.log(mean / by_point[point].score.value) for point, mean in means.items()))
    for point, trial in by_point.items():
        value = means.get(point, trial.score.value * drift)
        by_point[point] = replace(trial, score=replace(trial.score, value=value))


def _name(space: Space, point: Point, tuning: Tuning) -> str:
    return tuning.shown_changes(space.changes(point)) or "as it is"


def _try(bench: Bench, space: Space, point: Point, wanted: Wanted) -> Trial:
    sample = bench.candidate(space.configs(point))
    of_memory = [one for one in wanted.constraints if one.figure == "memory"]
    if not sample.fault and any(one.excess(sample.figures.get("memory")) for one in of_memory):
        # A process may hold what earlier configurations needed; one that was just started does not.
        sample = bench.candidate(space.configs(point), afresh=True)
    score = UNUSABLE if sample.fault else score_of(sample.figures, wanted.objective, wanted.constraints)
    return Trial(space.changes(point), sample, score)


def _both(one: Trial, other: Trial) -> Trial:
    """A configuration by two loads: the mean of their figures, and the worse one if it does not hold what it has to."""
    if one.score.excess or other.score.excess:
        return max(one, other, key=lambda trial: trial.score.excess)
    figures = _mean([one.sample.figures, other.sample.figures])
    sample = replace(one.sample, figures=figures, doubt=one.sample.doubt or other.sample.doubt)
    return Trial(one.changes, sample, Score(0.0, math.sqrt(one.score.value * other.score.value)))


def _compare(bench: Bench, space: Space, point: Point, tuning: Tuning, tell: Callable[[str], None]) -> bool:
    """Measure both in turns; whether the configuration of the point is better, and constraints hold for it."""
    wanted = tuning.wanted
    tuning.verdict, tuning.final, tuning.missed_in_turns = None, [], False
    points = (space.start, point)
    found: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = ([], [])
    ratios: list[float] = []
    doubts = 0
    rng = np.random.default_rng()
    for _ in range(MOST_BLOCKS):
        block = []
        for which in block_order(rng):
            sample = bench.candidate(space.configs(points[which]))
            # Without constraints: those are looked at over all loads together.
            value = score_of(sample.figures, wanted.objective, ()).value
            if sample.fault:
                if not any(note.startswith(_IN_TURNS[which]) for note in tuning.notes):
                    tuning.notes.append(f"{_IN_TURNS[which]}: {sample.fault}")
                # A configuration that refuses requests, as it is, may still be compared by those that it answers.
                if which or sample.wrong or not value:
                    tuning.missed_in_turns = True
                    return False
            doubts += bool(sample.doubt)
            found[which].append(sample.figures)
            block.append((which, value))
        ratios.append(block_ratio(block))
        tuning.final = [_mean(one) for one in found]
        if len(ratios) > 1:
            tuning.verdict = verdict_of(ratios)
            tell(f"     {tuning.verdict.text()}")
            if tuning.verdict.settled:
                break
    if doubts:
        tuning.notes.append(
            f"in {doubts} of {4 * len(ratios)} loads the client had too little of the machine; the difference may be "
            "greater than was measured"
        )
    if tuning.verdict is not None and not tuning.verdict.settled:
        tuning.notes.append(
            f"the interval is still wider than {NARROW:.0%} after {len(ratios)} blocks: the machine has other things "
            "to do, or --seconds-per-point is too short"
        )
    return _stands(tuning, _fresh_memory(bench, space, points, tuning))


def _fresh_memory(bench: Bench, space: Space, points: Sequence[Point], tuning: Tuning) -> list[dict[str, float]]:
    """The figures in turns, with the memory of servers that had one configuration each, where it matters."""
    if any(one.figure == "memory" for one in tuning.wanted.constraints):
        for figures, one in zip(tuning.final, points, strict=True):
            sample = bench.candidate(space.configs(one), afresh=True)
            if "memory" in sample.figures:
                figures["memory"] = sample.figures["memory"]
    return tuning.final


def _stands(tuning: Tuning, final: Sequence[Mapping[str, float]]) -> bool:
    assert tuning.verdict is not None
    before, after = (sum(one.excess(side.get(one.key)) for one in tuning.wanted.constraints) for side in final)
    if after:
        tuning.notes.append(f"constraints did not hold in turns for {tuning.shown_changes(tuning.best)}")
        tuning.missed_in_turns = True
        return False
    if before:
        tuning.notes.append("constraints do not hold for the configuration as it is, and do for the best")
        return True
    return tuning.verdict.better


def _missed(tuning: Tuning) -> list[tuple[Constraint, float | None]]:
    """The constraints that held for no configuration; all of them, if each held for some but never together."""
    usable = [one.sample.figures for one in tuning.trials if not one.sample.fault]
    missed = []
    for constraint in tuning.wanted.constraints:
        values = [figures[constraint.key] for figures in usable if constraint.key in figures]
        best = (max if constraint.at_least else min)(values) if values else None
        if constraint.excess(best):
            missed.append((constraint, best))
    if not missed and usable and tuning.wanted.constraints:
        closest = min(tuning.trials, key=lambda one: one.score.excess)
        tuning.notes.append("each constraint holds for some configuration, and never all together")
        missed = [
            (one, closest.sample.figures.get(one.key))
            for one in tuning.wanted.constraints
            if one.excess(closest.sample.figures.get(one.key))
        ]
    return missed


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    known = [name for name in figures[0] if all(name in one for one in figures)]
    return {name: sum(one[name] for one in figures) / len(figures) for name in known}


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"of {len(value)} lengths" if value else "of any length"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _figures(sample: Sample) -> str:
    if sample.fault:
        return f"cannot be used: {sample.fault}"
    return f"{sample.figures['rate']:9,.0f} requests/s, p99 {sample.figures.get('p99', 0) / 1e6:.3g} ms"
