"""Requests that are looked at closely, what is counted of all of them, and what of those that are refused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.wire import Client, client_of, framed
from tests.server.inside import Inside, serve
from tests.waiting import DEADLINES_S, wait_until
from toutates.backends.onnx.session import ModelSession
from toutates.engine.counters import size_bucket, time_bucket
from toutates.h2grpc import Status
from toutates.infer.observing import STEPS_INTERVAL, Observation, Observer, Sampling
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    """A model of batches of two rows that takes as long as it is told to, and one of rows of any length."""
    for name in ("slow", "dynamic"):
        os.symlink(repository / name, tmp_path / name)
    return tmp_path


def slow(steps: int, rows: int = 1, request_id: str = "") -> bytes:
    message = ModelInferRequest(model_name="slow", id=request_id)
    message.inputs.add(name="INPUT", datatype="INT64", shape=[rows, 1])
    message.raw_input_contents.append(np.full(rows, steps, np.int64).tobytes())
    return message.SerializeToString()


def begin(client: Client, message: bytes, *headers: tuple[str, str]) -> int:
    stream = client.start(INFER, headers)
    client.send(stream, framed(message))
    return stream


def call(client: Client, message: bytes, *headers: tuple[str, str]) -> str:
    """A call's grpc-status."""
    return client.answer(begin(client, message, *headers)).status[0]


def observer_of(inside: Inside) -> Observer:
    return inside.server.workers.infer[0].observer


def observe(inside: Inside, interval: int) -> list[Observation]:
    """The observations of one of ``interval`` requests, from now on."""
    seen: list[Observation] = []
    done: list[None] = []

    def sample() -> None:
        observer_of(inside).sample(Sampling(seen.append), interval)
        done.append(None)

    inside.workers[0].call_soon(sample)
    wait_until(lambda: done)
    return seen


def times(observation: Observation) -> list[int]:
    return [
        observation.arrival_ns,
        observation.found_ns,
        observation.copied_ns,
        observation.taken_ns,
        observation.started_ns,
        observation.ended_ns,
        observation.done_ns,
        observation.answered_ns,
    ]


def test_a_request_s_way_is_written_down_step_by_step(models: Path) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        before_ns = time.monotonic_ns()
        with client_of(inside.port) as client:
            # By the long way, by the scan, and by its layout.
            for number in range(4):
                assert call(client, slow(3, rows=2, request_id=f"r-{number}")) == "0"
            peer = "{}:{}".format(*client.sock.getsockname()[:2])
        wait_until(lambda: len(seen) == 4)
        assert [observation.request_id for observation in seen] == ["r-0", "r-1", "r-2", "r-3"]
        for observation in seen:
            assert times(observation) == sorted(times(observation))
            assert before_ns < observation.arrival_ns
            assert observation.ended_ns - observation.started_ns > 100_000
            assert observation.version is inside.version("slow")
            assert (observation.rows, observation.batch_rows) == (2, 2)
            assert (observation.status, observation.text) == (Status.OK, "")
            assert observation.peer == peer
        assert observer_of(inside).under_way == 0

    assert serve(models, visit) == 0


def test_a_request_that_fills_its_batch_and_is_run_at_once_has_all_its_steps(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mlp" / "1"
    folder.mkdir(parents=True)
    os.symlink(repository / "mlp" / "1" / "model.onnx", folder / "model.onnx")
    keys = {"backend": "supertensor", "batch_size": 1, "capacity": 4, "num_executors": 1, "allocator": "cpu"}
    (folder / "config.yaml").write_text("\n".join(f"{key}: {value}" for key, value in keys.items()))
    message = ModelInferRequest(model_name="mlp")
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1, 64])
    message.raw_input_contents.append(bytes(256))
    requests = 30  # the first of which shows how quick the model is: then the worker runs it before it says more

    def visit(inside: Inside) -> None:
        seen: list[tuple[Observation, list[int]]] = []
        done: list[None] = []

        def sample() -> None:
            sampling = Sampling(lambda observation: seen.append((observation, times(observation))))
            observer_of(inside).sample(sampling, 1)
            done.append(None)

        inside.workers[0].call_soon(sample)
        wait_until(lambda: done)
        with client_of(inside.port) as client:
            for _ in range(requests):
                assert call(client, message.SerializeToString()) == "0"
        wait_until(lambda: len(seen) == requests)
        for observation, steps in seen:
            assert all(steps)
            assert steps == sorted(steps) == times(observation)

    assert serve(tmp_path, visit) == 0


