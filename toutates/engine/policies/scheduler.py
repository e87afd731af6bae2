"""Which of the requests that wait run next, by Triton's rules. Nothing here knows a thread, an array or a clock.

    live ──(its time is over, and its level delays)──▶ delayed
      ├──────(its time is over, or its caller has left)──▶ dropped
      └──▶ walked ──(a batch is formed)──▶ gone

A batch is formed of the first requests in the order of the *walk*: by level, in a level first the live ones in order of
arrival, and then the delayed ones. Requests that share a batch have the same key. The walk is not begun anew for each
request that comes: those that were walked stay so until one of them leaves, or one comes that runs before them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from toutates.engine.policies.rules import BatchingRules, QueuePolicy

__all__ = ["Dropped", "PolicyScheduler", "Waiting"]

T = TypeVar("T")

#: Requests that are dropped, or delayed, before others get their turn: some 2 us each, with a lock held.
_MOST_DROPPED: Final = 256
_NEVER_NS: Final = 2**63


class Waiting(Generic[T]):
    """A request that waits.

    Attributes:
        own: whatever is to come back.
        rows: how many it has.
        size: what it adds to the size of a batch.
        key: requests of equal keys may share a batch.
        arrived_ns: when it came.
        due_ns: when its time is over; 0 for never.
        number: that no other has.
    """

    __slots__ = ("arrived_ns", "due_ns", "is_delayed", "is_walked", "key", "level", "number", "own", "rows", "size")

    def __init__(
        self, number: int, own: T, rows: int, size: int, key: Any, arrived_ns: int, due_ns: int, level: _Level[T]
    ) -> None:
        self.number = number
        self.own = own
        self.rows = rows
        self.size = size
        self.key = key
        self.arrived_ns = arrived_ns
        self.due_ns = due_ns
        self.level = level
        self.is_delayed = self.is_walked = False


class _Level(Generic[T]):
    """The requests of one priority.

    Attributes:
        live, delayed: those that are not walked, the first one first.
        count: how many there are, walked or not.
    """

    __slots__ = ("count", "delayed", "live", "number", "policy")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.live: OrderedDict[Waiting[T], None] = OrderedDict()
        self.delayed: OrderedDict[Waiting[T], None] = OrderedDict()
        self.count = 0

    def queue_of(self, request: Waiting[T]) -> OrderedDict[Waiting[T], None]:
        return self.delayed if request.is_delayed else self.live


#: A request that will not run, and whether its time was over; else its caller has left.
Dropped = tuple[T, bool]


class PolicyScheduler(Generic[T]):
    """The requests that wait for one model version, and the choice of those that run next. Not for two threads at once.

    Args:
        rules: of the version.
        is_wanted: whether somebody waits for a request still, at a time in nanoseconds.
        most_size: of a batch; a request that is larger runs alone. 0 for no bound.

    Attributes:
        requests, rows: that wait.
        looks_again: whether ``choose`` has left off before it knew what to run: it is to be called again soon.
        due_ns: when the requests run that ``choose`` has left for want of others; 0 if there are none.
        dropped: requests that will not run, to be told so, and to be taken out of this list.
    """

    def __init__(self, rules: BatchingRules, is_wanted: Callable[[T, int], bool], most_size: int = 0) -> None:
        self._rules = rules
        self._is_wanted = is_wanted
        self._most_size = most_size or _NEVER_NS
        self._preferred = frozenset(rules.preferred_rows or (rules.most_rows,))
        self._enough = max(self._preferred)
        self.requests = 0
        self.rows = 0
        self.looks_again = False
        self.due_ns = 0
        self.dropped: list[Dropped[T]] = []
        #: levels with requests, by number, and these numbers, ascending: there may be 2**64 - 1 levels
        self._levels: dict[int, _Level[T]] = {}
        self._order: list[int] = []
        #: (due, number, request) of those whose time may end, ascending
        self._dues: list[tuple[int, int, Waiting[T]]] = []
        self._added = 0
        #: the requests that were walked
        self._walked: list[Waiting[T]] = []
        self._total = 0
        self._total_size = 0
        self._oldest_ns = _NEVER_NS
        #: how many of them are a batch of a preferred size, or are before one that would be too large; 0 for none
        self._marked = 0
        #: whether the walk is to be begun anew
        self._is_stale = False

    # --- requests in -------------------------------------------------------------------------------------------------

    def bound_met(self, priority: int) -> int:
        """The bound that keeps out one more request that says ``priority``; 0 if there is room."""
        number = self._rules.level_of(priority)
        most = self._rules.policy_of(number).max_size
        level = self._levels.get(number)
        return most if level is not None and level.count >= most else 0

    def add(
        self, own: T, rows: int, key: Any, now_ns: int, *, priority: int = 0, timeout_us: int = 0, size: int = 0
    ) -> None:
        """Have a request wait, for which there is room.

        Args:
            own: whatever is to come back.
            rows: how many, ``most_rows`` at most.
            key: see ``Waiting``.
            now_ns: the time.
            priority, timeout_us: what the request says; 0 for nothing.
            size: see ``Waiting``.
        """
        number = self._rules.level_of(priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(number, self._rules.policy_of(number))
            insort(self._order, number)
        timeout_ns = level.policy.timeout_ns(timeout_us)
        self._added += 1
        due_ns = now_ns + timeout_ns if timeout_ns else 0
        request = Waiting(self._added, own, rows, size, key, now_ns, due_ns, level)
        level.live[request] = None
        level.count += 1
        self.requests += 1
        self.rows += rows
        if timeout_ns:
            insort(self._dues, (request.due_ns, request.number, request))
        if self._walked:
            last = self._walked[-1]
            if number < last.level.number or (number == last.level.number and last.is_delayed):
                self._is_stale = True

    # --- batches out -------------------------------------------------------------------------------------------------

    def choose(self, now_ns: int, *, hurries: bool = False) -> list[Waiting[T]]:
        """Take the requests that run now; [] for none. An instance has to be free for them.

        Those whose time is over, or whose caller has left, are dropped on the way, but not too many at once: then there
        are none to run now, and ``looks_again`` is set.

        Args:
            now_ns: the time.
            hurries: whether none waits for others.
        """
        self.due_ns = 0
        self.expire(now_ns)
        self.looks_again = 0 < self.next_expiry_ns <= now_ns
        most_dropped = len(self.dropped) + _MOST_DROPPED
        while not self.looks_again:
            is_full = self._walk(now_ns, most_dropped)
            if is_full is None:
                self.looks_again = True
                break
            count = self._decide(now_ns, is_full=is_full, hurries=hurries)
            # The callers of some may have left while these waited for others.
            left = [one for one in self._walked[:count] if not self._is_wanted(one.own, now_ns)]
            if not left:
                return self._take(count)
            for one in left:
                self._drop(one, is_late=False)
            self.looks_again = len(self.dropped) >= most_dropped
        return []

    def _walk(self, now_ns: int, most_dropped: int) -> bool | None:
        """Go on with the walk; returns whether it has met a request that cannot be of the batch.

        None: it has left off, because so many were dropped.
        """
        if self._is_stale:
            self._walk_anew()
        rules, walked = self._rules, self._walked
        while (request := self._next()) is not None:
            if not self._is_wanted(request.own, now_ns):
                if len(self.dropped) >= most_dropped:
                    return None
                self._drop(request, is_late=False)
                continue
            if walked:
                total = self._total + request.rows
                if total > self._enough and not self._marked:
                    self._marked = len(walked)
                if (
                    total > rules.most_rows
                    or request.key != walked[0].key
                    or self._total_size + request.size > self._most_size
                ):
                    return True
            del request.level.queue_of(request)[request]
            request.is_walked = True
            walked.append(request)
            self._total += request.rows
            self._total_size += request.size
            self._oldest_ns = min(self._oldest_ns, request.arrived_ns)
            if self._total in self._preferred:
                self._marked = len(walked)
        return False

    def _next(self) -> Waiting[T] | None:
        """The next request of the walk."""
        order = self._order
        at = bisect_left(order, self._walked[-1].level.number) if self._walked else 0
        while at < len(order):
            level = self._levels[order[at]]
            queue = level.live or level.delayed
            if queue:
                return next(iter(queue))
            at += 1
        return None

    def _decide(self, now_ns: int, *, is_full: bool, hurries: bool) -> int:
        """How many of the walked requests run now."""
        count = len(self._walked)
        delay_ns = self._rules.delay_ns
        if not count:
            return 0
        is_due = now_ns >= self._oldest_ns + delay_ns
        if self._marked and not (delay_ns and is_due):
            return self._marked
        if is_full or self._total >= self._enough or is_due or hurries:
            return count
        self.due_ns = self._oldest_ns + delay_ns
        return 0

    def _take(self, count: int) -> list[Waiting[T]]:
        chosen = self._walked[:count]
        if not chosen:
            return chosen
        del self._walked[:count]
        self._walk_anew()
        for request in chosen:
            self._forget(request)
        return chosen

    def _walk_anew(self) -> None:
        """Put what was walked back to where it was."""
        for request in reversed(self._walked):
            request.is_walked = False
            queue = request.level.queue_of(request)
            queue[request] = None
            queue.move_to_end(request, last=False)
        self._walked.clear()
        self._total = self._total_size = self._marked = 0
        self._oldest_ns = _NEVER_NS
        self._is_stale = False

    # --- requests that do not run ------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> bool:
        """Drop or delay requests whose time is over, so many at a time; returns whether there were any."""
        late = self._dues[: min(bisect_left(self._dues, (now_ns + 1,)), _MOST_DROPPED)]
        del self._dues[: len(late)]
        for _, _, request in late:
            request.due_ns = 0
            if request.level.policy.delays:
                self._delay(request)
            else:
                self._drop(request, is_late=True)
        return bool(late)

    @property
    def next_expiry_ns(self) -> int:
        """When ``expire`` is to be called; 0 if nothing can expire."""
        return self._dues[0][0] if self._dues else 0

    def _delay(self, request: Waiting[T]) -> None:
        if request.is_walked:
            self._walk_anew()
        del request.level.live[request]
        request.is_delayed = True
        request.level.delayed[request] = None

    def _drop(self, request: Waiting[T], *, is_late: bool) -> None:
        if request.is_walked:
            self._walk_anew()
        del request.level.queue_of(request)[request]
        self._forget(request)
        self.dropped.append((request.own, is_late))

    def _forget(self, request: Waiting[T]) -> None:
        """A request is in no queue any more."""
        if request.due_ns:
            del self._dues[bisect_left(self._dues, (request.due_ns, request.number))]
        self.requests -= 1
        self.rows -= request.rows
        level = request.level
        level.count -= 1
        if not level.count:
            del self._levels[level.number]
            del self._order[bisect_left(self._order, level.number)]
