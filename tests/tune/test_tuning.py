"""A search over made-up measurements, from the profile to the configuration that is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from toutates.tune.measuring import Sample
from toutates.tune.space import Axis, Space
from toutates.tune.tuning import Tuning, Wanted, tune


class MadeUp:
    """Measures what it is told: the rate grows with the batch, and single rows have a fault."""

    def __init__(self, fault: Sample) -> None:
        self._fault = fault

    def of_rows(self, rows: int) -> Sample:
        return Sample(infer_us=10.0 + rows)

    def candidate(self, config: Mapping[str, Any], *, afresh: bool = False) -> Sample:
        size = config["batch_size"]
        if size == 1:
            return self._fault
        return Sample({"rate": 1_000.0 * size, "p99": 1e6, "memory": 1e6})


@pytest.mark.parametrize(
    ("fault", "chosen"),
    [
        (Sample({"rate": 1_000.0, "p99": 1e6, "memory": 1e6}, "1 % of requests were not answered with OK"), 64),
        (Sample({"rate": 1_000.0, "p99": 1e6, "memory": 1e6}, "answers differ", wrong=True), None),
    ],
)
def test_a_configuration_that_refuses_requests_as_it_is_can_be_compared_and_one_that_answers_wrongly_cannot(
    fault: Sample, chosen: int | None
) -> None:
    bench: Any = MadeUp(fault)
    space = Space({"batch_size": 1, "capacity": 16}, (Axis("batch_size", (1, 2, 4, 8, 16, 32, 64)),))
    tuning = Tuning("model", Wanted("throughput", (), 20), "as many as there are")
    tune(bench, space, tuning)
    assert (tuning.chosen or {}).get("batch_size") == chosen
    assert [note for note in tuning.notes if note.startswith("in turns, as it is: ")] == [
        f"in turns, as it is: {fault.fault}"
    ]
