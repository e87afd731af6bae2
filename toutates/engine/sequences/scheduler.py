"""Which requests of which sequences run next. Nothing here knows a thread, an array or a clock.

    START ──▶ slot free ──▶ in a slot ──(END is put into a batch, or idle)──▶ gone
          └─▶ none free ──▶ backlog ──(a slot is free)──▶ in a slot

A sequence has one request under way at a time. Its id is forgotten when its request with END *arrives*, so the same id
may begin again at once, as another sequence.

Both strategies are Triton's. ``direct``: row i of a batch is the sequence in slot i, and null rows fill the slots below
the highest one that has a request. ``oldest``: the requests that could run for longest run together, in any row.
Requests of unlike shapes never share a batch: the first one says which shapes run next.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from toutates.engine.sequences.rules import SequenceRules
from toutates.system.errors import InvalidSequence

__all__ = ["Given", "Identifier", "Scheduler", "Sequence"]

#: Sequences that are looked at for each row of a batch, for one whose request has the batch's shapes.
_LOOK_AHEAD: Final = 4

#: A sequence's id. A number and a text are never the same sequence.
Identifier = int | str

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Given(Generic[T]):
    """A request of a sequence.

    Attributes:
        own: whatever is to come back.
        shapes: requests of equal shapes may share a batch.
        start, end: whether it is its sequence's first, or last, request.
        arrived_ns: when it came; of an iterative model that runs it, when that began.
        due_ns: when it is given up if its sequence is in the backlog still; 0 for never.
        sequence: that it belongs to.
        following: the next request of the sequence; None while there is none.
    """

    own: T
    shapes: Any
    start: bool
    end: bool
    arrived_ns: int
    due_ns: int
    sequence: Sequence[T]
    following: Given[T] | None = None


@dataclass(slots=True, eq=False)
class Sequence(Generic[T]):
    """A sequence that has begun.

    Attributes:
        identifier: its id.
        instance, slot: where it is; -1 while it is in the backlog.
        first, last: its requests that have not run, from the first one to the last; None without any. A deque would
            take more memory than the rest of a sequence.
        under_way: whether one of them runs.
        last_ns: when its last request came, or when it was last found to have one that had not run.
        ended: whether its request with END has come, or it was given up: its id is not its own any more.
        is_given_up: whether it was given up: what is under way leaves no state.
        state: what its last run has left for the next one; None before the first.
        is_private: whether its id was chosen here, so that no other request belongs to it.
    """

    identifier: Identifier
    last_ns: int
    instance: int = -1
    slot: int = -1
    under_way: bool = False
    ended: bool = False
    is_given_up: bool = False
    state: Any = None
    first: Given[T] | None = None
    last: Given[T] | None = None
    is_private: bool = False


class Scheduler(Generic[T]):
    """The sequences of a model, and the choice of those whose requests run next. Not to be used by two threads at once.

    Args:
        model: its name, for errors.
        rules: see ``SequenceRules``.
        key: what requests must have in common to share a batch; their ``shapes`` if it is None.

    Attributes:
        rules: as given.
        requests: that wait, in the backlog or in slots.
        idle_from_ns: no sequence is idle before, or at that time.
    """

    def __init__(self, model: str, rules: SequenceRules, key: Callable[[Given[T]], Any] | None = None) -> None:
        self.rules = rules
        self._model = model
        self._key: Callable[[Given[T]], Any] = key or attrgetter("shapes")
        self.requests = 0
        self.idle_from_ns = 0
        #: those whose id is in use, the one that had no request for longest first
        self._live: OrderedDict[Identifier, Sequence[T]] = OrderedDict()
        self._backlog: OrderedDict[Sequence[T], None] = OrderedDict()
        #: requests of sequences that were in the backlog when they came, and may not wait for ever: (due, number, it)
        self._dues: list[tuple[int, int, Given[T]]] = []
        self._due_number = 0
        #: slots that are free again: (slot, instance), the lowest slot first, so that instances fill evenly
        self._free: list[tuple[int, int]] = []
        #: how many were ever taken, in the same order
        self._used = 0
        #: the last id that was chosen here
        self._last_id = 0
        self._slots: list[dict[int, Sequence[T]]] = [{} for _ in range(rules.instances)]
        #: by instance, sequences with a request that could run now, by slot; the one that could for longest first
        self._ready: list[dict[int, Sequence[T]]] = [{} for _ in range(rules.instances)]

    # --- what can be read --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many sequences there are, in slots and in the backlog."""
        return sum(map(len, self._slots)) + len(self._backlog)

    @property
    def backlog(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._backlog)

    def __iter__(self) -> Iterator[Sequence[T]]:
        """All sequences."""
        for slots in self._slots:
            yield from slots.values()
        yield from self._backlog

    def knows(self, identifier: Identifier) -> bool:
        """Whether a sequence of this id has begun and not ended."""
        return identifier in self._live

    # --- requests in -------------------------------------------------------------------------------------------------

    def add(
        self, own: T, identifier: Identifier, now_ns: int, *, shapes: Any, start: bool, end: bool, due_ns: int = 0
    ) -> Given[T]:
        """Add a request; returns what ``choose`` will return of it.

        Args:
            own: whatever is to come back.
            identifier: of its sequence; 0 or "" for one of its own, whose id is chosen here, from 1 on.
            now_ns: the time.
            shapes, start, end, due_ns: see ``Given``.

        Idle sequences are to be given up before (``give_up_idle``).

        Raises:
            InvalidSequence: there is no such sequence, and the request does not begin one.
        """
        is_private = not identifier
        if is_private:
            identifier, start = self._new_id(), True
        sequence = self._live.get(identifier)
        if sequence is None:
            if not start:
                raise self._not_begun(identifier)
            sequence = Sequence(identifier, now_ns, is_private=is_private)
            self._live[identifier] = sequence
            if self._free or self._used < self.rules.slots * self.rules.instances:
                self._place(sequence)
            else:
                self._backlog[sequence] = None
        elif sequence.is_private:
            raise InvalidSequence(
                f"sequence {identifier} of model '{self._model}' is that of a request without an id; choose another id"
            )
        else:
            sequence.last_ns = now_ns
            self._live.move_to_end(identifier)
        request = Given(own, shapes, start, end, now_ns, due_ns, sequence)
        if sequence.last is None:
            sequence.first = request
            if sequence.slot >= 0 and not sequence.under_way:
                self._ready[sequence.instance][sequence.slot] = sequence
        else:
            sequence.last.following = request
        sequence.last = request
        self.requests += 1
        if due_ns and sequence.slot < 0:
            self._note_due(request)
        if end:
            sequence.ended = True
            del self._live[identifier]
        return request

    def _new_id(self) -> int:
        """An id that no sequence has."""
        self._last_id += 1
        while self._last_id in self._live:
            self._last_id += 1
        return self._last_id

    # --- batches out -------------------------------------------------------------------------------------------------

    def due_ns(self, instance: int) -> int | None:
        """When a batch of an instance may run, which may be past; None if it has no request."""
        ready = self._ready[instance]
        if not ready:
            return None
        arrived_ns = _first(next(iter(ready.values()))).arrived_ns
        if not self.rules.delay_ns or len(ready) >= self.rules.enough_rows:
            return arrived_ns
        return arrived_ns + self.rules.delay_ns

    def choose(self, instance: int, most_rows: int | None = None) -> list[Given[T] | None]:
        """Take the requests of the next batch of an instance, by row; None for a null row.

        The instance must have a request. Their sequences are under way until ``done``.

        Args:
            instance: its number.
            most_rows: of a batch of the first request's shapes; None for the rules'.
        """
        ready = self._ready[instance]
        most = min(self.rules.batch_rows, most_rows or self.rules.batch_rows)
        key_of = self._key
        oldest = next(iter(ready.values()))
        key = key_of(_first(oldest))
        if not self.rules.by_slot:
            near = islice(ready.values(), _LOOK_AHEAD * most)
            if self.rules.in_order:
                alike = list(takewhile(lambda one: key_of(_first(one)) == key, near))
            else:
                alike = [one for one in near if (first := one.first) is not None and key_of(first) == key]
            return [self._take(one) for one in alike[:most]]
        # Only where a batch cannot hold all slots, a row is not the slot itself.
        base = oldest.slot // most * most
        rows: list[Given[T] | None] = []
        for slot in range(base, min(base + most, max(ready) + 1)):
            sequence = ready.get(slot)
            takes = sequence is not None and (first := sequence.first) is not None and key_of(first) == key
            rows.append(self._take(sequence) if sequence is not None and takes else None)
        return rows

    def done(self, request: Given[T]) -> None:
        """A request has run, or was given up: the next one of its sequence may run."""
        sequence = request.sequence
        sequence.under_way = False
        if sequence.first is not None:
            self._note_ready(sequence)

    def again(self, request: Given[T], now_ns: int) -> None:
        """A request has run, and its model asks for it once more: it is the next one of its sequence.

        Raises:
            InvalidSequence: its sequence has ended, or this came too long after ``arrived_ns``.
        """
        sequence = request.sequence
        if sequence.ended or now_ns - request.arrived_ns > self.rules.idle_ns:
            raise self._not_begun(sequence.identifier)
        request.start, request.arrived_ns, request.due_ns = False, now_ns, 0
        sequence.last_ns = now_ns
        self._live.move_to_end(sequence.identifier)
        request.following, sequence.first = sequence.first, request
        sequence.last = sequence.last or request
        self.requests += 1
        self.done(request)

    def _not_begun(self, identifier: Identifier) -> InvalidSequence:
        return InvalidSequence(
            f"inference request for sequence {identifier} to model '{self._model}' must specify the START flag on the "
            "first request of the sequence"
        )

    # --- the end of sequences ----------------------------------------------------------------------------------------

    def give_up(self, sequence: Sequence[T]) -> list[Given[T]]:
        """End a sequence; returns its requests that have not run. One that is under way still comes back."""
        left: list[Given[T]] = []
        request = sequence.first
        while request is not None:
            left.append(request)
            request = request.following
        sequence.first = sequence.last = None
        sequence.is_given_up = True
        self.requests -= len(left)
        self._forget(sequence)
        if sequence.slot < 0:
            del self._backlog[sequence]
        else:
            self._leave_slot(sequence)
        return left

    def give_up_idle(self, now_ns: int, most: int, asked: Identifier | None = None) -> list[Sequence[T]]:
        """Give up sequences in a slot that had no request for too long, and have none that has not run.

        Those of the backlog, and others with such a request, are looked at again when the idle time has passed again.

        Args:
            now_ns: the time.
            most: sequences that are looked at; there may be more.
            asked: the id of one more that is looked at.
        """
        idle_ns, live = self.rules.idle_ns, self._live
        given_up: list[Sequence[T]] = []
        for _ in range(most):
            sequence = next(iter(live.values()), None)
            if sequence is None or sequence.last_ns + idle_ns >= now_ns:
                self.idle_from_ns = (now_ns if sequence is None else sequence.last_ns) + idle_ns
                return given_up
            if _is_busy(sequence):
                sequence.last_ns = now_ns
                live.move_to_end(sequence.identifier)
            else:
                self.give_up(sequence)
                given_up.append(sequence)
        sequence = live.get(asked) if asked is not None else None
        if sequence is not None and sequence.last_ns + idle_ns < now_ns and not _is_busy(sequence):
            self.give_up(sequence)
            given_up.append(sequence)
        return given_up

    def next_idle_ns(self) -> int | None:
        """When the next sequence may be given up as idle; None if there is none."""
        first = next(iter(self._live.values()), None)
        return None if first is None else first.last_ns + self.rules.idle_ns

    def expired(self, now_ns: int, most: int) -> list[Sequence[T]]:
        """At most so many sequences in the backlog of which a request has waited for longer than it may."""
        found: dict[Sequence[T], None] = {}
        while len(found) < most and (due_ns := self.next_expired_ns()) is not None and due_ns <= now_ns:
            found[heapq.heappop(self._dues)[2].sequence] = None
        return list(found)

    def next_expired_ns(self) -> int | None:
        """When the first request in the backlog is to be given up; None if there is none that is."""
        dues = self._dues
        while dues and not self._may_expire(dues[0][2]):
            heapq.heappop(dues)
        return dues[0][0] if dues else None

    def _note_due(self, request: Given[T]) -> None:
        """Note a request that may be given up. Those that are not to be any more are forgotten before they are many."""
        if len(self._dues) > 2 * self.requests + 64:
            self._dues = [one for one in self._dues if self._may_expire(one[2])]
            heapq.heapify(self._dues)
        self._due_number += 1
        heapq.heappush(self._dues, (request.due_ns, self._due_number, request))

    def _may_expire(self, request: Given[T]) -> bool:
        return request.sequence in self._backlog

    # --- slots -------------------------------------------------------------------------------------------------------

    def _place(self, sequence: Sequence[T]) -> None:
        if self._free:  # these are lower than those that were never taken
            sequence.slot, sequence.instance = heapq.heappop(self._free)
        else:
            sequence.slot, sequence.instance = divmod(self._used, self.rules.instances)
            self._used += 1
        self._slots[sequence.instance][sequence.slot] = sequence

    def _leave_slot(self, sequence: Sequence[T]) -> None:
        """Free the slot of a sequence, and give it to the first one of the backlog."""
        slots, slot = self._slots[sequence.instance], sequence.slot
        if slots.get(slot) is not sequence:
            return  # it has left it before
        del slots[slot]
        if self._ready[sequence.instance].get(slot) is sequence:
            del self._ready[sequence.instance][slot]
        heapq.heappush(self._free, (slot, sequence.instance))
        if self._backlog:
            following, _ = self._backlog.popitem(last=False)
            self._place(following)
            self._note_ready(following)

    def _forget(self, sequence: Sequence[T]) -> None:
        if not sequence.ended:
            sequence.ended = True
            del self._live[sequence.identifier]

    def _note_ready(self, sequence: Sequence[T]) -> None:
        if sequence.slot >= 0 and sequence.first is not None and not sequence.under_way:
            self._ready[sequence.instance][sequence.slot] = sequence

    def _take(self, sequence: Sequence[T]) -> Given[T]:
        request = sequence.first
        assert request is not None
        sequence.first = request.following
        if sequence.first is None:
            sequence.last = None
        request.following = None
        self.requests -= 1
        sequence.under_way = True
        del self._ready[sequence.instance][sequence.slot]
        if request.end:
            self._leave_slot(sequence)
        return request


def _is_busy(sequence: Sequence[T]) -> bool:
    """Whether a sequence has something to run, or is in the backlog."""
    return sequence.slot < 0 or sequence.under_way or sequence.first is not None


def _first(sequence: Sequence[T]) -> Given[T]:
    assert sequence.first is not None
    return sequence.first
