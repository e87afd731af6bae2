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

#: Statistics of more versions than this are kept for COST_SHARE times as long as they took, and for LONGEST_NS at most.
#: So they cost a worker a tenth of its time, however often they are asked for. A model has fewer versions, so a caller
#: who asks for its statistics after an inference finds the inference in them, whatever others ask for and however slow
#: the machine is. Only CPU time counts: time in which the thread waits for a core would make statistics old.
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

    __slots__ = ("by_bytes", "by_meaning", "made_ns", "size", "spent_ns", "table")

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, bytes] = {}
        self.by_meaning: dict[Hashable, bytes] = {}
        self.size = 0
        self.table: Any = None
        self.made_ns = 0
        self.spent_ns = 0

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

    def keep(self, key: Hashable, response: bytes, spent_ns: int) -> None:
        """Keep an answer, which took so much CPU time."""
        self.spent_ns += spent_ns
        if len(self.by_meaning) >= MAX_ANSWERS or self.size + len(response) > MAX_BYTES:
            self.clear()
        self.by_meaning[key] = response
        self.size += len(response)

    def keep_bytes(self, message: bytes, response: bytes) -> None:
        """Keep it by its request's bytes, too."""
        if len(message) <= MAX_KEPT_REQUEST_BYTES and len(self.by_bytes) < MAX_ANSWERS:
            self.by_bytes[message] = response


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
    lasting, of_round = _Answers(), _Answers()

    def handle(call: Call) -> None:
        table, now_ns = get_table(), worker.now_ns
        if table is not lasting.table or (
            versions_of is not None and now_ns - lasting.made_ns >= min(COST_SHARE * lasting.spent_ns, LONGEST_NS)
        ):
            lasting.forget(table, now_ns)
        if table is not of_round.table or now_ns != of_round.made_ns:
            of_round.forget(table, now_ns)
        message = call.message
        response = of_round.by_bytes.get(message) or lasting.by_bytes.get(message)
        if response is None:
            check_size(request_type, call)
            response = find(message)
        call.reply(response)

    def find(message: bytes) -> bytes:
        request = parse(request_type, message)
        key = meaning(request)
        for answers in (of_round, lasting):
            response = answers.by_meaning.get(key)
            if response is not None:
                answers.keep_bytes(message, response)
                return response
        began_ns = time.thread_time_ns()
        made = answer(request)
        response = made.SerializeToString()
        answers = lasting if versions_of is None or versions_of(made) > FEW_VERSIONS else of_round
        answers.keep(key, response, time.thread_time_ns() - began_ns)
        answers.keep_bytes(message, response)
        return response

    return handle
