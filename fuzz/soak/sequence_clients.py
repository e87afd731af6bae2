"""Clients of a soak that have sequences: over streams and unary calls, ended or left behind."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round
from tests.e2e.sequence_models import write_accumulator

__all__ = ["SEQUENCES", "build_sequences", "run_sequences"]

#: The models: one for each strategy.
SEQUENCES: Final = ("sequences", "oldest_sequences")
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
_AT_ONCE: Final = 12


def build_sequences(repository: Path) -> None:
    """Make the models. A sequence that is left behind keeps its slot for five seconds."""
    for name, strategy in zip(SEQUENCES, ("", "oldest { max_candidate_sequences: 8 }"), strict=True):
        write_accumulator(repository, name, batch_size=8, strategy=strategy, idle_us=5_000_000)


def run_sequences(around: Round) -> Entry:
    """Some sequences at a time, whose messages are mixed, over a stream; every tenth sequence is never ended.

    There are more than slots, so that some wait until those that were left behind are given up.
    """
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        answers: queue.Queue[Any] = queue.Queue()
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
            model = rng.choice(SEQUENCES)
            sums: dict[int, int] = {}
            #: what each answer has to be, in the order of the requests
            expected: list[int] = []
            ids = [rng.getrandbits(60) + 1 for _ in range(_AT_ONCE)]
            lengths = {one: rng.randint(1, 6) for one in ids}
            for step in range(max(lengths.values())):
                for one in ids:
                    if step < lengths[one]:
                        value = rng.randint(0, 1_000)
                        sums[one] = sums.get(one, 0) + value
                        expected.append(sums[one])
                        ends = step == lengths[one] - 1 and one % 10 != 0
                        tensor = InferInput("INPUT", [1, 1], "INT32")
                        tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
                        client.async_stream_infer(
                            model, [tensor], sequence_id=one, sequence_start=not step, sequence_end=ends
                        )
            entry.sent += len(expected)
            if rng.random() < 0.1:
                client.stop_stream(cancel_requests=True)
                entry.given_up += len(expected)
                continue
            for right in expected:
                _judge(entry, right, *answers.get(timeout=PATIENCE_S))
            client.stop_stream()
    return entry


def _judge(entry: Entry, right: int, result: Any, error: Any) -> None:
    if error is not None:
        entry.faults.append(f"a sequence: {error}")
    elif result.as_numpy("OUTPUT").item() == right:
        entry.right += 1
    else:
        entry.faults.append(f"a sequence: expected {right}, got {result.as_numpy('OUTPUT').item()}")
