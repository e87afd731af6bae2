"""Calls that all processes carry out: what their answers come to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from tests.api.support import plane_of
from toutates.api.dataplane.everywhere import Everywhere, Order, Outcome, all_statistics, whole_index
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import InvalidRequest, RequestError, Unavailable

LOADED = pb.RepositoryModelLoadResponse().SerializeToString()


def change(outcomes: Sequence[Outcome]) -> None:
    async def carry(order: Order) -> Sequence[Outcome]:
        assert (order.call, order.changes, order.about) == ("RepositoryModelLoad", True, "model a")
        return outcomes

    request = pb.RepositoryModelLoadRequest(model_name="a")
    trio.run(
        lambda: Everywhere(carry).change("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse, "model a")
    )


def test_a_change_succeeds_where_every_process_has_made_it() -> None:
    change([Outcome(0, LOADED), Outcome(1, LOADED)])


@pytest.mark.parametrize(
    ("outcomes", "error", "text"),
    [
        (
            [Outcome(0, error="InvalidRequest", text="no"), Outcome(1, error="InvalidRequest", text="no")],
            InvalidRequest,
            "no",
        ),
        (
            [Outcome(0, LOADED), Outcome(1, error="Unavailable", text="it has ended"), Outcome(2, LOADED)],
            Unavailable,
            "process 1: it has ended; done in processes 0, 2",
        ),
        (
            [Outcome(0, error="InvalidRequest", text="a\n"), Outcome(1, error="Unavailable", text="b")],
            InvalidRequest,
            "process 0: a; process 1: b",
        ),
    ],
)
def test_a_change_that_a_process_has_not_made_fails_and_says_so(
    outcomes: Sequence[Outcome], error: type[RequestError], text: str
) -> None:
    with pytest.raises(error) as caught:
        change(outcomes)
    assert str(caught.value) == text


def test_a_process_carries_out_what_another_was_asked_for() -> None:
    calls = plane_of().local_calls(3)
    request = pb.ModelStatisticsRequest(name="nothing").SerializeToString()
    outcome = trio.run(calls.answer, Order("ModelStatistics", request))
    assert outcome == Outcome(3, error="InvalidRequest", text="requested model 'nothing' is not available")
    assert trio.run(calls.answer, Order("ModelStatistics", b"\xff")).error == "MalformedMessage"


def statistics(version: str, requests: int, batches: dict[int, int]) -> pb.ModelStatistics:
    total = pb.StatisticDuration(count=requests, ns=10 * requests)
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    return pb.ModelStatistics(
        name="a",
        version=version,
        last_inference=requests,
        inference_count=requests,
        execution_count=sum(batches.values()),
        inference_stats=pb.InferStatistics(**dict.fromkeys(names, total)),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=pb.StatisticDuration(count=count, ns=count),
                compute_infer=pb.StatisticDuration(count=count, ns=2 * count),
                compute_output=pb.StatisticDuration(count=count, ns=3 * count),
            )
            for size, count in batches.items()
        ],
        memory_usage=[pb.MemoryUsage(type="CPU", byte_size=requests)],
    )


def test_statistics_are_added_up() -> None:
    parts = [
        pb.ModelStatisticsResponse(model_stats=[statistics("1", 3, {1: 1, 4: 2}), statistics("10", 1, {})]),
        pb.ModelStatisticsResponse(model_stats=[statistics("1", 5, {2: 1, 4: 3}), statistics("2", 1, {})]),
    ]
    found = all_statistics(parts).model_stats
    assert [one.version for one in found] == ["1", "2", "10"]
    total = statistics("1", 8, {1: 1, 2: 1, 4: 5})
    total.last_inference = 5
    assert found[0] == total


def test_the_index_says_which_process_has_not_what_the_others_have() -> None:
    ready = pb.RepositoryIndexResponse.ModelIndex(name="a", version="1", state="READY")
    gone = pb.RepositoryIndexResponse.ModelIndex(name="a", version="1", state="UNAVAILABLE", reason="broken")
    never = pb.RepositoryIndexResponse.ModelIndex(name="b")

    def index(*models: pb.RepositoryIndexResponse.ModelIndex) -> pb.RepositoryIndexResponse:
        return pb.RepositoryIndexResponse(models=models)

    assert list(whole_index([(0, index(ready, never)), (1, index(ready, never))]).models) == [ready, never]
    assert list(whole_index([(0, index(gone)), (1, index(gone))]).models) == [gone]
    [one] = whole_index([(0, index(ready)), (1, index(gone))]).models
    assert (one.state, one.reason) == ("UNAVAILABLE", "process 1: broken")
