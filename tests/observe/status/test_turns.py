"""Who works next in the HTTP thread, by Trio's mock clock and a made-up CPU clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from toutates.observe.http.cpu_budget import CpuBudget
from toutates.observe.http.turns import CpuMeter, Flow, Lane


def run(main: Callable[[Lane], Awaitable[None]], *, share: float = 0.1, burst_s: float = 0.0) -> None:
    """Run ``main`` with a lane whose budget follows Trio's clock, which jumps to where something happens next."""

    async def with_lane() -> None:
        lane = Lane(CpuBudget(share, burst_s, clock=trio.current_time))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.run)
            await main(lane)
            nursery.cancel_scope.cancel()

    trio.run(with_lane, clock=MockClock(autojump_threshold=0))


def test_while_there_is_cpu_left_nobody_waits() -> None:
    async def main(lane: Lane) -> None:
        flow = Flow(lane)
        for _ in range(10):
            assert await flow.turn() is False
            flow.use(0.1)

    run(main, burst_s=1.05)


def test_a_flow_works_no_more_than_its_lane_may() -> None:
    async def main(lane: Lane) -> None:
        flow = Flow(lane)
        began = trio.current_time()
        for _ in range(100):
            await flow.turn()
            flow.use(0.01)
        assert trio.current_time() - began == pytest.approx(10.0, rel=0.05)  # a second of CPU, at a tenth per second

    run(main)


def test_one_that_asks_rarely_waits_for_one_turn_of_others_at_most() -> None:
    async def main(lane: Lane) -> None:
        async def flood(flow: Flow) -> None:
            while True:
                await flow.turn()
                flow.use(0.001)
                await trio.lowlevel.checkpoint()

        waits: list[float] = []
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(flood, Flow(lane))
            for _ in range(20):
                await trio.sleep(1.0)
                flow, began = Flow(lane), trio.current_time()
                for _ in range(3):  # to be accepted, read and answered
                    await flow.turn()
                    flow.use(0.001)
                waits.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()
        assert max(waits) < 0.1  # in order of arrival, each turn would wait for 50 others: 1.5 s in all

    run(main, burst_s=2.0)


def test_flows_that_ask_all_the_time_share_what_there_is() -> None:
    used = [0.0, 0.0, 0.0]

    async def main(lane: Lane) -> None:
        async def flood(number: int, cost_s: float) -> None:
            flow = Flow(lane)
            while True:
                await flow.turn()
                flow.use(cost_s)
                used[number] += cost_s
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number, cost_s in enumerate((0.001, 0.004, 0.020)):
                nursery.start_soon(flood, number, cost_s)
            await trio.sleep(60.0)
            nursery.cancel_scope.cancel()

    run(main)
    assert max(used) < 1.1 * min(used)


def test_what_is_owed_is_bounded_so_that_the_end_of_a_load_is_soon_forgotten() -> None:
    async def main(lane: Lane) -> None:
        Flow(lane).use(1_000.0)
        began = trio.current_time()
        assert await Flow(lane).turn() is True
        assert trio.current_time() - began <= 5.1

    run(main)


def test_to_wake_up_does_not_use_up_what_came_meanwhile() -> None:
    """A sleep for exactly what is missing would end with too little again: waking up is work too."""

    async def main(lane: Lane) -> None:
        sleep = trio.sleep
        with pytest.MonkeyPatch.context() as patch:

            async def sleep_and_pay(seconds: float) -> None:
                await sleep(seconds)
                lane.budget.use(0.0002)

            patch.setattr("toutates.observe.http.turns.trio.sleep", sleep_and_pay)
            lane.budget.use(0.01)
            with trio.fail_after(120):
                assert await Flow(lane).turn() is True

    run(main)


def test_one_that_is_cancelled_while_it_waits_takes_nobodys_turn() -> None:
    async def main(lane: Lane) -> None:
        lane.budget.use(0.01)
        took: list[int] = []

        async def ask(number: int, patience_s: float) -> None:
            with trio.move_on_after(patience_s):
                await Flow(lane).turn()
                took.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1, 0.01)
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, 2, 60.0)
        assert took == [2]

    run(main)


def test_what_a_connection_uses_in_one_lane_is_not_missing_in_the_other() -> None:
    async def main(lane: Lane) -> None:
        other = Lane(CpuBudget(clock=trio.current_time))
        flow = Flow(other)
        flow.use(100.0)
        flow.move_to(lane)
        assert flow.used_s == lane.floor_s
        assert await flow.turn() is False
        assert other.budget.shortage_s() > 0

    run(main)


def test_every_task_is_charged_to_the_flow_that_it_works_for() -> None:
    cpu_s = 0.0

    def work(seconds: float) -> None:
        nonlocal cpu_s
        cpu_s += seconds

    one, two, rest = (Lane(CpuBudget(burst_s=0.0, clock=lambda: 0.0)) for _ in range(3))
    flows = Flow(one), Flow(two)

    async def main() -> None:
        async def connection(flow: Flow, seconds: float) -> None:
            flow.adopt_task()
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(request, seconds)

        async def request(seconds: float) -> None:
            work(seconds)
            await trio.lowlevel.checkpoint()
            work(seconds)

        work(0.03)  # for nobody
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection, flows[0], 0.001)
            nursery.start_soon(connection, flows[1], 0.01)

    trio.run(main, instruments=[CpuMeter(rest.budget, lambda: cpu_s)])
    assert [flow.used_s for flow in flows] == pytest.approx([0.004, 0.04])
    assert [lane.budget.shortage_s() for lane in (one, two, rest)] == pytest.approx([0.04, 0.4, 0.3])
