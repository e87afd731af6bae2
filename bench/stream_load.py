"""ModelStreamInfer: messages on streams that stay open. perf_analyzer's streams are no measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.client import Outcome
from bench.own_client import closed_loop
from bench.protocols import STREAM
from bench.question import Question
from toutates.bench.answer import ClientSide
from toutates.bench.endpoint import parse_endpoint
from toutates.bench.source import Rotation
from toutates.bench.streams import StreamingConnection, StreamRequest

__all__ = ["StreamLoad", "stream_of"]


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """A stream on each of some connections, with some messages under way on each.

    Attributes:
        connections: with a stream each.
        under_way: messages without an answer on each.
    """

    connections: int
    under_way: int

    @property
    def name(self) -> str:
        """In tables."""
        return f"stream{self.connections}x{self.under_way}"

    @property
    def concurrency(self) -> int:
        """Messages under way at once."""
        return self.connections * self.under_way

    @property
    def protocol(self) -> str:
        """Of the server's port."""
        return STREAM

    @property
    def timed(self) -> bool:
        """It sends a number of messages."""
        return False

    def run(self, address: str, question: Question, requests: int, answer_bytes: int) -> Outcome:
        """See ``client.Load``. Statuses of all answers are looked at, and some answers are compared."""
        source = Rotation([StreamRequest(question.message)], [0] * self.concurrency, requests)

        def check(_: int, message: bytes) -> None:
            question.check_answer(message)

        return closed_loop(
            parse_endpoint(address), self.connections, self.concurrency, source, requests, check, stream_of(address)
        )


def stream_of(address: str) -> Callable[[], ClientSide]:
    """What makes connections with a stream, whose messages have no ids, as those of most clients."""
    return partial(StreamingConnection, address, names=False)
