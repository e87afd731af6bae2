"""Constraints in words, scores, verdicts, and what a report says."""

from __future__ import annotations

import json
import math

import pytest

from toutates.tune.constraints import read_constraint
from toutates.tune.measuring import Sample
from toutates.tune.report import front, to_json, to_lines
from toutates.tune.report_html import write_html
from toutates.tune.scores import UNUSABLE, Score, score_of
from toutates.tune.tuning import Trial, Tuning, Wanted
from toutates.tune.turns import block_ratio, verdict_of


@pytest.mark.parametrize(
    ("text", "figure", "bound"),
    [
        ("p99<=5ms", "p99", 5e6),
        (" p99.9 <= 250 us ", "p99.9", 250e3),
        ("memory<=500MB", "memory", 500e6),
        ("memory<=2GiB", "memory", 2 * 2**30),
        ("rate>=1000", "rate", 1000),
        ("my:model:p99<=5ms", "p99", 5e6),
    ],
)
def test_constraints_are_read(text: str, figure: str, bound: float) -> None:
    constraint = read_constraint(text)
    assert (constraint.figure, constraint.bound) == (figure, bound)
    assert constraint.model == ("my:model" if ":" in text else "")
    assert constraint.key == ("my:model:p99" if ":" in text else figure)
    assert constraint.excess(bound) == 0
    assert constraint.excess(None) == math.inf
    worse = bound / 2 if figure == "rate" else bound * 1.5
    assert constraint.excess(worse) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "such as p99<=5ms"),
        ("p99=5ms", "such as p99<=5ms"),
        ("p98<=5ms", "figures are p50"),
        ("speed<=5ms", "figures are p50"),
        ("p99<=5", "units of p99: us, ms, s"),
        ("p99<=5MB", "units of p99: us, ms, s"),
        ("memory<=5ms", "units of memory: KB"),
        ("rate<=1000", "at least something"),
        ("p99>=5ms", "at most"),
        ("p99<=0ms", "above 0"),
        ("mlp:memory<=1GB", "of the whole server"),
    ],
)
def test_what_is_no_constraint_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match="expected a constraint") as error:
        read_constraint(text)
    assert expected in str(error.value)


def test_scores_are_of_the_objective_once_constraints_hold() -> None:
    figures = {"rate": 1000.0, "p99": 2e6, "memory": 1e8}
    assert score_of(figures, "throughput", []) == Score(0.0, 1000.0)
    assert score_of(figures, "latency", []) == Score(0.0, 500.0)
    assert score_of(figures, "throughput", [read_constraint("p99<=1ms")]) == Score(1.0, 1000.0)
    assert score_of({"rate": 0.0}, "throughput", []) == UNUSABLE


def test_verdict_is_sure_only_of_what_all_blocks_say() -> None:
    block = [(0, 100.0), (1, 110.0), (1, 110.0), (0, 100.0)]
    assert math.exp(block_ratio(block)) == pytest.approx(1.1)
    sure = verdict_of([math.log(1.1), math.log(1.101), math.log(1.099)])
    assert sure.better
    assert sure.settled
    wide = verdict_of([math.log(1.3), math.log(0.9), math.log(1.1)])
    assert not wide.better
    assert not wide.settled


def trial(rate: float, p99_ms: float, **changes: object) -> Trial:
    figures = {"rate": rate, "p50": p99_ms * 5e5, "p99": p99_ms * 1e6, "memory": 1e8}
    return Trial({"m<l>p": changes} if changes else {}, Sample(figures), Score(0.0, rate))


def tuned() -> Tuning:
    tuning = Tuning(
        ["m<l>p"], ["m<l>p"], Wanted("throughput", [read_constraint("p99<=5ms")], 9), "64 requests at a time"
    )
    tuning.trials = [trial(100, 2), trial(150, 3, batch_size=8), trial(120, 4, batch_size=4)]
    return tuning


def test_front_has_what_nothing_beats_in_both() -> None:
    assert [one.sample.figures["rate"] for one in front(tuned().trials)] == [100, 150]


def test_report_says_what_was_found() -> None:
    tuning = tuned()
    tuning.best = {"m<l>p": {"batch_size": 8}}
    tuning.final = [trial(100, 2).sample.figures, trial(150, 3).sample.figures]  # type: ignore[list-item]
    tuning.verdict = verdict_of([math.log(1.5)] * 3)
    tuning.chosen = {"m<l>p": {"batch_size": 8}}
    text = "\n".join(to_lines(tuning))
    assert "as it is     100 requests/s, p50 1 ms, p99 2 ms, 100 MB" in text
    assert "BETTER: throughput +50.0%" in text
    told = json.loads(json.dumps(to_json(tuning)))
    assert told["best"] == {
        "changes": {"m<l>p": {"batch_size": 8}},
        "requests_per_second": 150,
        "p50_us": 1500,
        "p99_us": 3000,
        "memory_bytes": 1e8,
    }
    page = write_html(tuning)
    assert "m&lt;l&gt;p" in page
    assert "m<l>p" not in page
    assert page.count("<svg") == 2
    assert "batch_size 8" in page


def test_report_says_which_constraint_is_impossible_and_by_how_much() -> None:
    tuning = tuned()
    tuning.missed = [(read_constraint("p99<=1ms"), 3e6), (read_constraint("rate>=1000"), 150.0)]
    text = "\n".join(to_lines(tuning))
    assert "IMPOSSIBLE p99<=1ms: the best that was reached is 3 ms, 2 ms above the bound" in text
    assert "IMPOSSIBLE rate>=1000: the best that was reached is 150 requests/s, 850 requests/s below the bound" in text
    assert "BETTER" not in text


def test_nothing_that_was_measured_is_no_best() -> None:
    tuning = tuned()
    tuning.trials = []
    assert "best that was found" not in "\n".join(to_lines(tuning))


def test_report_of_several_models_says_whose_keys_are_changed() -> None:
    tuning = Tuning(["a", "b"], ["a", "b"], Wanted("throughput", [], 9), "64 requests at a time")
    tuning.trials = [trial(100, 2)]
    assert tuning.shown_changes({"a": {"batch_size": 8}, "b": {"num_executors": 2}}) == (
        "a: batch_size 8; b: num_executors 2"
    )
    tuning.final = [{"rate": 100.0, "a:rate": 60.0, "a:p99": 2e6}] * 2
    told = to_json(tuning)
    assert told["default"] == {"requests_per_second": 100.0, "a:requests_per_second": 60.0, "a:p99_us": 2e3}
