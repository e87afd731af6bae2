"""The end of a server with calls under way: they are answered, within the grace."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, outputs_of, pb, request


@contextmanager
def busy_server(repository: Path, folder: Path, steps: int, *flags: str) -> Iterator[tuple[ServerProcess, Any, Any]]:
    """A server, a connection to it, and the future of a call that has begun and takes a millisecond per step."""
    message = request("slow", Tensor.of("INPUT", "INT64", [[steps]]))
    with (
        running(repository, folder, ["--load-models", "slow", *flags]) as process,
        channel_to(process.address) as channel,
    ):
        future = channel.unary_unary(INFER).future(message.SerializeToString(), timeout=60)
        call(channel, SERVICE + "ServerLive", b"")
        time.sleep(0.05)  # until the executor has taken it
        yield process, channel, future


def assert_answered(future: Any, steps: int) -> None:
    assert outputs_of(pb.ModelInferResponse.FromString(future.result()))["OUTPUT"].tolist() == [[steps]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_answers_what_is_under_way_before_it_ends(
    repository: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with busy_server(repository, tmp_path, 400) as (process, _, future):
        process.process.send_signal(number)
        assert_answered(future, 400)
        assert process.process.wait(20) == 0
        assert "Traceback" not in process.log


def test_server_that_stops_takes_no_new_connections_and_answers_the_old_ones(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path, 800) as (process, _, future):
        process.process.terminate()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", process.port), timeout=5).close()
            except ConnectionRefusedError:
                break
            time.sleep(0.01)
        else:
            pytest.fail("the server still accepts connections")
        assert_answered(future, 800)
        assert process.process.wait(20) == 0


def test_calls_cut_off_at_the_end_of_the_grace_make_the_exit_code_1(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path, 1500, "--shutdown-grace", "0.2") as (process, _, future):
        assert process.stop() == 1
        assert future.exception().code().name == "UNAVAILABLE"


def test_a_call_cut_off_on_one_of_several_workers_makes_the_exit_code_1(repository: Path, tmp_path: Path) -> None:
    flags = ["--shutdown-grace", "0.2", "--processing-cores", "3"]
    with busy_server(repository, tmp_path, 1500, *flags) as (process, _, future):
        assert process.stop() == 1
        assert future.exception().code().name == "UNAVAILABLE"


def test_a_second_signal_ends_the_grace(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path, 1500) as (process, _, future):
        process.process.terminate()
        time.sleep(0.1)
        assert process.stop() == 1
        assert future.exception().code().name == "UNAVAILABLE"


def test_calls_of_a_client_that_leaves_do_not_hold_up_the_end(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path, 300) as (process, _, future):
        future.cancel()
        assert process.stop() == 0
