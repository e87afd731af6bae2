"""A worker: one thread, one Trio run, one epoll, and the connections that live on it.

Connections are state, not tasks. One Trio task watches the worker's epoll; when it fires, every socket that is ready is
read in one go and its calls are handed to their handlers, then the round ends: callbacks asked for by ``at_round_end``
run, and every connection with output is flushed with one system call. A task per connection costs twice as much per
request at one request at a time per connection.

While requests keep coming, the worker stays with its epoll instead of going back to Trio after each round, for at most
STAY_NS, so that tasks (streaming calls, shutdown) and cancellation live.

No connection can hold up the others: what takes longer than its turn goes on in the next rounds (``turns``), after what
is new there. None can end them: whatever is raised while a connection is dealt with ends that connection, and nothing
else (``closing``). Such ``try`` blocks cost nothing as long as nothing is raised.

Threads outside the worker reach it through ``call_soon`` alone (``mailbox``).
"""

from __future__ import annotations

import pickle
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import trio

from toutates.h2grpc.call import Call
from toutates.h2grpc.connection import ServerConnection
from toutates.h2grpc.limits import LIMIT_NAMES, Limits
from toutates.h2grpc.method import Method
from toutates.h2grpc.shared import Shared
from toutates.h2grpc.status import Status
from toutates.h2grpc.stream import NEVER
from toutates.net.accepting import Acceptor
from toutates.net.call_deadlines import CallDeadlines
from toutates.net.closing import Closing
from toutates.net.connection import Connection
from toutates.net.connection_state import ConnectionState
from toutates.net.handlers import Handlers, peer_of
from toutates.net.housekeeping import Housekeeper, Traffic
from toutates.net.incidents import Incidents
from toutates.net.mailbox import Mailbox
from toutates.net.schedule import Lateness, Schedule
from toutates.net.tls_transport import TlsTransport
from toutates.net.transport import Transport
from toutates.net.transports import Transports
from toutates.net.turns import Turns
from toutates.net.visits import Visits
from toutates.system.errors import RequestError

__all__ = ["Worker"]

#: How long the worker may stay with its epoll before Trio gets a turn.
STAY_NS: Final = 5_000_000
#: How long it waits for the next request before it goes back to Trio; what this saves is a trip through Trio's
#: scheduler. The system counts in milliseconds, so it is one.
LINGER_S: Final = 0.001
#: Failures of rounds, one after the other, that no connection is to blame for, before the worker gives up.
MOST_FAILED_ROUNDS: Final = 100
#: How soon after one what is due by time is looked at again.
FAILED_ROUND_PAUSE_NS: Final = 10_000_000


