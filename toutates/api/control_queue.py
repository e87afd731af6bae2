"""Calls that the main thread answers: loads and unloads of models, and in some modes the repository's index.

Loading takes long, so no worker waits for it. A handler of any transport puts its call into the ``ControlQueue``. The
main thread runs the data plane's async function in a task, and the answer comes back by the worker's ``call_soon``. A
load or unload goes on when its caller leaves, or when the deadline passes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import trio

from toutates.net import Worker
from toutates.system.errors import ExecutionFailed, Overloaded, RequestError, Unavailable
from toutates.system.thread_pools import ThreadPool

__all__ = ["PARSING", "ControlQueue", "read"]

logger = logging.getLogger(__name__)

#: What reads requests that may hold whole models.
PARSING: Final = ThreadPool("requests", 4)
#: Requests up to this size are read on the main thread: a change of threads takes longer.
_SMALL_BYTES: Final = 65_536
#: Most calls that wait at once, and most bytes of their requests.
MAX_WAITING: Final = 256
MAX_WAITING_BYTES: Final = 2**31

_EXITING: Final = "Server exiting"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Of the bytes of a request, makes what sends the answer, to be called on the worker's thread. Raises RequestError.
Work = Callable[[bytes], Awaitable[Callable[[], object]]]
#: Sends an error; called on the worker's thread.
Fail = Callable[[RequestError], object]


async def read(size: int, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Read a request of ``size`` bytes, which may hold a whole model, by ``work``; a large one in a thread."""
    return await PARSING.run(work, *arguments) if size > _SMALL_BYTES else work(*arguments)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that waits for the main thread.

    Attributes:
        worker: the worker that the call belongs to.
        send_error: fails it.
        size: bytes of its request.
        message: the request, until ``take_message``; then b"".
    """

    worker: Worker
    send_error: Fail
    size: int
    message: bytes

    def take_message(self) -> bytes:
        """Return the request, and let it go: it may hold a whole model."""
        message, self.message = self.message, b""
        return message

    def fail(self, error: RequestError) -> None:
        self.worker.call_soon(partial(self.send, partial(self.send_error, error)))

    def send(self, answer: Callable[[], object]) -> None:
        """Send an answer; where it cannot be written, say so, because the caller waits. On the worker's thread."""
        try:
            answer()
        except Exception:
            logger.exception("an answer cannot be written")
            self.send_error(ExecutionFailed("internal error"))


@dataclass(slots=True)
class ControlQueue:
    """The calls that wait for the main thread. It is made on the main thread, in Trio.

    Attributes:
        nursery: runs a task for each call.
        what: its calls, for the words of a refusal.
        token: reaches the main thread's Trio from other threads.
    """

    nursery: trio.Nursery
    what: str = "changes of models"
    token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    #: those of each worker's round, which that worker alone changes
    _coming: dict[Worker, list[tuple[_Waiting, Work]]] = field(default_factory=dict)
    _waiting: set[_Waiting] = field(default_factory=set)
    _bytes: int = 0
    _closed: bool = False

    def put(self, worker: Worker, message: bytes, work: Work, fail: Fail) -> None:
        """Have ``work`` answer a call. Called on the worker's thread.

        Args:
            worker: whose call it is.
            message: its request.
            work: answers it.
            fail: answers it with an error.
        """
        coming = self._coming.setdefault(worker, [])
        coming.append((_Waiting(worker, fail, len(message), message), work))
        if len(coming) == 1:
            worker.at_round_end(partial(self._hand_over, worker))

    def _hand_over(self, worker: Worker) -> None:
        """Give the main thread the calls of a worker's round, which wakes it once for all of them."""
        coming = self._coming.pop(worker)
        try:
            self.token.run_sync_soon(self._begin_all, coming)
        except trio.RunFinishedError:
            for waiting, _ in coming:
                waiting.fail(Unavailable(_EXITING))

    def close(self) -> None:
        """Fail all waiting calls, because the server is shutting down. Their loads may go on until the process ends."""
        self._closed = True
        for waiting in self._waiting:
            waiting.fail(Unavailable(_EXITING))
        self.nursery.cancel_scope.cancel()

    def _begin_all(self, coming: list[tuple[_Waiting, Work]]) -> None:
        for waiting, work in coming:
            self._begin(waiting, work)

    def _begin(self, waiting: _Waiting, work: Work) -> None:
        if self._closed:
            waiting.fail(Unavailable(_EXITING))
        elif len(self._waiting) >= MAX_WAITING or self._bytes + waiting.size > MAX_WAITING_BYTES:
            waiting.fail(Overloaded(f"too many {self.what} are waiting; try again later"))
        else:
            self._waiting.add(waiting)
            self._bytes += waiting.size
            self.nursery.start_soon(self._answer, waiting, work)

    async def _answer(self, waiting: _Waiting, work: Work) -> None:
        try:
            answer = await work(waiting.take_message())
        except RequestError as error:
            waiting.fail(error)
        except Exception:
            logger.exception("one of the %s failed", self.what)
            waiting.fail(ExecutionFailed("internal error"))
        else:
            waiting.worker.call_soon(partial(waiting.send, answer))
        finally:
            self._waiting.discard(waiting)
            self._bytes -= waiting.size
