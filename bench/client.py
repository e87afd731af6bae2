"""What every client that makes a load has in common."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.errors import NoFigure
from bench.question import Question

__all__ = ["Load", "Outcome", "percentile", "run_client"]

# What a load may take before it counts as stuck, far beyond any server that still answers.
_LOAD_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client saw.

    Attributes:
        requests: how many got an answer while it measured.
        requests_per_second: in that time.
        p50_us, p99_us: latency.
    """

    requests: int
    requests_per_second: float
    p50_us: float
    p99_us: float


class Load(Protocol):
    """One way of sending requests.

    Attributes:
        name: in tables and on the command line.
        concurrency: requests under way at once.
        protocol: of ``bench.protocols``.
        timed: whether it sends for a time of its own instead of a number of requests; the server must then count.
    """

    @property
    def name(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    @property
    def protocol(self) -> str: ...

    @property
    def timed(self) -> bool: ...

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """Send requests and take the answers.

        Args:
            address: host:port of the server, of the load's protocol.
            question: what to send.
            requests: how many, unless it is timed.
            answer_bytes: how much DATA, or body, each answer must consist of.

        Raises:
            NoFigure: not every one got a complete answer.
        """
        ...


def run_client(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a client until it ends; returns its standard output.

    Raises:
        NoFigure: it failed, or did not finish.
    """
    tool = command[0].rpartition("/")[2]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LOAD_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise NoFigure(f"{tool} did not finish in {_LOAD_SECONDS:.0f} s") from error
    except OSError as error:
        raise NoFigure(f"{tool} cannot be started: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NoFigure(f"{tool} ended with status {done.returncode}: {' '.join(lines[-3:])}")
    return done.stdout


def percentile(values: Sequence[int], share: float) -> float:
    """The least value that a share (0 to 1) of all values does not exceed.

    Args:
        values: ascending, at least one.
    """
    return float(values[max(0, math.ceil(share * len(values)) - 1)])
