"""A load in a process of its own, whose CPU and lag are measured: ``run_load`` here, ``main`` there."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from toutates.bench.arrivals import Arrivals, make_schedule
from toutates.bench.client_connection import Request
from toutates.bench.driver import Driver, Unreachable
from toutates.bench.outcome import Outcome, summarise

__all__ = ["Asked", "Load", "LoadFailed", "LoadResult", "run_load"]

#: Of prctl(2): nanoseconds by which a wait may be longer than asked for; usually 50 us.
_PR_SET_TIMERSLACK: Final = 29
#: Beside the load's own time: for starting Python and NumPy, and for connections.
_START_SECONDS: Final = 60.0
#: A closed loop sends these many requests of the mix in turn, over and over.
_ORDER: Final = 8_192


class LoadFailed(Exception):
    """The load could not be made."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One of the requests that a load consists of.

    Attributes:
        path: of the method.
        message: protobuf, without gRPC's prefix.
        weight: how often it is chosen, as a share of the sum of all.
    """

    path: str
    message: bytes
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        host, port: of the server, without TLS.
        requests: of which each is chosen by chance.
        connections: over which requests are sent in turn.
        rate: requests per second of an open loop; None for a closed loop.
        variation: of the gaps of an open loop; see ``Arrivals``.
        under_way: requests without an answer, of a closed loop.
        seconds: for which requests are sent.
        patience_s: how long the last answers are waited for.
        bound_ms: answers that take longer are late.
        seed: of chance.
        cores: on which the client is to run; empty for all.
        ahead: whether the client is to run before everything else on its cores, where the system lets it (root only).
    """

    host: str
    port: int
    requests: Sequence[Asked]
    connections: int
    rate: float | None
    seconds: float
    variation: float = 1.0
    under_way: int = 64
    patience_s: float = 10.0
    bound_ms: float = 20.0
    seed: int = 0
    cores: Sequence[int] = ()
    ahead: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the other process."""
        requests = [{**asdict(one), "message": base64.b64encode(one.message).decode()} for one in self.requests]
        return {**asdict(self), "requests": requests}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Load:
        """What ``to_json`` gave."""
        requests = [Asked(**{**one, "message": base64.b64decode(one["message"])}) for one in given["requests"]]
        return cls(**{**given, "requests": requests})


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of a load.

    Attributes:
        outcome: of it.
        texts: the first text of each status but OK.
        samples: which request, and the message of its answer, of some that were answered; without gRPC's prefix.
    """

    outcome: Outcome
    texts: dict[int, str]
    samples: Sequence[tuple[int, bytes]]


def run_load(load: Load) -> LoadResult:
    """Make a load in a process of its own, and wait for its end.

    Raises:
        LoadFailed: no connection, or the process failed.
    """
    seconds = _START_SECONDS + load.seconds + load.patience_s
    command = [sys.executable, "-m", "toutates.bench.load"]
    try:
        done = subprocess.run(
            command, input=json.dumps(load.to_json()), capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"the client did not finish in {seconds:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise LoadFailed(f"the client failed: {lines[-1]}")
    given = json.loads(done.stdout)
    samples = [(choice, base64.b64decode(message)) for choice, message in given["samples"]]
    texts = {int(status): text for status, text in given["texts"].items()}
    return LoadResult(Outcome.from_json(given["outcome"]), texts, samples)


def _make(load: Load) -> dict[str, Any]:
    """Make a load in this process."""
    if load.cores:
        os.sched_setaffinity(0, load.cores)
    if load.ahead:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    authority = f"{load.host}:{load.port}"
    requests = [Request(one.path, authority, one.message) for one in load.requests]
    weights = [one.weight for one in load.requests]
    with contextlib.closing(Driver((load.host, load.port), load.connections, requests)) as driver:
        if load.rate is None:
            shares = np.array(weights) / sum(weights)
            order = np.random.default_rng(load.seed).choice(len(weights), _ORDER, p=shares).tolist()
            record = driver.run_closed(order, load.under_way, load.seconds, load.patience_s)
        else:
            schedule = make_schedule(Arrivals(load.variation), load.rate, load.seconds, weights, load.seed)
            record = driver.run_schedule(schedule, load.seconds, load.patience_s)
        outcome = summarise(record, len(requests), round(load.bound_ms * 1e6))
        samples = [
            (int(record.choices[number]), base64.b64encode(message[5:]).decode()) for number, message in driver.samples
        ]
        return {"outcome": outcome.to_json(), "texts": driver.texts, "samples": samples}


def main() -> int:
    """Read a load from standard input, make it, and print what became of it; returns the exit code."""
    try:
        made = _make(Load.from_json(json.load(sys.stdin)))
    except (Unreachable, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    json.dump(made, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
