"""Calls that the main thread answers: RepositoryModelLoad, RepositoryModelUnload, and in some modes RepositoryIndex.

Loading takes long, so no worker waits for it. A handler puts its call into the ``ControlQueue``. The main thread runs
the data plane's async function in a task, and the answer comes back by the worker's ``call_soon``. A load or unload
goes on when its caller leaves, or when the deadline passes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from toutates.api.grpc.statuses import STATUSES
from toutates.api.grpc.unary import check_size
from toutates.h2grpc import Call, UnaryHandler
from toutates.net import Worker
from toutates.protocol.parsing import parse
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, Unavailable

__all__ = ["ControlQueue", "on_main_thread"]

logger = logging.getLogger(__name__)

#: Most calls that wait at once, and most bytes of their requests.
MAX_WAITING: Final = 256
MAX_WAITING_BYTES: Final = 2**31

_EXITING: Final = "Server exiting"
_TOO_MANY: Final = "too many changes of models are waiting; try again later"

Request = TypeVar("Request", bound=Message)
#: Makes a response out of the bytes of a request.
Work = Callable[[bytes], Awaitable[Message]]


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that waits for the main thread.

    Attributes:
        worker: the worker that the call belongs to.
        call: the call.
        size: bytes of its request.
        message: the request, until ``take_message``; then b"".
    """

    worker: Worker
    call: Call
    size: int
    message: bytes

    def take_message(self) -> bytes:
        """Return the request, and let it go: it may hold a whole model."""
        message, self.message = self.message, b""
        return message

    def fail(self, error: RequestError) -> None:
        self.worker.call_soon(partial(self.call.fail, STATUSES[type(error)], str(error)))


@dataclass(slots=True)
class ControlQueue:
    """The calls that wait for the main thread. It is made on the main thread, in Trio.

    Attributes:
        nursery: runs a task for each call.
        token: reaches the main thread's Trio from other threads.
    """

    nursery: trio.Nursery
    token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    _waiting: set[_Waiting] = field(default_factory=set)
    _closed: bool = False

    def put(self, worker: Worker, call: Call, work: Work) -> None:
        """Have ``work`` answer a call. Called on the worker's thread.

        Raises:
            Unavailable: the server is exiting.
        """
        message = call.message
        try:
            self.token.run_sync_soon(self._begin, _Waiting(worker, call, len(message), message), work)
        except trio.RunFinishedError:
            raise Unavailable(_EXITING) from None

    def close(self) -> None:
        """Fail all waiting calls, because the server is shutting down. Their loads may go on until the process ends."""
        self._closed = True
        for waiting in self._waiting:
            waiting.fail(Unavailable(_EXITING))
        self.nursery.cancel_scope.cancel()

    def _begin(self, waiting: _Waiting, work: Work) -> None:
        if self._closed:
            waiting.fail(Unavailable(_EXITING))
        elif len(self._waiting) >= MAX_WAITING or self._bytes + waiting.size > MAX_WAITING_BYTES:
            waiting.fail(Overloaded(_TOO_MANY))
        else:
            self._waiting.add(waiting)
            self.nursery.start_soon(self._answer, waiting, work)

    @property
    def _bytes(self) -> int:
        return sum(waiting.size for waiting in self._waiting)

    async def _answer(self, waiting: _Waiting, work: Work) -> None:
        try:
            answer = (await work(waiting.take_message())).SerializeToString()
        except RequestError as error:
            waiting.fail(error)
        except Exception:
            logger.exception("a change of models failed")
            waiting.fail(ExecutionFailed("internal error"))
        else:
            waiting.worker.call_soon(partial(waiting.call.reply, answer))
        finally:
            self._waiting.discard(waiting)


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
        large: whether requests may have any size. They are parsed in a thread of their own then.
    """

    async def work(message: bytes) -> Message:
        if large:
            request = await trio.to_thread.run_sync(parse, request_type, message)
        else:
            request = parse(request_type, message)
        del message  # which may be large
        return await answer(request)

    def handle(call: Call) -> None:
        refuse()
        if not large:
            check_size(request_type, call)
        queue.put(worker, call, work)

    return handle
