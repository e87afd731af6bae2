"""Clients of system shared memory in a soak: regions that come and go, some of them while they are used."""

from __future__ import annotations

import os
import queue
from typing import Any, Final

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from fuzz.soak.account import Entry
from fuzz.soak.round import PATIENCE_S, Round

__all__ = ["run_regions"]

_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1)]
#: OUTPUT = -INPUT, FP32, of any shape.
_MODEL: Final = "shapes"
_SIZES: Final = (1_024, 65_536, 524_288)
#: What requests may end with whose region has been unregistered or has shrunk, or for want of room.
_LEFT: Final = frozenset({"NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL"})
_FULL: Final = "RESOURCE_EXHAUSTED"


def run_regions(around: Round) -> Entry:
    """tritonclient: two regions for some requests, one after the other; then some more while the regions go."""
    entry = Entry()
    rng = around.rng
    number = 0
    with InferenceServerClient(f"127.0.0.1:{around.port}", channel_args=_OPTIONS) as client:
        while not around.is_over():
            number += 1
            names = [f"soak-{os.getpid()}-{id(around)}-{number}-{way}" for way in ("in", "out")]
            size = rng.choice(_SIZES)
            handles = [shm.create_shared_memory_region(name, name, 4 * size) for name in names]
            try:
                _use(entry, around, client, names, handles, size)
            finally:
                for name in names:
                    client.unregister_system_shared_memory(name)
                for handle in handles:
                    shm.destroy_shared_memory_region(handle)
    return entry


def _use(entry: Entry, around: Round, client: Any, names: list[str], handles: list[Any], size: int) -> None:
    try:
        for name in names:
            client.register_system_shared_memory(name, name, 4 * size)
    except InferenceServerException as error:  # attackers may have taken all regions
        entry.sent += 1
        if _status(error) == _FULL:
            entry.refused[_FULL] += 1
        else:
            entry.faults.append(f"registering {names}: {error}")
        return
    tensor = InferInput("INPUT", [1, size], "FP32")
    tensor.set_shared_memory(names[0], 4 * size)
    output = InferRequestedOutput("OUTPUT")
    output.set_shared_memory(names[1], 4 * size)
    for _ in range(around.rng.randint(1, 20)):
        row = np.full((1, size), around.rng.randint(1, 1_000), np.float32)
        shm.set_shared_memory_region(handles[0], [row])
        entry.sent += 1
        try:
            client.infer(_MODEL, [tensor], outputs=[output], client_timeout=PATIENCE_S)
        except InferenceServerException as error:
            if _status(error) == _FULL:
                entry.refused[_FULL] += 1
            else:
                entry.faults.append(f"a region of {4 * size} bytes: {error}")
            continue
        answer = shm.get_contents_as_numpy(handles[1], np.float32, [1, size])
        if np.array_equal(answer, -row):
            entry.right += 1
        else:
            entry.faults.append(f"a region of {4 * size} bytes: expected {-row}, got {answer}")
        del answer  # a view of the region
    _leave(entry, around, client, names, tensor, output)


def _leave(entry: Entry, around: Round, client: Any, names: list[str], tensor: Any, output: Any) -> None:
    """Requests whose regions are unregistered, or whose objects shrink, while they are under way."""
    answers: queue.Queue[Any] = queue.Queue()
    count = around.rng.randint(0, 6)
    for _ in range(count):
        client.async_infer(
            _MODEL,
            [tensor],
            lambda result, error: answers.put(error),
            outputs=[output],
            client_timeout=PATIENCE_S,
        )
    if around.rng.random() < 0.5:
        # Nobody touches the mapping of this process behind its end.
        os.truncate(f"/dev/shm/{around.rng.choice(names)}", 0)
    else:
        client.unregister_system_shared_memory(around.rng.choice(names))
    entry.sent += count
    for _ in range(count):
        error = answers.get(timeout=2 * PATIENCE_S)
        if error is None:
            entry.right += 1
        elif _status(error) in _LEFT | {_FULL}:
            entry.refused[f"{_status(error)} (its region has gone)"] += 1
        else:
            entry.faults.append(f"regions that have gone: {error}")


def _status(error: Any) -> str:
    return str(error.status()).removeprefix("StatusCode.")
