"""A worker's connection that speaks HTTP/1.1: ``http1.Connection`` reads and writes its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from toutates.h2grpc.budget import FREE_BYTES
from toutates.h2grpc.message_memory import MemoryPool, MessageMemory
from toutates.h2grpc.stream import Buffer
from toutates.http1 import Connection as Http1
from toutates.http1 import Head, Limits, Receiving, Refused
from toutates.net.connection import NO_DEADLINES, Connection, Deadlines
from toutates.net.http1.call import HttpCall, LargeRequest
from toutates.net.http1.large_bodies import Foresight, begin_body
from toutates.net.worker import Worker

__all__ = ["Ended", "HttpConnection", "Leaving"]

_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection has ended itself, because of ``reason``."""

    reason: str


class Leaving:
    """A connection is to be closed once its last answer is out."""


class HttpConnection(Connection):
    """One connection of a worker.

    Args:
        worker: whose it is.
        limits: of HTTP.
        admit: looks at a head before its body is read, see ``http1.Connection``.
        write_refusal: see there.
        call_class: of the calls.
        pool: has the memory of large bodies; None for none.
        fields: gives the fields that every answer has; None for none.

    Attributes:
        kept_bytes: of requests that handlers keep (``HttpCall.hold``).
    """

    #: HTTP has none; an attribute, because it is read for each request
    deadlines: Deadlines = NO_DEADLINES
    told_by_answers = True

    def __init__(
        self,
        worker: Worker,
        limits: Limits,
        admit: Callable[[Head], int],
        write_refusal: Callable[[Refused], tuple[bytes, bytes]],
        call_class: type[HttpCall] = HttpCall,
        pool: MemoryPool | None = None,
        fields: Callable[[], bytes] | None = None,
    ) -> None:
        self._worker = worker
        make_memory = None if pool is None else partial(begin_body, pool)
        self._http = Http1(
            limits,
            admit,
            fields,
            write_refusal=write_refusal,
            make_request=call_class,
            make_memory=make_memory,
            has_room=partial(_has_room, worker),  # not a method, which would make a cycle
        )
        self._pool = pool
        #: of large requests, once one has come
        self._foresight: Foresight | None = None
        self._answers = answers = self._http.answers
        answers.owner = self
        answers.dirty = worker.dirty
        self.kept_bytes = self.waiting = 0
        self._budget = worker.budget
        #: what the budget counts of requests that are not whole, and of answers that were not taken
        self._counted_bytes = 0
        #: and of heads that were remembered, without the first FREE_BYTES
        self._counted_heads = 0
        self.full = False
        self._closed = False
        #: whether requests that have come wait until the peer reads
        self._waits_for_room = False
        #: the list of output that ``_output_is_much`` has measured, and how far
        self._measured: Sequence[Buffer] = ()
        self._measured_pieces = 0
        self._measured_bytes = 0
        #: whether the worker was told that the connection is to be closed after its last answer
        self._leaving = False
        self._calls_begun = 0

    def answer_by(
        self,
        admit: Callable[[Head], int],
        write_refusal: Callable[[Refused], tuple[bytes, bytes]],
        call_class: type[HttpCall],
    ) -> None:
        """Have requests to come, and refusals, answered by others than before."""
        self._http.answer_by(admit, write_refusal, call_class)

    # --- for calls ---------------------------------------------------------------------------------------------------

    def keep(self, call: HttpCall, size: int) -> None:
        """Count bytes that a call keeps. While they are many, no more is read."""
        self.kept_bytes += size
        self._budget.used += size
        if self.link is None:
            return
        if size > 0 and self._keeps_much and not self.full:
            self.full = True
            self.link.pause(True)
        elif size < 0 and self.full:
            self._worker.go_on(self.link)

    def before(self, call: HttpCall) -> int:
        """See ``Carrier``."""
        return next((number for number, request in enumerate(self._answers.queue) if request is call), 0)

    def unread_bytes(self, call: HttpCall) -> int:
        """See ``Carrier``: the answers of a connection go out in their order, so what waits is all of theirs."""
        link = self.link
        return 0 if link is None else int(link.unsent_bytes + self._answers.size)

    def give_up(self, call: HttpCall, reason: str, limit: str) -> None:
        """See ``Carrier``: an answer cannot be cut short but with the connection."""
        if self.link is not None:
            self.link.handle_all(self.end(reason, limit))

    @property
    def _keeps_much(self) -> bool:
        return self.kept_bytes > self._worker.limits.max_unsent_bytes

    def leave_if_ended(self) -> None:
        """See ``Carrier``: closed after its last answer, if that has begun to be the last one."""
        if self._http.receiving is Receiving.ENDED and not self._leaving and self.link is not None:
            self._leaving = True
            self._worker.leave(self.link, "")

    # --- bytes in and out --------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> list[Any]:
        """Take received bytes; returns the calls that they complete."""
        if self._closed:
            return []
        http = self._http
        calls = http.receive(data)
        if http.latest is None or self.full:
            return self._after(calls)
        self._calls_begun += len(calls)
        return calls

    @property
    def awaited_bytes(self) -> int:
        """Bytes that are still to come of the body that is received directly; 0 for none."""
        return self._http.awaited_bytes

    @property
    def head_bytes(self) -> int:
        """How many of the next bytes tell whether the large request that is foreseen comes; 0 if none is foreseen."""
        head = self._foreseen
        return 0 if head is None else len(head.octets)

    def foreseen_bytes(self, head: bytes) -> int:
        """Bytes that come together where the first ``head_bytes`` are these; 0 where that is not known."""
        foreseen = self._foreseen
        return foreseen.whole_size if foreseen is not None and head == foreseen.octets else 0

    @property
    def next_bytes(self) -> int:
        """Bytes of the next large request, where one is foreseen; 0 if none is."""
        head = self._foreseen
        return 0 if head is None else head.whole_size

    @property
    def _foreseen(self) -> Head | None:
        if self._foresight is None or self._closed or self.full:
            return None
        return self._foresight.head

    def views(self) -> list[memoryview]:
        """Where to put the next bytes while ``direct`` is set; none if they are to be handed in."""
        views: list[memoryview] = []
        if self._http.direct:
            views = self._http.views()
        elif self._foresight is not None and not (self._closed or self.full):
            view = self._foresight.view()
            views = [] if view is None else [view]
        self.direct = bool(views)
        return views

    def take_direct(self, count: int, now_ns: int) -> list[Any]:
        """Take ``count`` bytes that are in ``views``; returns the calls that they complete."""
        http = self._http
        if http.direct:
            received: list[Any] = [*http.take_direct(count)]
            return self._after(received)
        assert self._foresight is not None
        taken = self._foresight.take(count)
        if isinstance(taken, bytes):
            return self.receive_data(taken, now_ns)
        return self._after([*taken])

    def go_on(self, now_ns: int) -> list[Any]:
        """Read on in what has been received earlier."""
        if self._closed:
            self.behind = False
            return []
        if self.link is not None and (self.link.congested or self._output_is_much):
            # The peer does not read, or there was no time yet to send it the answers of this turn. More of them would
            # be kept for it, so no more requests are read until it takes some. The socket is not read meanwhile
            # either, and a peer that takes nothing is ended for that.
            self.behind = self.full = False
            self._waits_for_room = True
            return []
        calls = self._after(self._http.go_on())
        if not self.behind:
            self._measured = ()  # else the answers would be kept, sent or not, for as long as the connection
        return calls

    @property
    def _output_is_much(self) -> bool:
        """Whether the answers that wait for their first sending have as many bytes as may wait for the socket.

        Only the pieces that are new since the last call are counted: there may be thousands, and this is asked often.
        """
        out = self._answers.out
        if out is not self._measured:
            self._measured, self._measured_pieces, self._measured_bytes = out, 0, 0
        self._measured_bytes += sum(map(len, islice(out, self._measured_pieces, None)))
        self._measured_pieces = len(out)
        return self._measured_bytes > self._worker.limits.max_unsent_bytes

    def wake_senders(self) -> None:
        """The peer's socket takes more again: read on in what has been received."""
        if self._waits_for_room:
            self._waits_for_room = False
            self._worker.go_on(self.link)

    def receive_end(self, *, answered: bool, unsent: bool) -> list[Any] | None:
        """The peer sends no more. A request that is not whole is refused.

        Args:
            answered: whether the peer is answered what it has asked for in full. Else it has left: its requests are
                over, and only answers that were complete are still sent.
            unsent: whether the socket has not taken all answers yet.

        Returns:
            Events; None where nothing is left to be answered or sent.
        """
        http = self._http
        if http.unanswered and not answered:
            http.lose()
        else:
            http.receive_end()
        if self._closed or (http.finished and not (http.has_output or unsent)):
            return None
        return self._after([])

    def _after(self, calls: list[Any]) -> list[Any]:
        http = self._http
        self._calls_begun += len(calls)
        self.behind = http.behind
        if self.direct:  # a body that was in memory of its own may be whole
            calls = [self._large(call) if isinstance(call.body, MessageMemory) else call for call in calls]
        self.direct = http.direct or self._foreseen is not None
        receiving = http.receiving
        if self._counted_bytes or receiving is not Receiving.IDLE or len(self._answers.queue) > 1:
            self._count()
        if http.remembered_bytes - FREE_BYTES > self._counted_heads:
            self._count_heads(http.remembered_bytes - FREE_BYTES)
        if receiving is Receiving.PAUSED or self.full:
            # What is read in vain would have to be kept, so nothing is.
            self.full = (receiving is Receiving.PAUSED and not http.behind) or self._keeps_much
            if self.full and self.link is not None:
                self.link.pause(True)
        if receiving is Receiving.ENDED and not self._leaving:
            self._leaving = True
            calls.append(_LEAVING)
        return calls

    def _large(self, call: HttpCall) -> LargeRequest:
        if self._foresight is None:
            assert self._pool is not None
            self._foresight = Foresight(self._http, self._pool)
        self._foresight.note(call.head)
        return LargeRequest(call)

    def take_output(self) -> Sequence[Buffer]:
        """The bytes to send now, in order; the connection forgets them."""
        if (self.full or self._waits_for_room) and self.link is not None:
            self._waits_for_room = False
            self._worker.go_on(self.link)  # an answer has made room, or is on its way to the socket
        answers = self._answers
        out, answers.out = answers.out, []  # ``Answers.take``, written out
        answers.bulky = False
        if self._counted_bytes:
            self._count()
        return out

    def _count(self) -> None:
        """Have the budget count what is held now; not done for requests that came whole and wait for nothing."""
        held_bytes = self._held_bytes
        self._budget.used += held_bytes - self._counted_bytes
        self._counted_bytes = held_bytes
        self._http.note_counted()

    def bind(self, link: Any) -> None:
        """Have ``link`` put into the worker's list as soon as there is output; None when the driver lets go."""
        self._answers.link = link

    @property
    def link(self) -> Any:
        """What the connection is bound to."""
        return self._answers.link

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""
        return self._http.has_output

    @property
    def bulky(self) -> bool:
        """Whether the output is worth sending piece by piece instead of joined."""
        return self._answers.bulky

    # --- time --------------------------------------------------------------------------------------------------------

    def ping(self) -> None:
        """HTTP/1.1 has nothing to ask a peer with. One that waits for an answer owes no sign of life."""
        if self._http.unanswered and self.link is not None:
            self.link.last_read_ns = self._worker.now_ns

    # --- the end -----------------------------------------------------------------------------------------------------

    def announce_end(self) -> None:
        """Tell the client to leave, with the answer to its last request or to its next one."""
        self.begin_shutdown("")

    def begin_shutdown(self, reason: str) -> None:
        """Tell the client to leave, with the answer to its last request or to its next one."""
        self._http.leave()
        self._leaving = True

    def finish_shutdown(self) -> None:
        """Answer what has begun, and read nothing more. Idle clients see the connection end."""
        self._leaving = True
        self._http.drain()

    def refuse(self, reason: str) -> None:
        """Turn the connection away with status 503."""
        self._worker.limit_hits["connections"] += 1
        self._http.turn_away(Refused(_UNAVAILABLE, reason))
        self._closed = True

    def end(self, reason: str, limit: str) -> list[Any]:
        """End the connection; a request that is not whole is answered with 408 where that is the reason."""
        if limit:
            self._worker.limit_hits[limit] += 1
        if limit == "stall_timeout":
            self._http.time_out()
        self._close()
        return [Ended(reason)]

    def connection_lost(self) -> list[Any]:
        """The socket is gone: nobody waits for answers any more."""
        self._close()
        self._budget.used -= self._counted_bytes
        self._counted_bytes = 0
        return []

    def _count_heads(self, size: int) -> None:
        """Have the budget count remembered heads. Requests and answers have at least half of the memory."""
        budget = self._budget
        budget.used += size - self._counted_heads
        self._counted_heads = size
        if budget.used > budget.limit >> 1:
            self.trim()

    def trim(self) -> None:
        """Forget the heads that are remembered."""
        self._http.forget()
        self._budget.used -= self._counted_heads
        self._counted_heads = 0

    def _close(self) -> None:
        self._closed = True
        self._measured = ()
        self.behind = self.full = self.direct = False
        self._http.lose()
        self._count()
        self.trim()

    # --- what it is at -----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self._closed

    @property
    def drained(self) -> bool:
        """Whether nothing is read any more, and every answer is complete."""
        return self._closed or self._http.finished

    @property
    def open_calls(self) -> int:
        """Requests that wait for their answer."""
        return self._http.unanswered

    @property
    def calls_begun(self) -> int:
        """Requests so far."""
        return self._calls_begun

    @property
    def awaits_request(self) -> bool:
        """Whether the peer owes the rest of a request."""
        return self._http.receiving in (Receiving.HEAD, Receiving.BODY)

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that are not whole or that handlers keep, of answers that are not sent, and of heads."""
        return self._held_bytes + self.kept_bytes + self._counted_heads

    @property
    def _held_bytes(self) -> int:
        # The head of a request that waits alone is no more than the connection itself takes.
        queue = self._answers.queue
        heads = sum([request.head.kept_bytes for request in queue]) if len(queue) > 1 else 0
        return self._http.held_bytes + heads


def _has_room(worker: Worker, growth: int) -> bool:
    """See ``Inflater``."""
    if worker.budget.has_room(growth):
        return True
    worker.limit_hits["server_buffer"] += 1
    return False


_LEAVING: Final = Leaving()
