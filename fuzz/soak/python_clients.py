"""Clients of Python models in a soak: one model always answers, processes of the other die, hang and fork."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round
from tests.e2e.python_models import add_model

__all__ = ["PYTHON_MODELS", "build_python_models", "run_python"]

PYTHON_MODELS: Final = ("python-honest", "python-faulty")
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
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]


def build_python_models(repository: Path) -> None:
    """Make both models."""
    add_model(repository, PYTHON_MODELS[0])
    cases = "".join(f"    if number == {at}:\n        {what}\n" for at, what in enumerate(_FAULTS + _HARMLESS))
    methods = (
        f"def execute(self, requests):\n    number = int(input_of(requests[0])[0, 0])\n{cases}"
        "    return [answer(request, input_of(request)) for request in requests]\n"
    )
    # Without dynamic_batching each request is alone in its call, so that none dies by another's fault.
    timeout = 'parameters { key: "toutates.execute_timeout_s" value { string_value: "1" } }'
    add_model(repository, PYTHON_MODELS[1], methods, rows=1, more=timeout)


def run_python(around: Round) -> Entry:
    """tritonclient, one call at a time: honest ones, and now and then one that the faulty model dies of."""
    entry = Entry()
    with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
        while not around.is_over():
            model = around.rng.choice(PYTHON_MODELS)
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
