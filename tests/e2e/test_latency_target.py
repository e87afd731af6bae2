"""A model with a latency target: who would be late is told at once, over gRPC and REST, and is counted."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.control import client_of
from tests.e2e.held import Runs, running_held
from tests.e2e.http import peer_of, post
from tests.e2e.models import CONFIG, add_model, heavy_model
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import pb, triton
from tests.waiting import wait_until
from toutates.bench.load import Asked, Load, run_load

TARGET_MS: Final = 400
BODY: Final = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}]})


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Runs]]:
    root = tmp_path_factory.mktemp("target")
    target = f"latency_target_ms: {TARGET_MS}\n"
    # Its runs are not so quick that a worker would do them itself, and be held as well.
    add_model(root / "models", "m", heavy_model(2), config=CONFIG.format(8, 128) + target)
    with running_held(root / "models", root, ["--metrics-addr", "127.0.0.1:0"], model="m") as (process, runs):
        yield process, runs
        assert process.stop() == 0
        assert "Traceback" not in process.log


def inputs() -> list[Any]:
    tensor = triton.InferInput("INPUT", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.full((1, 64), 0.5, np.float32))
    return [tensor]


def metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        return str(answer.read().decode())


def test_who_would_be_late_is_refused_at_once_and_what_waited_too_long_is_not_run(
    held: tuple[ServerProcess, Runs],
) -> None:
    server, runs = held
    answers: SimpleQueue[tuple[str, str]] = SimpleQueue()

    def note(result: Any, error: Any) -> None:
        answers.put((error.status() or "", error.message()) if error is not None else ("", ""))

    with client_of(server) as client:
        client.infer("m", inputs())  # whose run tells what runs take
        begun = runs.begun
        with runs.held():

            def is_begun() -> bool:
                if runs.begun == begun:  # on a slow machine one may be refused for what the last run has taken
                    client.async_infer("m", inputs(), note)
                return runs.begun > begun

            wait_until(is_begun)
            # The longer the run is over its time, the longer others would wait.
            refused: list[tuple[str, str]] = []

            def is_refused() -> bool:
                client.async_infer("m", inputs(), note)
                while not answers.empty():
                    refused.append(answers.get())
                return bool(refused)

            wait_until(is_refused)
            code, text = refused[0]
            assert code == "StatusCode.UNAVAILABLE"
            assert text.startswith(f"model 'm' has a latency target of {TARGET_MS} ms, and this request would take ")
            with peer_of(server.port) as peer:
                answer = peer.ask(post("/v2/models/m/infer", BODY))
            assert answer.status == 503
            assert int(answer.fields["retry-after"]) >= 1
            assert answer.document["error"].startswith("model 'm' has a latency target")
    page = metrics(server)
    assert 'toutates_latency_target_seconds{model="m",version="1"} 0.4' in page
    assert 'toutates_run_fixed_seconds{model="m",version="1"}' in page


def test_a_timeout_that_the_model_cannot_keep_is_refused_with_the_callers_status(
    held: tuple[ServerProcess, Runs],
) -> None:
    server, _ = held
    with client_of(server) as client:
        # While nobody else asks, a request is let in now and then, whatever its deadline.
        def is_refused() -> bool:
            status, text = outcome(client)
            return status == "StatusCode.DEADLINE_EXCEEDED" and "its deadline is before" in text

        wait_until(is_refused)
        assert "its deadline is before" not in outcome(client, 3_600_000_000)[1]


def outcome(client: Any, timeout_us: int = 1) -> tuple[str, str]:
    """Status and text that a request with a timeout of its own comes to; of an answer both are empty."""
    try:
        client.infer("m", inputs(), timeout=timeout_us)
    except triton.InferenceServerException as error:
        return error.status(), error.message()
    return "", ""


def test_a_rated_executor_waits_for_its_resource_and_too_little_of_one_is_a_reason(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 1), ("greedy", 3)):
        limits = f"rate_limits: [{{resources: [{{name: R, count: {count}}}]}}]\n"
        add_model(tmp_path / "models", name, heavy_model(1), config=CONFIG.format(8, 8) + limits)
    flags = ["--rate-limit=execution_count", "--rate-limit-resource=R:2", "--strict-readiness=false"]
    with running_held(tmp_path / "models", tmp_path, flags, model="a") as (server, runs), client_of(server) as client:
        (reason,) = [model.reason for model in client.get_model_repository_index().models if model.name == "greedy"]
        assert reason.endswith(
            'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 3"
        )
        with runs.held():
            answers: SimpleQueue[Any] = SimpleQueue()
            begun = runs.begun
            client.async_infer("a", inputs(), lambda result, error: answers.put(error))
            runs.wait_begun(begun + 1)
            # There is one more of the resource.
            client.infer("b", inputs())
        assert answers.get(timeout=120) is None
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.mark.alone
def test_three_times_the_load_leaves_half_of_the_goodput_or_more(tmp_path: Path) -> None:
    target_ms = 300
    config = CONFIG.format(4, 512) + f"latency_target_ms: {target_ms}\n"
    add_model(tmp_path / "models", "m", heavy_model(20), config=config)
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[np.full(64, 0.5, np.float32).tobytes()])
    request.inputs.add(name="INPUT", datatype="FP32", shape=(1, 64))
    asked = [Asked("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())]
    with running(tmp_path / "models", tmp_path) as server:
        load = partial(Load, "127.0.0.1", server.port, asked, connections=8, patience_s=60, bound_ms=target_ms)
        run_load(load(rate=None, seconds=1, under_way=8))  # tells what runs take

        def saturated() -> float:
            full = run_load(load(rate=None, seconds=3, under_way=8)).outcome
            return full.total.answered / max(full.seconds, full.last_answer_s)

        after = saturated()
        for _ in range(5):
            before = after
            over = run_load(load(rate=3 * before, seconds=4)).outcome.total
            # Other tests may have had the cores only before the load, which was less than three times as much then.
            after = saturated()
            if after < 1.25 * before:
                break
        assert before > 0
        # A queue that is full of requests for longer than the target answers next to nothing in time.
        assert over.in_time / 4 > before / 2
        assert over.statuses["UNAVAILABLE"] > over.offered / 4


def test_check_says_which_models_cannot_have_a_target(tmp_path: Path) -> None:
    config = CONFIG.format(8, 4) + "latency_target_ms: 10\nmax_queue_delay_us: 6000\n"
    add_model(tmp_path, "m", heavy_model(1), config=config)
    checked = run("check", str(tmp_path))
    assert checked.returncode == 1
    assert "latency_target_ms: batches wait 6000 us for more rows, which is more than half" in checked.stdout
