"""A worker: one thread, one Trio run, one epoll, and the connections that live on it. The only file with sockets.

Connections are state, not tasks. One Trio task watches the worker's epoll; when it fires, every socket that is ready is
read in one go and its calls are handed to their handlers, then the round ends: callbacks asked for by
``at_round_end`` run, and every connection with output is flushed with one system call. A task per connection costs twice
as much per request at one request at a time per connection.

While requests keep coming, the worker stays with its epoll instead of going back to Trio after each round, for at most
STAY_NS, so that tasks (streaming calls, shutdown) and cancellation live.

Threads outside the worker reach it through ``call_soon`` alone. Its callbacks are queued under a lock, and an eventfd in
the worker's own epoll wakes it only when it sleeps. ``TrioToken.run_sync_soon`` for the same costs 40 us of latency.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import trio

from toutates.h2grpc.call import NEVER, Buffer, Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.method import Method
from toutates.h2grpc.sender import Sender
from toutates.h2grpc.status import GrpcError, Status
from toutates.h2grpc.streaming import ServerStream

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

#: How long the worker may stay with its epoll before Trio gets a turn.
STAY_NS: Final = 5_000_000
#: How long it waits for the next request before it goes back to Trio; what this saves is a trip through Trio's scheduler.
LINGER_S: Final = 0.0005
#: First size of a read; grown for connections that fill it.
READ_BYTES: Final = 65_536
LARGE_READ_BYTES: Final = 1_048_576
#: Buffers per sendmsg call; Linux takes 1,024.
MAX_BUFFERS: Final = 512
#: How long a closing connection is read, so that the peer gets our last bytes before a reset (RFC 9112 section 9.6).
CLOSE_LINGER_NS: Final = 1_000_000_000
#: How long a peer may take to answer the PING of a graceful shutdown.
GOODBYE_NS: Final = 1_000_000_000
#: How long accepting pauses when the process is out of file descriptors or memory.
ACCEPT_PAUSE_NS: Final = 100_000_000
ACCEPT_OVERLOAD: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT


class _Transport:
    """A connection's socket, and what the kernel has not taken yet."""

    __slots__ = ("close_at_ns", "connection", "fd", "mask", "peer", "read_bytes", "sock", "unsent", "unsent_bytes")

    def __init__(self, sock: socket.socket, connection: ServerConnection, peer: str) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.connection = connection
        self.peer = peer
        self.mask = _IN
        self.read_bytes = READ_BYTES
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self.close_at_ns = NEVER


