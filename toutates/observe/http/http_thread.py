"""The HTTP side's thread: one Trio run, in which Hypercorn speaks HTTP on ``--metrics-addr``.

It has nothing in common with the workers but what they count, and a share of the CPU (``turns``). Whatever goes wrong
with a connection ends that connection.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app

from toutates.observe.http.connections import BoundedStream, ConnectionTable, hung_up
from toutates.observe.http.turns import CpuMeter, Flow, Lanes
from toutates.system.placement import Placement, running_on

__all__ = ["THREAD_NAME", "App", "serving_http"]

logger = logging.getLogger(__name__)

THREAD_NAME: Final = "http"
BACKLOG: Final = 128
#: How long a connection without a request is kept, and how long a request's head may take: longer than the usual pause
#: between two scrapes, so that they need no new connection.
KEEP_ALIVE_S: Final = 75
#: Bytes of a request's head; more is answered with 431.
MAX_HEAD_BYTES: Final = 16_384
#: Requests at once on one HTTP/2 connection.
MAX_STREAMS: Final = 8
#: How long answers under way may take at the end.
GRACE_S: Final = 1.0
#: Seconds between two tracebacks of connections that failed.
SILENCE_S: Final = 10.0

#: What is served: an ASGI application, and what goes on beside it for as long as it is. Made in the thread.
App = tuple[Any, Sequence[Callable[[], Awaitable[None]]]]


@asynccontextmanager
async def serving_http(
    listener: socket.socket, make_app: Callable[[], App], placement: Placement
) -> AsyncIterator[None]:
    """Serve HTTP in a thread of its own for as long as the block lasts.

    Args:
        listener: bound and not listening yet; closed at the end.
        make_app: called in the thread, within its Trio run.
        placement: the thread runs where the manager does, which idles too.
    """
    stop = _Stop()

    def run() -> None:
        with running_on(placement.manager, placement.anywhere):
            try:
                lanes = Lanes()
                trio.run(_serve, listener, make_app, stop, lanes, instruments=[CpuMeter(lanes.other.budget)])
            except BaseException:  # of any kind: none may pass for a failure of the thread that waits for this one
                logger.critical(
                    "the HTTP side has failed; there are no metrics and no status page any more", exc_info=True
                )

    listener.listen(BACKLOG)
    async with trio.open_nursery() as nursery:
        thread = partial(trio.to_thread.run_sync, run, thread_name=THREAD_NAME, limiter=trio.CapacityLimiter(math.inf))
        nursery.start_soon(thread)
        try:
            yield
        finally:
            stop.stop()


class _Stop:
    """Tells a Trio run in another thread that it is to end, whether or not it has begun."""

    def __init__(self) -> None:
        self._stopped = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._event: trio.Event | None = None

    def stop(self) -> None:
        self._stopped = True
        if self._token is not None and self._event is not None:
            try:
                self._token.run_sync_soon(self._event.set)
            except trio.RunFinishedError:
                pass

    async def wait(self) -> None:
        self._event = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        if not self._stopped:  # read after the token was written, which ``stop`` does the other way round
            await self._event.wait()


async def _serve(listener: socket.socket, make_app: Callable[[], App], stop: _Stop, lanes: Lanes) -> None:
    app, beside = make_app()
    config = _config()
    table = ConnectionTable()
    # The parts of ``hypercorn.trio.serve``, which would make streams of its own.
    context = WorkerContext(None)
    log = _QuietTracebacks()

    async def handle(stream: trio.SocketStream) -> None:
        bounded = BoundedStream(stream, table, lanes)
        bounded.flow.adopt_task()
        table.add(bounded)
        try:
            with bounded.scope:
                if await bounded.wait_spoken():
                    wrapped = wrap_app(cast(ASGIFramework, _Request(app, bounded)), config.wsgi_max_body_size, "asgi")
                    await TCPServer(wrapped, config, context, ConnectionState({}), cast(Any, bounded))
        except Exception as error:
            log.write(error)
        finally:
            bounded.abort()

    async with trio.open_nursery() as connections:
        for lane in (lanes.prompt, lanes.other):
            connections.start_soon(lane.run)
        async with trio.open_nursery() as nursery:
            for activity in (table.sweep, *beside):
                nursery.start_soon(activity)
            nursery.start_soon(
                partial(
                    trio.serve_listeners,
                    handle,
                    [_Door(trio.SocketListener(trio.socket.from_stdlib_socket(listener)), lanes)],
                    handler_nursery=connections,
                )
            )
            await stop.wait()
            nursery.cancel_scope.cancel()
        listener.close()
        # Those that wait for a request end by themselves, the others may finish it.
        await context.terminated.set()
        table.abort_all(only_silent=True)
        with trio.move_on_after(GRACE_S):
            while len(table):  # noqa: ASYNC110  # of tasks that are Hypercorn's
                await trio.sleep(0.01)
        table.abort_all()  # because Hypercorn waits for a peer that does not read even if it is cancelled
        connections.cancel_scope.cancel()


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = logger
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    config.h2_max_concurrent_streams = MAX_STREAMS
    config.h2_max_header_list_size = MAX_HEAD_BYTES
    return config


class _Door(trio.abc.Listener[trio.SocketStream]):
    """A listener that takes turns with probes: many new connections do not keep them waiting."""

    def __init__(self, listener: trio.SocketListener, lanes: Lanes) -> None:
        self._listener = listener
        self._flow = Flow(lanes.prompt)

    async def accept(self) -> trio.SocketStream:
        self._flow.adopt_task()
        while True:
            await self._flow.turn()
            stream = await self._listener.accept()
            if not hung_up(stream.socket) & ~select.POLLRDHUP:
                return stream
            stream.socket.close()  # reset already

    async def aclose(self) -> None:
        await self._listener.aclose()


class _Request:
    """ASGI around the application: a request waits for its connection's turn, and is dropped if that ends before.

    Bodies mean nothing here. They are read and dropped beside the application, because Hypercorn would wait for ever
    with what nobody reads.
    """

    def __init__(self, app: Any, stream: BoundedStream) -> None:
        self._app = app
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        with self._stream.answering():
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        gone = trio.Event()
        waiting = trio.CancelScope()

        async def receive_end() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async with trio.open_nursery() as nursery:

            async def drop_body() -> None:
                while (await receive())["type"] == "http.request":
                    pass
                gone.set()
                waiting.cancel()

            application_receive = receive
            if scope["type"] == "http":
                nursery.start_soon(drop_body)
                application_receive = receive_end
            with waiting:
                await self._stream.request_turn(scope["path"])
            if not waiting.cancelled_caught:
                await self._app(scope, application_receive, send)
            nursery.cancel_scope.cancel()


class _QuietTracebacks:
    """Logs connections that failed, one in SILENCE_S."""

    def __init__(self) -> None:
        self._silent_until = -math.inf
        self._left_out = 0

    def write(self, error: Exception) -> None:
        now = time.monotonic()
        if now < self._silent_until:
            self._left_out += 1
            return
        self._silent_until = now + SILENCE_S
        more = f", and {self._left_out} more since the last line" if self._left_out else ""
        logger.error("an HTTP connection failed%s", more, exc_info=error)
        self._left_out = 0
