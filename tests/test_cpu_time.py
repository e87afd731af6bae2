"""That work which grows faster than it should is found by the lines that it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import pytest

from tests.cpu_time import lines_run


def in_a_loop(numbers: Iterable[int]) -> None:
    for number in numbers:
        number + 1


@pytest.mark.parametrize(
    "search",
    [
        pytest.param(in_a_loop, id="loop"),
        pytest.param(lambda numbers: [number for number in numbers if number < 0], id="list"),
        pytest.param(lambda numbers: any(number < 0 for number in numbers), id="generator"),
    ],
)
def test_a_search_for_each_of_many_is_found(search: Callable[[Iterable[int]], object]) -> None:
    def each(count: int) -> None:
        for _ in range(count):
            search(range(count))

    assert lines_run(lambda: each(400)) > 3.5 * lines_run(lambda: each(200)) > 100_000 / 2
    assert lines_run(lambda: search(range(400))) <= 2 * lines_run(lambda: search(range(200)))


def test_the_same_work_is_as_many_lines_and_a_debugger_stays() -> None:
    before = sys.gettrace()
    assert lines_run(lambda: in_a_loop(range(100))) == lines_run(lambda: in_a_loop(range(100))) > 100
    with pytest.raises(ZeroDivisionError):
        lines_run(lambda: 1 // 0)
    assert sys.gettrace() is before
