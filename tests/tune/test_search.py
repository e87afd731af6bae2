"""The search on made-up surfaces, the line of a profile, and what configurations the search may try."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from toutates.tune.scores import UNUSABLE, Score
from toutates.tune.search import Point, batch_of_profile, climb, fit_line
from toutates.tune.space import make_space

LENGTHS = (11, 5, 5, 7, 4, 2, 2)


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

    return finish(climb(LENGTHS, starts, most, 4), score), asked


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
    steps = climb((5,), [(0,)], 20, 1)
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
    "session": {"graph_level": "all", "memory_arena": True, "memory_pattern": True},
}


def test_space_has_the_configuration_as_it_is_whatever_its_values() -> None:
    space = make_space(BASE, 4, batches=True)
    assert space.changes(space.start) == {}
    assert space.config(space.start) == BASE
    assert space.values(space.start)["batch_size"] == 48
    assert space.values(space.start)["session.intra_threads"] == 1


def test_configurations_keep_the_rows_that_may_wait_and_leave_the_base_alone() -> None:
    space = make_space(BASE, 4, batches=True)
    config = space.config(space.near(space.start, {"batch_size": 16, "session.intra_threads": 2}))
    assert (config["batch_size"], config["capacity"], config["preferred_batch_sizes"]) == (16, 48, [8])
    assert config["session"]["intra_threads"] == 2
    assert config["num_executors"] == 3
    assert "intra_threads" not in BASE["session"]
    small = space.config(space.near(space.start, {"batch_size": 4}))
    assert "preferred_batch_sizes" not in small


def test_space_of_other_models_has_what_they_know() -> None:
    names = [axis.name for axis in make_space(BASE, 4, batches=False).axes]
    assert "batch_size" not in names
    assert "max_queue_delay_us" not in names
    foreign = make_space({**BASE, "backend": "lightgbm"}, 1, batches=True, least_rows=16)
    assert [axis.name for axis in foreign.axes] == ["batch_size", "num_executors", "max_queue_delay_us"]
    assert min(foreign.axes[0].values) == 16
