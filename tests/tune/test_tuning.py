"""A search over made-up measurements, from the profile to the configuration that is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from toutates.tune.constraints import read_constraint
from toutates.tune.measuring import Sample
from toutates.tune.space import Axis, Space
from toutates.tune.tuning import Tuning, Wanted, tune


class MadeUp:
    """Measures what it is told: the rate grows with the batch, and single rows have a fault."""

    def __init__(self, fault: Sample) -> None:
        self._fault = fault

    def of_rows(self, model: str, rows: int) -> Sample:
        return Sample(infer_us=10.0 + rows)

    def candidate(self, configs: Mapping[str, Mapping[str, Any]], *, afresh: bool = False) -> Sample:
        size = configs["m"]["batch_size"]
        if size == 1:
            return self._fault
        return Sample({"rate": 1_000.0 * size, "p99": 1e6, "memory": 1e6})


@pytest.mark.parametrize(
    ("fault", "chosen"),
    [
        (Sample({"rate": 1_000.0, "p99": 1e6, "memory": 1e6}, "1 % of requests were not answered with OK"), 64),
        (Sample({"rate": 1_000.0, "p99": 1e6, "memory": 1e6}, "answers differ", wrong=True), None),
        (Sample(fault="the server ended: out of memory"), None),
    ],
)
def test_a_configuration_that_refuses_requests_as_it_is_can_be_compared_unless_it_answers_wrongly_or_not_at_all(
    fault: Sample, chosen: int | None
) -> None:
    bench: Any = MadeUp(fault)
    space = Space({"m": {"batch_size": 1, "capacity": 16}}, (Axis("m", "batch_size", (1, 2, 4, 8, 16, 32, 64)),))
    tuning = Tuning(["m"], ["m"], Wanted("throughput", (), 20), "as many as there are")
    tune(bench, space, tuning)
    assert (tuning.chosen or {"m": {}})["m"].get("batch_size") == chosen
    assert [note for note in tuning.notes if note.startswith("in turns, as it is: ")] == [
        f"in turns, as it is: {fault.fault}"
    ]


class Lucky:
    """The first load of one configuration is better by chance, and all of another one by right."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of_rows(self, model: str, rows: int) -> Sample:
        return Sample(infer_us=10.0 + rows)

    def candidate(self, configs: Mapping[str, Mapping[str, Any]], *, afresh: bool = False) -> Sample:
        size = configs["m"]["batch_size"]
        lucky = size == 4 and size not in self._seen
        self._seen.add(size)
        return Sample({"rate": 1_100.0 if lucky else 1_050.0 if size == 2 else 1_000.0, "p99": 1e6, "memory": 1e6})


def test_a_lucky_load_of_the_search_does_not_hide_what_is_better() -> None:
    bench: Any = Lucky()
    space = Space({"m": {"batch_size": 1, "capacity": 16}}, (Axis("m", "batch_size", (1, 2, 4)),))
    tuning = Tuning(["m"], ["m"], Wanted("throughput", (), 20), "as many as there are")
    tune(bench, space, tuning)
    assert tuning.best == {"m": {"batch_size": 2}}
    assert tuning.verdict is not None
    assert tuning.verdict.ratio == pytest.approx(1.05)


class LuckyTwice:
    """Each configuration's first two loads are better by chance, one's by far; afterwards another one is the best."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of_rows(self, model: str, rows: int) -> Sample:
        return Sample(infer_us=10.0 + rows)

    def candidate(self, configs: Mapping[str, Mapping[str, Any]], *, afresh: bool = False) -> Sample:
        size = configs["m"]["batch_size"]
        self._seen[size] = self._seen.get(size, 0) + 1
        first = {1: 1_000.0, 2: 1_060.0, 4: 1_100.0}[size]
        rate = first if self._seen[size] <= 2 else {1: 1_000.0, 2: 1_050.0, 4: 1_010.0}[size]
        return Sample({"rate": rate, "p99": 1e6, "memory": 1e6})


def test_what_is_compared_is_the_best_of_loads_made_after_the_search() -> None:
    bench: Any = LuckyTwice()
    space = Space({"m": {"batch_size": 1, "capacity": 16}}, (Axis("m", "batch_size", (1, 2, 4)),))
    tuning = Tuning(["m"], ["m"], Wanted("throughput", (), 20), "as many as there are")
    tune(bench, space, tuning)
    assert max(tuning.trials, key=lambda one: one.score.value).changes == {"m": {"batch_size": 4}}
    assert tuning.best == {"m": {"batch_size": 2}}


class Slower:
    """From the second load on everything takes a third longer; larger batches are better all the same."""

    def __init__(self) -> None:
        self.loads = 0

    def of_rows(self, model: str, rows: int) -> Sample:
        return Sample()

    def candidate(self, configs: Mapping[str, Mapping[str, Any]], *, afresh: bool = False) -> Sample:
        self.loads += 1
        rate = (1_000.0 + configs["m"]["batch_size"] * 10) * (1 if self.loads <= 2 else 0.92)
        return Sample({"rate": rate, "p99": 1e6, "memory": 1e6})


def test_a_machine_that_becomes_slower_does_not_make_the_configuration_as_it_is_the_best() -> None:
    bench: Any = Slower()
    base = {"batch_size": 1, "capacity": 16, "max_queue_delay_us": 0}
    space = Space({"m": base}, (Axis("m", "batch_size", (1, 2, 4, 8)), Axis("m", "max_queue_delay_us", (0, 100))))
    tuning = Tuning(["m"], ["m"], Wanted("throughput", (), 20), "as many as there are")
    tune(bench, space, tuning)
    assert tuning.best == {"m": {"batch_size": 8}}
    assert tuning.chosen is not None


def test_a_constraint_of_one_model_is_held_against_that_model() -> None:
    class Two:
        def candidate(self, configs: Mapping[str, Mapping[str, Any]], *, afresh: bool = False) -> Sample:
            size = configs["a"]["batch_size"]
            return Sample({"rate": 100.0 * size, "p99": 1e6, "a:p99": 1e6 * size, "b:p99": 9e6, "memory": 1.0})

    bench: Any = Two()
    base = {"a": {"batch_size": 1, "capacity": 8}, "b": {"batch_size": 1, "capacity": 8}}
    space = Space(base, (Axis("a", "batch_size", (1, 2, 4, 8)),))
    wanted = Wanted("throughput", [read_constraint("a:p99<=4ms")], 20)
    tuning = Tuning(["a", "b"], ["a", "b"], wanted, "as many as there are")
    tune(bench, space, tuning)
    assert tuning.chosen == {"a": {"batch_size": 4, "capacity": 2}}
    tuning = Tuning(["a", "b"], ["a", "b"], replace(wanted, constraints=[read_constraint("b:p99<=4ms")]), "")
    tune(bench, space, tuning)
    assert [(one.text, value) for one, value in tuning.missed] == [("b:p99<=4ms", 9e6)]