class Worker:
    """See the module. Made in any thread; ``run`` and all that handlers call belong to the worker's own.

    Args:
        name: for logs.
        limits: bounds of every connection.
        max_connections: connections above it are turned away.
        buffer_bytes: what connections may hold for slow peers, together; None for as much as they like.
        response_encoding: compression of compressible methods' responses, or "".
        statuses: the status of each kind of RequestError that handlers of unary calls raise.

    Attributes:
        methods: the methods served; set before ``run``, usually with handlers that know this worker.
        tls: what new connections shake hands with, this worker's alone; None is plaintext. Set before ``run``, later by
            ``use_tls``.
        now_ns: the time of the current round, monotonic nanoseconds.
        call_soon: runs a callback on the worker's thread, soon and in order. The one member that any thread may call.
            Does nothing visible once ``run`` has ended.
        limit_hits: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it.
        traffic: what the connections have had so far; other threads may read it.
        lateness: how late this thread's tasks get their turn; other threads may read it.
        cpu_clock: the clock of the CPU time that the worker's thread has used, once ``run`` has begun
            (``time.clock_gettime``).
        transports: the connections; the worker's thread alone may look at it.
        handlers: what runs for their calls; as above.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        max_connections: int = 100_000,
        buffer_bytes: int | None = None,
        response_encoding: str = "",
        statuses: Mapping[type[RequestError], Status] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.methods: Mapping[bytes, Method] = {}
        self.tls: ssl.SSLContext | None = None
        self.now_ns = time.monotonic_ns()
        self.limit_hits: Counter[str] = Counter(dict.fromkeys(LIMIT_NAMES, 0))
        self.traffic = Traffic()
        self.lateness = Lateness()
        self.cpu_clock: int | None = None
        self._limits = limits
        self._max_connections = max_connections
        self._buffer_bytes = buffer_bytes
        self._response_encoding = response_encoding
        self._incidents = Incidents(name)
        self._mailbox = Mailbox()
        self.call_soon: Callable[[Callable[[], None]], None] = self._mailbox.put
        self.schedule = Schedule(self._mailbox)
        self.transports = Transports(self._mailbox)
        self.handlers = Handlers(name, self._mailbox, self._incidents, self, self._stream_ended, statuses)
        #: connections that have output
        self._dirty: list[Any] = []
        self._round_end: list[Callable[[], None]] = []
        self._failed_rounds = 0
        # Made by ``run``, in the thread that uses them.
        self.shared: Shared
        self.housekeeper: Housekeeper
        self.closing: Closing
        self.deadlines: CallDeadlines
        self.acceptor: Acceptor
        self._turns: Turns
        self._visits: Visits
        self._epoll: select.epoll

    # --- for handlers, on the worker's thread ------------------------------------------------------------------------

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once all requests that are ready now have been handed to their handlers."""
        self._round_end.append(callback)
        self.schedule.wake()

    def flush(self) -> None:
        """Send what has been answered. Tasks call it after ``call.reply``; in handlers and callbacks the round does."""
        dirty = self._dirty
        while dirty:
            transport = dirty.pop()
            if transport is None or transport.dropped:
                continue
            try:
                if not transport.flush():
                    self.closing.drop(transport)
                elif self.transports.leaving:
                    self.closing.close_if_drained(transport)
            except Exception as error:
                self.closing.failed(transport, error)

    def congested(self, call: Call) -> bool:
        """Whether the call's peer reads its responses too slowly for more of them."""
        return call.link is not None and call.link.congested

    def connection_failed(self, call: Call, error: Exception) -> None:
        """Answering ``call`` raised ``error``, which is to cost nobody else anything: end the call's connection."""
        if call.link is not None:
            self.closing.failed(call.link, error)

    def task_woken(self) -> None:
        """A callback or handler gave a task something to do: go back to Trio once the round is over.

        Without it the task waits until the worker goes back by itself, up to STAY_NS under load. It is not assumed of
        every callback, because a batch's is one, and one open stream would then cost each batch a trip through Trio.
        """
        self.handlers.trio_has_work = True

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Shake hands with ``context`` from now on; connections that are open, or shaking hands, keep theirs.

        Called on the worker's thread; from others through ``call_soon``. No other thread uses the context any more.
        """
        self.tls = context

    def peer(self, call: Call) -> str:
        """The address that a call came from; "" once its connection is gone."""
        return peer_of(call)

    # --- what it is at -----------------------------------------------------------------------------------------------

    @property
    def log_lines_dropped(self) -> int:
        """Lines about bad peers that the log was spared; may be read in any thread."""
        return self._incidents.log.dropped

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self.transports.open)

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
            for transport in islice(self.transports.open.values(), most)
        ]

    def _phase(self, transport: Transport) -> str:
        if transport.closing:
            return "closing"
        if not transport.established:
            return "handshake"
        return "leaving" if transport in self.transports.leaving else "open"

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> int:
        """Serve ``listener``, a bound and listening non-blocking socket, until a drain is complete.

        Returns:
            How many calls were cut off because the drain's grace was over.
        """
        self._make_parts()
        self.cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._mailbox.open(self._epoll)
        try:
            async with trio.open_nursery() as nursery:
                self.handlers.nursery = nursery
                self.acceptor.listen(listener)
                nursery.start_soon(self._keep_house)
                task_status.started()
                while not self.closing.draining or self.transports.open:
                    await self._wait()
                    try:
                        self.work()
                        self._failed_rounds = 0
                    except Exception as error:
                        self._round_failed(error)
                nursery.cancel_scope.cancel()
        finally:
            self._close_everything()
        return self.closing.cut_off_calls

    def _make_parts(self) -> None:
        # A copy of the worker's own, down to the numbers, for the reason that ``Wire`` has.
        limits = self._limits = pickle.loads(pickle.dumps(self._limits))
        transports, schedule, handlers, incidents = self.transports, self.schedule, self.handlers, self._incidents
        self._epoll = select.epoll()
        self.shared = Shared(self._buffer_bytes, self.limit_hits, limits.inflation)
        self.housekeeper = Housekeeper(limits, self.shared.budget, self.traffic)
        self.closing = Closing(transports, schedule, handlers, incidents, self.housekeeper, self.limit_hits)
        self.deadlines = CallDeadlines(transports, schedule, handlers, self.closing)
        self._turns = Turns(transports, handlers, self.closing, self.deadlines)
        self._visits = Visits(self.housekeeper, self.closing, incidents, self.limit_hits)
        self.acceptor = Acceptor(
            self._connect,
            lambda: self.tls,
            limits,
            self._max_connections,
            self._epoll,
            transports,
            schedule,
            self.closing,
            incidents,
            self.housekeeper,
            self.limit_hits,
        )

    def _connect(self) -> Connection:
        return ServerConnection(
            self.methods, self._limits, self._dirty, response_encoding=self._response_encoding, shared=self.shared
        )

    def drain(self, grace_s: float) -> None:
        """Stop accepting, say goodbye on every connection, answer what is under way, then let ``run`` return.

        Called on the worker's thread; from others through ``call_soon``. A later call can shorten the grace.

        Args:
            grace_s: after so many seconds the connections that are left are closed.
        """
        self.acceptor.stop()
        self.closing.drain(grace_s)
        self.schedule.wake()  # sends the GOAWAYs, and ends ``run`` where there is nobody to say goodbye to

    def _close_everything(self) -> None:
        self.acceptor.stop()
        self.closing.drop_all(time.monotonic_ns())
        self.handlers.stop()
        self._mailbox.close()
        self._round_end = []
        self._incidents.log.flush(NEVER)
        self._epoll.close()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Let Trio run its tasks until the epoll has something, or time is up."""
        if not self._mailbox.fall_asleep():
            await trio.lowlevel.checkpoint()
            return
        next_ns = self.schedule.next_ns
        if next_ns == NEVER:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        else:
            with trio.move_on_after(max(next_ns - time.monotonic_ns(), 0) / 1e9):
                await trio.lowlevel.wait_readable(self._epoll.fileno())

    def work(self) -> None:
        """Rounds, for as long as there is something to do and Trio can be kept waiting."""
        schedule, mailbox, handlers, serve = self.schedule, self._mailbox, self.handlers, self._turns.serve
        transports = self.transports.open
        schedule.in_round = True
        until_ns = time.monotonic_ns() + STAY_NS
        timeout_s = 0.0
        while True:
            ready = self._epoll.poll(timeout_s)
            mailbox.wake_up()
            self.now_ns = now_ns = time.monotonic_ns()
            if not ready and not mailbox.callbacks and now_ns < schedule.next_ns:
                break
            handlers.trio_has_work = False
            for fd, mask in ready:
                transport = transports.get(fd)
                if transport is not None:
                    try:
                        serve(transport, mask, now_ns)
                    except Exception as error:
                        self.closing.failed(transport, error)
                elif fd == mailbox.fd:
                    mailbox.empty_eventfd()
                elif self.acceptor.listens_on(fd):
                    self.acceptor.accept(now_ns)
            if mailbox.callbacks:
                self._run_all(mailbox.take())
            if self._round_end:
                callbacks, self._round_end = self._round_end, []
                self._run_all(callbacks)
            if self._dirty:
                self.flush()
            if now_ns >= schedule.next_ns:
                self._tick(now_ns)
            if now_ns >= until_ns or handlers.trio_has_work:
                break
            timeout_s = LINGER_S if mailbox.fall_asleep() else 0.0
        schedule.in_round = False

    def _run_all(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self._incidents.bug("callback", error)

    def _tick(self, now_ns: int) -> None:
        """Everything that is due by time; plans the next one."""
        self.schedule.next_ns = NEVER
        self.acceptor.tick(now_ns)
        self.deadlines.tick(now_ns)
        self.closing.tick(now_ns)
        self.flush()

    def _round_failed(self, error: Exception) -> None:
        """Nothing that a connection is to blame for, then: out of memory, most likely. What is due is done a bit later.

        Raises:
            Exception: ``error``, when nothing works any more.
        """
        self.schedule.in_round = False
        self._failed_rounds += 1
        if self._failed_rounds > MOST_FAILED_ROUNDS:
            raise error
        self._incidents.bug("round", error)
        self.schedule.plan(time.monotonic_ns() + FAILED_ROUND_PAUSE_NS)

    async def _keep_house(self) -> None:
        """See ``housekeeping``. A task: a deadline of the loop would cost each of its trips to Trio a timer."""
        while True:
            pause_ns = self.housekeeper.pause_ns
            due_ns = time.monotonic_ns() + pause_ns
            await trio.sleep(pause_ns / 1e9)
            self.now_ns = time.monotonic_ns()
            self.lateness.note(self.now_ns - due_ns)
            try:
                self._visits.visit(self.now_ns)
                self.flush()
            except Exception as error:
                self._incidents.bug("housekeeping", error)

    def _stream_ended(self, call: Call, error: Exception | None) -> None:
        """A streaming call's handler has returned, and its call is over; or ending it raised ``error``."""
        if error is not None:
            self.connection_failed(call, error)
        elif call.link is not None:
            self.closing.close_if_drained(call.link)
