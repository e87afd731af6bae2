"""Cold models beside a hot one: the table, and a run with a server."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from bench.hot_model import Beside, main, table


def test_the_table_has_multiples_of_what_a_model_takes_alone_and_medians_of_rounds() -> None:
    alone = Beside("middle", "small", 0, 0, 1, 1.5, 1.2, 6, 0.1, 0.9, 0.1)
    beside = Beside("middle", "small", 9_000, 5_000, 0.998, 4.5, 4.0, 15, 0.5, 1.0, 0.2)
    rows = [alone, beside, alone, replace(beside, p99_ms=9), alone, replace(beside, p99_ms=18)]
    assert table(rows).splitlines()[2:] == [
        "| middle | small, 9,000 per second | 5,000 | 99.8% | 6.0 | 15.0 | 2.5 | 4.50 | 0.50 | 1.00 | 3.00 | 0.20 |"
    ]


@pytest.mark.alone  # on a busy machine a cold model may have no answer in time
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="client and server need a core each")
def test_cold_models_are_answered_beside_a_hot_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "1", "--json"]) == 0
    found = [Beside(**one) for one in json.loads(capsys.readouterr().out)]
    # Two cold models beside each of two hot ones, alone and at two rates.
    assert len(found) == 12
    assert {one.model for one in found if one.hot == "small"} == {"middle", "large"}
    for one in found:
        assert one.p50_ms > 0
        assert one.p99_ms >= one.p50_ms
        assert (one.hot_answered_per_second > 0) is (one.hot_per_second > 0)
