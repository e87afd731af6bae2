"""Clients of the response cache in a soak: few inputs that differ by a bit, asked again and again at once."""

from __future__ import annotations

import queue
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round

__all__ = ["CACHED", "run_cached"]

#: OUTPUT = -INPUT, FP32, with the response cache; of the models that are attacked.
CACHED: Final = "cached"
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
#: Values of a row: answers of 1 KiB, and some that take a good part of the cache.
_SIZES: Final = (256, 256, 256, 65_536)
_FULL: Final = "RESOURCE_EXHAUSTED"


def run_cached(around: Round) -> Entry:
    """tritonclient with callbacks: some identical requests at a time, some of them cancelled or not to be cached."""
    entry = Entry()
    rng = around.rng
    while not around.is_over():
        with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
            for _ in range(rng.randint(1, 100)):
                if around.is_over():
                    break
                row = _row(rng.choice(_SIZES), rng.randrange(64))
                tensor = InferInput("INPUT", row.shape, "FP32").set_data_from_numpy(row)
                answers: queue.Queue[Any] = queue.Queue()
                parameters = {"response_cache": False} if rng.random() < 0.1 else None
                calls = [
                    client.async_infer(
                        CACHED,
                        [tensor],
                        lambda result, error, answers=answers: answers.put((result, error)),
                        client_timeout=PATIENCE_S,
                        parameters=parameters,
                    )
                    for _ in range(rng.randint(1, 8))
                ]
                entry.sent += len(calls)
                if rng.random() < 0.1:  # the first is computed, and the others wait for it
                    calls[0].cancel()
                for _ in calls:
                    _judge(entry, row, *answers.get(timeout=2 * PATIENCE_S))
    return entry


def _row(size: int, bit: int) -> Any:
    """A row of ones with one other bit in its first two values."""
    row = np.ones((1, size), np.float32)
    row.view(np.uint64)[0, 0] ^= np.uint64(1 << bit)
    return row


def _judge(entry: Entry, row: Any, result: Any, error: Any) -> None:
    if error is None:
        # Bits are compared, because some rows have NaN.
        if np.array_equal(result.as_numpy("OUTPUT").view(np.uint32), row.view(np.uint32) ^ np.uint32(1 << 31)):
            entry.right += 1
        else:
            entry.faults.append(f"{CACHED}: expected {-row}, got {result.as_numpy('OUTPUT')}")
    elif "CANCELLED" in str(error.status()):
        entry.given_up += 1
    elif _FULL in str(error.status()):
        entry.refused[_FULL] += 1
    else:
        entry.faults.append(f"{CACHED}: {error}")
