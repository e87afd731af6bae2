"""What many models take: the table, and a run with a server."""

from __future__ import annotations

import json

import pytest

from bench.density import Density, main, table


def test_the_table_tells_what_a_model_takes_by_the_difference_between_rows() -> None:
    rows = [Density(1, 100.0, 1.5, 6, 500.0, 20.0), Density(1025, 228.0, 4.572, 6, 505.0, 20.5)]
    assert table(rows).splitlines()[2:] == [
        "| 1 | 100 |  | 1.5 |  | 6 | 500 | 20.0 |",
        "| 1,025 | 228 | 128 | 4.6 | 3.00 | 6 | 505 | 20.5 |",
    ]


@pytest.mark.long
def test_a_server_of_many_models_has_about_the_threads_of_one_of_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "2", "40", "--seconds", "0.4", "--json"]) == 0
    few, many = json.loads(capsys.readouterr().out)
    assert (few["models"], many["models"]) == (2, 40)
    # Some threads are there for a while alone: those that wait for files, and of the pool for runs that last.
    assert many["threads"] - few["threads"] < 20
    assert many["resident_mib"] > few["resident_mib"]
    assert many["request_cpu_us"] > 0
