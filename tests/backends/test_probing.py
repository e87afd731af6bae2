"""Probes of rows: with which shapes and values they are made, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from toutates.backends.probing import GraphFacts, Verdict, probe
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed

Compute = Callable[[Any], Any]


class Model:
    """Computes one output of one input, and remembers with which shapes."""

    def __init__(
        self,
        compute: Compute,
        given: str = "FP32",
        made: str = "FP32",
        shape: tuple[int, ...] = (2,),
    ) -> None:
        self.signature = Signature(
            (TensorSpec("x", BY_NAME[given], shape),), (TensorSpec("y", BY_NAME[made], (-1,)),), True
        )
        self._compute = compute
        self.shapes: list[tuple[int, ...]] = []

    def run_arrays(self, inputs: Mapping[int, Any]) -> Any:
        """See ``Rows``."""
        self.shapes.append(tuple(inputs[0].shape))
        return [self._compute(inputs[0])]

    def probed(self, **more: Any) -> Verdict:
        """What a probe finds."""
        return probe(self, self.signature, **{"row_ns": 0, **more})


def fails_unless(holds: Callable[[Any], bool], result: Compute = lambda rows: rows) -> Compute:
    def compute(rows: Any) -> Any:
        if not holds(rows):
            raise ExecutionFailed("out of bounds")
        return result(rows)

    return compute


def test_four_rows_run_together_and_one_by_one() -> None:
    model = Model(lambda rows: 2 * rows)
    assert model.probed() == Verdict()
    assert model.shapes == [(1, 2)] * 4 + [(4, 2)]


@pytest.mark.parametrize(
    ("compute", "made"),
    [
        (lambda rows: rows.cumsum(axis=0), "FP32"),
        (lambda rows: rows + 0.05 * rows.mean(axis=0), "FP32"),
        (lambda rows: rows == rows.max(axis=0), "BOOL"),
        (lambda rows: (100 * rows).astype(np.int64).cumsum(axis=0), "INT64"),
        (lambda rows: rows[rows[:, 0] > 0.5], "FP32"),
        (lambda rows: rows.reshape(1, -1), "FP32"),
        (lambda rows: rows @ rows.T, "FP32"),
        (fails_unless(lambda rows: len(rows) == 1), "FP32"),
        (lambda rows: np.where(len(rows) > 1, np.nan, rows), "FP32"),
        (lambda rows: (rows.astype(np.float16)).cumsum(axis=0), "FP16"),
        (lambda rows: EncodedStrings.of([b"%d" % len(rows)] * rows.size, rows.shape), "BYTES"),
    ],
)
def test_rows_that_depend_on_each_other_are_found(compute: Compute, made: str) -> None:
    found = Model(compute, made=made).probed()
    assert not found.joins
    assert "output 'y'" in found.warning or "do not run together" in found.warning


@pytest.mark.parametrize(
    ("compute", "made"),
    [
        (lambda rows: rows / 0, "FP32"),
        (lambda rows: np.log(rows - 0.5), "FP32"),
        (lambda rows: rows * np.float32(3e38), "FP32"),
        (lambda rows: rows + 1e-6 * rows.mean(axis=0), "FP32"),
        (lambda rows: np.zeros_like(rows), "FP32"),
        (lambda rows: rows[:, :0], "FP32"),
        (lambda rows: EncodedStrings.of([b"%f" % row for row in rows[:, 0]], (len(rows),)), "BYTES"),
    ],
)
def test_rows_that_do_not_are_joined_whatever_they_come_to(compute: Compute, made: str) -> None:
    with np.errstate(all="ignore"):
        assert Model(compute, made=made).probed() == Verdict()


def test_open_dimensions_are_tried_in_their_order() -> None:
    model = Model(fails_unless(lambda rows: rows.shape[1] >= 64), shape=(-1, 3))
    assert model.probed() == Verdict()
    assert model.shapes[:3] == [(1, 1, 3), (1, 8, 3), (1, 64, 3)]
    assert model.shapes[-1] == (4, 64, 3)


def test_the_lengths_of_a_sample_are_taken_instead() -> None:
    model = Model(lambda rows: rows, shape=(-1,))
    assert model.probed(lengths={0: (5,)}) == Verdict()
    assert model.shapes == [(1, 5)] * 4 + [(4, 5)]


def test_whole_numbers_are_small_and_then_least() -> None:
    model = Model(fails_unless(lambda rows: bool(rows.max() < 2), lambda rows: rows), "INT64", "INT64", (40,))
    assert model.probed() == Verdict()
    assert model.shapes == [(1, 40)] + [(1, 40)] * 4 + [(4, 40)]


def test_a_triangle_of_whole_numbers_is_told_from_the_rows_of_one() -> None:
    # Three tenths of the places differ where no number that is left out is a zero itself.
    assert not Model(np.tril, "INT64", "INT64", (5,)).probed().joins


def test_a_length_that_tells_nothing_is_not_the_last_one_tried() -> None:
    model = Model(lambda rows: rows[:, 7:].cumsum(axis=0), shape=(-1,))
    assert not model.probed().joins


@pytest.mark.parametrize(
    ("compute", "row_ns", "why"),
    [
        (lambda rows: rows, 251_000_000, "a row takes 251 ms, more than 250"),
        (fails_unless(lambda rows: False), 0, "no random row runs: out of bounds"),
    ],
)
def test_what_cannot_be_tried_changes_nothing_and_says_why(compute: Compute, row_ns: int, why: str) -> None:
    found = Model(compute).probed(row_ns=row_ns)
    assert found.joins
    assert not found.warning
    assert found.skipped == f"whether its rows depend on each other was not tried: {why}"


def test_few_rows_are_tried_of_what_takes_long() -> None:
    model = Model(lambda rows: rows)
    assert model.probed(row_ns=200_000_000) == Verdict()
    assert model.shapes == [(1, 2)] * 2 + [(2, 2)]


@pytest.mark.parametrize("draws", [{0}, {0, 1}, {0, 1, 2}, {0, 2}])
def test_the_median_of_three_draws_counts(draws: set[int]) -> None:
    joint_runs = 0

    def compute(rows: Any) -> Any:
        nonlocal joint_runs
        if len(rows) == 1:
            return rows
        joint_runs += 1
        return rows.cumsum(axis=0) if joint_runs - 1 in draws else rows

    assert Model(compute).probed().joins is (len(draws) < 2)
    assert joint_runs == 3


@pytest.mark.parametrize(
    ("facts", "share", "joins"),
    [
        (GraphFacts(), 0.05, False),
        (GraphFacts(is_inexact=True), 0.05, True),
        (GraphFacts(is_inexact=True), 0.5, False),
        (GraphFacts(is_random=True), 5.0, True),
    ],
)
def test_a_graph_is_judged_by_what_it_is_made_of(facts: GraphFacts, share: float, joins: bool) -> None:
    model = Model(lambda rows: rows + share * rows.max(axis=0))
    assert model.probed(facts=lambda: facts).joins is joins


def test_a_word_beats_values_and_never_a_number() -> None:
    said = Model(lambda rows: rows.cumsum(axis=0)).probed(says_joined="dynamic_batching")
    assert said.joins
    assert said.warning.endswith("requests are joined, because `dynamic_batching` says so")
    for facts in (GraphFacts(), GraphFacts(is_random=True)):
        kept = Model(lambda rows: rows[:1]).probed(says_joined="dynamic_batching", facts=lambda own=facts: own)
        assert not kept.joins
        assert "output 'y' is [1, 2] for 4 rows" in kept.warning


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "INT8", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES"])
def test_rows_of_every_datatype_differ(datatype: str) -> None:
    seen: list[Any] = []

    def compute(rows: Any) -> Any:
        texts = rows.elements() if datatype == "BYTES" else [row.tobytes() for row in rows]
        assert datatype == "BYTES" or rows.dtype == BY_NAME[datatype].numpy
        seen.append(texts)
        return np.zeros((rows.shape[0], 1), np.float32)

    assert Model(compute, datatype, shape=(16,)).probed() == Verdict()
    size = 16 if datatype == "BYTES" else 1
    singles, [joint] = seen[:4], seen[4:]
    assert [text for one in singles for text in one] == joint
    assert len({tuple(joint[at : at + size]) for at in range(0, len(joint), size)}) == 4
