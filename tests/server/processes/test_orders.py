"""Calls that all processes carry out, and what one that starts later does again."""

from __future__ import annotations

from collections.abc import Iterable

import trio
import trio.testing

from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.server.processes.orders import UNLOAD, Orders, Worker


def order(call: str, request: bytes, about: str, *, whole: bool = True) -> Order:
    return Order(call, request, changes=True, about=about, whole=whole)


def worker(process: int, done: list[str], fails: Iterable[str] = ()) -> Worker:
    async def work(one: Order) -> Outcome:
        await trio.lowlevel.checkpoint()
        said = f"{one.call} {one.request[:10].decode()}"
        done.append(said)
        return Outcome(process, error="InvalidRequest", text="no") if said in fails else Outcome(process, b"ok")

    return work


def test_changes_of_one_thing_are_made_in_one_order_everywhere() -> None:
    async def main() -> None:
        seen: list[list[str]] = [[], []]
        orders = Orders(lambda: [worker(number, done) for number, done in enumerate(seen)])

        async def carry(number: int) -> None:
            outcomes = await orders.carry(order("load", str(number).encode(), "model a"))
            assert [one.process for one in outcomes] == [0, 1]

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(carry, number)
        assert seen[0] == seen[1]
        assert sorted(seen[0]) == [f"load {number}" for number in range(5)]

    trio.run(main)


def test_an_unload_is_done_again_only_where_a_process_would_load_the_model() -> None:
    async def main() -> None:
        orders = Orders(lambda: [worker(0, [])])
        orders.remember(order("load", b"a", "model a"))
        for one in (
            order(UNLOAD, b"a", "model a"),
            order("load", b"b", "model b"),
            order(UNLOAD, b"b", "model b"),
            *(order(UNLOAD, b"none", f"model none {number}") for number in range(3)),
        ):
            await orders.carry(one)
        done: list[str] = []
        assert await orders.catch_up(worker(1, done), lambda: None) == []
        assert done == [f"{UNLOAD} a"]

    trio.run(main)


def test_an_unload_reaches_a_process_that_has_just_loaded_the_model() -> None:
    async def main() -> None:
        orders = Orders(lambda: [worker(0, [])])
        await orders.carry(order("load", b"b", "model b"))
        done: list[str] = []
        work = worker(1, done)

        async def unloaded_meanwhile(one: Order) -> Outcome:
            outcome = await work(one)
            if one.call == "load":
                await orders.carry(order(UNLOAD, b"b", "model b"))
            return outcome

        await orders.catch_up(unloaded_meanwhile, lambda: None)
        assert done == ["load b", f"{UNLOAD} b"]
        await orders.catch_up(work, lambda: None)
        assert len(done) == 2  # neither is done by the next one

    trio.run(main)


def test_a_process_that_starts_later_does_what_counts_of_what_was_done() -> None:
    async def main() -> None:
        orders = Orders(lambda: [worker(0, [])])
        large = b"x" * 1_000_000
        orders.remember(order("load", b"a", "model a"))
        orders.remember(order("load", b"b", "model b"))
        for one in (
            order("unload", b"b", "model b"),
            order("load", large, "model c"),
            order("load", b"c", "model c", whole=False),
            order("log", b"1", "log", whole=False),
            order("log", b"2", "log", whole=False),
            order("log", b"1", "log", whole=False),
            order("load", b"d", "model d"),
        ):
            await orders.carry(one)
        await orders.carry(Order("index", b""))
        done: list[str] = []
        joined: list[str] = []
        work = worker(1, done, fails=["unload b"])
        problems = await orders.catch_up(work, lambda: joined.append(done[-1]))
        assert done == ["load a", "unload b", "load xxxxxxxxxx", "load c", "load d", "log 2", "log 1"]
        assert joined == ["log 1"]
        assert [(about, one.text) for about, one in problems] == [("model b", "no")]

    trio.run(main)


def test_a_process_joins_only_when_nothing_is_under_way() -> None:
    async def main() -> None:
        may_end = trio.Event()

        async def slow(one: Order) -> Outcome:
            await may_end.wait()
            return Outcome(0)

        orders = Orders(lambda: [slow])
        done: list[str] = []
        joined: list[bool] = []

        async def join() -> None:
            await orders.catch_up(worker(1, done), lambda: joined.append(True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(orders.carry, order("load", b"a", "model a"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(join)
            await trio.testing.wait_all_tasks_blocked()
            assert not joined
            may_end.set()
        assert done == ["load a"]
        assert joined == [True]

    trio.run(main)


def test_a_change_that_fails_everywhere_is_not_done_again() -> None:
    async def main() -> None:
        orders = Orders(lambda: [worker(0, [], fails=["load a"])])
        outcomes = await orders.carry(order("load", b"a", "model a"))
        assert [one.error for one in outcomes] == ["InvalidRequest"]
        done: list[str] = []
        await orders.catch_up(worker(1, done), lambda: None)
        assert not done

    trio.run(main)


def test_who_asks_the_same_before_it_is_begun_gets_one_answer_and_nobody_an_older_one() -> None:
    async def main() -> None:
        may_end = trio.Event()
        asked: list[bytes] = []

        async def slow(one: Order) -> Outcome:
            asked.append(one.request)
            await may_end.wait()
            return Outcome(0, b"%d" % len(asked), spent_ns=10**9)

        orders = Orders(lambda: [slow])
        answers: list[list[Outcome]] = []

        async def ask(request: bytes) -> None:
            answers.append(await orders.carry(Order("statistics", request)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, b"all")
            await trio.testing.wait_all_tasks_blocked()
            for request in (b"all", b"all", b"a", b"all"):
                nursery.start_soon(ask, request)
            await trio.testing.wait_all_tasks_blocked()
            assert asked == [b"all"], "one at a time"
            began_s = trio.current_time()
            may_end.set()
        assert sorted(asked) == [b"a", b"all", b"all"]
        assert len(answers) == 5
        assert trio.current_time() - began_s >= 0.19, "a pause between two"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
