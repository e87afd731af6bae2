"""Executors whose threads die: what clients see, and that nothing is lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.wire import client_of, framed
from tests.kinds import MadeKind
from tests.server.adding import SIGNATURE, Adding
from tests.server.asking import INFER, SERVICE, added, is_ready, versions
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.engine import executor_threads as threads_module
from toutates.engine.batched import BatchedServable
from toutates.engine.servable import Servable
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.grpc_service_pb2 import ModelStatisticsRequest, RepositoryIndexResponse, ServerReadyResponse

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
#: A row that the faults below are waiting for.
FATAL: Final = -666


class Ended(BaseException):
    """No Exception: it ends the thread."""


class Mortal(Adding):
    """A row of FATAL ends the thread that runs it."""

    def run(self, batch: Any, first: int, rows: int) -> Any:
        self.started_ns = self.ended_ns = time.monotonic_ns()
        if (batch.lane.inputs(batch, first, rows)[0] == FATAL).any():
            raise Ended
        return super().run(batch, first, rows)


def mortal(executors: int = 1) -> MadeKind:
    """A kind of models whose threads die; nothing is run inline."""

    def make(model: str, number: int, folder: Path) -> Servable:
        supertensor = SuperTensor(model, SIGNATURE, batch_size=8, capacity=16, quick_ns=0)
        return BatchedServable(number, supertensor, [Mortal(number) for _ in range(executors)], pooled=True)

    return MadeKind("model.onnx", make, "mortal")


def test_a_model_whose_executor_died_is_not_ready_until_it_is_replaced(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The first replacement comes at once, the second never.
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 1e9)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 1e9)

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as watcher:
            watch = watcher.start("/grpc.health.v1.Health/Watch")
            watcher.send(watch, framed(b""))
            assert added(client.call(INFER, versions(1))) == 11
            for _ in range(2):
                # It waits for a batch: that it is ready could still be said of the thread that has died.
                wait_until(lambda: inside.occupancy("versions").idle_executors == 1)
                assert is_ready(client, "versions")
                dead = client.call(INFER, versions(FATAL))
                assert dead.status == ("13", "running the batch failed: Ended")
            while not watcher.answers[watch].data.endswith(framed(NOT_SERVING)):
                assert watcher.receive()
            assert not is_ready(client, "versions")
            assert not is_ready(client, "versions", "10")
            assert is_ready(client, "versions", "2")
            assert not ServerReadyResponse.FromString(client.call(SERVICE + "ServerReady", b"").data[5:]).ready
            assert client.call("/grpc.health.v1.Health/Check", b"").data[5:] == NOT_SERVING
            # No older version takes its place; who asks for one gets it.
            text = "Request for unknown model: 'versions' version 10 is not at ready state"
            assert client.call(INFER, versions(1)).status == ("14", text)
            assert client.call(INFER, versions(1, "10")).status == ("14", text)
            assert added(client.call(INFER, versions(1, "2"))) == 3
            index = client.call(SERVICE + "RepositoryIndex", b"").data[5:]
            states = {model.version: model for model in RepositoryIndexResponse.FromString(index).models}
            assert [states[version].state for version in ("1", "2", "10")] == ["READY", "READY", "UNAVAILABLE"]
            assert states["10"].reason == "Internal: its executors died and are replaced"
            statistics = ModelStatisticsRequest(name="versions", version="10").SerializeToString()
            assert client.call(SERVICE + "ModelStatistics", statistics).status == ("0", "")
            assert inside.occupancy("versions").in_flight == 0

    assert serve(few, visit, kinds=[mortal()]) == 0
    assert "executor-0 versions of version 10 died (1 in a row); it is replaced at once" in caplog.text
    assert "died (2 in a row); it is replaced in 1e+09 s" in caplog.text


def test_executors_that_die_again_and_again_are_replaced_and_nothing_is_lost(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 0.05)

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            deaths = 0
            while deaths < 8:
                streams = [client.start(INFER) for _ in range(5)]
                numbers = [deaths, deaths + 1, FATAL, deaths + 2, deaths + 3]
                for stream, number in zip(streams, numbers, strict=True):
                    client.send(stream, framed(versions(number)))
                for stream, number in zip(streams, numbers, strict=True):
                    # Those who shared the batch share its end; those who came after it wait for the next thread, or
                    # are told that there is none.
                    status = client.answer(stream).status[0]
                    assert status in ("13", "14") if number == FATAL else status in ("0", "13", "14")
                    deaths += number == FATAL and status == "13"
                    if status == "0":
                        assert added(client.answers[stream]) == number + 10

            def is_served() -> bool:
                stream = client.start(INFER)
                client.send(stream, framed(versions(5)))
                return client.answer(stream).status[0] == "0" and added(client.answers[stream]) == 15

            wait_until(is_served)  # the news of the last death may come after its answer
            inside.wait_quiet()
            wait_until(lambda: inside.occupancy("versions").idle_executors == 1)
            assert inside.server.manager.counters.executor_deaths == deaths

    assert serve(few, visit, kinds=[mortal()]) == 0
    assert "died (8 in a row); it is replaced in 0.05 s" in caplog.text


def test_requests_that_wait_while_an_executor_is_replaced_are_answered(few: Path) -> None:
    deaths = []

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client, client_of(inside.port) as other:
            waiting: list[int] = []

            class Between(logging.Handler):
                """In the main thread, between the death and the news of it: requests still go the usual way."""

                def emit(self, record: logging.LogRecord) -> None:
                    if "died" in record.msg:
                        waiting.append(other.start(INFER))
                        other.send(waiting[-1], framed(versions(1)))
                        wait_until(lambda: inside.occupancy("versions").in_flight == 1)
                        deaths.append(record)

            handler = Between()
            threads_module.logger.addHandler(handler)
            assert added(client.call(INFER, versions(1))) == 11
            assert client.call(INFER, versions(FATAL)).status[0] == "13"
            wait_until(lambda: deaths)
            threads_module.logger.removeHandler(handler)
            assert added(other.answer(waiting[0])) == 11

    assert serve(few, visit, kinds=[mortal()]) == 0
    assert len(deaths) == 1


def test_one_of_two_executors_that_dies_leaves_the_model_ready(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads_module, "FIRST_PAUSE_S", 1e9)
    monkeypatch.setattr(threads_module, "MAX_PAUSE_S", 1e9)
    (tmp_path / "models" / "versions").mkdir(parents=True)
    os.symlink(repository / "versions" / "1", tmp_path / "models" / "versions" / "1")

    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            # Of three deaths of two executors, two at least are of one, which then stays dead.
            while "(2 in a row)" not in caplog.text:
                assert client.call(INFER, versions(FATAL)).status[0] == "13"
                wait_until(
                    lambda: (
                        inside.occupancy("versions").idle_executors == 2
                        or ("(2 in a row)" in caplog.text and inside.occupancy("versions").idle_executors == 1)
                    )
                )
            assert is_ready(client, "versions")
            for number in range(8):
                assert added(client.call(INFER, versions(number))) == number + 1

    assert serve(tmp_path / "models", visit, kinds=[mortal(2)]) == 0


def test_the_tests_of_this_module_leave_no_threads() -> None:
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("executor-")])
