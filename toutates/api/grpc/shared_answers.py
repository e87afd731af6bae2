"""Answers that are made once and sent to all callers, until the model table changes; statistics are made once a round.

A request of thirty bytes for the statistics or the index of many models has an answer that takes milliseconds to make.
A client that sends thousands of them gets the bytes that were made for the first one.
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

#: Statistics of more versions than this in a round are kept for COST_SHARE times as long as they took, and for
#: LONGEST_NS at most. So they cost a worker a tenth of its time, however often they are asked for. A model has fewer
#: versions, so a caller who asks for its statistics after an inference finds the inference in them, however slow the
#: machine is. Only CPU time counts: time in which the thread waits for a core would make statistics old.
FEW_VERSIONS: Final = 16
COST_SHARE: Final = 10
LONGEST_NS: Final = 100_000_000
#: Most answers that are kept per kind of request, and most bytes of them. Their requests are kept as well.
MAX_ANSWERS: Final = 1_024
MAX_BYTES: Final = 16 * 1024 * 1024
#: Longer requests are not kept, but parsed each time. Names and versions need fewer bytes.
MAX_KEPT_REQUEST_BYTES: Final = 512

Request = TypeVar("Request", bound=Message)


class _Answers:
    """Serialized answers of one RPC: by the bytes of a request, and by what it asks for."""

    __slots__ = ("by_bytes", "by_meaning", "made_ns", "size", "spent_ns", "table", "versions")

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, bytes] = {}
        self.by_meaning: dict[Hashable, bytes] = {}
        self.size = 0
        self.table: Any = None
        self.made_ns = 0
        self.spent_ns = 0
        self.versions = 0

    def are_old(self, now_ns: int) -> bool:
        """Whether statistics have to be made anew."""
        if self.versions <= FEW_VERSIONS:
            return now_ns != self.made_ns
        return now_ns - self.made_ns >= min(COST_SHARE * self.spent_ns, LONGEST_NS)

    def clear(self) -> None:
        """Forget all answers."""
        self.by_bytes.clear()
        self.by_meaning.clear()
        self.size = 0

    def forget(self, table: object, now_ns: int) -> None:
        """Forget all answers; those to come are for ``table``, in the round of ``now_ns``."""
        self.clear()
        self.table = table
        self.made_ns = now_ns
        self.spent_ns = 0
        self.versions = 0


def shared_answers(
    request_type: type[Request],
    answer: Callable[[Request], Message],
    meaning: Callable[[Request], Hashable],
    worker: Worker,
    get_table: Callable[[], object],
    *,
    versions_of: Callable[[Any], int] | None = None,
) -> UnaryHandler:
    """A handler like that of ``unary``, which keeps the responses of ``answer``.

    Args:
        request_type: the request's message class.
        answer: returns the response; raises RequestError for a request that it refuses, which is not kept. Must not
            block.
        meaning: the fields of a request that the answer depends on. A request may have any other bytes beside them.
        worker: the worker whose handler it is.
        get_table: returns the model table as it is now; answers are made anew when it is another one.
        versions_of: for answers that depend on what models do, and not only on the table: of how many versions a
            response tells. They are made anew in each round, or as COST_SHARE says.
    """
    answers = _Answers()

    def handle(call: Call) -> None:
        table, now_ns = get_table(), worker.now_ns
        if table is not answers.table or (versions_of is not None and answers.are_old(now_ns)):
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
            made = answer(request)
            response = made.SerializeToString()
            answers.spent_ns += time.thread_time_ns() - began_ns
            if versions_of is not None:
                answers.versions += versions_of(made)
            if len(answers.by_meaning) >= MAX_ANSWERS or answers.size + len(response) > MAX_BYTES:
                answers.clear()
            answers.by_meaning[key] = response
            answers.size += len(response)
        return response

    return handle
