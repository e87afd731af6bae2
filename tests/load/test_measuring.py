"""How many processes make a load: as many as are needed, where that is left to the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from toutates.bench import measuring
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.latencies import Latencies
from toutates.bench.load import Load, LoadResult, Watcher
from toutates.bench.measuring import Prepared, Questions, measure
from toutates.bench.outcome import Outcome, OutcomeOfRequest

LOAD = Load("host", 1, (), 8, None, 1.0)


def client_of(need: float, made: list[int]) -> Callable[[Load, Watcher], LoadResult]:
    """A client that would use so much of a core for all requests; ``made`` gets how many processes made each load."""

    def run_load(load: Load, watcher: Watcher) -> LoadResult:
        made.append(load.processes)
        took = Latencies()
        took.record(np.array([1_000_000]))
        one = OutcomeOfRequest(1, 1, 1, Counter(OK=1), took, took)
        return LoadResult(Outcome(1.0, [one], Latencies(), min(1.0, need / load.processes)), {}, [])

    return run_load


@pytest.mark.parametrize(
    ("need", "most", "made"),
    [
        (0.7, 8, [1, 1]),
        (1.5, 8, [1, 2, 2]),
        (3.0, 8, [1, 2, 4, 4]),
        (9.0, 3, [1, 2, 3, 3]),
        (9.0, 64, [1, 2, 4, 8, 8]),  # of eight connections
        (9.0, 1, [1, 1]),
    ],
)
def test_a_load_whose_clients_are_too_busy_is_made_again_by_more(
    monkeypatch: pytest.MonkeyPatch, need: float, most: int, made: list[int]
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(measuring, "run_load", client_of(need, seen))
    prepared = Prepared(Endpoint(GRPC, "127.0.0.1", 1), Questions(()), [], [], [])
    measured = measure(prepared, LOAD, repeats=2, most_processes=most)
    assert seen == made
    assert measured.processes == made[-1]
    assert len(measured.outcomes) == 2
    assert ("was the bottleneck" in measured.doubt()) is (need / made[-1] > 0.95)
