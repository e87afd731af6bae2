"""Requests with priorities and timeouts that wait, and batches that are formed of them.

Invariant, for any bytes: the scheduler forms the same batches at the same times as one of plain lists, which begins
its walk anew each time; drops the same requests; and it remembers nothing of those that have left.

A case is the rules, four bytes, and then steps of two bytes each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType

from toutates.engine.policies.rules import BatchingRules, QueuePolicy
from toutates.engine.policies.scheduler import PolicyScheduler

__all__ = ["check", "make_case"]

STEPS = 60
MOST_ROWS = 8
LEVELS = 3


@dataclass(eq=False)
class Request:
    name: int
    rows: int
    key: int
    level: int
    arrived_ns: int
    due_ns: int
    wanted: bool = True
    delayed: int = 0


class Plain:
    """The rules as they are written, with lists."""

    def __init__(self, rules: BatchingRules) -> None:
        self.rules = rules
        self.waiting: list[Request] = []
        self.dropped: list[int] = []
        self._delays = 0

    def expire(self, now_ns: int) -> None:
        for one in sorted(self.waiting, key=lambda one: (one.due_ns, one.name)):
            if 0 < one.due_ns <= now_ns:
                one.due_ns = 0
                if self.rules.policy_of(one.level).delays:
                    self._delays += 1
                    one.delayed = self._delays
                else:
                    self._drop(one)

    def _drop(self, one: Request) -> None:
        self.waiting.remove(one)
        self.dropped.append(one.name)

    def choose(self, now_ns: int) -> list[int]:
        self.expire(now_ns)
        count, pending = self._decide(now_ns)
        for one in pending[:count]:
            self.waiting.remove(one)
        return [one.name for one in pending[:count]]

    def _decide(self, now_ns: int) -> tuple[int, list[Request]]:
        rules = self.rules
        preferred = rules.preferred_rows or (rules.most_rows,)
        pending: list[Request] = []
        total = marked = 0
        is_full = False
        for one in sorted(self.waiting, key=lambda one: (one.level, one.delayed, one.name)):
            if not one.wanted:
                self._drop(one)
                continue
            if total and total + one.rows > max(preferred) and not marked:
                marked = len(pending)
            if total and (total + one.rows > rules.most_rows or one.key != pending[0].key):
                is_full = True
                break
            pending.append(one)
            total += one.rows
            if total in preferred:
                marked = len(pending)
        if not pending:
            return 0, pending
        waited_ns = now_ns - min(one.arrived_ns for one in pending)
        if marked and (not rules.delay_ns or waited_ns < rules.delay_ns):
            return marked, pending
        if is_full or total >= max(preferred) or waited_ns >= rules.delay_ns:
            return len(pending), pending
        return 0, pending


def check(case: bytes) -> None:
    """Carry a case out, in both ways."""
    kind, preferred, delay, policies = (*case[:4], 0, 0, 0, 0)[:4]
    sizes = tuple(size for size in range(1, MOST_ROWS + 1) if preferred >> (size - 1) & 1)
    own = {
        level: QueuePolicy(0, 1 + (policies >> 4), bool(policies >> level & 1), True)
        for level in range(1, LEVELS + 1)
        if policies >> (level - 1) & 1
    }
    rules = BatchingRules(
        MOST_ROWS, sizes, delay % 8 * 1_000, kind % (LEVELS + 1), kind % (LEVELS + 1) and 1 + kind // 4 % (kind % 4),
        policies=MappingProxyType(own),
    )  # fmt: skip
    plain, now_ns = Plain(rules), 10_000
    known: dict[int, Request] = {}
    scheduler: PolicyScheduler[int] = PolicyScheduler(rules, lambda name, by_ns: known[name].wanted)
    left = 0
    for at in range(4, len(case) - 1, 2):
        what, how = case[at], case[at + 1]
        if what < 150:
            level = rules.level_of(how % 5)
            timeout_ns = rules.policy_of(level).timeout_ns(how // 5 % 4)
            request = Request(at, 1 + what % MOST_ROWS, what // MOST_ROWS % 8 == 0, level, now_ns, 0)
            request.due_ns = now_ns + timeout_ns if timeout_ns else 0
            known[at] = request
            plain.waiting.append(request)
            scheduler.add(at, request.rows, request.key, now_ns, priority=how % 5, timeout_us=how // 5 % 4)
        elif what < 170 and known:
            one = list(known.values())[how % len(known)]
            # What was walked is looked at again before it runs, and meanwhile counts; the plain way would leave it out.
            one.wanted &= one.name in [walked.own for walked in scheduler._walked]
        elif what < 200:
            now_ns += how * 30
            plain.expire(now_ns)
            scheduler.expire(now_ns)
        else:
            found = [one.own for one in scheduler.choose(now_ns)]
            assert not scheduler.looks_again
            assert found == plain.choose(now_ns)
            left += len(found)
        assert [name for name, _ in scheduler.dropped] == plain.dropped
        assert scheduler.requests == len(plain.waiting)
        assert scheduler.rows == sum(one.rows for one in plain.waiting)
    now_ns += 10**9
    while found := [one.own for one in scheduler.choose(now_ns)]:
        assert found == plain.choose(now_ns)
        assert sum(known[name].rows for name in found) <= MOST_ROWS
        left += len(found)
    assert left + len(scheduler.dropped) == len(known)
    assert not scheduler.requests
    assert not scheduler.rows
    assert not scheduler.next_expiry_ns


def make_case(rng: random.Random) -> bytes:
    """A case: rules, and steps among which requests are the most."""
    return rng.randbytes(4 + 2 * rng.randrange(STEPS))
