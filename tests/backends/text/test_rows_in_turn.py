"""Rows of callers who take turns: what a turn costs with many of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.cpu_time import lines_run
from toutates.backends.text.turns import RowsInTurn
from toutates.backends.text.work import Row
from toutates.engine.lengths import Buckets


def lines_beside(callers: int) -> tuple[int, int]:
    """Lines that are run to take a row, and to add one, beside those of so many callers who have had a turn each."""
    waiting: RowsInTurn = RowsInTurn(Buckets(), 1, 512, on_none_left=lambda caller, led: None)

    def add(caller: object, led: int) -> None:
        request: Any = SimpleNamespace(caller=caller, led=led)
        waiting.add(Row(request, 0, [1, 2, 3]), 1, 3)

    for caller in range(callers):
        for _ in range(2):
            add(caller, 0)
    add("last", 0)
    for caller in range(callers):
        assert waiting.take().entries[0].context.caller == caller
    taken = []
    take = lines_run(lambda: taken.append(waiting.take().entries[0].context.caller))
    assert taken == ["last"], "its row is behind those of all others"
    put = lines_run(lambda: add("late", 1))
    assert waiting.take().entries[0].context.caller == 0
    assert waiting.take().entries[0].context.caller == "late"
    return take, put


def test_a_turn_takes_no_longer_with_ten_thousand_callers_than_with_ten() -> None:
    (take, put), (take_many, put_many) = lines_beside(10), lines_beside(10_000)
    assert take_many < 2 * take
    assert put_many < 2 * put
