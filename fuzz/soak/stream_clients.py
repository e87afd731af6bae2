"""Clients of ModelStreamInfer: tritonclient's streams, some of which are given up in the middle."""

from __future__ import annotations

import queue
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round

__all__ = ["run_streams"]

_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
#: What the newest version of the model "versions" adds.
_ADDS: Final = 10
#: In the text of a request that met a full ring; errors in band have no status.
_FULL: Final = "rows waiting or running"


def run_streams(around: Round) -> Entry:
    """One stream after the other, each with some messages under way; every fifth is cancelled with what it has."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        answers: queue.Queue[Any] = queue.Queue()
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
            for _ in range(rng.randint(1, 20)):
                rows = [np.full((1, 4), rng.randint(0, 1_000), np.int32) for _ in range(rng.randint(1, 30))]
                for row in rows:
                    tensor = InferInput("INPUT", row.shape, "INT32")
                    client.async_stream_infer("versions", [tensor.set_data_from_numpy(row)])
                entry.sent += len(rows)
                if rng.random() < 0.05:
                    client.stop_stream(cancel_requests=True)
                    entry.given_up += len(rows)
                    break
                for row in rows:
                    _judge(entry, row, *answers.get(timeout=PATIENCE_S))
                if around.is_over():
                    break
            client.stop_stream()
    return entry


def _judge(entry: Entry, row: Any, result: Any, error: Any) -> None:
    """Count an answer; answers come in the order of the requests."""
    if error is not None and _FULL in str(error):
        entry.refused["RESOURCE_EXHAUSTED"] += 1
    elif error is not None:
        entry.faults.append(f"a stream: {error}")
    elif np.array_equal(result.as_numpy("OUTPUT"), row + _ADDS):
        entry.right += 1
    else:
        entry.faults.append(f"a stream: expected {row + _ADDS}, got {result.as_numpy('OUTPUT')}")
