"""Limits of time: handshakes that are late, peers that stall or are gone, connections that are old or idle.

Nothing here is looked at for each request. Every connection is visited every few seconds, and what happened to it
since the last visit says what is due: so a limit of 60 seconds may take effect after 62.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.limits import STALL_BYTES, Limits
from toutates.h2grpc.stream import NEVER
from toutates.net.connection import SILENCE_S, Connection
from toutates.net.transport import Transport

__all__ = ["Duty", "Finding", "Housekeeper", "Traffic"]

NS_PER_S: Final = 1_000_000_000
#: Every connection is visited once in this time, or four times in the shortest limit of time, if that is shorter.
LONGEST_INTERVAL_NS: Final = 2 * NS_PER_S
SHORTEST_INTERVAL_NS: Final = 50_000_000
#: Connections visited in one go, which takes half a millisecond.
VISITS_AT_ONCE: Final = 500
#: So many open calls take as long as one visit, because a visit may look at each.
CALLS_PER_VISIT: Final = 16
#: When memory runs out: connections dropped in one go, and nanoseconds until the next ones are.
DROPS_AT_ONCE: Final = 50
DROPS_PAUSE_NS: Final = 2_000_000
#: How long a peer that was told to leave may take to answer the PING behind the GOAWAY.
GOODBYE_NS: Final = NS_PER_S
#: How long one may take to make its next request, whose answer tells it to leave; with some time for its way here.
SILENCE_NS: Final = SILENCE_S * NS_PER_S + NS_PER_S // 2


class Duty(Enum):
    """What has to be done to a connection."""

    PING = "send a PING"
    LEAVE = "tell the peer to leave once its calls have ended"
    FINISH_LEAVING = "answer no more new calls"
    END = "send GOAWAY and close"
    DROP = "close at once"
    FAILED = "the visit raised: end the connection"


@dataclass(frozen=True, slots=True)
class Finding:
    """What has to be done to a connection, and why.

    Attributes:
        duty: what is to be done.
        limit: that was met, of ``limits.LIMIT_NAMES``; "" for none.
        text: the reason, for the peer and the log.
        error: what the visit raised.
    """

    duty: Duty
    limit: str = ""
    text: str = ""
    error: Exception | None = None


@dataclass(slots=True)
class Traffic:
    """What all connections of a worker have sent and received, as of the last visits; other threads may read it.

    Attributes:
        connections: accepted.
        streams: opened by peers.
        received_bytes, sent_bytes: without what TLS adds.
        open_calls: calls that were under way when the last round of visits ended.
    """

    connections: int = 0
    streams: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    open_calls: int = 0


@dataclass(slots=True)
class _Notes:
    """What earlier visits found out about one connection."""

    age_ns: int
    idle_since_ns: int
    #: how much of the connection's traffic is in ``Traffic``
    counted_streams: int = 0
    counted_received: int = 0
    counted_sent: int = 0
    calls: int = 0
    #: since when the peer owes us the rest of a request, or has to read responses; and its bytes by then
    owes_request_ns: int = NEVER
    received_bytes: int = 0
    owes_room_ns: int = NEVER
    sent_bytes: int = 0
    ping_ns: int = 0
    seems_gone: bool = False
    #: when the peer was told to leave, or is to be told by an answer; and the number of the call which that is the
    #: answer to, if the peer makes one after the other
    left_ns: int = 0
    last_call: int = 0
    finished_leaving: bool = False
    #: whether calls were under way, and since when without a break
    busy: bool = False
    busy_since_ns: int = 0


class Housekeeper:
    """Visits the connections of one worker, on its thread.

    Args:
        limits: the times to keep.
        budget: what the connections together may hold.
        traffic: where their traffic is counted.
    """

    def __init__(self, limits: Limits, budget: MemoryBudget, traffic: Traffic | None = None) -> None:
        self._handshake_ns = _nanoseconds(limits.handshake_timeout_s)
        self._stall_ns = _nanoseconds(limits.stall_timeout_s)
        self._idle_ns = _nanoseconds(limits.max_idle_s)
        self._age_s = limits.max_age_s
        self._age_grace_ns = _nanoseconds(limits.max_age_grace_s)
        self._keepalive_ns = _nanoseconds(limits.keepalive_time_s)
        self._keepalive_timeout_ns = _nanoseconds(limits.keepalive_timeout_s)
        self._budget = budget
        times = (
            limits.handshake_timeout_s,
            limits.stall_timeout_s,
            limits.max_idle_s,
            limits.max_age_s,
            limits.max_age_grace_s or math.inf,
            limits.keepalive_time_s,
            limits.keepalive_timeout_s,
        )
        quarter_ns = _nanoseconds(min(times) / 4)
        self._interval_ns = max(SHORTEST_INTERVAL_NS, min(LONGEST_INTERVAL_NS, quarter_ns))
        self._notes: dict[Transport, _Notes] = {}
        self._to_visit: list[Transport] = []
        #: of this round: how many connections it began with, bytes held by all, and a heap of those that hold more than
        #: their share, the largest first: (bytes less than none, number, connection)
        self._round_size = 1
        self._held_bytes = 0
        self._large: list[tuple[int, int, Transport]] = []
        self._dropping = False
        self._open_calls = 0
        self._traffic = Traffic() if traffic is None else traffic
        #: how long to wait until the next ``visit``
        self.pause_ns = self._visits_pause_ns = self._interval_ns

    def add(self, transport: Transport, now_ns: int, age_factor: float = 1.0) -> None:
        """A connection was accepted, which may get ``age_factor`` times as old as the limit says."""
        self._notes[transport] = _Notes(age_ns=_nanoseconds(self._age_s * age_factor), idle_since_ns=now_ns)
        self._traffic.connections += 1

    def remove(self, transport: Transport) -> None:
        """A connection is gone."""
        notes = self._notes.pop(transport, None)
        if notes is not None:
            self._count(transport, notes)

    def visit(self, now_ns: int) -> Iterator[tuple[Transport, Finding]]:
        """Look at the next few connections; yields what has to be done. Call it again after ``pause_ns``."""
        if self._dropping:
            yield from self._drop_largest()
            return
        if not self._to_visit:
            self._to_visit = list(self._notes)
            self._to_visit.reverse()
            self._round_size = max(1, len(self._to_visit))
            self._held_bytes = 0
            self._large = []
            self._traffic.open_calls, self._open_calls = self._open_calls, 0
        left = len(self._to_visit)
        yield from self._findings(now_ns)
        visited = left - len(self._to_visit)
        # As much of the interval as of the connections, so that a round takes one whatever there is to look at.
        self._visits_pause_ns = self._interval_ns * visited // self._round_size if visited else self._interval_ns
        self.pause_ns = self._visits_pause_ns
        if not self._to_visit:
            yield from self._drop_largest()

    def _drop_largest(self) -> Iterator[tuple[Transport, Finding]]:
        """The connections that have to go for the others to have room, once all have been visited."""
        for _ in range(DROPS_AT_ONCE):
            if self._held_bytes <= self._budget.limit or not self._large:
                break
            size, _, transport = heappop(self._large)
            if transport in self._notes and not transport.closing:
                text = f"{-size} of {self._held_bytes} bytes held for slow peers, {self._budget.limit} allowed"
                yield transport, Finding(Duty.DROP, "server_buffer", text)
            self._held_bytes += size
        self._dropping = self._held_bytes > self._budget.limit and bool(self._large)
        if self._dropping:
            self.pause_ns = DROPS_PAUSE_NS
        else:
            self._large = []
            self.pause_ns = self._visits_pause_ns

    def _findings(self, now_ns: int) -> Iterator[tuple[Transport, Finding]]:
        room = VISITS_AT_ONCE
        while self._to_visit and room > 0:
            transport = self._to_visit.pop()
            notes = self._notes.get(transport)
            if notes is None:
                continue
            try:
                finding = self._look_at(transport, notes, now_ns)
                room -= 1 + transport.connection.open_calls // CALLS_PER_VISIT
            except Exception as error:
                finding = Finding(Duty.FAILED, error=error)
            if finding is not None:
                yield transport, finding

    def _look_at(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        streams, connection = notes.counted_streams, transport.connection
        self._count(transport, notes)
        if transport.closing:
            return None
        self._open_calls += connection.open_calls
        held_bytes = connection.held_bytes
        if held_bytes and notes.counted_streams == streams:
            connection.trim()
            held_bytes = connection.held_bytes
        held_bytes += transport.waiting_bytes
        self._held_bytes += held_bytes
        # Without these the others together are within the limit, so that no more need be remembered.
        if held_bytes * self._round_size > self._budget.limit:
            heappush(self._large, (-held_bytes, len(self._large), transport))
        return self._judge(transport, notes, now_ns)

    def _count(self, transport: Transport, notes: _Notes) -> None:
        """Add what went over a connection since it was last counted to ``traffic``."""
        traffic, streams = self._traffic, transport.connection.calls_begun
        traffic.streams += streams - notes.counted_streams
        traffic.received_bytes += transport.received_bytes - notes.counted_received
        traffic.sent_bytes += transport.sent_bytes - notes.counted_sent
        notes.counted_streams, notes.counted_received = streams, transport.received_bytes
        notes.counted_sent = transport.sent_bytes

    def _judge(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        connection = transport.connection
        if not connection.established:
            if now_ns - transport.opened_ns < self._handshake_ns:
                return None
            return Finding(Duty.END, "handshake_timeout", "the connection preface did not come in time")
        if transport.paused:
            # What it owes us, or its answer to a PING, may have come.
            notes.owes_request_ns = NEVER
            notes.ping_ns = 0
            return self._judge_leaving(transport, notes, now_ns) or self._judge_age(transport, notes, now_ns)
        return (
            self._judge_stall(transport, notes, now_ns)
            or self._judge_silence(transport, notes, now_ns)
            or self._judge_leaving(transport, notes, now_ns)
            or self._judge_age(transport, notes, now_ns)
        )

    def _judge_stall(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        """End peers that stall: they neither send the rest of a request nor read the responses that wait."""
        if not transport.connection.awaits_request:
            notes.owes_request_ns = NEVER
        elif notes.owes_request_ns == NEVER or transport.received_bytes - notes.received_bytes >= STALL_BYTES:
            notes.owes_request_ns = now_ns
            notes.received_bytes = transport.received_bytes
        elif now_ns - notes.owes_request_ns >= self._stall_ns:
            return Finding(Duty.END, "stall_timeout", "the rest of a request did not come in time")
        if not (transport.connection.awaits_window or transport.waiting_bytes):
            notes.owes_room_ns = NEVER
        elif notes.owes_room_ns == NEVER or transport.sent_bytes - notes.sent_bytes >= STALL_BYTES:
            notes.owes_room_ns = now_ns
            notes.sent_bytes = transport.sent_bytes
        elif now_ns - notes.owes_room_ns >= self._stall_ns:
            return Finding(Duty.END, "stall_timeout", "responses were not read in time")
        return None

    def _judge_silence(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        """Find peers that are gone without a FIN: their machine is off, or a router has forgotten the connection."""
        if notes.left_ns and transport.connection.told_by_answers:
            return None
        if notes.ping_ns > transport.last_read_ns:
            if now_ns - notes.ping_ns >= self._keepalive_timeout_ns:
                if transport.connection.told_by_answers:  # it has no answer to a PING
                    return _leave(
                        transport.connection, notes, now_ns, "keepalive_timeout", "nothing was heard of the peer"
                    )
                if notes.seems_gone:
                    return Finding(Duty.DROP, "keepalive_timeout", "the peer does not answer")
                notes.seems_gone = True  # its answer may be there, unread behind what made this visit late
        elif now_ns - transport.last_read_ns >= self._keepalive_ns:
            notes.ping_ns = now_ns
            notes.seems_gone = False
            return Finding(Duty.PING)
        return None

    def _judge_leaving(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        if not notes.left_ns:
            return None
        connection, grace_from_ns = transport.connection, notes.left_ns
        since_ns, goodbye_ns, awaited = notes.left_ns, GOODBYE_NS, False
        if connection.told_by_answers:  # it is told by the answer to its next request
            _note_calls(connection, notes, now_ns)
            grace_from_ns = since_ns = max(notes.left_ns, notes.busy_since_ns)
            goodbye_ns = SILENCE_NS
            # One that goes on beside other requests has no answer that is the last, and is told without one.
            goes_on = connection.calls_begun > notes.last_call
            if not goes_on:
                since_ns = max(since_ns, notes.idle_since_ns)
            awaited = (goes_on or not connection.open_calls) and not notes.finished_leaving
        if now_ns - grace_from_ns >= self._age_grace_ns and not awaited:
            return Finding(Duty.END, "connection_age_grace", "calls did not end in time on an old connection")
        if not notes.finished_leaving and now_ns - since_ns >= goodbye_ns:
            notes.finished_leaving = True
            if connection.told_by_answers:
                notes.left_ns = now_ns  # it is told only now, so that its grace begins
            return Finding(Duty.FINISH_LEAVING)
        return None

    def _judge_age(self, transport: Transport, notes: _Notes, now_ns: int) -> Finding | None:
        _note_calls(transport.connection, notes, now_ns)
        if notes.left_ns:
            return None
        if now_ns - transport.opened_ns >= notes.age_ns:
            text = "the connection has reached its maximum age"
            return _leave(transport.connection, notes, now_ns, "connection_age", text)
        if now_ns - notes.idle_since_ns >= self._idle_ns:
            return _leave(transport.connection, notes, now_ns, "connection_idle", "the connection is idle")
        return None


def _leave(connection: Connection, notes: _Notes, now_ns: int, limit: str, text: str) -> Finding:
    """A peer is to leave: with its calls, or with its next one where it has none."""
    notes.left_ns = now_ns
    notes.last_call = connection.calls_begun + (not connection.open_calls)
    return Finding(Duty.LEAVE, limit, text)


def _note_calls(connection: Connection, notes: _Notes, now_ns: int) -> None:
    """See whether a connection has calls, or had some since the last visit."""
    calls, busy = connection.calls_begun, connection.open_calls > 0
    if busy and not notes.busy:
        notes.busy_since_ns = now_ns
    if busy or notes.busy or calls != notes.calls:
        notes.idle_since_ns = now_ns
        notes.calls, notes.busy = calls, busy


def _nanoseconds(seconds: float) -> int:
    return NEVER if seconds * NS_PER_S >= NEVER else int(seconds * NS_PER_S)
