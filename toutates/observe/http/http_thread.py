"""The HTTP side's thread: one Trio run, with a task per connection of ``--metrics-addr``.

It shares with the workers only their counters, and may use a bounded share of the CPU (``turns``). What goes wrong with
a connection ends that connection alone.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from toutates.net.listening import listen
from toutates.observe.http.connections import LATELY_S, ConnectionTable, HttpConnection, hung_up
from toutates.observe.http.responses import CommonFields
from toutates.observe.http.site import Site
from toutates.observe.http.turns import CpuMeter, Flow, Lanes
from toutates.system.logs.limit import LineLimit
from toutates.system.placement import Placement, running_on

__all__ = ["THREAD_NAME", "Stop", "serving_http"]

logger = logging.getLogger(__name__)

THREAD_NAME: Final = "http"
BACKLOG: Final = 128
#: How long answers under way may take at the end.
GRACE_S: Final = 1.0
#: How long clients may take to make one more request, whose answer tells them to leave, once the server is to stop.
GOODBYE_S: Final = 1.0


@asynccontextmanager
async def serving_http(
    listener: socket.socket,
    make_site: Callable[[], Site],
    placement: Placement,
    tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    stop: Stop | None = None,
    table: ConnectionTable | None = None,
) -> AsyncIterator[None]:
    """Serve HTTP in a thread of its own for as long as the block lasts.

    Args:
        listener: bound and not listening yet; closed at the end.
        make_site: called in the thread, within its Trio run.
        placement: the thread runs where the manager does, which idles too.
        tls: the context for connections to come; None for plaintext. Called in the thread.
        stop: has clients told that the server is about to stop.
        table: takes the connections, with its limits of them; None for one with the usual limits.
    """
    stop = stop or Stop()
    connections = ConnectionTable() if table is None else table

    def run() -> None:
        with running_on(placement.manager, placement.anywhere):
            try:
                lanes = Lanes()
                meter = CpuMeter(lanes.other.budget)
                trio.run(_serve, listener, make_site, stop, lanes, tls, connections, instruments=[meter])
            except BaseException:  # of any kind: none may pass for a failure of the thread that waits for this one
                logger.critical(
                    "the HTTP side has failed; there are no metrics and no status page any more", exc_info=True
                )

    listen(listener, BACKLOG)
    async with trio.open_nursery() as nursery:
        thread = partial(trio.to_thread.run_sync, run, thread_name=THREAD_NAME, limiter=trio.CapacityLimiter(math.inf))
        nursery.start_soon(thread)
        try:
            yield
        finally:
            stop.stop()


class Stop:
    """Tells a Trio run in another thread that it is to end, whether or not it has begun."""

    def __init__(self) -> None:
        self._leaves = self._stopped = False
        #: once the run has begun: what to call there when it is about to end, and when it is to end
        self._told: tuple[trio.lowlevel.TrioToken, Callable[[], None], Callable[[], None]] | None = None

    def leave(self) -> None:
        """The run is about to end: clients are to be told so. Does nothing once it has ended."""
        self._leaves = True
        if self._told is not None:
            token, leave, _ = self._told
            _tell(token, leave)

    def stop(self) -> None:
        """The run is to end."""
        self._stopped = True
        if self._told is not None:
            token, _, stop = self._told
            _tell(token, stop)

    async def wait(self, leave: Callable[[], None]) -> None:
        """Within the run: wait until it is to end, and call ``leave`` when it is about to."""
        event = trio.Event()
        self._told = (trio.lowlevel.current_trio_token(), leave, event.set)
        # These are read after that was written, which the other thread does the other way round.
        if self._leaves:
            leave()
        if not self._stopped:
            await event.wait()


def _tell(token: trio.lowlevel.TrioToken, what: Callable[[], None]) -> None:
    try:
        token.run_sync_soon(what)
    except trio.RunFinishedError:
        pass


async def _serve(
    listener: socket.socket,
    make_site: Callable[[], Site],
    stop: Stop,
    lanes: Lanes,
    tls: Callable[[], ssl.SSLContext | None],
    table: ConnectionTable,
) -> None:
    site = make_site()
    common = CommonFields()
    limit: LineLimit[str] = LineLimit(lambda kind, left_out: logger.error("and %d more %s failed", left_out, kind))

    def failed(error: Exception) -> None:
        if not limit.count("HTTP requests or connections", time.monotonic_ns()):
            logger.error("an HTTP request or connection failed", exc_info=error)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await HttpConnection(stream, table, lanes, site, common, failed, tls()).serve()
        except Exception as error:
            failed(error)

    async with trio.open_nursery() as connections:
        for lane in (lanes.prompt, lanes.other):
            connections.start_soon(lane.run)
        async with trio.open_nursery() as nursery:
            for activity in (table.sweep, *site.beside):
                nursery.start_soon(activity)
            nursery.start_soon(
                partial(
                    trio.serve_listeners,
                    handle,
                    [_Door(trio.SocketListener(trio.socket.from_stdlib_socket(listener)), lanes)],
                    handler_nursery=connections,
                )
            )
            await stop.wait(table.leave)
            table.leave()
            for sock in _waiting(listener):
                connections.start_soon(handle, trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
            nursery.cancel_scope.cancel()
        listener.close()
        table.drain(trio.current_time() - LATELY_S)
        with trio.move_on_at((table.left_at or 0.0) + GOODBYE_S):
            await table.wait_empty()
        table.drain()
        with trio.move_on_after(GRACE_S):
            await table.wait_empty()
        table.abort_all()
        connections.cancel_scope.cancel()


def _waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections that the kernel has made for a listener and nobody has accepted."""
    for _ in range(BACKLOG):
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        yield sock


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
