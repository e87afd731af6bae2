"""The load generator against a real server: what it sent was answered, and it says what was not."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess
from tests.ports import dead_port
from toutates.bench.arrivals import CONSTANT, Schedule, make_schedule
from toutates.bench.client_connection import ClientConnection, Request
from toutates.bench.driver import Driver
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.load import Asked, Load, LoadFailed, run_load
from toutates.bench.outcome import UNANSWERED
from toutates.bench.tally import summarise
from toutates.command.main import main
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
    endpoint = Endpoint(GRPC, "127.0.0.1", server.port)
    with contextlib.closing(Driver(endpoint, 2, [request], ClientConnection)) as driver, runs.held():
        record = driver.run_schedule(schedule, 0.1, patience_s=0)
    assert record.statuses.tolist() == [UNANSWERED] * 4
    assert summarise(record, 1, 10**9).total.statuses == {"UNANSWERED": 4}


def test_more_requests_than_memory_holds_are_told(server: ServerProcess) -> None:
    with pytest.raises(LoadFailed, match="the client failed: Unable to allocate"):
        run_load(load(server.port, 1e16))


def test_a_client_has_more_connections_than_a_process_has_small_descriptors(server: ServerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    schedule = make_schedule(CONSTANT, 100, 0.1, [1], seed=0)
    endpoint = Endpoint(GRPC, "127.0.0.1", server.port)

    def connected() -> ClientConnection:
        if not taken:  # what a thousand connections before this one would have taken
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1_100))
        return ClientConnection()

    try:
        with contextlib.closing(
            Driver(endpoint, 1, [Request(PATH, "localhost", message("dynamic"))], connected)
        ) as one:
            assert set(one.run_schedule(schedule, 0.1, patience_s=60).statuses.tolist()) == {0}
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_answers_to_a_warming_up_are_not_taken_for_those_of_the_load(held_server: tuple[ServerProcess, Runs]) -> None:
    server, runs = held_server
    rows = [np.full((1, 1), value, np.int64) for value in (1, 2)]
    requests = [Request(PATH, "localhost", message("slow", row, "INT64")) for row in rows]
    first, second = (Schedule(np.array([0]), np.array([choice])) for choice in (0, 1))
    endpoint = Endpoint(GRPC, "127.0.0.1", server.port)
    with contextlib.closing(Driver(endpoint, 1, requests, ClientConnection)) as driver:
        with runs.held():
            assert driver.run_schedule(first, 0.1, patience_s=0).statuses.tolist() == [UNANSWERED]
            driver.forget()
        assert driver.run_schedule(second, 0.1, patience_s=60).statuses.tolist() == [0]
        ((_, answer),) = driver.samples
    assert ModelInferResponse.FromString(answer[5:]).raw_output_contents[0] == rows[1].tobytes()


def test_a_server_that_is_not_there_is_told() -> None:
    with dead_port() as port, pytest.raises(LoadFailed, match=f"127.0.0.1:{port}: .*refused"):
        run_load(load(port, 10))


def bench(*arguments: str) -> int:
    return main(["bench", *arguments, "--seconds=0.1", "--repeats=2", "--connections=2", "--warmup=0.05"])


@pytest.mark.parametrize(
    "way", [["--rate", "300", "--arrivals", "gamma:4"], ["--concurrency", "2"]], ids=["open", "closed"]
)
def test_a_server_is_measured_and_its_answers_compared(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    address = f"127.0.0.1:{server.port}"
    models = ["--model", "dynamic=3", "--model", "texts", "--shape", "dynamic.INPUT:2,3"]
    code = bench(address, *models, *way, "--json", "--fail-if", "p99>60s", "--fail-if", "errors>0%")
    found = json.loads(capsys.readouterr().out)
    assert found["statuses"] == {"OK": found["statuses"]["OK"]}
    assert found["checked"] > 0
    assert found["wrong"] == found["failed"] == []
    assert len(found["repeats"]) == 2
    assert 0 < found["latency_us"]["p50"] <= found["latency_us"]["p99"] <= found["latency_us"]["max"]
    assert code == bool(found["doubt"])  # on a busy machine


def test_a_condition_that_holds_fails_the_command(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(f"127.0.0.1:{server.port}", "--model", "dynamic", "--fail-if", "p50>0.001us") == 1
    out = capsys.readouterr().out
    assert "FAILED: p50>0.001us" in out
    assert "0 wrong" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "nosuch"], 1, "NOT_FOUND: Request for unknown model: 'nosuch'"),
        (["--model", "dynamic", "--shape", "NONE:1"], 1, "model 'dynamic' has no input 'NONE'; it has 'INPUT'"),
        (["--model", "dynamic", "--shape", "INPUT:1,a"], 2, "--shape"),
        (["--model", "dynamic", "--shape", "m.INPUT:1"], 2, "names a model that is not asked"),
        (["--model", "dynamic=0"], 2, "write NAME or NAME=2.5"),
        (["--model", "dynamic", "--arrivals", "gamma:x"], 2, "write constant, poisson or gamma:4"),
        (["--model", "dynamic", "--rate", "0"], 2, "--rate"),
        (["--model", "dynamic", "--fail-if", "p99>10"], 2, "expected a condition such as p99>10ms"),
    ],
)
def test_what_cannot_be_measured_is_told(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert bench(f"127.0.0.1:{server.port}", *arguments) == code
    assert said in capsys.readouterr().err
