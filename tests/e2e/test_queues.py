"""What may wait: requests of many shapes, and as many requests as Triton's configuration says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.held import Runs, running_held
from tests.e2e.process import ServerProcess
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, infer, outputs_of, pb, refused, request, triton
from tests.triton_repository import add_model, write_config

WIDTHS = range(100, 140)
QUEUE = 8


def detector() -> bytes:
    """Means of what three convolutions make of an image of any size, some milliseconds for each."""
    rng = np.random.default_rng(1)
    sizes = ((32, 3), (32, 32), (4, 32))
    weights = [numpy_helper.from_array(rng.normal(size=(*size, 3, 3)).astype(np.float32), f"w{size}") for size in sizes]
    nodes, last = [], "INPUT"
    for at, weight in enumerate(weights):
        nodes.append(helper.make_node("Conv", [last, weight.name], [f"c{at}"], pads=[1, 1, 1, 1]))
        last = f"c{at}"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["OUTPUT"]))
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["n", 3, 32, "width"])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["n", 4, 1, 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def queueing(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    """A server, and the runs of its model "slow"."""
    root = tmp_path_factory.mktemp("queues")
    add_model(root, "detector", detector())
    shutil.copytree(repository / "slow" / "1", root / "slow" / "1", ignore=shutil.ignore_patterns("config.yaml"))
    policy = f"default_queue_policy {{ max_queue_size: {QUEUE} }}"
    write_config(root, "slow", f"max_batch_size: 32\ndynamic_batching {{ {policy} }}\n")
    with running_held(root, tmp_path_factory.mktemp("log")) as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def server(queueing: tuple[ServerProcess, Runs]) -> ServerProcess:
    return queueing[0]


def slow(steps: int, rows: int = 1) -> Any:
    return request("slow", Tensor.of("INPUT", "INT64", np.full((rows, 1), steps)), id=f"steps {steps}")


def send(channel: Any, message: Any) -> Any:
    return channel.unary_unary(INFER).future(message.SerializeToString(), timeout=120)


def wait_until_read(channel: Any) -> None:
    """Until the server has read what was sent before."""
    call(channel, SERVICE + "ServerReady", b"")


def test_forty_callers_of_forty_widths_are_all_answered_as_if_each_were_alone(server: ServerProcess) -> None:
    images = [np.random.default_rng(width).normal(size=(1, 3, 32, width)).astype(np.float32) for width in WIDTHS]
    messages = [request("detector", Tensor.of("INPUT", "FP32", image)) for image in images]
    with channel_to(server.address) as channel:
        for _ in range(3):
            futures = [send(channel, message) for message in messages]
            together = [outputs_of(pb.ModelInferResponse.FromString(future.result()))["OUTPUT"] for future in futures]
        for message, answer in zip(messages[::10], together[::10], strict=True):
            np.testing.assert_allclose(answer, outputs_of(infer(channel, message))["OUTPUT"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 32], ids=["a row each", "whole batches"])
def test_max_queue_size_counts_requests_that_wait_and_its_refusal_is_tritons(
    queueing: tuple[ServerProcess, Runs], rows: int
) -> None:
    server, runs = queueing
    with channel_to(server.address) as channel, runs.held():
        begun = runs.begun
        running_one = send(channel, slow(1))
        runs.wait_begun(begun + 1)
        waiting = [send(channel, slow(1, rows)) for _ in range(QUEUE)]
        wait_until_read(channel)
        status, text = refused(channel, slow(2))
        assert not running_one.done()
        assert status == "UNAVAILABLE"
        assert text == (
            f"[request id: steps 2] Exceeds maximum queue size: {QUEUE} requests wait for model 'slow'; try again "
            "later, or raise 'dynamic_batching.default_queue_policy.max_queue_size' in its config.pbtxt (now 8)"
        )
        runs.allow(1 + QUEUE)
        for future in (running_one, *waiting):
            future.result()
    with channel_to(server.address) as channel:
        infer(channel, slow(1))


def test_model_config_shows_the_queue(server: ServerProcess) -> None:
    config = triton.InferenceServerClient(server.address).get_model_config("slow").config
    assert config.dynamic_batching.default_queue_policy.max_queue_size == QUEUE
