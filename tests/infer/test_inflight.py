from __future__ import annotations

from typing import Any

import pytest

from toutates.engine.result import BatchResult, PendingRequest, Split, Timing
from toutates.infer.inflight import Inflight, share


@pytest.mark.parametrize(("total", "workers"), [(1, 1), (7, 3), (6, 3), (2, 3), (100, 7)])
def test_the_shares_of_all_workers_add_up_and_are_alike(total: int, workers: int) -> None:
    shares = [share(total, workers, number) for number in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


def test_a_refusal_names_the_worker_s_part_where_there_are_several() -> None:
    assert "--max-inflight-requests is 8; try again later" in str(Inflight(8, 8).refusal())
    assert "--max-inflight-requests is 8, 3 of them on the worker that has this connection; " in str(
        Inflight(3, 8).refusal()
    )


def test_requests_leave_when_the_last_batch_with_their_rows_is_back() -> None:
    inflight = Inflight(10, 10)
    inflight.count = 6
    counts: list[int] = []
    finish = inflight.leaving(lambda result: counts.append(inflight.count))

    def batch(*pending: PendingRequest) -> BatchResult:
        return BatchResult(list(pending), None, None, Timing(0, 0, 0, 0))

    context: Any = object()
    split = Split(3)
    finish(batch((context, 0, 1, None), (context, 1, 1, None)))
    finish(batch((context, 0, 1, None), (context, 1, 7, (split, 0))))
    finish(batch((context, 0, 8, (split, 1))))
    assert counts == [4, 3, 3]
    finish(batch((context, 0, 2, (split, 2)), (context, 2, 1, None)))
    finish(batch((context, 0, 2, (Split(1), 0))))
    assert counts == [4, 3, 3, 1, 0]
