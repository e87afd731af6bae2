"""The load generator against a real server: what it sent was answered, and it says what was not."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess
from tests.ports import dead_port
from toutates.bench.arrivals import CONSTANT, make_schedule
from toutates.bench.client_connection import Request
from toutates.bench.driver import Driver
from toutates.bench.load import Asked, Load, LoadFailed, run_load
from toutates.bench.outcome import UNANSWERED, summarise
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

PATH = "/inference.GRPCInferenceService/ModelInfer"
ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


def message(model: str, row: np.ndarray[Any, Any] = ROW, datatype: str = "FP32") -> bytes:
    request = ModelInferRequest(model_name=model, raw_input_contents=[row.tobytes()])
    request.inputs.add(name="INPUT", datatype=datatype, shape=row.shape)
    return request.SerializeToString()


def load(port: int, rate: float | None) -> Load:
    asked = [Asked(PATH, message("dynamic"), 3), Asked(PATH, message("nosuch"), 1)]
    return Load("127.0.0.1", port, asked, connections=3, rate=rate, seconds=0.2, patience_s=60, under_way=8)


@pytest.mark.parametrize("rate", [500.0, None], ids=["open", "closed"])
def test_all_that_was_sent_was_answered(server: ServerProcess, rate: float | None) -> None:
    result = run_load(load(server.port, rate))
    known, unknown = result.outcome.requests
    assert known.statuses == {"OK": known.offered}
    assert unknown.statuses == {"NOT_FOUND": unknown.offered}
    assert known.offered > unknown.offered > 0
    assert known.from_intended.count == known.answered == known.offered
    assert "nosuch" in result.texts[5]
    assert result.samples
    for choice, answer in result.samples:
        assert choice == 0
        given = ModelInferResponse.FromString(answer).raw_output_contents[0]
        np.testing.assert_array_equal(np.frombuffer(given, np.float32), -ROW[0])


def test_requests_without_an_answer_are_told_when_patience_ends(held_server: tuple[ServerProcess, Runs]) -> None:
    server, runs = held_server
    request = Request(PATH, "localhost", message("slow", np.zeros((1, 1), np.int64), "INT64"))
    schedule = make_schedule(CONSTANT, 50, 0.1, [1], seed=0)
    with contextlib.closing(Driver(("127.0.0.1", server.port), 2, [request])) as driver, runs.held():
        record = driver.run_schedule(schedule, 0.1, patience_s=0)
    assert record.statuses.tolist() == [UNANSWERED] * 4
    assert summarise(record, 1, 10**9).total.statuses == {"UNANSWERED": 4}


def test_a_server_that_is_not_there_is_told() -> None:
    with dead_port() as port, pytest.raises(LoadFailed, match=f"127.0.0.1:{port}: .*refused"):
        run_load(load(port, 10))
