"""Handlers of RPCs that the main thread answers (``toutates.api.control_queue``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from toutates.api.control_queue import ControlQueue, read
from toutates.api.grpc.statuses import STATUSES
from toutates.api.grpc.unary import check_size
from toutates.h2grpc import Call, UnaryHandler
from toutates.net import Worker
from toutates.protocol.parsing import parse
from toutates.system.errors import RequestError

__all__ = ["on_main_thread"]

Request = TypeVar("Request", bound=Message)


def on_main_thread(
    queue: ControlQueue,
    worker: Worker,
    request_type: type[Request],
    answer: Callable[[Request], Awaitable[Message]],
    *,
    refuse: Callable[[], None] = lambda: None,
    large: bool = False,
) -> UnaryHandler:
    """A handler that parses the request on the main thread, awaits ``answer`` there, and sends what it returns.

    Args:
        queue: where calls wait.
        worker: the worker whose handler it is.
        request_type: the request's message class.
        answer: returns the response; raises RequestError for a request that it refuses.
        refuse: called on the worker's thread first; raises RequestError if no such call is answered.
        large: whether requests may have any size. Large ones are parsed in a thread then.
    """

    async def work(call: Call, message: bytes) -> Callable[[], None]:
        request = await read(len(message), parse, request_type, message)
        del message  # which may be large
        return partial(call.reply, (await answer(request)).SerializeToString())

    def handle(call: Call) -> None:
        refuse()
        if not large:
            check_size(request_type, call)
        queue.put(worker, call.message, partial(work, call), partial(_fail, call))

    return handle


def _fail(call: Call, error: RequestError) -> None:
    call.fail(STATUSES[type(error)], str(error))
