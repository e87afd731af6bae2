"""Clients of Python models in a soak: one model always answers, and processes of another die, hang and fork.

A decoupled one, also as the first step of an ensemble, dies in the middle of its responses.
"""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round
from tests.e2e.python_models import add_model
from tests.ensembles import add_ensemble, pbtxt, step

__all__ = ["PYTHON_MODELS", "build_python_models", "run_decoupled", "run_python"]

#: The last one is an ensemble of the one before and of the first.
PYTHON_MODELS: Final = ("python-honest", "python-faulty", "python-many", "python-piped")
#: What ``execute`` does, by the first number of a request; the first ones end the process.
_FAULTS: Final = (
    "os._exit(3)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.kill(os.getpid(), signal.SIGSEGV)",
    "time.sleep(1000)",
    "os.closerange(3, 200)",
)
_HARMLESS: Final = (
    "os.fork()",
    "print('x' * 1_000_000)",
    "self.kept = input_of(requests[0])",
)
#: Sends as many responses as a request's first number says, counted up from 0, and dies after the first one of 7.
_MANY: Final = """
def execute(self, requests):
    for request in requests:
        count, sender = int(input_of(request)[0, 0]), request.get_response_sender()
        for at in range(count):
            if at == 1 and count == 7:
                os._exit(3)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full((1, 4), at, np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]


def build_python_models(repository: Path) -> None:
    """Make the models."""
    add_model(repository, PYTHON_MODELS[0])
    cases = "".join(f"    if number == {at}:\n        {what}\n" for at, what in enumerate(_FAULTS + _HARMLESS))
    methods = (
        f"def execute(self, requests):\n    number = int(input_of(requests[0])[0, 0])\n{cases}"
        "    return [answer(request, input_of(request)) for request in requests]\n"
    )
    # Without dynamic_batching each request is alone in its call, so that none dies by another's fault.
    timeout = 'parameters { key: "toutates.execute_timeout_s" value { string_value: "1" } }'
    add_model(repository, PYTHON_MODELS[1], methods, rows=1, more=timeout)
    honest, _, many, piped = PYTHON_MODELS
    add_model(repository, many, _MANY, rows=1, more="model_transaction_policy { decoupled: true }")
    steps = [step(many, "x=x", "y=t"), step(honest, "x=t", "y=y")]
    add_ensemble(repository, piped, pbtxt(["x FP32 [4]"], ["y FP32 [4]"], steps, batch=1))


def run_python(around: Round) -> Entry:
    """tritonclient, one call at a time: honest ones, and now and then one that the faulty model dies of."""
    entry = Entry()
    with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
        while not around.is_over():
            model = around.rng.choice(PYTHON_MODELS[:2])
            number = around.rng.randrange(len(_FAULTS + _HARMLESS)) if around.rng.random() < 0.1 else 100
            rows = np.full((1, 4), number, np.float32)
            entry.sent += 1
            answer: Any = None
            try:
                tensor = InferInput("x", [1, 4], "FP32").set_data_from_numpy(rows)
                answer = client.infer(model, [tensor], client_timeout=PATIENCE_S).as_numpy("y")
            except InferenceServerException as error:
                dies = model == PYTHON_MODELS[1] and "is not healthy" in str(error)
                if dies and "StatusCode.INTERNAL" in str(error.status()):
                    is_fault = number < len(_FAULTS) and "it is started again" not in str(error)
                    entry.refused["INTERNAL (its process died)" if is_fault else "INTERNAL (its process is gone)"] += 1
                else:
                    entry.faults.append(f"{model}, request {number}: {error}")
                continue
            if model == PYTHON_MODELS[1] and number < len(_FAULTS):
                entry.faults.append(f"{model} answered a request that ends its process ({_FAULTS[number]})")
            elif not np.array_equal(answer, rows):
                entry.faults.append(f"{model}: expected {rows.tolist()}, got {answer.tolist()}")
            else:
                entry.right += 1
            time.sleep(around.rng.uniform(0, 0.01))
    return entry


def run_decoupled(around: Round) -> Entry:
    """tritonclient's streams: requests with any number of responses, to an ensemble or to its decoupled step alone."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        answers: queue.Queue[Any] = queue.Queue()
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
            for _ in range(rng.randint(1, 30)):
                count = 7 if rng.random() < 0.03 else rng.randint(0, 6)
                tensor = InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.full((1, 4), count, np.float32))
                model = rng.choice(PYTHON_MODELS[2:])
                client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
                entry.sent += 1
                if rng.random() < 0.05:
                    client.stop_stream(cancel_requests=True)
                    entry.given_up += 1
                    break
                _judge(entry, model, count, answers)
                if around.is_over():
                    break
                time.sleep(rng.uniform(0, 0.01))
            client.stop_stream()
    return entry


def _judge(entry: Entry, model: str, count: int, answers: queue.Queue[Any]) -> None:
    """Take the responses to a request until the last one, and count what has become of it."""
    got: list[float] = []
    while True:
        result, error = answers.get(timeout=PATIENCE_S)
        if error is not None:
            if "is not healthy" in str(error):
                entry.refused["INTERNAL (its process died)" if count == 7 else "INTERNAL (its process is gone)"] += 1
            else:
                entry.faults.append(f"{model}, {count} responses: {error}")
            return
        response = result.get_response()
        if response.outputs:
            got.append(float(result.as_numpy("y")[0, 0]))
        if response.parameters["triton_final_response"].bool_param:
            break
    if got == list(range(count)) and count != 7:
        entry.right += 1
    else:
        entry.faults.append(f"{model}: expected {count} responses, got {got}")
