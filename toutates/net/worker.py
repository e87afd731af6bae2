"""A worker: one thread, one Trio run, one epoll, and the connections that live on it.

Connections are state, not tasks. One Trio task watches the worker's epoll; when it fires, every socket that is ready is
read in one go and what it brings is handed to its service, then the round ends: callbacks asked for by ``at_round_end``
run, and every connection with output is flushed with one system call. A task per connection costs twice as much per
request at one request at a time per connection.

While requests keep coming, the worker stays with its epoll instead of going back to Trio after each round, for at most
STAY_NS, so that tasks (streaming calls, shutdown) and cancellation live.

No connection can hold up the others: what takes longer than its turn goes on in the next rounds (``turns``), after what
is new there, and so do callbacks that the end of a round has no time for. None can end them: whatever is raised while
a connection is dealt with ends that connection, and nothing else (``closing``). Such ``try`` blocks cost nothing as
long as nothing is raised.

A worker knows no protocol. What its connections speak is its service's (``connection``): gRPC's is ``grpc.service``.

Threads outside the worker reach it through ``call_soon`` alone (``mailbox``).
"""

from __future__ import annotations

import pickle
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import trio

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.message_memory import POOL_BYTES, MemoryPool
from toutates.h2grpc.stream import NEVER
from toutates.net.accepting import Acceptor, Listening
from toutates.net.call_deadlines import CallDeadlines
from toutates.net.closing import Closing
from toutates.net.connection import Exchange, Service
from toutates.net.connection_state import ConnectionState
from toutates.net.housekeeping import Housekeeper, Traffic
from toutates.net.http_date import HttpDate
from toutates.net.incidents import Incidents
from toutates.net.mailbox import Mailbox
from toutates.net.poisoned_memory import PoisonedPool
from toutates.net.schedule import Lateness, Schedule
from toutates.net.side_thread import SideThread
from toutates.net.tls import TlsEngine
from toutates.net.tls_transport import TlsTransport
from toutates.net.transport import Transport
from toutates.net.transports import Transports
from toutates.net.turns import CROWDED_FOR_NS, CROWDED_ROUND_NS, Turns
from toutates.net.visits import Visits
from toutates.system.inline_time import INLINE_TIME, NO_BOUND_NS
from toutates.system.poison import current

__all__ = ["Worker"]

#: How long the worker may stay with its epoll before Trio gets a turn.
STAY_NS: Final = 10_000_000
#: How long it waits for the next request before it goes back to Trio; what this saves is a trip through Trio's
#: scheduler. The system counts in milliseconds, so it is one.
LINGER_S: Final = 0.001
#: How long a round may run batches inline, for all models together; then executors have them. A client may ask hundreds
#: of models at once, and the worker's other clients wait for the end of the round.
MOST_INLINE_NS: Final = 4_000_000
#: How long the end of a round may take; what is left goes on at the end of the next one. To hand a batch over takes 20
#: us, and several times as long where executors have the worker's core meanwhile.
ROUND_END_NS: Final = 2_000_000
#: Failures of rounds, one after the other, that no connection is to blame for, before the worker gives up.
MOST_FAILED_ROUNDS: Final = 100
#: How soon after one what is due by time is looked at again.
FAILED_ROUND_PAUSE_NS: Final = 10_000_000
#: How long a callback of ``call_later`` waits, how long all that are due may take, and how many have their turn between
#: two looks at the clock.
LATER_NS: Final = 4_000_000
MOST_LATER_NS: Final = 500_000
AT_ONCE_LATER: Final = 8
#: The ages of connections vary by so much, so that those made together do not all come back together.
AGE_FACTORS: Final = (0.9, 1.1)


