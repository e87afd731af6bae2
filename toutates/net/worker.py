"""A worker: one thread, one Trio run, one epoll, and the connections that live on it. All sockets are here, and in
``transport`` and ``tls_transport``.

Connections are state, not tasks. One Trio task watches the worker's epoll; when it fires, every socket that is ready is
read in one go and its calls are handed to their handlers, then the round ends: callbacks asked for by ``at_round_end``
run, and every connection with output is flushed with one system call. A task per connection costs twice as much per
request at one request at a time per connection.

While requests keep coming, the worker stays with its epoll instead of going back to Trio after each round, for at most
STAY_NS, so that tasks (streaming calls, shutdown) and cancellation live.

No connection can hold up the others: what takes longer than its turn goes on in the next rounds (``_take_turn``), after
what is new there. None can end them: whatever is raised while a connection is dealt with ends that connection, and
nothing else (``_connection_failed``). Such ``try`` blocks cost nothing as long as nothing is raised.

Threads outside the worker reach it through ``call_soon`` alone. Its callbacks are queued under a lock, and an eventfd
in the worker's own epoll wakes it only when it sleeps. ``TrioToken.run_sync_soon`` for the same costs 40 us of latency.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import random
import select
import socket
import ssl
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import trio

from toutates.h2grpc.call import NEVER, Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.connection_state import ConnectionState
from toutates.h2grpc.events import (
    CallCancelled,
    ConnectionTerminated,
    Event,
    InflationDue,
    MessageReceived,
    RequestEnded,
    StreamOpened,
)
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import LIMIT_NAMES, Limits
from toutates.h2grpc.method import Method
from toutates.h2grpc.sender import Sender
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import GrpcError, Status
from toutates.net.housekeeping import Duty, Finding, Housekeeper, Traffic
from toutates.net.inflation import Inflation
from toutates.net.quiet_log import QuietLog
from toutates.net.streaming import ServerStream
from toutates.net.tls import TlsEngine
from toutates.net.tls_transport import TlsTransport
from toutates.net.transport import EPOLLIN, EPOLLOUT, READ_NS, Transport

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

#: How long the worker may stay with its epoll before Trio gets a turn.
STAY_NS: Final = 5_000_000
#: How long it waits for the next request before it goes back to Trio; what this saves is a trip through Trio's
#: scheduler. The system counts in milliseconds, so it is one.
LINGER_S: Final = 0.001
#: How long a closing connection is read, so that the peer gets our last bytes.
CLOSE_LINGER_NS: Final = 1_000_000_000
#: How long a peer may take to answer the PING of a graceful shutdown.
GOODBYE_NS: Final = 1_000_000_000
#: How long accepting pauses when the process is out of file descriptors or memory.
ACCEPT_PAUSE_NS: Final = 100_000_000
ACCEPT_OVERLOAD: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Connections accepted per round, so that a storm of them does not stop requests.
ACCEPTS_PER_ROUND: Final = 32
#: How long a connection's turn may take; what is left goes on in the next round. It is looked at after so many events.
TURN_NS: Final = 4_000_000
EVENTS_AT_ONCE: Final = 16
#: In a round that takes longer than this, reads that are filled become smaller: many connections have much to say.
CROWDED_ROUND_NS: Final = 16_000_000
#: How long a round goes on with turns of earlier ones, of all connections together.
CATCH_UP_NS: Final = 8_000_000
#: Failures of rounds, one after the other, that no connection is to blame for, before the worker gives up.
MOST_FAILED_ROUNDS: Final = 100
#: How soon after one what is due by time is looked at again.
FAILED_ROUND_PAUSE_NS: Final = 10_000_000
#: Streaming calls that get a task before Trio has its turn, in which a task takes 0.1 ms to begin.
STREAMS_PER_TURN: Final = 16
#: The ages of connections vary by so much, so that those made together do not all come back together.
AGE_FACTORS: Final = (0.9, 1.1)
#: Looking at the deadlines of all connections pauses for so many times as long as it took, so that it costs 2 % at most
#: however many there are; a call with a deadline is then cut off that much late.
DEADLINE_PAUSE: Final = 50


@dataclass(slots=True)
class Lateness:
    """How long after their time a thread's tasks get their turn, nanoseconds. Written by that thread.

    Attributes:
        count: how often that was measured, every few seconds at least.
        sum_ns: of all times.
        last_ns: the last time.
    """

    count: int = 0
    sum_ns: int = 0
    last_ns: int = 0

    def note(self, ns: int) -> None:
        """A task was so late."""
        self.last_ns = max(ns, 0)
        self.sum_ns += self.last_ns
        self.count += 1


class Worker:
    """See the module. Made in any thread; ``run`` and all that handlers call belong to the worker's own.

    Args:
        name: for logs.
        limits: bounds of every connection.
        max_connections: connections above it are turned away.
        buffer_bytes: what connections may hold for slow peers, together; None for as much as they like.
        response_encoding: compression of compressible methods' responses, or "".
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        max_connections: int = 100_000,
        buffer_bytes: int | None = None,
        response_encoding: str = "",
    ) -> None:
        self.name = name
        #: the methods served; set before ``run``, usually with handlers that know this worker
        self.methods: Mapping[bytes, Method] = {}
        #: what new connections shake hands with, this worker's alone; None is plaintext. Set before ``run``, later by
        #: ``use_tls``
        self.tls: ssl.SSLContext | None = None
        #: the time of the current round, monotonic nanoseconds
        self.now_ns = time.monotonic_ns()
        self._limits = limits
        #: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it
        self.limit_hits: Counter[str] = Counter(dict.fromkeys(LIMIT_NAMES, 0))
        #: what the connections have had so far; other threads may read it
        self.traffic = Traffic()
        #: how late this thread's tasks get their turn; other threads may read it
        self.lateness = Lateness()
        #: the clock of the CPU time that the worker's thread has used, once ``run`` has begun (``time.clock_gettime``)
        self.cpu_clock: int | None = None
        self._max_connections = max_connections
        self._buffer_bytes = buffer_bytes
        self._response_encoding = response_encoding
        self._transports: dict[int, Transport] = {}
        self._by_connection: dict[Sender, Transport] = {}
        #: transports that are closing, in the order in which their time is over
        self._closing: dict[Transport, None] = {}
        #: those whose peers were told to leave; they are closed once their calls have ended
        self._leaving: dict[Transport, None] = {}
        self._streams: dict[Call, ServerStream] = {}
        self._inflation = Inflation(f"{name}-inflation", self._inflation_done)
        #: those of them that have no task yet
        self._to_start: deque[ServerStream] = deque()
        self._dirty: list[ServerConnection] = []
        #: connections whose turn was over before their work was, the next one first, and events left over from it
        self._behind: OrderedDict[ServerConnection, list[Event]] = OrderedDict()
        self._catching_up = False
        self._failed_rounds = 0
        self._round_end: list[Callable[[], None]] = []
        self._next_deadline_ns = NEVER
        #: connections that have calls with a deadline
        self._timed: dict[ServerConnection, None] = {}
        self._deadlines_again_ns = 0
        self._listener: socket.socket | None = None
        self._accept_again_ns = NEVER
        self._drain_until_ns: int | None = None
        self._goodbye_ns = NEVER
        self._cut_off_calls = 0
        #: guards the next two, which other threads share
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._asleep = False
        self._in_round = False
        self._eventfd = -1
        self._epoll: select.epoll
        self._shared: Shared
        self._housekeeper: Housekeeper
        self._log = QuietLog(logger, name)
        #: whether this round gave a task of Trio's something to do
        self._trio_has_work = False
        self._nursery: trio.Nursery | None = None

    # --- for other threads -------------------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the worker's thread, soon and in order. The one method that any thread may call.

        Does nothing visible once ``run`` has ended.
        """
        with self._lock:
            self._callbacks.append(callback)
            if self._asleep:
                self._asleep = False
                os.eventfd_write(self._eventfd, 1)  # under the lock, so that ``run`` cannot close it meanwhile

    # --- for handlers, on the worker's thread ------------------------------------------------------------------------

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once all requests that are ready now have been handed to their handlers."""
        self._round_end.append(callback)
        if not self._in_round:
            self._wake()

    def flush(self) -> None:
        """Send what has been answered. Tasks call it after ``call.reply``; in handlers and callbacks the round does."""
        dirty = self._dirty
        while dirty:
            transport = self._by_connection.get(dirty.pop())
            if transport is None:
                continue
            try:
                if not transport.flush():
                    self._drop(transport)
                elif self._leaving:
                    self._close_if_drained(transport)
            except Exception as error:
                self._connection_failed(transport, error)

    def congested(self, connection: ServerConnection) -> bool:
        """Whether the connection's peer reads its responses too slowly for more of them."""
        transport = self._by_connection.get(connection)
        return transport is not None and transport.congested

    def connection_failed(self, call: Call, error: Exception) -> None:
        """Answering ``call`` raised ``error``, which is to cost nobody else anything: end the call's connection."""
        transport = self._by_connection.get(call.connection)
        if transport is not None:
            self._connection_failed(transport, error)

    def task_woken(self) -> None:
        """A callback or handler gave a task something to do: go back to Trio once the round is over.

        Without it the task waits until the worker goes back by itself, up to STAY_NS under load. It is not assumed of
        every callback, because a batch's is one, and one open stream would then cost each batch a trip through Trio.
        """
        self._trio_has_work = True

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Shake hands with ``context`` from now on; connections that are open, or shaking hands, keep theirs.

        Called on the worker's thread; from others through ``call_soon``. No other thread uses the context any more.
        """
        self.tls = context

    def peer(self, call: Call) -> str:
        """The address that a call came from; "" once its connection is gone."""
        transport = self._by_connection.get(call.connection)
        return transport.peer if transport is not None else ""

    @property
    def log_lines_dropped(self) -> int:
        """Lines about bad peers that the log was spared; may be read in any thread."""
        return self._log.dropped

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._transports)

    def connection_states(self, most: int) -> list[ConnectionState]:
        """What can be said of connections that are open, ``most`` of them. Called on the worker's thread."""
        now_ns = time.monotonic_ns()
        return [
            ConnectionState(
                peer=transport.peer,
                phase=self._phase(transport),
                tls=isinstance(transport, TlsTransport),
                age_s=(now_ns - transport.opened_ns) / 1e9,
                silent_s=(now_ns - transport.last_read_ns) / 1e9,
                open_calls=transport.connection.open_calls,
                received_bytes=transport.received_bytes,
                sent_bytes=transport.sent_bytes,
                unsent_bytes=transport.unsent_bytes,
            )
            for transport in islice(self._transports.values(), most)
        ]

    def _phase(self, transport: Transport) -> str:
        if transport.closing:
            return "closing"
        if not transport.established:
            return "handshake"
        return "leaving" if transport in self._leaving else "open"

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> int:
        """Serve ``listener``, a bound and listening non-blocking socket, until a drain is complete.

        Returns:
            How many calls were cut off because the drain's grace was over.
        """
        self._shared = Shared(self._buffer_bytes, self.limit_hits, self._limits.inflation)
        # A copy of the worker's own, down to the numbers, for the reason that ``Wire`` has.
        self._limits = pickle.loads(pickle.dumps(self._limits))
        self._housekeeper = Housekeeper(self._limits, self._shared.budget, self.traffic)
        self.cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._eventfd, EPOLLIN)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._listen(listener)
                nursery.start_soon(self._keep_house)
                task_status.started()
                while self._drain_until_ns is None or self._transports:
                    await self._wait()
                    try:
                        self._work()
                        self._failed_rounds = 0
                    except Exception as error:
                        self._round_failed(error)
                nursery.cancel_scope.cancel()
        finally:
            self._close_everything()
        return self._cut_off_calls

    def drain(self, grace_s: float) -> None:
        """Stop accepting, say goodbye on every connection, answer what is under way, then let ``run`` return.

        Called on the worker's thread; from others through ``call_soon``. A later call can shorten the grace.

        Args:
            grace_s: after so many seconds the connections that are left are closed.
        """
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(grace_s * 1e9)
        if self._drain_until_ns is None:
            self._drain_until_ns = until_ns
            self._goodbye_ns = now_ns + min(GOODBYE_NS, int(grace_s * 5e8))
            self._stop_listening()
            for transport in list(self._transports.values()):
                try:
                    self._tell_to_leave(transport, "server is shutting down")
                except Exception as error:
                    self._connection_failed(transport, error)
            self._plan_wake_up(self._goodbye_ns)
        self._drain_until_ns = min(self._drain_until_ns, until_ns)
        self._plan_wake_up(self._drain_until_ns)
        if not self._in_round:
            self._wake()  # sends the GOAWAYs, and ends ``run`` where there is nobody to say goodbye to

    def _close_everything(self) -> None:
        self._stop_listening()
        for transport in list(self._transports.values()):
            self._drop(transport)
        while self._behind:
            connection, _ = self._behind.popitem(last=False)
            while connection.behind and self._end_some_calls(connection):
                pass
        self._inflation.stop()
        while self._to_start:
            del self._streams[self._to_start.popleft().call]
        with self._lock:
            # From here on ``call_soon`` finds the worker awake for ever, and leaves the eventfd's number alone.
            self._asleep = False
            self._callbacks = []
        self._round_end = []
        self._log.flush(NEVER)
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
        self._in_round = True
        until_ns = time.monotonic_ns() + STAY_NS
        timeout_s = 0.0
        while True:
            ready = self._epoll.poll(timeout_s)
            self._asleep = False  # spares ``call_soon`` an eventfd; the callbacks are looked at below in any case
            self.now_ns = now_ns = time.monotonic_ns()
            if not ready and not self._callbacks and now_ns < self._next_deadline_ns:
                break
            self._trio_has_work = False
            for fd, mask in ready:
                transport = self._transports.get(fd)
                if transport is not None:
                    try:
                        self._serve_transport(transport, mask)
                    except Exception as error:
                        self._connection_failed(transport, error)
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
                break
            timeout_s = LINGER_S if self._fall_asleep() else 0.0
        self._in_round = False

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._run(callback)

    def _end_round(self) -> None:
        if self._round_end:
            callbacks, self._round_end = self._round_end, []
            for callback in callbacks:
                self._run(callback)
        if self._dirty:
            self.flush()

    def _round_failed(self, error: Exception) -> None:
        """Nothing that a connection is to blame for, then: out of memory, most likely. What is due is done a bit later.

        Raises:
            Exception: ``error``, when nothing works any more.
        """
        self._in_round = False
        self._failed_rounds += 1
        if self._failed_rounds > MOST_FAILED_ROUNDS:
            raise error
        self._log_bug("round", error)
        self._plan_wake_up(time.monotonic_ns() + FAILED_ROUND_PAUSE_NS)

    def _log_bug(self, what: str, error: Exception, peer: str = "") -> None:
        kind = f"failures of the {what}"
        self._log.log(logging.ERROR, kind, self.now_ns, "%s failed", what, error=error, peer=peer)

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._log_bug("callback", error)

    # --- time --------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have a round soon. A task of Trio's runs while the worker sleeps, so what it plans has to wake the worker."""
        self.call_soon(_nothing)

    def _plan_wake_up(self, at_ns: int) -> None:
        if at_ns < self._next_deadline_ns:
            self._next_deadline_ns = at_ns
            if not self._in_round:
                self._wake()

    def _tick(self, now_ns: int) -> None:
        """Everything that is due by time; plans the next one."""
        self._next_deadline_ns = NEVER
        if now_ns >= self._accept_again_ns and self._listener is not None:
            self._listen(self._listener)
        self._plan_wake_up(self._accept_again_ns)
        self._tick_deadlines(now_ns)
        if self._drain_until_ns is not None:
            self._tick_drain(now_ns, self._drain_until_ns)
        for transport in list(self._closing):
            if transport.close_at_ns > now_ns:
                self._plan_wake_up(transport.close_at_ns)
                break
            self._drop(transport)
        self.flush()

    def _tick_deadlines(self, now_ns: int) -> None:
        if now_ns >= self._deadlines_again_ns:
            for connection in list(self._timed):
                if connection.next_deadline_ns <= now_ns:
                    self._expire(connection, now_ns)
                if connection.next_deadline_ns == NEVER:
                    self._timed.pop(connection, None)
            self._deadlines_again_ns = now_ns + DEADLINE_PAUSE * (time.monotonic_ns() - now_ns)
        for connection in self._timed:
            self._plan_deadline(connection.next_deadline_ns)

    def _expire(self, connection: ServerConnection, now_ns: int) -> None:
        try:
            self._dispatch_all(connection.expire(now_ns))
            if connection.behind:
                self._fall_behind(connection, [])
        except Exception as error:
            self._connection_failed(self._by_connection[connection], error)

    def _plan_deadline(self, at_ns: int) -> None:
        self._plan_wake_up(max(at_ns, self._deadlines_again_ns))

    def _tick_drain(self, now_ns: int, drain_until_ns: int) -> None:
        if now_ns >= self._goodbye_ns:
            self._goodbye_ns = NEVER
            for transport in list(self._transports.values()):
                try:
                    transport.connection.finish_shutdown()
                    self._close_if_drained(transport)
                except Exception as error:
                    self._connection_failed(transport, error)
        if now_ns >= drain_until_ns:
            for transport in list(self._transports.values()):
                self._cut_off_calls += transport.connection.open_calls
                self._drop(transport)
            return
        self._plan_wake_up(self._goodbye_ns)
        self._plan_wake_up(drain_until_ns)

    async def _keep_house(self) -> None:
        """See ``housekeeping``. A task: a deadline of the loop would cost each of its trips to Trio a timer."""
        while True:
            due_ns = time.monotonic_ns() + self._housekeeper.pause_ns
            await trio.sleep(self._housekeeper.pause_ns / 1e9)
            self.now_ns = time.monotonic_ns()
            self.lateness.note(self.now_ns - due_ns)
            try:
                self._visit(self.now_ns)
                self.flush()
            except Exception as error:
                self._log_bug("housekeeping", error)

    def _visit(self, now_ns: int) -> None:
        for link, finding in self._housekeeper.visit(now_ns):
            assert isinstance(link, Transport)
            try:
                self._act_on(link, finding)
            except Exception as error:
                self._connection_failed(link, error)
        self._log.flush(now_ns)

    def _act_on(self, transport: Transport, finding: Finding) -> None:
        connection = transport.connection
        if finding.duty is Duty.PING:
            connection.ping()
        elif finding.duty is Duty.LEAVE:
            self.limit_hits[finding.limit] += 1
            self._tell_to_leave(transport, finding.text)
        elif finding.duty is Duty.FINISH_LEAVING:
            connection.finish_shutdown()
            self._close_if_drained(transport)
        elif finding.duty is Duty.END:
            self._dispatch_all(connection.end(ErrorCodes.ENHANCE_YOUR_CALM, finding.text, finding.limit), transport)
        elif finding.duty is Duty.FAILED:
            assert finding.error is not None
            self._connection_failed(transport, finding.error)
        else:
            self.limit_hits[finding.limit] += 1
            self._log_end(transport, finding.text)
            self._drop(transport)

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._accept_again_ns = NEVER
        self._epoll.register(listener.fileno(), EPOLLIN)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()  # which takes it out of the epoll too
            self._listener = None
            self._accept_again_ns = NEVER

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in ACCEPT_OVERLOAD:
                    self.limit_hits["file_descriptors"] += 1
                    text = "accepting pauses: %s"
                    self._log.log(logging.WARNING, "pauses of accepting", self.now_ns, text, error.strerror)
                    self._epoll.unregister(listener.fileno())
                    self._accept_again_ns = self.now_ns + ACCEPT_PAUSE_NS
                    self._plan_wake_up(self._accept_again_ns)
                    return
                continue  # the peer gave up before we came (ECONNABORTED and the like)
            try:
                self._add_connection(sock, address)
            except Exception as error:
                transport = self._transports.get(sock.fileno())
                if transport is not None:
                    self._connection_failed(transport, error)
                else:
                    sock.close()
                    self._log_bug("connection that was to be taken", error)

    def _add_connection(self, sock: socket.socket, address: tuple[object, ...] | str) -> None:
        connection = ServerConnection(
            self.methods, self._limits, self._dirty, response_encoding=self._response_encoding, shared=self._shared
        )
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unix"
        try:
            transport = self._make_transport(sock, connection, peer)
        except OSError as error:
            text = "connection from %s could not be taken: %s"
            self._log.log(
                logging.WARNING, "connections that could not be taken", self.now_ns, text, peer, error.strerror
            )
            sock.close()
            return
        self._transports[transport.fd] = transport
        self._by_connection[connection] = transport
        self._housekeeper.add(transport, self.now_ns, random.uniform(*AGE_FACTORS))
        if len(self._transports) - len(self._closing) > self._max_connections:
            connection.refuse("too many connections")
            self._close_gently(transport)

    def _make_transport(self, sock: socket.socket, connection: ServerConnection, peer: str) -> Transport:
        limits = self._limits
        if self.tls is None:
            return Transport(sock, connection, peer, self._epoll, limits.max_unsent_bytes, self.now_ns)
        engine = TlsEngine(self.tls, limits.max_preface_bytes)
        return TlsTransport(sock, connection, peer, self._epoll, limits.max_unsent_bytes, self.now_ns, engine)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _serve_transport(self, transport: Transport, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send_unsent(transport)
            if not mask & ~EPOLLOUT or transport.fd not in self._transports:
                return
        try:
            data = transport.receive(transport.read_bytes)
        except BlockingIOError:
            return
        except ConnectionFault as fault:
            self._tls_failed(transport, fault)
            return
        except OSError:
            data = b""
        if not data:
            self._drop(transport)
            return
        if transport.closing:
            return
        size = len(data)
        timed = size >= transport.timed_bytes
        began_ns = time.monotonic_ns() if timed else 0
        transport.last_read_ns = now_ns = self.now_ns
        transport.received_bytes += size
        connection = transport.connection
        events = connection.receive_data(data, now_ns)
        if len(events) > EVENTS_AT_ONCE or connection.behind:
            self._take_turn(connection, events)
        else:
            for event in events:
                if event.__class__ is Call:
                    self._start_unary(event)
                elif event.__class__ is ConnectionTerminated:
                    self._connection_terminated(transport, event)
                else:
                    self._dispatch(event)
        if timed:
            ended_ns = time.monotonic_ns()
            crowded = ended_ns - now_ns > CROWDED_ROUND_NS
            transport.fit_reads(max(ended_ns - began_ns, READ_NS + 1) if crowded else ended_ns - began_ns)
        if connection.next_deadline_ns != NEVER or self._leaving:
            self._look_after(transport)

    def _look_after(self, transport: Transport) -> None:
        """What the frames of a connection may have changed for the rest of the worker."""
        connection = transport.connection
        if connection.next_deadline_ns != NEVER:
            self._timed[connection] = None
            self._plan_deadline(connection.next_deadline_ns)
        if self._leaving:
            self._close_if_drained(transport)  # its last call may have ended without an answer

    # --- turns -------------------------------------------------------------------------------------------------------

    def _take_turn(self, connection: ServerConnection, events: list[Event]) -> None:
        """Hand out what a connection has received, and let it go on with what it has left over, for TURN_NS.

        What is left then goes on in the next round; until nothing is, no more is read.
        """
        left = self._behind.pop(connection, None)
        if left:
            if connection.behind:
                events += connection.go_on(self.now_ns)  # which may reset what has waited
            events = [event for event in left if _is_wanted(event)] + events
        until_ns = time.monotonic_ns() + TURN_NS
        while True:
            coming = iter(events)
            left_over = len(events)
            while left_over > 0:
                for event in islice(coming, EVENTS_AT_ONCE):
                    if event.__class__ is Call:
                        self._start_unary(event)
                    elif event.__class__ is ConnectionTerminated:
                        self._connection_terminated(self._by_connection[connection], event)
                    else:
                        self._dispatch(event)
                left_over -= EVENTS_AT_ONCE
                if left_over > 0 and time.monotonic_ns() >= until_ns:
                    self._fall_behind(connection, list(coming))
                    return
            if not connection.behind:
                break
            if time.monotonic_ns() >= until_ns:
                self._fall_behind(connection, [])
                return
            events = connection.go_on(self.now_ns)
        if left is not None and (transport := self._by_connection.get(connection)) is not None:
            transport.pause(False)

    def _fall_behind(self, connection: ServerConnection, events: list[Event]) -> None:
        """A connection has work left over, ``events`` first."""
        left = self._behind.setdefault(connection, [])
        left += events
        connection.behind = True
        transport = self._by_connection.get(connection)
        if transport is not None:
            transport.pause(True)
        if not self._catching_up:
            self._catching_up = True
            self.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Turns of connections that are behind: one each at most, and all of them for CATCH_UP_NS."""
        self._catching_up = False
        until_ns = time.monotonic_ns() + CATCH_UP_NS
        for _ in range(len(self._behind)):
            if not self._behind:
                break
            connection = next(iter(self._behind))
            transport = self._by_connection.get(connection)
            if transport is None:
                if self._end_some_calls(connection):
                    self._behind.move_to_end(connection)
                else:
                    del self._behind[connection]
            else:
                try:
                    self._take_turn(connection, [])
                    self._look_after(transport)
                except Exception as error:
                    self._connection_failed(transport, error)
            if time.monotonic_ns() >= until_ns:
                break
        if self._behind and not self._catching_up:
            self._catching_up = True
            self.call_soon(self._catch_up)

    def _end_some_calls(self, connection: ServerConnection) -> bool:
        """End some calls of a connection whose socket is closed; whether there are more."""
        before = connection.open_calls
        try:
            self._dispatch_all(connection.go_on(self.now_ns))
        except Exception as error:
            self._log_bug("end of a call", error)
            if connection.open_calls >= before:
                return False  # and never will
        return connection.behind

    def _start_unary(self, call: Call) -> None:
        try:
            try:
                call.head.method.unary(call)  # type: ignore[union-attr,misc]  # only calls of unary methods are events
            except GrpcError as error:
                call.fail(error.status, error.text, error.metadata)
            except MemoryError:  # which comes with every request then: no traceback for each
                call.fail(Status.RESOURCE_EXHAUSTED, "the server is out of memory")
        except Exception as error:
            self._log_bug(f"handler of {_path(call)}", error, self.peer(call))
            call.fail(Status.INTERNAL, "internal error")
        call.buffer = b""  # a call that waits, for its batch or its peer, must not keep all that was read with it

    def _dispatch_all(self, events: list[Event], ended: Transport | None = None) -> None:
        """Events that no received data brought; those of ``ended`` may say that the connection has."""
        for event in events:
            if ended is not None and isinstance(event, ConnectionTerminated):
                self._connection_terminated(ended, event)
            else:
                self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        """Events of streaming calls, and requests that have to be decompressed elsewhere."""
        if isinstance(event, InflationDue):
            self._have_inflated(event)
            return
        self._trio_has_work = True
        if isinstance(event, StreamOpened):
            self._start_stream(event.call)
        elif isinstance(event, MessageReceived | RequestEnded | CallCancelled):
            stream = self._streams.get(event.call)
            if stream is None:
                return  # its handler ended while this waited for the connection's turn
            if isinstance(event, MessageReceived):
                stream.put(event.message)
            elif isinstance(event, RequestEnded):
                stream.end_request()
            else:
                stream.cancel()

    def _have_inflated(self, due: InflationDue) -> None:
        try:
            self._inflation.put(due)
        except RuntimeError:
            self._take_inflated(due, GrpcError(Status.RESOURCE_EXHAUSTED, "the server has no thread for this request"))

    def _inflation_done(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        self.call_soon(partial(self._take_inflated, due, outcome))

    def _take_inflated(self, due: InflationDue, outcome: bytes | GrpcError) -> None:
        connection = due.call.connection
        assert isinstance(connection, ServerConnection)
        for event in connection.inflated(due.call, outcome):
            assert isinstance(event, Call)
            self._start_unary(event)

    def _start_stream(self, call: Call) -> None:
        connection = call.connection
        assert isinstance(connection, ServerConnection)
        stream = self._streams[call] = ServerStream(call, connection, self)
        if not self._to_start:
            self.call_soon(self._start_some_streams)
        self._to_start.append(stream)

    def _start_some_streams(self) -> None:
        """Give some streaming calls their tasks; Trio has its turn before the next ones get theirs."""
        assert self._nursery is not None
        self._trio_has_work = True
        for _ in range(min(STREAMS_PER_TURN, len(self._to_start))):
            stream = self._to_start.popleft()
            if stream.call.open:
                self._nursery.start_soon(self._run_stream, stream)
            else:
                del self._streams[stream.call]
        if self._to_start:
            self.call_soon(self._start_some_streams)

    async def _run_stream(self, stream: ServerStream) -> None:
        def log(error: Exception) -> None:
            self._log_bug(f"handler of {_path(stream.call)}", error, self.peer(stream.call))

        try:
            await stream.run(log)
            transport = self._by_connection.get(stream.call.connection)
            if transport is not None:
                self._close_if_drained(transport)
        except Exception as error:
            self.connection_failed(stream.call, error)
        finally:
            self._streams.pop(stream.call, None)

    # --- writing and closing -----------------------------------------------------------------------------------------

    def _send_unsent(self, transport: Transport) -> None:
        if not transport.send_unsent():
            self._drop(transport)
        elif self._leaving:
            self._close_if_drained(transport)

    def _connection_failed(self, transport: Transport, error: Exception) -> None:
        """Something was raised that nobody expects where a connection is dealt with: end it, and nothing else."""
        connection = transport.connection
        self._behind.pop(connection, None)
        try:
            if connection.closed:
                self._drop(transport)
            elif isinstance(error, MemoryError):
                # First of all what it holds is given back, so that there is memory for the rest.
                events = connection.end(ErrorCodes.ENHANCE_YOUR_CALM, "the server is out of memory", "memory")
                self._dispatch_all(events, transport)
                text = "out of memory: connection from %s is ended"
                kind = "connections ended because memory ran out"
                self._log.log(logging.WARNING, kind, self.now_ns, text, transport.peer, peer=transport.peer)
            else:
                self._dispatch_all(connection.end(ErrorCodes.INTERNAL_ERROR, "internal error", ""), transport)
        except Exception as another:
            self._log_bug("end of a connection", another, transport.peer)
            self._drop(transport)
        if not isinstance(error, MemoryError):
            self._log_bug("connection", error, transport.peer)

    def _connection_terminated(self, transport: Transport, event: ConnectionTerminated) -> None:
        self._log_end(transport, f"{event.text} ({event.code.name})")
        if transport.connection.behind:
            self._behind.pop(transport.connection, None)
            self._fall_behind(transport.connection, [])
        self._close_gently(transport)

    def _tls_failed(self, transport: Transport, fault: ConnectionFault) -> None:
        if transport.closing:
            self._drop(transport)
            return
        if fault.limit:
            self.limit_hits[fault.limit] += 1
        self._dispatch_all(transport.connection.connection_lost())
        self._connection_terminated(transport, ConnectionTerminated(fault.code, str(fault)))

    def _log_end(self, transport: Transport, text: str) -> None:
        self._log.log(
            logging.INFO,
            "connections that ended early",
            self.now_ns,
            "connection from %s ended: %s",
            transport.peer,
            text,
            peer=transport.peer,
        )

    def _tell_to_leave(self, transport: Transport, reason: str) -> None:
        self._leaving[transport] = None
        transport.connection.begin_shutdown(reason)
        self._close_if_drained(transport)

    def _close_if_drained(self, transport: Transport) -> None:
        # A connection whose output waits for a TLS handshake has had its time for it.
        sent = not (transport.unsent or transport.connection.has_output) or not transport.established
        done = transport.connection.drained and sent
        if transport in self._leaving and done and not transport.closing:
            self._close_gently(transport)

    def _close_gently(self, transport: Transport) -> None:
        """Send what is left, then end our side, and read until the peer ends its own or CLOSE_LINGER_NS are over."""
        self._closing[transport] = None
        at_ns = time.monotonic_ns() + CLOSE_LINGER_NS
        self._plan_wake_up(at_ns)
        if not transport.close_gently(at_ns):
            self._drop(transport)

    def _drop(self, transport: Transport) -> None:
        """Close a socket and end its calls."""
        if self._transports.pop(transport.fd, None) is None:
            return
        connection = transport.connection
        self._by_connection.pop(connection, None)
        self._behind.pop(connection, None)
        self._closing.pop(transport, None)
        self._leaving.pop(transport, None)
        self._timed.pop(connection, None)
        try:
            self._housekeeper.remove(transport)
            transport.close()
        except Exception as error:
            transport.sock.close()
            self._log_bug("end of a connection", error, transport.peer)
        try:
            self._dispatch_all(connection.connection_lost())
        except Exception as error:
            connection.closed = connection.behind = True  # what is left is tried again
            self._log_bug("end of a connection", error, transport.peer)
        if connection.behind:
            self._fall_behind(connection, [])


def _nothing() -> None:
    pass


def _is_wanted(event: Event) -> bool:
    """Whether an event that has waited for its connection's turn still means something."""
    if isinstance(event, Call):
        return event.open
    return not isinstance(event, StreamOpened) or event.call.open


def _path(call: Call) -> str:
    return call.head.method.path if call.head.method is not None else "?"
