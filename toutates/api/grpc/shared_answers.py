"""Answers that are the same for everybody, made once: as long as the model table stands, statistics once per round.

A request of thirty bytes for the statistics or the index of many models has an answer that takes milliseconds to make.
Whoever sends thousands of them gets the bytes that were made for the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from toutates.api.grpc.unary import check_size
from toutates.h2grpc import Call, UnaryHandler
from toutates.net import Worker
from toutates.protocol.parsing import parse

__all__ = ["shared_answers"]

#: Statistics whose making takes more CPU time than this in a round are kept for COST_SHARE times as long as that, and
#: LONGEST_NS at most. So they cost a worker a tenth of its time however often they are asked for; and who asks for one
#: model's after an inference, which takes less, finds the inference in them. Time in which the thread waits for a core
#: does not count: a busy machine would make statistics old.
CHEAP_NS: Final = 1_000_000
COST_SHARE: Final = 10
LONGEST_NS: Final = 100_000_000
#: Answers kept per kind of request, and bytes of them; the requests that they were made for are kept as well.
MAX_ANSWERS: Final = 1_024
MAX_BYTES: Final = 16 * 1024 * 1024
#: Longer requests are parsed each time: names and versions need fewer bytes.
MAX_KEPT_REQUEST_BYTES: Final = 512

Request = TypeVar("Request", bound=Message)


class _Answers:
    """Serialized answers of one kind: by the bytes of a request, and by what it asks for."""

    __slots__ = ("by_bytes", "by_meaning", "made_ns", "size", "spent_ns", "table")

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, bytes] = {}
        self.by_meaning: dict[Hashable, bytes] = {}
        self.size = 0
        self.table: Any = None
        self.made_ns = 0
        self.spent_ns = 0

    def are_old(self, now_ns: int) -> bool:
        """Whether statistics are due to be made anew."""
        if self.spent_ns < CHEAP_NS:
            return now_ns != self.made_ns
        return now_ns - self.made_ns >= min(COST_SHARE * self.spent_ns, LONGEST_NS)

    def clear(self) -> None:
        """Make room."""
        self.by_bytes.clear()
        self.by_meaning.clear()
        self.size = 0

    def forget(self, table: object, now_ns: int) -> None:
        """Begin anew, for ``table`` as it is at ``now_ns``."""
        self.clear()
        self.table = table
        self.made_ns = now_ns
        self.spent_ns = 0


def shared_answers(
    request_type: type[Request],
    answer: Callable[[Request], Message],
    meaning: Callable[[Request], Hashable],
    worker: Worker,
    get_table: Callable[[], object],
    *,
    changes: bool = False,
) -> UnaryHandler:
    """A handler like ``unary``'s that keeps what ``answer`` returned.

    Args:
        request_type: the request's message class.
        answer: raises RequestError for requests it refuses; those are not kept. Must not block.
        meaning: all of the request that the answer depends on. Requests may be padded with anything.
        worker: whose handler it is.
        get_table: the model table as it is now; answers are made anew when it is another.
        changes: whether they depend on more than the table, on what the models do: those are made anew in each round,
            but for what COST_SHARE says.
    """
    answers = _Answers()

    def handle(call: Call) -> None:
        table, now_ns = get_table(), worker.now_ns
        if table is not answers.table or (changes and answers.are_old(now_ns)):
            answers.forget(table, now_ns)
        message = call.message
        response = answers.by_bytes.get(message)
        if response is None:
            check_size(request_type, call)
            response = find(parse(request_type, message))
            if len(message) <= MAX_KEPT_REQUEST_BYTES and len(answers.by_bytes) < MAX_ANSWERS:
                answers.by_bytes[message] = response
        call.reply(response)

    def find(request: Request) -> bytes:
        key = meaning(request)
        response = answers.by_meaning.get(key)
        if response is None:
            began_ns = time.thread_time_ns()
            response = answer(request).SerializeToString()
            answers.spent_ns += time.thread_time_ns() - began_ns
            if len(answers.by_meaning) >= MAX_ANSWERS or answers.size + len(response) > MAX_BYTES:
                answers.clear()
            answers.by_meaning[key] = response
            answers.size += len(response)
        return response

    return handle
