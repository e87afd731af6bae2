"""A load over many models in turn, which h2load cannot make: it sends one body only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.client import Outcome
from bench.own_client import closed_loop
from bench.protocols import GRPC
from bench.question import METHOD, Question
from toutates.bench.client_connection import Request
from toutates.bench.endpoint import parse_endpoint
from toutates.bench.source import Rotation

__all__ = ["RoundRobin"]


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
        source = Rotation(prepared, range(len(prepared)), requests)

        def check(choice: int, message: bytes) -> None:
            self.questions[choice].check_answer(message)

        return closed_loop(parse_endpoint(address), self.connections, self.connections, source, requests, check)
