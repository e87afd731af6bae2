"""A client that asks many quick models at once: what its worker runs itself in one round is bounded in time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.models import add_model, versioned_model
from tests.e2e.wire import client_of, framed
from tests.server.inside import Inside, serve
from tests.waiting import PATIENCE_S
from toutates.backends.onnx import loader
from toutates.engine.executor import Executor
from toutates.net import worker as worker_module
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

MODELS = 12


def request(number: int) -> bytes:
    """A request to the model that adds a number."""
    message = ModelInferRequest(model_name=f"m{number}")
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 4])
    message.raw_input_contents.append(np.full(4, 100, np.int32).tobytes())
    return message.SerializeToString()


def ask_all(inside: Inside) -> list[int]:
    """Ask all models while the worker sleeps, so that it reads the requests together; returns what they answered."""
    asleep, over = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert over.wait(PATIENCE_S)

    with client_of(inside.port) as client:
        inside.workers[0].call_soon(sleep)
        assert asleep.wait(PATIENCE_S)
        streams = [client.start("/inference.GRPCInferenceService/ModelInfer") for _ in range(MODELS)]
        for number, stream in enumerate(streams):
            client.send(stream, framed(request(number)))
        over.set()
        answers = [ModelInferResponse.FromString(client.answer(stream).data[5:]) for stream in streams]
    return [int(np.frombuffer(answer.raw_output_contents[0], np.int32)[0]) for answer in answers]


@pytest.mark.parametrize("most_inline_ns", [1, 10**12], ids=["one run", "time enough"])
def test_a_round_runs_many_models_inline_only_as_long_as_it_has_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_inline_ns: int
) -> None:
    for number in range(MODELS):
        add_model(tmp_path, f"m{number}", versioned_model(number))
    # Whatever the machine takes for a run, it is quick.
    monkeypatch.setattr(loader, "QUICK_NS", 2**61)
    monkeypatch.setattr(loader, "_QUICK_ON_ONE_CORE_NS", 2**61)
    monkeypatch.setattr(worker_module, "MOST_INLINE_NS", most_inline_ns)
    monkeypatch.setattr(worker_module, "ROUND_END_NS", 10**12)
    rounds: list[int] = []  # of each inline run: when its round began
    run_inline = Executor.run_inline

    def visit(inside: Inside) -> None:
        def noted(executor: Executor, *what: Any) -> None:
            rounds.append(inside.workers[0].now_ns)
            run_inline(executor, *what)

        assert ask_all(inside) == list(range(100, 100 + MODELS))  # now it is known that their runs are quick
        monkeypatch.setattr(Executor, "run_inline", noted)
        for _ in range(3):
            inside.wait_quiet()
            assert ask_all(inside) == list(range(100, 100 + MODELS))

    assert serve(tmp_path, visit, processing_cores=1) == 0
    if most_inline_ns == 1:
        assert rounds
        assert len(rounds) == len(set(rounds))
    else:
        assert len(rounds) > len(set(rounds))