@pytest.mark.parametrize("interval", [2, 7])
def test_one_of_so_many_requests_is_observed(models: Path, interval: int) -> None:
    requests = 280

    def visit(inside: Inside) -> None:
        seen = observe(inside, interval)
        with client_of(inside.port) as client:
            for _ in range(requests // 40):
                # Many in one round, of which more than one may be due.
                streams = [begin(client, slow(0)) for _ in range(40)]
                assert {client.answer(stream).status[0] for stream in streams} <= {"0", "8"}
        inside.wait_quiet()
        assert abs(len(seen) - requests // interval) <= 1 + 40 // interval

    assert serve(models, visit) == 0


def test_nobody_is_observed_once_a_sampling_wants_none(models: Path) -> None:
    def visit(inside: Inside) -> None:
        seen: list[Observation] = []
        sampling = Sampling(seen.append)
        with client_of(inside.port) as client:
            for interval, expected in ((1, 2), (0, 2), (1, 4)):
                done: list[None] = []

                def sample(interval: int = interval, done: list[None] = done) -> None:
                    observer_of(inside).sample(sampling, interval)
                    done.append(None)

                inside.workers[0].call_soon(sample)
                wait_until(lambda done=done: done)  # type: ignore[misc]
                for _ in range(2):
                    assert call(client, slow(0)) == "0"
                inside.wait_quiet()
                wait_until(lambda expected=expected: len(seen) >= expected)  # type: ignore[misc]
                assert len(seen) == expected

    assert serve(models, visit) == 0


def test_refused_requests_are_observed_and_counted(models: Path) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        unknown = ModelInferRequest(model_name="nobody").SerializeToString()
        wrong = slow(1).replace(b"INT64", b"INT32")
        with client_of(inside.port) as client:
            assert call(client, unknown) == str(Status.NOT_FOUND.value)
            assert call(client, wrong) == str(Status.INVALID_ARGUMENT.value)
            assert call(client, b"\xff\xff") == str(Status.INTERNAL.value)
            assert call(client, slow(1)) == "0"
        wait_until(lambda: len(seen) == 4)
        assert [observation.status for observation in seen] == [
            Status.NOT_FOUND,
            Status.INVALID_ARGUMENT,
            Status.INTERNAL,
            Status.OK,
        ]
        assert "nobody" in seen[0].text
        assert seen[0].version is None
        assert not seen[0].copied_ns
        assert seen[0].answered_ns > seen[0].arrival_ns
        counters = inside.server.workers.infer[0].counters
        assert (counters.unknown, counters.invalid, counters.overloaded) == (1, 1, 0)
        assert counters.parsed == 4
        requests = inside.version("slow").servable.counters.requests()
        assert (requests.refused, requests.overloaded, requests.success) == (1, 0, 1)

    assert serve(models, visit) == 0


def test_a_full_ring_is_counted_with_its_model(models: Path, runs: Runs) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        with client_of(inside.port) as client:
            with runs.held():
                streams = [begin(client, slow(1, rows=2)) for _ in range(10)]
                wait_until(lambda: len(seen) == 8)  # refused; two are in the ring
            answers = [client.answer(stream) for stream in streams]
        refused = [answer for answer in answers if answer.status[0] == "8"]
        assert len(refused) == 8
        wait_until(lambda: len(seen) == 10)
        assert inside.version("slow").servable.counters.requests().overloaded == len(refused)
        assert [observation.status for observation in seen].count(Status.RESOURCE_EXHAUSTED) == len(refused)
        assert all(observation.version is inside.version("slow") for observation in seen)

    assert serve(models, visit) == 0


def test_requests_in_flight_beyond_the_limit_are_counted(models: Path, runs: Runs) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        with client_of(inside.port) as client:
            with runs.held():
                streams = [begin(client, slow(1)) for _ in range(3)]
                wait_until(lambda: len(seen) == 2)
            answers = [client.answer(stream) for stream in streams]
        refused = [answer for answer in answers if answer.status[0] == "8"]
        assert len(refused) == 2
        assert inside.server.workers.infer[0].counters.overloaded == 2
        wait_until(lambda: len(seen) == 3)
        statuses = [observation.status for observation in seen]
        assert sorted(statuses) == [Status.OK, Status.RESOURCE_EXHAUSTED, Status.RESOURCE_EXHAUSTED]
        assert "--max-inflight-requests" in seen[0].text
        assert seen[0].version is None
        assert seen[0].answered_ns > 0
        assert observer_of(inside).under_way == 0

    assert serve(models, visit, max_inflight_requests=1) == 0


@pytest.mark.parametrize(("way", "status"), [("deadline", Status.DEADLINE_EXCEEDED), ("reset", Status.CANCELLED)])
def test_those_who_leave_are_observed_to_the_end(models: Path, runs: Runs, way: str, status: Status) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        with client_of(inside.port) as client:
            begun = runs.begun
            for deadline_s in DEADLINES_S:
                headers = [("grpc-timeout", f"{1_000 * deadline_s:.0f}m")] if way == "deadline" else []
                with runs.held():
                    stream = begin(client, slow(1), *headers)
                    wait_until(lambda: runs.begun > begun or seen)
                    if runs.begun > begun:
                        if way == "reset":
                            client.connection.reset_stream(stream, 8)
                            client.flush()
                        wait_until(lambda: inside.open_streams() == 0)
                        break
                inside.wait_quiet()
                seen.clear()  # its deadline passed before it ran
            wait_until(lambda: len(seen) == 1)
            inside.wait_quiet()
        assert seen[0].status is status
        assert times(seen[0]) == sorted(times(seen[0]))
        assert observer_of(inside).under_way == 0

    assert serve(models, visit) == 0


def test_a_request_in_several_batches_is_observed_once(models: Path) -> None:
    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        with client_of(inside.port) as client:
            assert call(client, slow(1, rows=3)) == "0"
        inside.wait_quiet()
        wait_until(lambda: seen)
        assert [(observation.rows, observation.status) for observation in seen] == [(3, Status.OK)]
        assert times(seen[0]) == sorted(times(seen[0]))
        assert observer_of(inside).under_way == 0

    assert serve(models, visit) == 0


def test_a_batch_that_fails_is_observed_with_its_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    def visit(inside: Inside) -> None:
        seen = observe(inside, 1)
        monkeypatch.setattr(ModelSession, "run", run)
        with client_of(inside.port) as client:
            assert call(client, slow(1)) == str(Status.INTERNAL.value)
        wait_until(lambda: seen)
        assert seen[0].status is Status.INTERNAL
        assert "RuntimeError" in seen[0].text
        requests = inside.version("slow").servable.counters.requests()
        assert (requests.fail, requests.broken, requests.rejected) == (1, 1, 0)

    assert serve(models, visit) == 0


def test_a_sink_that_fails_costs_nobody_anything(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(observation: Observation) -> None:
        raise RuntimeError("sink")

    def visit(inside: Inside) -> None:
        inside.workers[0].call_soon(lambda: observer_of(inside).sample(Sampling(broken), 1))
        with client_of(inside.port) as client:
            for _ in range(3):
                assert call(client, slow(0)) == "0"
        wait_until(lambda: caplog.text.count("could not be passed on") >= 2)

    assert serve(models, visit) == 0


def test_a_request_that_is_wanted_is_observed_whatever_the_interval(models: Path) -> None:
    seen: list[Observation] = []

    def visit(inside: Inside) -> None:
        infer = inside.server.workers.infer[0]
        method = inside.grpc(inside.workers[0]).methods[INFER.encode()]
        object.__setattr__(method, "unary", infer.observing_handler(Sampling(seen.append)))
        with client_of(inside.port) as client:
            headers = [("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"), ("tracestate", "vendor=1")]
            for _ in range(5):
                assert call(client, slow(0), *headers) == "0"
        wait_until(lambda: len(seen) == 5)

    assert serve(models, visit) == 0
    assert {observation.traceparent[:4] for observation in seen} == {"00-a"}
    assert {observation.tracestate for observation in seen} == {"vendor=1"}


# --- what is counted of every request


def test_every_answer_is_in_one_bucket_of_each_kind(models: Path) -> None:
    def visit(inside: Inside) -> None:
        with client_of(inside.port) as client:
            for rows in (1, 2, 2, 3):
                assert call(client, slow(2, rows=rows)) == "0"
        inside.wait_quiet()
        wait_until(lambda: inside.version("slow").servable.counters.requests().success == 4)
        counters = inside.version("slow").servable.counters
        requests = counters.requests()
        for buckets in (requests.durations, requests.queued, requests.starts, requests.runs, requests.replies):
            assert sum(buckets) == 4
        assert requests.sizes[:3] == [1, 2, 1]  # up to one row, up to two, up to four
        batches = sum(batch.count for batch in counters.batches().values())
        assert sum(counters.batch_durations()) == sum(counters.batch_runs()) == batches == 5
        # No request took less than ONNX Runtime did, and the longest is where its time belongs.
        last = max(at for at, count in enumerate(requests.durations) if count)
        assert last <= time_bucket(requests.success_ns)
        assert min(at for at, count in enumerate(requests.durations) if count) >= time_bucket(200_000)

    assert serve(models, visit) == 0


def test_some_requests_are_timed_to_their_plan_and_copy(models: Path) -> None:
    def visit(inside: Inside) -> None:
        observer = observer_of(inside)

        def observed() -> int:
            return sum(observer.steps["slow"].to_plan.buckets) if observer.steps else 0

        with client_of(inside.port) as client:
            for sent in range(1, STEPS_INTERVAL + 2):
                assert call(client, slow(0)) == "0"
                if sent == 1:
                    wait_until(lambda: observed() == 1)
        wait_until(lambda: observed() == 2)
        steps = observer.steps["slow"]
        assert sum(steps.to_copy.buckets) == 2
        assert 0 < steps.to_plan.sum_ns < 10**9
        assert 0 < steps.to_copy.sum_ns < 10**9

    assert serve(models, visit) == 0


@pytest.mark.parametrize(
    ("ns", "bucket"), [(1, 0), (12_500, 0), (12_501, 1), (25_000, 1), (100_000, 3), (100_001, 4), (200_000, 4)]
)
def test_buckets_of_times_end_where_they_say(ns: int, bucket: int) -> None:
    assert time_bucket(ns) == bucket


@pytest.mark.parametrize(("size", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)])
def test_buckets_of_sizes_end_where_they_say(size: int, bucket: int) -> None:
    assert size_bucket(size) == bucket


# --- what is counted of connections


def test_what_goes_over_connections_is_counted(models: Path) -> None:
    def visit(inside: Inside) -> None:
        traffic = inside.workers[0].traffic
        message = slow(0)
        with client_of(inside.port) as client:
            for _ in range(5):
                assert call(client, message) == "0"
            wait_until(lambda: traffic.streams == 5)  # while the connection is open
            assert traffic.connections == 1
            assert 5 * len(message) < traffic.received_bytes < 5 * len(message) + 2_000
            assert traffic.sent_bytes > 5 * 20
        with client_of(inside.port) as client:
            assert call(client, message) == "0"
        wait_until(lambda: traffic.streams == 6)  # at its end
        assert traffic.connections == 2
        assert inside.workers[0].lateness.count > 0
        clock = inside.workers[0].cpu_clock
        assert clock is not None
        assert 0 < time.clock_gettime(clock) < 60

    assert serve(models, visit) == 0
