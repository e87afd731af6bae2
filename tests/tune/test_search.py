"""The search on made-up surfaces, the line of a profile, and what configurations the search may try."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
import pytest

from toutates.tune.scores import UNUSABLE, Score
from toutates.tune.search import Point, batch_of_profile, climb, fit_line
from toutates.tune.space import COPY, Space, axes_of

LENGTHS = (11, 5, 5, 7, 4, 2, 2)
PAIRS = list(combinations(range(4), 2))


class Machine:
    """Throughput by a model of a server: runs cost a part by themselves, cores are shared, threads help up to a point.

    Numbers of it are by chance.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.fixed_us, self.row_us = rng.uniform(5, 500), rng.uniform(0.1, 100)
        self.cores = int(rng.choice([2, 4, 8, 16]))
        self.shared = rng.uniform(0.3, 0.95)  # of a run, what threads can share
        self.under_way = int(rng.choice([16, 64, 256]))
        self.factors = [1 + rng.uniform(0, 0.2, length).cumsum() / length for length in LENGTHS[4:]]
        self.noise = np.random.default_rng(seed + 1)

    def value(self, point: Point) -> float:
        executors, threads = 1 << point[1], 1 << point[2]
        rows = min(1 << point[0], max(1, self.under_way // executors))
        delay_us = (0, 100, 250, 500, 1_000, 2_000, 5_000)[point[3]]
        speedup = 1 / (1 - self.shared + self.shared / threads)
        crowd = max(1.0, executors * threads / self.cores)
        run_us = (self.fixed_us + self.row_us * rows) / speedup * crowd
        waits_us = delay_us if 1 << point[0] > rows else 0
        run_us *= prod(factors[place] for factors, place in zip(self.factors, point[4:], strict=True))
        return float(executors * rows / (run_us + waits_us) * 1e6)

    def noisy(self, point: Point) -> Score:
        return Score(0.0, self.value(point) * self.noise.normal(1, 0.01))


def finish(steps: Generator[Point, Score, Point], score: Callable[[Point], Score]) -> Point:
    """Answer a search until it has found its best."""
    try:
        point = next(steps)
        while True:
            point = steps.send(score(point))
    except StopIteration as end:
        best: Point = end.value
        return best


def run(machine: Machine, starts: list[Point], most: int) -> tuple[Point, list[Point]]:
    asked: list[Point] = []

    def score(point: Point) -> Score:
        asked.append(point)
        return machine.noisy(point)

    return finish(climb(LENGTHS, starts, most, PAIRS), score), asked


@pytest.mark.parametrize("seed", range(20))
def test_search_finds_95_percent_of_the_best_of_all(seed: int) -> None:
    machine = Machine(seed)
    # The last three keys are factors of their own, so that their best is that of each.
    last = tuple(int(factors.argmin()) for factors in machine.factors)
    brute = max(machine.value((*point, *last)) for point in product(*map(range, LENGTHS[:4])))
    best, asked = run(machine, [(6, 0, 0, 0, 3, 1, 1), (9, 0, 0, 0, 3, 1, 1)], 200)
    assert machine.value(best) >= 0.95 * brute
    assert len(asked) == len(set(asked)) <= 200


def test_search_measures_no_more_than_it_may() -> None:
    _, asked = run(Machine(3), [(0,) * 7], 9)
    assert len(asked) == 9


def test_search_leaves_what_cannot_be_used_and_what_misses_bounds() -> None:
    steps = climb((5,), [(0,)], 20, [])
    scores = {0: Score(0.8, 9.0), 1: Score(0.4, 8.0), 2: Score(0.0, 1.0), 3: Score(0.0, 3.0), 4: UNUSABLE}
    assert finish(steps, lambda point: scores[point[0]]) == (3,)


def test_small_gains_are_taken_for_noise() -> None:
    assert not Score(0.0, 101.0).beats(Score(0.0, 100.0), 0.02)
    assert Score(0.0, 103.0).beats(Score(0.0, 100.0), 0.02)
    assert not UNUSABLE.beats(UNUSABLE)


def test_profile_is_a_line_and_gives_a_batch() -> None:
    assert fit_line([(1, 12.0), (16, 42.0)]) == pytest.approx((10.0, 2.0))
    assert fit_line([(1, 10.0), (16, 9.0)]) == pytest.approx((9.5, 0.0))  # noise is no negative time
    assert batch_of_profile(10, 2, 1024) == 45
    assert batch_of_profile(10, 0, 1024) == 1024
    assert batch_of_profile(10, 2, 1024, bound=60) == 10
    assert batch_of_profile(10, 2, 1024, bound=5) == 1


BASE: dict[str, Any] = {
    "backend": "supertensor",
    "batch_size": 48,
    "capacity": 16,
    "num_executors": 3,
    "max_queue_delay_us": 70,
    "preferred_batch_sizes": [8, 48],
    "batching": True,
    "session": {"graph_level": "all", "memory_arena": True, "memory_pattern": True},
}


def space_of(base: dict[str, Any], cores: int, **more: Any) -> Space:
    return Space({"m": base}, axes_of("m", base, cores, **more))


def at(space: Space, **wanted: float) -> dict[str, Any]:
    """The configuration with some keys near to what is wanted."""
    point = space.start
    for name, value in wanted.items():
        point = space.near(point, name.replace("__", "."), {"m": value})
    return dict(space.configs(point)["m"])


def test_space_has_the_configuration_as_it_is_whatever_its_values() -> None:
    space = space_of(BASE, 4)
    assert space.changes(space.start) == {}
    assert space.configs(space.start) == {"m": BASE}
    values = {axis.name: axis.values[place] for axis, place in zip(space.axes, space.start, strict=True)}
    assert values["batch_size"] == 48
    assert values["session.intra_threads"] == 1


def test_configurations_keep_the_rows_that_may_wait_and_leave_the_base_alone() -> None:
    space = space_of(BASE, 4)
    config = at(space, batch_size=16, session__intra_threads=2)
    assert (config["batch_size"], config["capacity"], config["preferred_batch_sizes"]) == (16, 48, [8])
    assert config["session"]["intra_threads"] == 2
    assert config["num_executors"] == 3
    assert "intra_threads" not in BASE["session"]
    assert "preferred_batch_sizes" not in at(space, batch_size=4)


def test_space_of_other_models_has_what_they_know() -> None:
    names = [axis.name for axis in axes_of("m", {**BASE, "batching": False}, 4)]
    assert "batch_size" not in names
    assert "max_queue_delay_us" not in names
    assert min(axes_of("m", BASE, 1, least_rows=16)[0].values) == 16


def test_space_of_several_models_changes_each_by_itself() -> None:
    other = {**BASE, "batch_size": 8}
    space = Space({"a": BASE, "b": other}, [*axes_of("a", BASE, 4), *axes_of("b", other, 4)])
    point = space.near(space.start, "batch_size", {"b": 64})
    assert space.changes(point) == {"b": {"batch_size": 64}}
    assert space.configs(point)["a"] == BASE
    models = [(space.axes[one].model, space.axes[two].model) for one, two in space.pairs]
    assert set(models) == {("a", "a"), ("b", "b")}
    assert len(models) == 12  # of four keys of each


def test_values_of_a_range_take_the_place_of_the_usual_ones_and_the_own_one_stays() -> None:
    axes = {axis.name: axis.values for axis in axes_of("m", BASE, 4, ranges={"batch_size": [6, 8]})}
    assert axes["batch_size"] == [6, 8, 48]
    assert axes["num_executors"] == [1, 2, 3, 4]


def test_copies_are_values_of_the_model_s_file() -> None:
    base = {**BASE, COPY: "model.onnx"}
    space = space_of(base, 1, copies=["model.fp16.onnx"])
    (axis,) = (axis for axis in space.axes if axis.name == COPY)
    assert axis.values == ["model.onnx", "model.fp16.onnx"]
    assert COPY not in [axis.name for axis in space_of(base, 1).axes]


@pytest.mark.parametrize("own", [[], [200], [16, 32, 64, 128, 200], [10, 200], list(range(1, 101))])
def test_buckets_that_are_tried_take_the_lengths_that_were_taken(own: list[int]) -> None:
    base = {**BASE, "padding": {"inputs": {"ids": {"axis": 1}}, "buckets": own}}
    space = space_of(base, 1)
    (axis,) = (axis for axis in space.axes if axis.name == "padding.buckets")
    assert own in axis.values
    assert len(axis.values) >= 4
    for lengths in axis.values:
        assert lengths == sorted(set(lengths))
        assert len(lengths) <= 128
        if own:
            assert lengths[-1] == own[-1]
        else:
            assert not lengths or lengths[-1] == 2**20
    assert "session.memory_pattern" not in [axis.name for axis in space.axes]
    assert at(space, padding__max_batch_tokens=512)["padding"] == {**base["padding"], "max_batch_tokens": 512}


def test_a_text_model_has_tokens_of_a_batch() -> None:
    space = space_of({**BASE, "backend": "text"}, 1)
    assert at(space, parameters__max_batch_tokens=2048)["parameters"] == {"max_batch_tokens": 2048}
