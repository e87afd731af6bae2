"""A load over many models in turn, which h2load cannot make: it sends one body only.

It runs in the benchmark's own process, whose CPU is not counted. Being Python it sends fewer requests per second than
h2load, so that its figures compare with each other and not with those of the other loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.client import Outcome, percentile
from bench.errors import NoFigure
from bench.protocols import GRPC
from bench.question import METHOD, Question
from toutates.bench.client_connection import ClientConnection, Request
from toutates.bench.driver import Driver, Unreachable
from toutates.bench.endpoint import parse_endpoint
from toutates.bench.outcome import status_name
from toutates.bench.source import Rotation

__all__ = ["RoundRobin"]

_LONGEST_SECONDS: Final = 300.0
_SILENCE_SECONDS: Final = 30.0
#: The prefix of gRPC's messages.
_PREFIX: Final = 5


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """One request under way on each of some connections, each for the next model.

    Attributes:
        questions: one per model, all with answers of one length.
        connections: how many.
    """

    questions: Sequence[Question]
    connections: int

    @property
    def name(self) -> str:
        return f"{self.connections}x1"

    @property
    def concurrency(self) -> int:
        return self.connections

    @property
    def protocol(self) -> str:
        return GRPC

    @property
    def timed(self) -> bool:
        return False

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``. Statuses of all answers are looked at, and some answers are compared."""
        prepared = [Request(METHOD, address, one.message) for one in self.questions]
        try:
            driver = Driver(parse_endpoint(address), self.connections, prepared, ClientConnection)
        except Unreachable as error:
            raise NoFigure(f"a connection was not accepted: {error}") from error
        with contextlib.closing(driver):
            source = Rotation(prepared, range(len(prepared)), requests)
            record = driver.run_closed(source, self.connections, _LONGEST_SECONDS, _SILENCE_SECONDS)
        failed = {status_name(status) for status in record.statuses.tolist() if status}
        if failed or len(record.statuses) != requests:
            raise NoFigure(f"of {requests} requests some ended with {sorted(failed)}: {driver.texts}")
        for number, message in driver.samples:
            self.questions[record.choices[number]].check_answer(message[_PREFIX:])
        times = sorted(((record.answered_ns - record.sent_ns) // 1_000).tolist())
        return Outcome(requests, requests / record.seconds, percentile(times, 0.5), percentile(times, 0.99))
