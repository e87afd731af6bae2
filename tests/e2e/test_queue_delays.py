"""Models whose batches wait for more rows, in a server: their threads, their end, and their callers' deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, grpc, infer, outputs_of, pb, request
from tests.threads import threads_by_id
from tests.triton_repository import add_model, negative
from tests.waiting import wait_until

#: Models with a short delay; "patient" has one of a minute.
NAMES = [f"delayed_{number}" for number in range(200)]
EXECUTORS = 2
CONFIG = """
backend: supertensor
batch_size: 4
capacity: 4
num_executors: 1
allocator: cpu
max_queue_delay_us: {delay_us}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository."""
    root = tmp_path_factory.mktemp("delays")
    model = negative().SerializeToString()
    for name in [*NAMES, "patient"]:
        folder = add_model(root, name, model)
        delay_us = 60_000_000 if name == "patient" else 20_000
        (folder / "config.yaml").write_text(CONFIG.format(delay_us=delay_us))
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without a model at first."""
    flags = ["--model-control-mode", "explicit", "--executor-threads", str(EXECUTORS)]
    with running(root, tmp_path_factory.mktemp("log"), flags) as process:
        yield process


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    """A connection."""
    with channel_to(server.address) as opened:
        yield opened


def load(channel: Any, name: str) -> None:
    message = pb.RepositoryModelLoadRequest(model_name=name)
    call(channel, SERVICE + "RepositoryModelLoad", message.SerializeToString())


def unload(channel: Any, name: str) -> None:
    message = pb.RepositoryModelUnloadRequest(model_name=name)
    call(channel, SERVICE + "RepositoryModelUnload", message.SerializeToString())


def ask(channel: Any, name: str, timeout: float | None = 60) -> Any:
    """A request for one row of a model."""
    message = request(name, Tensor.of("INPUT", "FP32", [[1, 2, 3, 4]]))
    return channel.unary_unary(INFER).future(message.SerializeToString(), timeout=timeout)


def assert_answered(future: Any) -> None:
    output = outputs_of(pb.ModelInferResponse.FromString(future.result()))["OUTPUT"]
    assert output.tolist() == [[-1, -2, -3, -4]]


def executors_of(server: ServerProcess) -> list[str]:
    """The names of its threads that run batches."""
    return sorted(name for name, _ in threads_by_id(server.process.pid).values() if name.startswith("executor"))


def test_two_hundred_models_with_a_delay_have_the_threads_of_one(server: ServerProcess, channel: Any) -> None:
    load(channel, NAMES[0])
    assert_answered(ask(channel, NAMES[0]))
    wait_until(lambda: len(executors_of(server)) == EXECUTORS)  # each says its name a moment after its start
    for name in NAMES[1:]:
        load(channel, name)
    for future in [ask(channel, name) for name in NAMES]:
        assert_answered(future)
    # While many wait at once, and runs last, there may be helpers for a moment.
    wait_until(lambda: len(executors_of(server)) == EXECUTORS)
    for name in NAMES:
        unload(channel, name)


def test_a_request_waits_for_its_delay_over_the_network_too(channel: Any) -> None:
    load(channel, NAMES[1])
    for _ in range(5):
        began_s = time.monotonic()
        infer(channel, request(NAMES[1], Tensor.of("INPUT", "FP32", [[1, 2, 3, 4]])))
        assert time.monotonic() - began_s >= 0.02
    unload(channel, NAMES[1])


@pytest.mark.parametrize("how", ["unloaded", "loaded anew"])
def test_what_waits_is_answered_when_its_model_is_unloaded_or_replaced(root: Path, channel: Any, how: str) -> None:
    load(channel, "patient")
    future = ask(channel, "patient")
    with pytest.raises(grpc.FutureTimeoutError):
        future.result(timeout=0.3)
    if how == "unloaded":
        unload(channel, "patient")
    else:
        config = root / "patient" / "1" / "config.yaml"
        config.write_text(config.read_text() + "# another one\n")
        load(channel, "patient")
    assert_answered(future)
    unload(channel, "patient")


def test_a_deadline_ends_a_wait_and_the_next_full_batch_runs(channel: Any) -> None:
    load(channel, "patient")
    late = ask(channel, "patient", timeout=0.2)
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    futures = [ask(channel, "patient") for _ in range(4)]
    assert_answered(futures[0])
    unload(channel, "patient")
    for future in futures[1:]:
        assert_answered(future)
