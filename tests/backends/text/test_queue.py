"""What waits of a text model: how much of it runs at once, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from toutates.backends.text.interface import DEFAULT_OPTIONS
from toutates.backends.text.queue import ReadingBatch, UnreadPool, slices_of
from toutates.backends.text.steps import ACTIVATIONS
from toutates.backends.text.work import Settled, TextRequest
from toutates.engine.supertensor import QUICK_NS
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest

_TENSOR = TensorSpec("text", BY_NAME["BYTES"], ())
_SIGNATURE = Signature((_TENSOR,), (_TENSOR,), batched=True)


def request_of(texts: Sequence[str], prompt: str = "") -> TextRequest:
    settled = Settled(
        DEFAULT_OPTIONS, True, 64, True, False, prompt, 0, True, None, ACTIVATIONS["Identity"], skips=False
    )
    sink: Any = None
    return TextRequest(texts, settled, sink, None, lambda by_ns: True, sum(map(len, texts)), 0)


def batches_of(requests: Sequence[TextRequest], *, pads: bool) -> list[ReadingBatch]:
    pool = UnreadPool(_SIGNATURE, pads=pads)
    for request in requests:
        pool.add(slices_of(request), len(request.texts))
    found = []
    while pool.rows:
        lanes: Any = None
        found.append(pool.take(lanes))
    return found


def test_a_crowd_of_a_table_runs_in_batches_that_a_worker_may_run_and_a_padded_one_together() -> None:
    crowd = [request_of(["x" * 100]) for _ in range(25)]
    assert [batch.rows for batch in batches_of(crowd, pads=False)] == [10, 10, 5]
    assert [batch.rows for batch in batches_of(crowd, pads=True)] == [25]
    prompted = [request_of(["x" * 100], "query: " * 14) for _ in range(10)]
    assert [batch.rows for batch in batches_of(prompted, pads=False)] == [5, 5]


def test_texts_of_one_request_stay_together_and_those_of_a_failed_one_are_left_out() -> None:
    failed, many = request_of(["gone"]), request_of(["x" * 100] * 30)
    failed.error = InvalidRequest("of another text")
    batches = batches_of([request_of(["one"]), failed, many, request_of(["two"])], pads=False)
    assert [batch.rows for batch in batches] == [1, 30, 1]
    assert sum(batch.counted for batch in batches) == 33
    assert all(request is not failed for batch in batches for request, _, _ in batch.slices)


@pytest.mark.parametrize(("rows", "others"), [(1, (2, 5, 60)), (60, (1, 2, 5))])
def test_after_a_slow_run_texts_of_every_size_have_to_be_quick_again(rows: int, others: Sequence[int]) -> None:
    [batch] = batches_of([request_of(["one"])], pads=False)
    lane = batch.lane
    for count in (rows, *others):
        lane.note_run(count, 10_000)
        assert lane.is_quick(count, QUICK_NS)
    lane.note_run(rows, 8_000_000)
    assert not any(lane.is_quick(count, QUICK_NS) for count in (rows, *others))
    lane.note_run(others[0], 10_000)
    assert lane.is_quick(others[0], QUICK_NS)
    assert not lane.is_quick(rows, QUICK_NS)
