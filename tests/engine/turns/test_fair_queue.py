"""The queue for permits: what is next by the rules, and in how many steps of the program it is found."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType
from typing import Any

from tests.engine.parts import Clock
from toutates.engine.turns import fair_queue, order
from toutates.engine.turns.claims import Claim, Instance, Share
from toutates.engine.turns.fair_queue import QUANTUM_NS, STEPS, FairQueue
from toutates.engine.turns.order import Order

MS = 1_000_000


def next_by_the_rules(waiting: list[Claim], most: int) -> Claim | None:
    """Of the claims, in the order in which they came, the one that is next."""
    ready = [claim for claim in waiting if claim.instance.share.running < most]
    if not ready:
        return None

    def step(claim: Claim) -> int:
        return claim.instance.share.used_ns * STEPS // QUANTUM_NS

    lowest = min(map(step, ready))
    return min((claim for claim in ready if step(claim) < lowest + STEPS), key=lambda claim: claim.due_ns)


def test_the_next_claim_is_that_of_the_rules_whatever_happened_before() -> None:
    rng, queue, most = Random(7), FairQueue(), 2
    queue.set_most(most)
    shares = [Share(used_ns=rng.randrange(3 * QUANTUM_NS)) for _ in range(12)]
    waiting: list[Claim] = []
    running: list[Claim] = []
    kinds = set()
    for _ in range(5_000):
        kind = rng.choice(("add", "add", "pop", "end", "most"))
        if kind == "add" and len(waiting) < 30:
            claim = Claim(Instance(rng.choice(shares)), rng.randrange(100))
            waiting.append(claim)
            queue.add(claim)
        elif kind == "pop":
            expected, first, found = next_by_the_rules(waiting, most), queue.first(), queue.pop()
            assert found is first is expected
            kinds.add(found is None)
            if found is not None:
                waiting.remove(found)
                running.append(found)
                found.instance.share.running += 1
                queue.note(found.instance.share)
        elif kind == "end" and running:
            share = running.pop(rng.randrange(len(running))).instance.share
            share.running -= 1
            share.used_ns += rng.randrange(QUANTUM_NS)
            queue.note(share)
        elif kind == "most" and rng.random() < 0.05:
            most = rng.choice((1, 2, 3))
            queue.set_most(most)
        assert bool(queue) is bool(waiting)
    assert kinds == {True, False}
    assert queue.drain() == waiting
    assert queue.pop() is None


def steps_of_turns(models: int) -> int:
    """How many lines of the order are run for 200 turns while a batch of each model waits."""
    clock = Clock()
    own = Order(2, None, clock)
    own.shares = models
    rng = Random(models)
    for _ in range(models):
        own.claim(Instance(Share(used_ns=rng.randrange(20) * MS)), rng.randrange(1_000) * MS)
    (running, _) = own.grant()
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename not in (order.__file__, fair_queue.__file__):
            return None
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in range(200):
            clock.now_ns += MS
            own.end(running)
            own.claim(running.instance, clock.now_ns + rng.randrange(1_000) * MS)
            (running,) = own.grant()
    finally:
        sys.settrace(before)
    return steps


def test_turns_take_as_many_steps_with_ten_thousand_models_that_wait_as_with_a_hundred() -> None:
    few, many = steps_of_turns(100), steps_of_turns(10_000)
    assert 200 < many < 2 * few


def test_entries_that_do_not_hold_are_left_out() -> None:
    queue = FairQueue()
    shares = [Share() for _ in range(10)]
    for number, share in enumerate(shares):
        queue.add(Claim(Instance(share), number))
    for _ in range(1_000):
        for share in shares[1:]:
            share.used_ns += QUANTUM_NS
            queue.note(share)
    assert sum(map(len, queue._steps.values())) < 200
    assert len(queue._numbers) < 200