class Worker:
    """See the module. Made in any thread; ``run`` and all that handlers call belong to the worker's own.

    Args:
        name: for logs.
        limits: bounds of every connection.
        max_connections: connections above it are turned away.
        response_encoding: compression of compressible methods' responses, or "".
    """

    def __init__(self, name: str, limits: Limits, *, max_connections: int = 100_000, response_encoding: str = "") -> None:
        self.name = name
        #: the methods served; set before ``run``, usually with handlers that know this worker
        self.methods: Mapping[bytes, Method] = {}
        #: the time of the current round, monotonic nanoseconds
        self.now_ns = time.monotonic_ns()
        self._limits = limits
        self._max_connections = max_connections
        self._response_encoding = response_encoding
        self._transports: dict[int, _Transport] = {}
        self._by_connection: dict[Sender, _Transport] = {}
        self._streams: dict[Call, ServerStream] = {}
        self._dirty: list[ServerConnection] = []
        self._round_end: list[Callable[[], None]] = []
        self._next_deadline_ns = NEVER
        self._timed: dict[ServerConnection, None] = {}
        self._listener: socket.socket | None = None
        self._accept_again_ns = NEVER
        self._drain_until_ns: int | None = None
        self._goodbye_ns = NEVER
        self._cut_off_calls = 0
        #: guards the next two, which other threads share
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._asleep = False
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._eventfd, _IN)
        #: whether this round gave a task of Trio's something to do
        self._trio_has_work = False
        self._nursery: trio.Nursery | None = None

    # --- for other threads -------------------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the worker's thread, soon and in order. The one method that any thread may call."""
        with self._lock:
            self._callbacks.append(callback)
            wake = self._asleep
            self._asleep = False
        if wake:
            os.eventfd_write(self._eventfd, 1)

    # --- for handlers, on the worker's thread ------------------------------------------------------------------------

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once all requests that are ready now have been handed to their handlers."""
        self._round_end.append(callback)

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._transports)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> int:
        """Serve ``listener``, a bound and listening non-blocking socket, until a drain is complete.

        Returns:
            How many calls were cut off because the drain's grace was over.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._listen(listener)
                task_status.started()
                while self._drain_until_ns is None or self._transports:
                    await self._wait()
                    self._work()
                nursery.cancel_scope.cancel()
        finally:
            self._close_everything()
        return self._cut_off_calls

    def drain(self, grace_s: float) -> None:
        """Stop accepting, say goodbye on every connection, answer what is under way, then let ``run`` return.

        Args:
            grace_s: after so many seconds the connections that are left are closed.
        """
        if self._drain_until_ns is not None:
            return
        now_ns = time.monotonic_ns()
        self._drain_until_ns = now_ns + int(grace_s * 1e9)
        self._goodbye_ns = now_ns + min(GOODBYE_NS, int(grace_s * 5e8))
        self._stop_listening()
        for transport in list(self._transports.values()):
            transport.connection.begin_shutdown()
            self._close_if_drained(transport)
        self._plan_wake_up(self._goodbye_ns)
        self._plan_wake_up(self._drain_until_ns)

    def _close_everything(self) -> None:
        self._stop_listening()
        for transport in list(self._transports.values()):
            self._drop(transport)
        self._epoll.close()
        os.close(self._eventfd)

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Let Trio run its tasks until the epoll has something, or time is up."""
        if not self._fall_asleep():
            await trio.lowlevel.checkpoint()
            return
        timeout_ns = self._next_deadline_ns - time.monotonic_ns()
        if self._next_deadline_ns == NEVER:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        else:
            with trio.move_on_after(max(timeout_ns, 0) / 1e9):
                await trio.lowlevel.wait_readable(self._epoll.fileno())

    def _fall_asleep(self) -> bool:
        """Whether nothing waits in the queue; from here on ``call_soon`` writes the eventfd."""
        with self._lock:
            self._asleep = not self._callbacks
            return self._asleep

    def _work(self) -> None:
        """Rounds, for as long as there is something to do and Trio can be kept waiting."""
        until_ns = time.monotonic_ns() + STAY_NS
        timeout_s = 0.0
        while True:
            ready = self._epoll.poll(timeout_s)
            self.now_ns = now_ns = time.monotonic_ns()
            if not ready and not self._callbacks and now_ns < self._next_deadline_ns:
                return
            self._trio_has_work = False
            for fd, mask in ready:
                transport = self._transports.get(fd)
                if transport is not None:
                    self._serve_transport(transport, mask)
                elif fd == self._eventfd:
                    os.eventfd_read(self._eventfd)
                elif self._listener is not None and fd == self._listener.fileno():
                    self._accept(self._listener)
            if self._callbacks:
                self._run_callbacks()
            self._end_round()
            if now_ns >= self._next_deadline_ns:
                self._tick(now_ns)
            if now_ns >= until_ns or self._trio_has_work:
                return
            timeout_s = LINGER_S if self._fall_asleep() else 0.0

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                logger.exception("%s: callback failed", self.name)

    def _end_round(self) -> None:
        if self._round_end:
            callbacks, self._round_end = self._round_end, []
            for callback in callbacks:
                callback()
        if self._dirty:
            self._flush_dirty()

    def _plan_wake_up(self, at_ns: int) -> None:
        if at_ns < self._next_deadline_ns:
            self._next_deadline_ns = at_ns

    def _tick(self, now_ns: int) -> None:
        """Everything that is due by time; plans the next one."""
        self._next_deadline_ns = NEVER
        if now_ns >= self._accept_again_ns and self._listener is not None:
            self._listen(self._listener)
        self._plan_wake_up(self._accept_again_ns)
        for connection in list(self._timed):
            if connection.next_deadline_ns <= now_ns:
                self._dispatch_all(connection.expire(now_ns))
            if connection.next_deadline_ns == NEVER:
                del self._timed[connection]
            self._plan_wake_up(connection.next_deadline_ns)
        if self._drain_until_ns is not None:
            self._tick_drain(now_ns, self._drain_until_ns)
        for transport in list(self._transports.values()):
            if transport.close_at_ns <= now_ns:
                self._drop(transport)
            self._plan_wake_up(transport.close_at_ns)
        self._flush_dirty()

    def _tick_drain(self, now_ns: int, drain_until_ns: int) -> None:
        if now_ns >= self._goodbye_ns:
            self._goodbye_ns = NEVER
            for transport in list(self._transports.values()):
                transport.connection.finish_shutdown()
                self._close_if_drained(transport)
        if now_ns >= drain_until_ns:
            for transport in list(self._transports.values()):
                self._cut_off_calls += transport.connection.open_calls
                self._drop(transport)
            return
        self._plan_wake_up(self._goodbye_ns)
        self._plan_wake_up(drain_until_ns)

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._accept_again_ns = NEVER
        self._epoll.register(listener.fileno(), _IN)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()  # which takes it out of the epoll too
            self._listener = None
            self._accept_again_ns = NEVER

    def _accept(self, listener: socket.socket) -> None:
        """Accept what waits, at most a few per round so that a connection storm does not stop requests."""
        for _ in range(32):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in ACCEPT_OVERLOAD:
                    logger.warning("%s: accepting pauses: %s", self.name, error.strerror)
                    self._epoll.unregister(listener.fileno())
                    self._accept_again_ns = self.now_ns + ACCEPT_PAUSE_NS
                    self._plan_wake_up(self._accept_again_ns)
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            self._add_connection(sock, address)

    def _add_connection(self, sock: socket.socket, address: tuple[object, ...] | str) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ServerConnection(
            self.methods, self._limits, self._dirty, response_encoding=self._response_encoding
        )
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
        transport = _Transport(sock, connection, peer)
        self._transports[transport.fd] = transport
        self._by_connection[connection] = transport
        self._epoll.register(transport.fd, _IN)
        if len(self._transports) > self._max_connections:
            connection.refuse("too many connections")
            self._close_gently(transport)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _serve_transport(self, transport: _Transport, mask: int) -> None:
        if mask & _OUT:
            self._send_unsent(transport)
        if not mask & ~_OUT or transport.fd not in self._transports:
            return
        try:
            data = transport.sock.recv(transport.read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(transport)
            return
        if len(data) == transport.read_bytes:
            transport.read_bytes = LARGE_READ_BYTES
        if transport.close_at_ns != NEVER:
            return  # closing: what still comes is read only to keep the kernel from resetting the connection
        connection = transport.connection
        for event in connection.receive_data(data, self.now_ns):
            if event.__class__ is Call:
                self._start_unary(event)
            elif event.__class__ is ConnectionTerminated:
                self._connection_terminated(transport, event)
            else:
                self._dispatch(event)
        if connection.next_deadline_ns != NEVER:
            self._timed[connection] = None
            self._plan_wake_up(connection.next_deadline_ns)

    def _start_unary(self, call: Call) -> None:
        try:
            call.head.method.unary(call)  # type: ignore[union-attr,misc]  # only calls of unary methods are events
        except GrpcError as error:
            call.fail(error.status, error.text, error.metadata)
        except Exception:
            logger.exception("%s: handler of %s failed", self.name, _path(call))
            call.fail(Status.INTERNAL, "internal error")

    def _dispatch_all(self, events: list[Event]) -> None:
        for event in events:
            self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        """Events of streaming calls."""
        self._trio_has_work = True
        if isinstance(event, StreamOpened):
            self._start_stream(event.call)
        elif isinstance(event, MessageReceived):
            self._streams[event.call].put(event.message)
        elif isinstance(event, RequestEnded):
            self._streams[event.call].end_request()
        elif isinstance(event, CallCancelled) and event.call in self._streams:
            self._streams[event.call].cancel()

    def _start_stream(self, call: Call) -> None:
        assert self._nursery is not None
        connection = call.connection
        assert isinstance(connection, ServerConnection)
        stream = self._streams[call] = ServerStream(call, connection, self._flush_dirty)
        self._nursery.start_soon(self._run_stream, stream)

    async def _run_stream(self, stream: ServerStream) -> None:
        def log(error: Exception) -> None:
            logger.error("%s: handler of %s failed", self.name, _path(stream.call), exc_info=error)

        try:
            await stream.run(log)
        finally:
            del self._streams[stream.call]
            transport = self._by_connection.get(stream.call.connection)
            if transport is not None:
                self._close_if_drained(transport)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _flush_dirty(self) -> None:
        dirty = self._dirty
        while dirty:
            connection = dirty.pop()
            transport = self._by_connection.get(connection)
            if transport is not None:
                self._flush(transport)

    def _flush(self, transport: _Transport) -> None:
        """Send a connection's output, all at once where it is small."""
        connection = transport.connection
        bulky = connection.bulky
        out = connection.take_output()
        if bulky or transport.unsent:
            self._queue_unsent(transport, out)
            self._send_unsent(transport)
            return
        data = b"".join(out)
        try:
            sent = transport.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(transport)
            return
        if sent < len(data):
            self._queue_unsent(transport, [memoryview(data)[sent:]])
            self._watch(transport)
        elif self._drain_until_ns is not None:
            self._close_if_drained(transport)

    def _queue_unsent(self, transport: _Transport, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            if buffer:
                transport.unsent.append(memoryview(buffer))
                transport.unsent_bytes += len(buffer)

    def _send_unsent(self, transport: _Transport) -> None:
        """Give the kernel what it takes; the rest waits for EPOLLOUT, for this connection only."""
        unsent = transport.unsent
        while unsent:
            buffers = [unsent[at] for at in range(min(len(unsent), MAX_BUFFERS))]
            try:
                sent = transport.sock.sendmsg(buffers)
            except BlockingIOError:
                break
            except OSError:
                self._drop(transport)
                return
            transport.unsent_bytes -= sent
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = unsent[0][sent:]
        self._watch(transport)
        if not unsent:
            self._close_if_drained(transport)

    def _watch(self, transport: _Transport) -> None:
        """Watch for what the transport can use: room while bytes wait, requests unless too many bytes wait."""
        closing = transport.close_at_ns != NEVER
        mask = _OUT if transport.unsent else 0
        if closing or transport.unsent_bytes <= self._limits.max_unsent_bytes:
            mask |= _IN
        if closing and not transport.unsent:
            self._shut_writing(transport)
        if mask != transport.mask and transport.fd in self._transports:
            transport.mask = mask
            self._epoll.modify(transport.fd, mask)

    # --- closing -----------------------------------------------------------------------------------------------------

    def _connection_terminated(self, transport: _Transport, event: ConnectionTerminated) -> None:
        logger.info("%s: connection from %s ended: %s (%s)", self.name, transport.peer, event.text, event.code.name)
        self._close_gently(transport)

    def _close_if_drained(self, transport: _Transport) -> None:
        if self._drain_until_ns is not None and transport.close_at_ns == NEVER and transport.connection.drained:
            self._close_gently(transport)

    def _close_gently(self, transport: _Transport) -> None:
        """Send what is left, then end our side, and read until the peer ends its own or CLOSE_LINGER_NS are over."""
        transport.close_at_ns = self.now_ns + CLOSE_LINGER_NS
        self._plan_wake_up(transport.close_at_ns)
        self._queue_unsent(transport, transport.connection.take_output())
        self._send_unsent(transport)

    def _shut_writing(self, transport: _Transport) -> None:
        try:
            transport.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(transport)

    def _drop(self, transport: _Transport) -> None:
        """Close a socket and end its calls."""
        if self._transports.pop(transport.fd, None) is None:
            return
        connection = transport.connection
        del self._by_connection[connection]
        self._timed.pop(connection, None)
        transport.unsent.clear()
        transport.sock.close()
        self._dispatch_all(connection.connection_lost())


def _path(call: Call) -> str:
    return call.head.method.path if call.head.method is not None else "?"
