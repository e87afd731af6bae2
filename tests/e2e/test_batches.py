"""Many clients at once: batches that are shared, split and joined, rings that are full, callers that leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.held import Runs
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import (
    INFER,
    SERVICE,
    Tensor,
    bytes_tensor,
    call,
    channel_to,
    grpc,
    infer,
    outputs_of,
    pb,
    refused,
    request,
    statistics_of,
)
from tests.waiting import DEADLINES_S, wait_until

#: Rows of addsub's ring: 4 batches of 8.
RING_ROWS = 32


@pytest.fixture
def server(held_server: tuple[ServerProcess, Runs]) -> ServerProcess:
    """The server of these tests."""
    return held_server[0]


@pytest.fixture
def runs(held_server: tuple[ServerProcess, Runs]) -> Runs:
    """The runs of its model "slow"."""
    return held_server[1]


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


def addsub(at: int, rows: int) -> Any:
    a = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16) + at
    return request(
        "addsub", Tensor.of("INPUT0", "INT32", a), Tensor.of("INPUT1", "INT32", np.full((rows, 16), at)), id=str(at)
    )


def assert_addsub(response: Any, at: int, rows: int) -> None:
    a = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16) + at
    assert response.id == str(at)
    outputs = outputs_of(response)
    np.testing.assert_array_equal(outputs["OUTPUT0"], a + at)
    np.testing.assert_array_equal(outputs["OUTPUT1"], a - at)


def slow(steps: int, rows: int = 1) -> Any:
    """A request that is answered with its number of steps."""
    return request("slow", Tensor.of("INPUT", "INT64", np.full((rows, 1), steps)), id=str(steps))


def send(channel: Any, message: Any, timeout: float | None = 30) -> Any:
    """Start a call and return its future."""
    return channel.unary_unary(INFER).future(message.SerializeToString(), timeout=timeout)


def send_and_wait_until_it_runs(channel: Any, runs: Runs, message: Any) -> Any:
    """Start a call and return its future, once its run has begun."""
    begun = runs.begun
    future = send(channel, message)
    runs.wait_begun(begun + 1)
    return future


def wait_until_read(channel: Any) -> None:
    """Until the server has read what was sent before on this connection."""
    call(channel, SERVICE + "ServerReady", b"")


def test_answers_of_many_clients_are_each_their_own(server: ServerProcess) -> None:
    def client(number: int) -> None:
        with channel_to(server.address) as channel:
            for at in range(30):
                assert_addsub(infer(channel, addsub(number * 100 + at, 1 + at % 2)), number * 100 + at, 1 + at % 2)

    with channel_to(server.address) as channel:
        before = statistics_of(channel, "addsub")
        # 12 clients of at most 2 rows each always fit the ring: one batch of any size that runs, and three that wait.
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(client, range(12)))
        after = statistics_of(channel, "addsub")
    assert after.inference_count - before.inference_count == 12 * 45
    assert after.inference_stats.success.count - before.inference_stats.success.count == 12 * 30


def test_requests_that_come_while_an_executor_is_busy_share_batches(channel: Any) -> None:
    before = statistics_of(channel, "mlp")
    values = np.random.default_rng(1).normal(size=(400, 1, 64)).astype(np.float32)
    futures = [send(channel, request("mlp", Tensor.of("INPUT", "FP32", value))) for value in values]
    responses = [pb.ModelInferResponse.FromString(future.result()) for future in futures]
    after = statistics_of(channel, "mlp")
    for value, response in list(zip(values, responses, strict=True))[::20]:
        alone = outputs_of(infer(channel, request("mlp", Tensor.of("INPUT", "FP32", value))))["OUTPUT"]
        np.testing.assert_allclose(outputs_of(response)["OUTPUT"], alone, rtol=1e-4, atol=1e-4)
    assert after.inference_count - before.inference_count == 400
    assert after.execution_count - before.execution_count < 400


@pytest.mark.parametrize("rows", [8, 9, 16, 31, RING_ROWS])
def test_a_request_larger_than_a_batch_is_split_and_joined(channel: Any, rows: int) -> None:
    before = statistics_of(channel, "addsub")
    for at in range(3):
        assert_addsub(infer(channel, addsub(at, rows)), at, rows)
    after = statistics_of(channel, "addsub")
    assert after.inference_count - before.inference_count == 3 * rows
    assert after.execution_count - before.execution_count == 3 * -(-rows // 8)
    assert after.inference_stats.success.count - before.inference_stats.success.count == 3


@pytest.mark.parametrize("datatype", ["BYTES", "BF16"])
def test_rows_of_other_kinds_are_split_and_joined(channel: Any, datatype: str) -> None:
    rows = 150
    if datatype == "BYTES":
        raw = bytes_tensor(*[str(at).encode() for at in range(rows * 4)])
    else:
        raw = np.arange(rows * 4, dtype=np.uint16).tobytes()
    response = infer(channel, request(f"identity_{datatype}", Tensor("INPUT", datatype, [rows, 4], raw)))
    assert list(response.outputs[0].shape) == [rows, 4]
    assert response.raw_output_contents[0] == raw


def test_large_and_small_requests_mix(server: ServerProcess) -> None:
    """Four clients of at most 7 rows each fit the ring at any time; the rows end up in the same batches."""

    def client(number: int) -> None:
        with channel_to(server.address) as channel:
            for at in range(40):
                rows = 1 + (at * 5 + number) % 7
                assert_addsub(infer(channel, addsub(at, rows)), at, rows)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))


def test_texts_of_many_clients_share_batches(server: ServerProcess) -> None:
    def client(number: int) -> None:
        with channel_to(server.address) as channel:
            for at in range(30):
                raw = bytes_tensor(*[f"{number}-{at}-{column}".encode() for column in range(4)])
                response = infer(channel, request("identity_BYTES", Tensor("INPUT", "BYTES", [1, 4], raw)))
                assert response.raw_output_contents[0] == raw

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


# --- a full ring


def test_a_full_ring_refuses_at_once_and_other_models_do_not_notice(channel: Any, runs: Runs) -> None:
    """slow holds 2 batches of 2 rows: one running and one waiting."""
    with runs.held():
        running_one = send_and_wait_until_it_runs(channel, runs, slow(3, 2))
        waiting = send(channel, slow(1, 2))
        wait_until_read(channel)
        status, text = refused(channel, slow(1))
        assert (status, text) == (
            "RESOURCE_EXHAUSTED",
            "model 'slow' has 4 of at most 4 rows waiting or running, and this request has 1 more; "
            "try again later, or raise 'capacity' or 'num_executors' in its config.yaml",
        )
        assert refused(channel, slow(1, 3))[0] == "RESOURCE_EXHAUSTED"
        assert_addsub(infer(channel, addsub(1, 8)), 1, 8)
        assert not running_one.done()
    for future, steps in ((running_one, 3), (waiting, 1)):
        response = pb.ModelInferResponse.FromString(future.result())
        assert outputs_of(response)["OUTPUT"].tolist() == [[steps]] * 2
    assert outputs_of(infer(channel, slow(1, 4)))["OUTPUT"].tolist() == [[1]] * 4


def test_refusals_of_a_full_ring_do_not_touch_the_statistics(channel: Any, runs: Runs) -> None:
    with runs.held():
        first = send_and_wait_until_it_runs(channel, runs, slow(1, 2))
        second = send(channel, slow(1, 2))
        wait_until_read(channel)
        before = statistics_of(channel, "slow")
        for _ in range(5):
            assert refused(channel, slow(1))[0] == "RESOURCE_EXHAUSTED"
        assert not first.done()
        assert statistics_of(channel, "slow") == before
    first.result()
    second.result()


# --- callers that leave


def test_a_client_timeout_ends_the_call_and_the_server_stays_well(channel: Any, runs: Runs) -> None:
    for deadline_s in DEADLINES_S:
        infer(channel, slow(1))  # what did not begin in its time, if anything, is counted by then
        before = statistics_of(channel, "slow").inference_stats
        with runs.held():
            begun = runs.begun
            assert refused(channel, slow(1), timeout=deadline_s)[0] == "DEADLINE_EXCEEDED"
            reached_the_server = runs.begun > begun
        if reached_the_server:
            break
    assert reached_the_server
    assert outputs_of(infer(channel, slow(1)))["OUTPUT"].tolist() == [[1]]
    after = statistics_of(channel, "slow").inference_stats
    assert after.fail.count - before.fail.count == 1
    assert after.fail.ns > before.fail.ns
    assert after.success.count - before.success.count == 1


def test_calls_cancelled_before_they_run_are_not_run(channel: Any, runs: Runs) -> None:
    with runs.held():
        busy = send_and_wait_until_it_runs(channel, runs, slow(1, 2))
        before = statistics_of(channel, "slow")
        leaving = send(channel, slow(5, 2))
        wait_until_read(channel)
        leaving.cancel()
        wait_until_read(channel)
    busy.result()
    assert outputs_of(infer(channel, slow(1)))["OUTPUT"].tolist() == [[1]]
    after = statistics_of(channel, "slow")
    assert after.execution_count - before.execution_count == 2
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.fail.count - before.inference_stats.fail.count == 1


def test_cancelling_one_half_of_a_batch_leaves_the_other_half_right(channel: Any, runs: Runs) -> None:
    with runs.held():
        busy = send_and_wait_until_it_runs(channel, runs, slow(1, 2))
        leaving, staying = send(channel, slow(3)), send(channel, slow(5))
        wait_until_read(channel)
        leaving.cancel()
        wait_until_read(channel)
    response = pb.ModelInferResponse.FromString(staying.result())
    assert (response.id, outputs_of(response)["OUTPUT"].tolist()) == ("5", [[5]])
    assert busy.result()
    assert leaving.cancelled()


def test_cancelling_every_second_call_of_hundreds_leaves_the_others_right(channel: Any) -> None:
    for _ in range(5):
        values = np.arange(200, dtype=np.float32).reshape(200, 1, 1)
        futures = [send(channel, request("dynamic", Tensor.of("INPUT", "FP32", value))) for value in values]
        for future in futures[::2]:
            future.cancel()
        for value, future in list(zip(values, futures, strict=True))[1::2]:
            response = pb.ModelInferResponse.FromString(future.result())
            np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -value)


def test_a_split_request_whose_caller_leaves_counts_as_one_failure(channel: Any, runs: Runs) -> None:
    before = statistics_of(channel, "slow").inference_stats.fail.count
    with runs.held():
        leaving = send_and_wait_until_it_runs(channel, runs, slow(1, 4))
        leaving.cancel()
        wait_until_read(channel)
    wait_until(lambda: refused_or_none(channel, slow(1, 4)) is None)
    assert statistics_of(channel, "slow").inference_stats.fail.count - before == 1


def refused_or_none(channel: Any, message: Any) -> Any:
    try:
        infer(channel, message)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_clients_that_disconnect_take_nothing_with_them(server: ServerProcess, channel: Any) -> None:
    def client(number: int) -> None:
        with channel_to(server.address) as own:
            futures = [send(own, addsub(at, 1)) for at in range(4)]
            error = futures[0].exception()
            if error is None:
                assert_addsub(pb.ModelInferResponse.FromString(futures[0].result()), 0, 1)
            else:  # rows of those who have left may still be in the ring
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Leaving the block closes the connection with calls under way.

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(client, range(60)))
    wait_until(lambda: refused_or_none(channel, addsub(0, RING_ROWS)) is None)
    # Every slot of the ring is there again.
    for at in range(20):
        assert_addsub(infer(channel, addsub(at, RING_ROWS)), at, RING_ROWS)


# --- several workers


def test_several_workers_share_batches(repository: Path, tmp_path: Path) -> None:
    """Outputs larger than what is copied before it is sent, because workers cut their answers from the same memory."""
    columns = 2_000

    def client(number: int) -> None:
        with channel_to(process.address) as channel:
            for at in range(25):
                value = np.full((1, columns), number * 1000 + at, np.float32)
                response = infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", value)))
                np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -value)
                assert_addsub(infer(channel, addsub(at, 1)), at, 1)

    with running(repository, tmp_path, ["--processing-cores", "3"]) as process:
        with ThreadPoolExecutor(24) as pool:
            list(pool.map(client, range(24)))
        with channel_to(process.address) as channel:
            assert statistics_of(channel, "dynamic").inference_count == 24 * 25
            assert statistics_of(channel, "addsub").inference_stats.success.count == 24 * 25
        assert process.stop() == 0
        assert "Traceback" not in process.log


def test_statistics_can_be_read_while_requests_are_answered(server: ServerProcess, channel: Any) -> None:
    stop = threading.Event()

    def load() -> None:
        with channel_to(server.address) as own:
            at = 0
            while not stop.is_set():
                infer(own, request("dynamic", Tensor.of("INPUT", "FP32", np.zeros((1 + at % 50, 3)))))
                at += 1

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(load) for _ in range(2)]
        last = 0
        for _ in range(50):
            statistics = statistics_of(channel, "dynamic")
            assert statistics.inference_count >= last
            last = statistics.inference_count
        stop.set()
        for future in futures:
            future.result()
