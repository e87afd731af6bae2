"""A load over many models in turn, which h2load cannot make: it sends one body only.

It runs in the benchmark's own process, whose CPU is not counted. Being Python it sends fewer requests per second than
h2load, so that its figures compare with each other and not with those of the other loads.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

import hpack

from bench.client import Outcome, percentile
from bench.errors import NoFigure
from bench.protocols import GRPC
from bench.question import METHOD, Question
from bench.raw_connection import RawConnection

__all__ = ["RoundRobin"]

_PSEUDO_HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", METHOD)]
_HEADERS = [
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


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
        """See ``client.Load``. ``answer_bytes`` is for ``question``; longer model names make longer answers."""
        spare = len(question.model.name)
        bodies = itertools.cycle((asked.body, answer_bytes + len(asked.model.name) - spare) for asked in self.questions)
        times: list[int] = []
        # As of its second use, a header block is made of references to the dynamic table alone, and stays the same.
        encoder = hpack.Encoder()
        headers = [*_PSEUDO_HEADERS, (":authority", address), *_HEADERS]
        first, later = encoder.encode(headers), encoder.encode(headers)
        with contextlib.ExitStack() as stack:
            poll = stack.enter_context(select.epoll())
            waiting: dict[int, tuple[RawConnection, int, int]] = {}
            begin = time.perf_counter()
            sent = 0
            for _ in range(min(self.connections, requests)):
                connection = RawConnection(address)
                stack.callback(connection.socket.close)
                connection.wait_greeted()
                poll.register(connection.socket, select.EPOLLIN)
                body, expected = next(bodies)
                waiting[connection.socket.fileno()] = connection, expected, time.perf_counter_ns()
                connection.send_request(first, body)
                sent += 1
            while len(times) < requests:
                ready = poll.poll(30)
                if not ready:
                    raise NoFigure("no answer within 30 s")
                for number, _ in ready:
                    connection, expected, asked_at = waiting[number]
                    answer = connection.receive()
                    if answer is None:
                        continue
                    if answer != expected:
                        raise NoFigure(f"an answer has {answer} bytes instead of {expected}")
                    now = time.perf_counter_ns()
                    times.append((now - asked_at) // 1000)
                    if sent < requests:
                        body, expected = next(bodies)
                        waiting[number] = connection, expected, now
                        connection.send_request(later, body)
                        sent += 1
            seconds = time.perf_counter() - begin
        times.sort()
        return Outcome(requests, requests / seconds, percentile(times, 0.5), percentile(times, 0.99))
