"""Reading: what a connection receives is handed to its service, in its turn; what is left goes on in later rounds."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, Final

from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.stream import NEVER
from toutates.net.call_deadlines import CallDeadlines
from toutates.net.closing import Closing
from toutates.net.schedule import Schedule
from toutates.net.transport import (
    AWAIT_NS,
    EPOLLERR,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    LEAST_AWAITED_BYTES,
    MOST_AWAITED_BYTES,
    PACE_NS,
    READ_BYTES,
    READ_NS,
    Transport,
)
from toutates.net.transports import Transports

__all__ = ["CROWDED_FOR_NS", "CROWDED_ROUND_NS", "Turns"]

#: How long a connection's turn may take; what is left goes on in the next round. The clock is read once per
#: EVENTS_AT_ONCE events, and after each where reads are large, and so may be the events.
TURN_NS: Final = 4_000_000
EVENTS_AT_ONCE: Final = 16
CLOSELY_TIMED_BYTES: Final = 65_536
#: In a round that takes longer than this many connections have much to say: reads that are filled become smaller, turns
#: end at the first look at the clock, and for a while each connection is timed (``serve_timed``).
CROWDED_ROUND_NS: Final = 12_000_000
CROWDED_FOR_NS: Final = 1_000_000_000
#: The least that a turn of a connection that is behind may take, and what makes one fall behind in crowded times.
SHORT_TURN_NS: Final = 250_000
#: So many large messages have to come as foreseen, each within SOON_NS of the one before, and nothing else, until the
#: next one is waited for before it begins: whatever comes in its place is read up to AWAIT_NS later than it came. Once
#: something did, so many more have to.
SURELY_ALIKE: Final = 8
DOUBTED: Final = -24
#: While nothing has come, it is waited for on: a look every AWAIT_NS costs 3 us, and a message that was not waited for
#: before it began three system calls and a trip through the epoll more, some 25 us.
SOON_NS: Final = 5 * AWAIT_NS
#: How long a round may spend on what earlier rounds left over, for all connections together.
CATCH_UP_NS: Final = 8_000_000


class Turns:
    """Gives the connections of one worker their turns, so that none can hold up the others.

    Args:
        transports, schedule, closing, deadlines: of the worker.

    Attributes:
        crowded_until_ns: until then connections are to be served by ``serve_timed``.
    """

    def __init__(self, transports: Transports, schedule: Schedule, closing: Closing, deadlines: CallDeadlines) -> None:
        self._schedule = schedule
        self._transports = transports
        self._open = transports.open
        self._leaving = transports.leaving
        self._closing = closing
        self._deadlines = deadlines
        self.crowded_until_ns = 0
        transports.catch_up = self._catch_up

    def serve(self, transport: Transport, mask: int, now_ns: int) -> None:
        """Deal with a socket that is ready.

        Args:
            transport: the socket's.
            mask: what the epoll says of it.
            now_ns: the time of this round.
        """
        if mask != EPOLLIN and self._is_served(transport, mask):
            return
        if transport.connection.direct and self._receive_directly(transport, now_ns):
            return
        try:
            data = transport.receive(transport.read_bytes)
        except BlockingIOError:
            return
        except ConnectionFault as fault:
            self._closing.tls_failed(transport, fault)
            return
        except OSError:
            self._closing.drop(transport)
            return
        if not data:
            self._end_of_peer(transport)
            return
        if transport.closing:
            return
        size = len(data)
        timed = size >= transport.timed_bytes
        began_ns = time.monotonic_ns() if timed else 0
        transport.last_read_ns = now_ns
        transport.received_bytes += size
        events = transport.connection.receive_data(data, now_ns)
        connection = transport.connection  # looked up only now: it may be another one (``Transport.speak``)
        if len(events) > EVENTS_AT_ONCE or connection.behind or (size > CLOSELY_TIMED_BYTES and len(events) > 1):
            self._take_turn(transport, events, now_ns)
        else:
            handle = transport.service.handle
            for event in events:
                handle(transport, event)
        if timed:
            if connection.direct:  # the next read of another kind will be a small one (``begin_small``)
                self._await_more(transport, now_ns)
            else:
                ended_ns = time.monotonic_ns()
                crowded = ended_ns - now_ns > CROWDED_ROUND_NS
                transport.fit_reads(max(ended_ns - began_ns, READ_NS + 1) if crowded else ended_ns - began_ns)
        if connection.deadlines.next_ns != NEVER or (self._leaving and transport in self._leaving):
            self._look_after(transport)

    def serve_timed(self, transport: Transport, mask: int, now_ns: int) -> None:
        """The same in crowded times: one that takes long is read again once those that are behind had time for it."""
        began_ns = time.monotonic_ns()
        self.serve(transport, mask, now_ns)
        took_ns = time.monotonic_ns() - began_ns
        if took_ns > SHORT_TURN_NS and not (transport.dropped or transport.closing or transport.peer_ended):
            transport.owed_ns = took_ns
            self._transports.fall_behind(transport, [])

    def _receive_directly(self, transport: Transport, now_ns: int) -> bool:
        """Read the next part of a large message to where it belongs; False if it is to be read the ordinary way."""
        connection = transport.connection
        if transport.awaited_bytes == 1 and (size := connection.head_bytes):
            return self._await_foreseen(transport, size, now_ns)
        vector = None if transport.closing else connection.vector()
        views = [] if transport.closing or vector else connection.views()
        if not (views or vector):
            self._await_more(transport, now_ns)
            return False
        goes_on = transport.awaited_bytes > 1 or connection.awaited_bytes > 0
        try:
            size = transport.receive_vector(vector) if vector is not None else transport.receive_into(views)
        except BlockingIOError:
            return True
        except ConnectionFault as fault:
            self._closing.tls_failed(transport, fault)
            return True
        except OSError:
            self._closing.drop(transport)
            return True
        del views  # which memory that is to be moved, or used again, must not have
        if not size:
            self._end_of_peer(transport)
            return True
        if goes_on:  # else it is the first read of a message, before which nothing may have come for long
            pace = size * PACE_NS // (now_ns - transport.last_read_ns + 1)
            # What was awaited may have been there for long, while this thread had other work.
            transport.pace = max(pace, transport.pace) if 1 < transport.awaited_bytes <= size else pace
        transport.last_read_ns = now_ns
        transport.received_bytes += size
        if transport.read_bytes != READ_BYTES:
            transport.begin_small()
        events = connection.take_direct(size, now_ns)
        if transport.overflow:
            events += connection.receive_data(transport.overflow, now_ns)
            transport.overflow = b""
        if len(events) > EVENTS_AT_ONCE or connection.behind:
            self._take_turn(transport, events, now_ns)
        else:
            transport.handle_all(events)
        if not transport.dropped:
            self._await_more(transport, now_ns)
        self._look_after(transport)
        return True

    def _await_foreseen(self, transport: Transport, size: int, now_ns: int) -> bool:
        """Leave the beginning of a large message that comes fast where it is, until the rest is there too.

        A read of a part makes the peer's system send more at once, on this thread's time: up to half of what the
        message takes.

        Args:
            transport: of a connection whose next request is foreseen.
            size: how many bytes tell whether it comes.
            now_ns: the time of this round.

        Returns:
            False if what is there is to be read the ordinary way.
        """
        if transport.closing or transport.pace < LEAST_AWAITED_BYTES:
            return False
        count = min(transport.connection.foreseen_bytes(transport.peek(size)), MOST_AWAITED_BYTES)
        if count < LEAST_AWAITED_BYTES:
            transport.alike = min(transport.alike, 0)
            return False
        if now_ns - transport.last_read_ns < SOON_NS:
            transport.alike += 1
        else:
            transport.alike = min(transport.alike, 0)
        transport.last_read_ns = now_ns
        self._await(transport, count, now_ns)
        return True

    def _await_more(self, transport: Transport, now_ns: int) -> None:
        """In the middle of a large message that comes fast, read again only when much more of it is there.

        So it is between messages of a client that sends one soon after the other, and nothing else: the next one is
        waited for before it begins, and takes one trip through the epoll and no look at how it begins.
        """
        connection = transport.connection
        count = connection.next_bytes if transport.alike >= SURELY_ALIKE else 0
        if not count:
            count = min(connection.awaited_bytes, transport.pace)
        if count >= LEAST_AWAITED_BYTES:
            self._await(transport, min(count, MOST_AWAITED_BYTES), now_ns)
        elif transport.awaited_bytes > 1:
            self._await_nothing(transport)

    def _await(self, transport: Transport, count: int, now_ns: int) -> None:
        transport.await_bytes(count)
        self._transports.awaiting[transport] = now_ns
        self._schedule.plan(now_ns + AWAIT_NS)

    def _await_nothing(self, transport: Transport) -> None:
        """Have the epoll tell of the next byte."""
        transport.await_bytes(1)
        del self._transports.awaiting[transport]

    def tick(self, now_ns: int) -> None:
        """Read what there is of large messages that have stopped to come."""
        for transport, since_ns in list(self._transports.awaiting.items()):
            if now_ns - since_ns < AWAIT_NS:
                self._schedule.plan(since_ns + AWAIT_NS)
            elif transport.alike >= SURELY_ALIKE and transport.connection.next_bytes:
                self._look_for_next(transport, now_ns)
            else:
                transport.pace = 0
                self._await_nothing(transport)

    def _look_for_next(self, transport: Transport, now_ns: int) -> None:
        """A large message that was waited for before it began is not there: wait on, or read what there is."""
        connection = transport.connection
        came = transport.peek(connection.head_bytes)
        if not came and now_ns - transport.last_read_ns < SOON_NS:
            self._await(transport, transport.awaited_bytes, now_ns)
        elif count := min(connection.foreseen_bytes(came), MOST_AWAITED_BYTES):
            # It has just begun. What has come by the next look is read.
            transport.alike = SURELY_ALIKE - 1
            self._await(transport, count, now_ns)
        else:
            if came:
                transport.alike = DOUBTED
            self._await_nothing(transport)

    def _is_served(self, transport: Transport, mask: int) -> bool:
        """Send what the socket takes, and end requests of a peer that has left; whether nothing is to be read."""
        if mask & EPOLLERR:  # reset: nobody waits for answers to what is left to be read
            self._closing.drop(transport)
            return True
        if mask & EPOLLOUT:
            self._send_unsent(transport)
            if not mask & ~EPOLLOUT or transport.dropped or transport.peer_ended:
                return True
        # Whoever sends much and leaves has none of it read.
        if mask & EPOLLRDHUP and not (mask & EPOLLIN and transport.service.reads_to_the_end(transport)):
            self._end_of_peer(transport)
            return True
        return False

    def _send_unsent(self, transport: Transport) -> None:
        if not transport.send_unsent():
            self._closing.drop(transport)
        elif transport.end_waits:
            self._end_of_peer(transport)
        elif self._leaving:
            self._closing.close_if_drained(transport)

    def _end_of_peer(self, transport: Transport) -> None:
        """The peer sends no more: it has left, or waits for answers (``Service.receive_end``)."""
        events = None
        if not (transport.closing or transport.peer_ended):
            events = transport.service.receive_end(transport)
        if events is None:
            self._closing.drop(transport)
        else:
            transport.end_reading()
            transport.handle_all(events)

    def _look_after(self, transport: Transport) -> None:
        """After a read: have the deadlines of its calls watched; close the connection if it is leaving and drained."""
        if transport.connection.deadlines.next_ns != NEVER:
            self._deadlines.watch(transport)
        if self._leaving:
            self._closing.close_if_drained(transport)  # its last call may have ended without an answer

    def _take_turn(self, transport: Transport, events: list[Any], now_ns: int, most_ns: int | None = None) -> None:
        """Hand out what a connection has received, and let it go on with what it has left over, for TURN_NS.

        What is left then goes on in the next round; until nothing is, no more is read.

        Args:
            transport: the connection's.
            events: what it has received.
            now_ns: when the round began.
            most_ns: how long the turn may take besides. None for what the round has left, which in crowded times is
                nothing: the turn ends with the first look at the clock.
        """
        connection = transport.connection
        handle = transport.service.handle
        left = self._transports.behind.pop(transport, None)
        if left is not None:
            if connection.behind:
                events += connection.go_on(now_ns)  # which may reset what has waited
            events = [event for event in left if transport.service.is_wanted(event)] + events
        began_ns = time.monotonic_ns()
        if most_ns is None:
            most_ns = now_ns + CROWDED_ROUND_NS - began_ns if began_ns > self.crowded_until_ns else 0
        until_ns = began_ns + min(TURN_NS, most_ns)
        at_once = EVENTS_AT_ONCE if transport.read_bytes <= CLOSELY_TIMED_BYTES else 1
        while True:
            coming = iter(events)
            left_over = len(events)
            while left_over > 0:
                for event in islice(coming, at_once):
                    handle(transport, event)
                left_over -= at_once
                if left_over > 0 and time.monotonic_ns() >= until_ns:
                    self._transports.fall_behind(transport, list(coming))
                    return
            if not connection.behind:
                break
            if time.monotonic_ns() >= until_ns:
                self._transports.fall_behind(transport, [])
                return
            events = connection.go_on(now_ns)
        if left is not None and not transport.dropped:
            transport.pause(connection.full)

    def _catch_up(self) -> None:
        """Give each connection that is behind a turn, for CATCH_UP_NS in all; what it has taken before is part of that.

        So those that are dear have this time of a round together, however many they are, and each as much as the other.
        """
        now_ns = time.monotonic_ns()
        until_ns = now_ns + CATCH_UP_NS
        behind = self._transports.behind
        share_ns = max(CATCH_UP_NS // max(len(behind), 1), SHORT_TURN_NS)
        for _ in range(len(behind)):
            if not behind:
                break
            transport = next(iter(behind))
            until_ns -= transport.owed_ns
            transport.owed_ns = 0
            if transport.dropped:
                if self._closing.end_some_calls(transport, now_ns):
                    behind.move_to_end(transport)
                else:
                    del behind[transport]
            else:
                try:
                    self._take_turn(transport, [], now_ns, share_ns)
                    self._look_after(transport)
                except Exception as error:
                    self._closing.failed(transport, error)
            if time.monotonic_ns() >= until_ns:
                break
        if behind:
            self._transports.plan_catching_up()
