"""Clients of a server that loads models on demand, in a soak: many small models, of which memory holds a fifth.

The server is one of its own, so that what is in its memory is these models alone, and has a bound.
"""

from __future__ import annotations

import queue
import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

from fuzz.attacks.models import build_many, many_name
from fuzz.soak.account import MOST_GROWTH_MIB, Account, Entry, Sample
from fuzz.soak.round import PATIENCE_S, Round

__all__ = ["FLAGS", "ON_DEMAND", "build_demand_models", "files_left_behind", "judge_memory", "run_on_demand"]

#: The name of these clients.
ON_DEMAND: Final = "models on demand, a fifth of which fits into memory"
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
_MODELS: Final = 400
#: What a fifth of them takes (``models.memory_size``).
MEMORY: Final = _MODELS // 5 * 170_000
#: Started when the first model is loaded; each has a gate, which is an open file.
_EXECUTOR_THREADS: Final = 2
FLAGS: Final = (
    *("--executor-threads", str(_EXECUTOR_THREADS)),
    *("--model-control-mode", "on-demand"),
    *("--model-memory", str(MEMORY)),
    *("--model-min-stay", "0"),
    *("--metrics-addr", "127.0.0.1:0"),
)
#: How often the most popular model is asked for, the next one, and so on: by Zipf's law.
_WEIGHTS: Final = [1 / rank**1.1 for rank in range(1, _MODELS + 1)]


def build_demand_models(root: Path) -> None:
    """Write the models."""
    build_many(root, _MODELS)


def run_on_demand(around: Round) -> Entry:
    """tritonclient with callbacks, some calls at a time; some are cancelled or have little time, some name nobody."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        with InferenceServerClient(f"127.0.0.1:{around.demand_port}", channel_args=_OPTIONS) as client:
            for _ in range(rng.randint(1, 100)):
                if around.is_over():
                    break
                answers: queue.Queue[Any] = queue.Queue()
                calls = []
                for number in rng.choices(range(_MODELS), _WEIGHTS, k=rng.randint(1, 12)):
                    row = np.array([[rng.randrange(-1_000, 1_000) for _ in range(4)]], np.int32)
                    fate = rng.random()
                    name = "nobody" if fate < 0.05 else many_name(number)
                    expected = None if fate < 0.05 else row + np.int32(number)
                    hurried = 0.05 < fate < 0.1
                    timeout_s = rng.expovariate(1 / 0.003) if hurried else PATIENCE_S
                    call = client.async_infer(
                        name,
                        [InferInput("INPUT", row.shape, "INT32").set_data_from_numpy(row)],
                        lambda result, error, *of, answers=answers, asked=(name, expected, hurried): answers.put(
                            (*asked, result, error)
                        ),
                        client_timeout=timeout_s,
                    )
                    calls.append(call)
                entry.sent += len(calls)
                if rng.random() < 0.2:
                    rng.choice(calls).cancel()
                for _ in calls:
                    _judge(entry, *answers.get(timeout=2 * PATIENCE_S))
    return entry


def _judge(entry: Entry, name: str, expected: Any, hurried: bool, result: Any, error: Any) -> None:
    status = "" if error is None else str(error.status()).removeprefix("StatusCode.")
    if error is None and expected is not None and np.array_equal(result.as_numpy("OUTPUT"), expected):
        entry.right += 1
    elif status == "CANCELLED":
        entry.given_up += 1
    elif (status == "NOT_FOUND" and expected is None) or (status == "DEADLINE_EXCEEDED" and hurried):
        entry.refused[status] += 1
    else:
        entry.faults.append(f"{name}: expected {expected}, got {error or result.as_numpy('OUTPUT')}")


def files_left_behind(start: Sample, now: Sample) -> bool:
    """Whether the server has more open files than before any model was loaded, beyond those that it keeps."""
    return now.files > start.files + _EXECUTOR_THREADS


def judge_memory(account: Account, samples: Sequence[Sample], http_port: int) -> None:
    """See that the server's memory has kept to its bound.

    Args:
        account: is told what was found.
        samples: the first of before any model was loaded.
        http_port: where its metrics are.
    """
    wrong = account.problems
    most = samples[0].anonymous_mib + 2 * MEMORY / 2**20 + MOST_GROWTH_MIB
    if (found := max(sample.anonymous_mib for sample in samples)) > most:
        wrong.append(f"on demand: memory was {found:.1f} MiB, at most {most:.1f}")
    least = samples[0].anonymous_mib
    account.notes.append(
        f"The server on demand had {least:.1f} MiB of memory without a model and {found:.1f} MiB at most, in the "
        f"pauses; {most:.1f} MiB are its bound."
    )
    if files_left_behind(samples[0], samples[-1]):
        wrong.append(f"on demand: file descriptors grew from {samples[0].files} to {samples[-1].files}")
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=PATIENCE_S) as response:
        page = response.read().decode()
    figures = dict(re.findall(r"^toutates_on_demand_(\w+) (\S+)$", page, re.MULTILINE))
    if float(figures["memory_bytes"]) > float(figures["memory_capacity_bytes"]):
        wrong.append(f"on demand: models of {figures['memory_bytes']} bytes are in memory, at most {MEMORY}")
    # A soak of seconds may ask for no more models than fit; but none is loaded twice that has not left.
    if float(figures["loads_total"]) > float(figures["loaded_models"]) and not float(figures["evictions_total"]):
        wrong.append("on demand: models have left memory, and none was counted as evicted")