class Worker:
    """Serves the connections of its listeners in one thread.

    Made in any thread; ``run`` and all that services and handlers call belong to the worker's own.

    Args:
        name: for logs.
        limits: bounds of every connection.
        max_connections: connections above it are turned away.
        buffer_bytes: what connections may hold for slow peers, together; None for as much as they like.
        most_fd: see ``Acceptor``.

    Attributes:
        services: those of its connections, which it has started.
        tls: what new connections of encrypted listeners shake hands with, this worker's alone; None is plaintext. Set
            before ``run``, later by ``use_tls``.
        now_ns: the time of the current round, monotonic nanoseconds.
        date: the field ``Date`` of the answers of that round.
        call_soon: runs a callback on the worker's thread, soon and in order. The one member that any thread may call.
            Does nothing visible once ``run`` has ended.
        side: does what would take long on the worker's thread; it ends with the worker.
        objects: another such thread, for what belongs to clients, who may have whoever uses it wait.
        limits: as given; once ``run`` has begun, a copy of this thread's own.
        budget: counts what its connections hold for slow peers, of whatever protocol; other threads may read it.
        limit_hits: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it.
        incidents: the worker's log.
        message_memory: of large messages and bodies, of whatever protocol.
        dirty: links of connections that have output; connections add themselves (``Connection.bind``).
        traffic: bytes, streams and connections so far; other threads may read it.
        lateness: the event-loop lag of this thread; other threads may read it.
        cpu_clock: the clock of the CPU time that the worker's thread has used, once ``run`` has begun
            (``time.clock_gettime``).
        transports: the connections; the worker's thread alone may look at it.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        max_connections: int = 100_000,
        buffer_bytes: int | None = None,
        most_fd: int = NEVER,
    ) -> None:
        self.name = name
        self.services: dict[Service, None] = {}
        self.tls: ssl.SSLContext | None = None
        self.now_ns = time.monotonic_ns()
        self.date = HttpDate()
        self.traffic = Traffic()
        self.lateness = Lateness()
        self.cpu_clock: int | None = None
        self.limits = limits
        self.budget = MemoryBudget(2**63 - 1 if buffer_bytes is None else buffer_bytes)
        self._max_connections = max_connections
        self._most_fd = most_fd
        self.incidents = Incidents(name)
        self.limit_hits = self.incidents.limit_hits
        self._mailbox = Mailbox()
        self.call_soon: Callable[[Callable[[], None]], None] = self._mailbox.put
        self.side = SideThread(f"{name}-side", self.call_soon)
        self.objects = SideThread(f"{name}-objects", self.call_soon, self._ring)
        #: of threads that are to be woken when this one is about to sleep
        self._bells: list[threading.Lock] = []
        self.schedule = Schedule(self._mailbox)
        self.transports = Transports(self._mailbox)
        most, poison = min(POOL_BYTES, self.budget.limit >> 3), current()
        self.message_memory = MemoryPool(most) if poison is None else PoisonedPool(most, poison)
        self.dirty: list[Any] = []
        #: whether a task of Trio's was given something to do in this round
        self._task_woken = False
        self._round_end: list[Callable[[], None]] = []
        #: whether some of these are left of an earlier round
        self._is_behind = False
        #: what ``call_later`` was given, and when it is due
        self._later: list[Callable[[], None]] = []
        self._later_ns = 0
        self._failed_rounds = 0
        # Made by ``run``, in the thread that uses them.
        self.housekeeper: Housekeeper
        self.closing: Closing
        self.deadlines: CallDeadlines
        self.visits: Visits
        self.acceptor: Acceptor
        self._nursery: trio.Nursery
        self._turns: Turns
        self._epoll: select.epoll

    # --- for handlers, on the worker's thread ------------------------------------------------------------------------

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once all requests that are ready now have been handed to their handlers.

        Callbacks run in the order in which they were asked for, some of them rounds later where there are many.
        """
        self._round_end.append(callback)
        self.schedule.wake()

    def call_later(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in some milliseconds. For what waits and hears of nothing that it could wait for."""
        if not self._later:
            self._later_ns = time.monotonic_ns() + LATER_NS
            self.schedule.plan(self._later_ns)
        self._later.append(callback)

    def flush(self) -> None:
        """Send what has been answered. Tasks call it after ``call.reply``; in handlers and callbacks the round does."""
        dirty, leaving = self.dirty, self.transports.leaving
        while dirty:
            transport = dirty.pop()
            if transport is None or transport.dropped:
                continue
            try:
                leaves = leaving and transport in leaving
                if leaves:
                    transport.connection.say_goodbye()
                if not transport.flush():
                    self.closing.drop(transport)
                elif leaves:
                    self.closing.close_if_drained(transport)
            except Exception as error:
                self.closing.failed(transport, error)

    def connection_failed(self, exchange: Exchange, error: Exception) -> None:
        """Answering ``exchange`` raised ``error``, which is to cost nobody else anything: end its connection."""
        if exchange.link is not None:
            self.closing.failed(exchange.link, error)

    def task_woken(self) -> None:
        """A callback or handler gave a task something to do: go back to Trio once the round is over.

        Without it the task waits until the worker goes back by itself, up to STAY_NS under load. It is not assumed of
        every callback, because a batch's is one, and one open stream would then cost each batch a trip through Trio.
        """
        self._task_woken = True

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Shake hands with ``context`` from now on; connections that are open, or shaking hands, keep theirs.

        Called on the worker's thread; from others through ``call_soon``. No other thread uses the context any more.
        """
        self.tls = context

    def peer(self, exchange: Exchange) -> str:
        """The address that a request came from; "" once its connection is gone."""
        peer: str = "" if exchange.link is None else exchange.link.peer
        return peer

    # --- for services, on the worker's thread ------------------------------------------------------------------------

    def connection_over(self, transport: Transport, reason: str) -> None:
        """A connection has ended itself: send what it has left, then close its socket.

        Args:
            transport: the connection's.
            reason: for the log.
        """
        self.closing.over(transport, reason)

    def leave(self, transport: Transport, reason: str) -> None:
        """Begin the shutdown of one connection, which is closed once its requests are answered."""
        self.closing.tell_to_leave(transport, reason)

    def go_on(self, transport: Transport) -> None:
        """Have ``Connection.go_on`` called: an answer has made room for what was received earlier."""
        if not transport.dropped:
            self.transports.fall_behind(transport, [])

    def exchange_ended(self, exchange: Exchange) -> None:
        """A request has ended without output, which may have been the last one of a connection that is leaving."""
        if exchange.link is not None:
            self.closing.close_if_drained(exchange.link)

    # --- its state ---------------------------------------------------------------------------------------------------

    @property
    def log_lines_dropped(self) -> int:
        """Lines about bad peers that the log was spared; may be read in any thread."""
        return self.incidents.log.dropped

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self.transports.open)

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of the worker's thread; None before it begins and after its end."""
        try:
            return None if self.cpu_clock is None else time.clock_gettime(self.cpu_clock)
        except OSError:
            return None

    def connection_states(self, most: int) -> list[ConnectionState]:
        """The states of the open connections, of at most ``most``. Called on the worker's thread."""
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
        self,
        *listenings: Listening,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> int:
        """Serve until a drain is complete.

        Args:
            listenings: where connections come from; more of them by ``listen``.
            task_status: told when the worker listens.

        Returns:
            How many calls were cut off because the drain's grace was over.
        """
        self._make_parts()
        self.cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._mailbox.open(self._epoll)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.listen(*listenings)
                nursery.start_soon(self._keep_house)
                task_status.started()
                while not self.closing.draining or self.acceptor.listeners or self.transports.open:
                    await self._wait()
                    try:
                        self.work()
                        self._failed_rounds = 0
                    except Exception as error:
                        if self._round_failed(error):
                            raise
                nursery.cancel_scope.cancel()
        finally:
            self._close_everything()
        return self.closing.cut_off_calls

    def listen(self, *listenings: Listening) -> None:
        """Accept connections from these sockets too; from those that are known, for another service from now on.

        Called on the worker's thread; from others through ``call_soon``. Once the drain has begun, it closes them.
        """
        for listening in listenings:
            if self.closing.draining:
                listening.socket.close()
                continue
            self._start(listening.service)
            self.acceptor.listen(listening)

    def _start(self, service: Service) -> None:
        """Start a service and its parts, each once."""
        for part in service.parts:
            self._start(part)
        if service not in self.services:
            self.services[service] = None
            service.start(self._nursery)

    def _make_parts(self) -> None:
        # A copy of the worker's own, down to the numbers, for the reason that ``Wire`` has.
        self.limits = pickle.loads(pickle.dumps(self.limits))
        transports, schedule, incidents = self.transports, self.schedule, self.incidents
        self._epoll = select.epoll()
        self.housekeeper = Housekeeper(self.limits, self.budget, self.traffic)
        self.closing = Closing(transports, schedule, incidents, self.housekeeper)
        self.deadlines = CallDeadlines(transports, schedule, self.closing)
        self._turns = Turns(transports, schedule, self.closing, self.deadlines)
        self.visits = Visits(self.housekeeper, self.closing, incidents)
        self.acceptor = Acceptor(self._epoll, schedule, incidents, self._take)
        self.acceptor.most_fd = self._most_fd

    def _take(self, sock: socket.socket, peer: str, now_ns: int, listening: Listening) -> None:
        """Make a connection for a socket that was accepted."""
        transports = self.transports
        try:
            try:
                transport = self._make_transport(sock, peer, now_ns, listening)
            except OSError as error:
                self.incidents.not_taken(peer, str(error.strerror))
                sock.close()
                return
            transports.open[transport.fd] = transport
            self.housekeeper.add(transport, now_ns, random.uniform(*AGE_FACTORS))
            if len(transports.open) - len(transports.closing) > self._max_connections:
                transport.connection.refuse("too many connections")
                self.closing.close_gently(transport)
            else:
                self.closing.greet(transport)
        except Exception as error:
            taken = transports.open.get(sock.fileno())
            if taken is not None:
                self.closing.failed(taken, error)
            else:
                sock.close()
                self.incidents.bug("connection that was to be taken", error)

    def _make_transport(self, sock: socket.socket, peer: str, now_ns: int, listening: Listening) -> Transport:
        limits, service = self.limits, listening.service
        if self.tls is None or not listening.encrypted:
            return Transport(sock, service, peer, self._epoll, limits.max_unsent_bytes, self.budget, now_ns)
        engine = TlsEngine(self.tls, limits.max_preface_bytes)
        return TlsTransport(sock, service, peer, self._epoll, limits.max_unsent_bytes, self.budget, now_ns, engine)

    def announce_end(self) -> None:
        """The server is about to stop, and serves on: answers say so where they can (``Connection.announce_end``).

        Called on the worker's thread; from others through ``call_soon``.
        """
        self.closing.announce_end()

    def drain(self, grace_s: float, *, shared: bool = False) -> None:
        """Stop accepting, say goodbye on every connection, answer what is under way, then let ``run`` return.

        Called on the worker's thread; from others through ``call_soon``. A later call can shorten the grace.

        Args:
            grace_s: seconds after which the connections that are left are closed.
            shared: whether other servers listen on the same ports, and take the connections to come.
        """
        self.closing.drain(grace_s)
        self.acceptor.leave(time.monotonic_ns(), shared=shared, within_ns=int(grace_s * 2.5e8))
        self.schedule.wake()  # sends the GOAWAYs, and ends ``run`` where there is nobody to say goodbye to

    def _close_everything(self) -> None:
        self.acceptor.stop()
        self.closing.drop_all(time.monotonic_ns())
        while self._round_end:  # rows on their way into batches, which other workers' requests wait for
            self._end_round()
        for service in reversed(self.services):
            service.stop()
        self.side.stop()
        self.objects.stop()
        self._mailbox.close()
        self._round_end = []
        INLINE_TIME.left_ns = NO_BOUND_NS
        self.incidents.log.flush(NEVER)
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
        """Run rounds for as long as there is something to do, and for STAY_NS at most."""
        schedule, mailbox, turns = self.schedule, self._mailbox, self._turns
        transports, date = self.transports.open, self.date
        schedule.in_round = True
        now_ns = time.monotonic_ns()
        until_ns = now_ns + STAY_NS
        timeout_s = 0.0
        while True:
            ready = self._epoll.poll(timeout_s)
            mailbox.wake_up()
            last_ns, self.now_ns = now_ns, time.monotonic_ns()
            now_ns = self.now_ns
            if now_ns - last_ns > CROWDED_ROUND_NS:
                turns.crowded_until_ns = now_ns + CROWDED_FOR_NS
            serve = turns.serve if now_ns > turns.crowded_until_ns else turns.serve_timed
            if now_ns >= date.until_ns:
                date.renew(now_ns)
            if not self._is_behind:  # else executors have what is left
                INLINE_TIME.left_ns = MOST_INLINE_NS
            if not ready and not mailbox.callbacks and now_ns < schedule.next_ns:
                break
            self._task_woken = False
            for fd, mask in ready:
                transport = transports.get(fd)
                if transport is not None:
                    try:
                        serve(transport, mask, now_ns)
                    except Exception as error:
                        self.closing.failed(transport, error)
                elif fd in self.acceptor.listeners:
                    self.acceptor.accept(fd, now_ns)
            if mailbox.callbacks:
                self._run_all(mailbox.take())
            if self._round_end:
                self._end_round()
            if self.dirty:
                self.flush()
            if now_ns >= schedule.next_ns:
                self._tick(now_ns)
            if self._bells:
                self._ring_all()
                self.objects.wait()
            if now_ns >= until_ns or self._task_woken:
                break
            timeout_s = LINGER_S if mailbox.fall_asleep() else 0.0
        schedule.in_round = False

    def _ring(self, bell: threading.Lock) -> None:
        """Wake another thread at the end of the round: woken now it would wait for the interpreter, on this core."""
        if self.schedule.in_round:
            self._bells.append(bell)
        else:
            bell.release()

    def _ring_all(self) -> None:
        while self._bells:
            self._bells.pop().release()

    def _end_round(self) -> None:
        """Run what ``at_round_end`` was given, for ROUND_END_NS; what is left goes first at the end of the next round.

        A single callback, as of a worker with one model, does not have the clock read.
        """
        callbacks, self._round_end = self._round_end, []
        self._is_behind = False
        if len(callbacks) == 1:
            self._run_all(callbacks)
        else:
            until_ns = time.monotonic_ns() + ROUND_END_NS
            for done, callback in enumerate(callbacks, 1):
                self._run_all((callback,))
                if done < len(callbacks) and time.monotonic_ns() >= until_ns:
                    self._round_end[:0] = callbacks[done:]
                    self._is_behind = True
                    break
        if self._round_end:
            self.schedule.go_on()

    def _run_all(self, callbacks: Sequence[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self.incidents.bug("callback", error)

    def _tick(self, now_ns: int) -> None:
        """Everything that is due by time; plans the next one."""
        self.schedule.next_ns = NEVER
        if self._later:
            self._run_later(now_ns)
        self.acceptor.tick(now_ns)
        self.deadlines.tick(now_ns)
        self.closing.tick(now_ns)
        self._turns.tick(now_ns)
        self.flush()

    def _run_later(self, now_ns: int) -> None:
        if now_ns >= self._later_ns:
            callbacks, self._later = self._later, []
            began_ns = time.monotonic_ns()
            self._later_ns = began_ns + LATER_NS
            for done in range(0, len(callbacks), AT_ONCE_LATER):
                self._run_all(callbacks[done : done + AT_ONCE_LATER])
                if time.monotonic_ns() - began_ns >= MOST_LATER_NS:
                    self._later[:0] = callbacks[done + AT_ONCE_LATER :]
                    break
        if self._later:
            self.schedule.plan(self._later_ns)

    def _round_failed(self, error: Exception) -> bool:
        """A round failed by no connection's fault, most likely because memory ran out. What is due is done a bit later.

        Returns whether nothing works any more.
        """
        self.schedule.in_round = False
        self._ring_all()
        self._failed_rounds += 1
        if self._failed_rounds > MOST_FAILED_ROUNDS:
            return True
        self.incidents.bug("round", error)
        self.schedule.plan(time.monotonic_ns() + FAILED_ROUND_PAUSE_NS)
        return False

    async def _keep_house(self) -> None:
        """Visit the connections every few seconds. A task, because a timer would cost each trip of the loop."""
        while True:
            pause_ns = self.housekeeper.pause_ns
            due_ns = time.monotonic_ns() + pause_ns
            await trio.sleep(pause_ns / 1e9)
            self.now_ns = time.monotonic_ns()
            self.lateness.note(self.now_ns - due_ns)
            try:
                self.visits.visit(self.now_ns)
                self.message_memory.trim(self.now_ns)
                self.flush()
            except Exception as error:
                self.incidents.bug("housekeeping", error)
