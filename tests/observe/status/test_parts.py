"""The parts of the HTTP side that need no socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
import trio

from tests.observe.status.support import view_of
from toutates.access.pages import of_foreign_page
from toutates.engine.counters import (
    BUCKET_NS,
    BUCKETS,
    ExecutorCounters,
    VersionCounters,
    WorkerCounters,
    time_bucket,
)
from toutates.engine.result import Timing
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.observe.debug.flame_graph import collapsed, flame_page
from toutates.observe.debug.profiler import MAX_STACKS, OTHERS, Profile, Profiler, Weight
from toutates.observe.debug.thread_stacks import StackReader, parse_dump
from toutates.observe.http.cpu_budget import CpuBudget
from toutates.observe.http.reuse import REUSE, ReusedText
from toutates.observe.status.history import NOTHING, Series
from toutates.observe.status.page import load_page
from toutates.observe.status.sampling import (
    ERROR_KINDS,
    MANY,
    MODEL_HISTORY,
    QUIET_STEP,
    SOME,
    WINDOW,
    Sampler,
    percentile_ms,
)
from toutates.observe.view import ServerView


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# --- what things may cost --------------------------------------------------------------------------------------------


def test_a_budget_is_spent_at_once_and_comes_back_with_time() -> None:
    clock = Clock()
    budget = CpuBudget(0.1, 2.0, 1.0, clock=clock)
    budget.use(1.9)
    assert budget.shortage_s() == 0
    budget.use(0.6)
    assert budget.shortage_s() == pytest.approx(5.0)
    clock.now = 4.0
    assert budget.shortage_s() == pytest.approx(1.0)
    clock.now = 1_000.0
    assert budget.shortage_s() == 0
    budget.use(2.1)  # and never more than the burst
    assert budget.shortage_s() == pytest.approx(1.0)
    budget.use(500.0)  # nor is more ever missing than the debt that is allowed
    assert budget.shortage_s() == pytest.approx(10.0)


def test_a_text_is_kept_for_many_times_as_long_as_it_took() -> None:
    clock = Clock()
    made = 0

    def make() -> Iterator[bytes]:
        nonlocal made
        made += 1
        for _ in range(2):
            clock.now += 0.1
            yield b"%d " % made

    text = ReusedText(make, clock=clock)

    async def main() -> None:
        assert await text.get() == b"1 1 "
        clock.now += REUSE * 0.2 - 0.01
        assert await text.get() == b"1 1 "
        clock.now += 0.02
        assert await text.get() == b"2 2 "

    trio.run(main)


def test_those_who_ask_at_once_get_the_same_text() -> None:
    made = 0

    def make() -> Iterator[bytes]:
        nonlocal made
        made += 1
        yield b"a"
        yield b"b"

    text = ReusedText(make, least_s=60)
    got: list[bytes] = []

    async def main() -> None:
        async def ask() -> None:
            got.append(await text.get())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)

    trio.run(main)
    assert (got, made) == ([b"ab"] * 5, 1)


def test_a_text_that_cannot_be_made_is_tried_again() -> None:
    def make() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("no")

    text = ReusedText(make, least_s=60)

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await text.get()

    trio.run(main)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_a_series_keeps_its_last_values() -> None:
    series = Series(3)
    assert series.last(9) == [NOTHING] * 3
    for value in range(5):
        series.add(value)
    assert series.last(2) == [3, 4]
    assert series.last(3) == [2, 3, 4]
    assert series.last(0) == []


def test_percentiles_lie_in_their_bucket() -> None:
    buckets = [0] * BUCKETS
    assert percentile_ms(buckets, 0.5) == NOTHING
    for us in range(1, 1_001):
        buckets[time_bucket(us * 1_000)] += 1
    for share in (0.5, 0.9, 0.99):
        found_ns = percentile_ms(buckets, share) * 1e6
        assert time_bucket(int(found_ns)) == time_bucket(int(share * 1e6))
    assert percentile_ms([0] * 3 + [1], 1.0) == pytest.approx((BUCKET_NS << 3) / 1e6)


class Version:
    """As much of a served version as a sampler reads."""

    def __init__(self, in_flight: int = 2) -> None:
        self.counters = VersionCounters([WorkerCounters(), WorkerCounters()], [ExecutorCounters()])
        self.servable = self
        self.in_flight = in_flight
        self.read = 0

    def statistics(self) -> VersionStatistics:
        self.read += 1
        counters = self.counters
        occupancy = Occupancy(
            in_flight=self.in_flight,
            running=1,
            capacity=16,
            waiting=3,
            rows=5,
            row_capacity=16,
            in_flight_bytes=0,
            capacity_bytes=1,
            idle_executors=0,
            lanes=1,
            spare_bytes=0,
            buffer_bytes=0,
        )
        return VersionStatistics(counters.requests(), counters.batches(), [], [], occupancy, 8, len(counters.executors))


class Table:
    """As much of a table of models as a sampler reads."""

    def __init__(self, versions: Sequence[Version]) -> None:
        self._versions = list(versions)

    def served(self) -> list[Version]:
        return self._versions


def show(view: ServerView, versions: Sequence[Version]) -> None:
    """Have these versions served from now on."""
    table = Table(versions)
    object.__setattr__(view, "get_table", lambda: table)


def test_a_sampler_turns_counters_into_rates_and_forgets_old_ones() -> None:
    clock = Clock()
    version = Version()
    view = view_of()
    show(view, [version])
    sampler = Sampler(view, clock)
    first, second = version.counters.workers
    for tick in range(3):
        clock.now += 2.0
        first.success += 10
        second.success += 30
        second.rows += 100
        first.durations[4] += 40
        first.fail += 5
        first.broken += 2
        first.rejected += 1
        first.overloaded += 1
        version.counters.executors[0].add(3, 2, Timing(0, 0, 500_000_000, 1_000_000_000))
        list(sampler.sample())
        sample = sampler.versions[version]  # type: ignore[index]
        assert (sample.requests_per_s, sample.rows_per_s, sample.failed_per_s) == (20.0, 50.0, 3.0)
        assert sample.busy == pytest.approx(0.5)
        assert sampler.durations[4] == 40 * (tick + 1)
        assert sampler.batches[2] == tick + 1
    assert dict(zip(ERROR_KINDS, sampler.errors, strict=True))["ring full"] == 3
    assert sum(sampler.errors) == 18
    assert sampler.requests.last(4) == [NOTHING, 20, 20, 20]
    assert sampler.waiting.last(1) == [3]
    for _ in range(WINDOW):
        clock.now += 1.0
        list(sampler.sample())
    assert (sum(sampler.durations), sum(sampler.batches)) == (0, 0)
    assert sampler.requests.last(1) == [0]
    show(view, [])
    list(sampler.sample())
    assert not sampler.versions
    assert sum(sampler.errors) == 18  # what has happened stays


def test_of_very_many_versions_a_sampler_reads_those_that_were_asked_for() -> None:
    versions = [Version() for _ in range(MANY + 1)]
    view = view_of()
    show(view, versions)
    sampler = Sampler(view, Clock())
    list(sampler.sample())
    assert not sampler.versions
    versions[7].counters.workers[1].refused += 1
    list(sampler.sample())
    assert list(sampler.versions) == [versions[7]]  # type: ignore[comparison-overlap]
    show(view, versions[:MANY])
    list(sampler.sample())
    assert len(sampler.versions) == MANY


def test_of_some_versions_those_that_rest_are_read_seldom() -> None:
    versions = [Version(in_flight=0) for _ in range(SOME + 1)]
    view = view_of()
    show(view, versions)
    clock = Clock()
    sampler = Sampler(view, clock)

    def take(samples: int) -> int:
        """How often one was read."""
        before = versions[7].read
        for _ in range(samples):
            clock.now += 1.0
            list(sampler.sample())
        return versions[7].read - before

    assert take(1) == 1
    assert take(QUIET_STEP) == 1
    take(MODEL_HISTORY)
    assert take(2 * MODEL_HISTORY) == 2
    versions[7].counters.workers[0].success += 9
    assert take(1) == 1
    assert sampler.versions[versions[7]].requests_per_s == 9.0  # type: ignore[index]
    assert len(sampler.versions) == SOME + 1


def test_of_very_many_versions_those_that_rest_are_not_read_until_something_comes() -> None:
    clock = Clock()
    versions = [Version(in_flight=0) for _ in range(MANY + 1)]
    view = view_of()
    show(view, versions)
    sampler = Sampler(view, clock)
    busy, quiet, stuck = versions[3], versions[4], versions[5]

    def take(samples: int) -> int:
        """How often the quiet one was read."""
        before = quiet.read
        for _ in range(samples):
            clock.now += 1.0
            busy.counters.workers[0].success += 7
            list(sampler.sample())
        return quiet.read - before

    for one in (quiet, stuck):
        one.counters.workers[0].success += 40
        one.counters.workers[0].durations[4] += 40
    assert take(1) == 1
    sample = sampler.versions[quiet]  # type: ignore[index]
    assert (sample.requests_per_s, sample.success, sample.durations[4]) == (40.0, 40, 40)
    stuck.in_flight = 1
    assert take(QUIET_STEP - 1) == 0
    assert (sample.requests_per_s, sample.success, sample.history.last(2)) == (0.0, 40, [0.0, 0.0])
    assert take(1) == 1
    assert sampler.versions[stuck].occupancy.in_flight == 1  # type: ignore[index]
    sample = sampler.versions[quiet]  # type: ignore[index]
    assert not any(sample.durations)  # it is longer ago than the window
    assert sampler.requests.last(1) == [7.0]
    before = stuck.read
    take(MODEL_HISTORY)
    assert stuck.read == before + MODEL_HISTORY
    assert take(3 * QUIET_STEP) == 0
    assert sampler.versions[quiet].success == 40  # type: ignore[index]
    quiet.counters.workers[0].success += 5
    assert take(1) == 1
    sample = sampler.versions[quiet]  # type: ignore[index]
    assert (sample.requests_per_s, sample.success, sample.history.last(2)) == (5.0, 45, [0.0, 5.0])
    assert sum(one.read for one in versions if one not in (busy, quiet, stuck)) == 0


# --- stacks and profiles ---------------------------------------------------------------------------------------------


def test_stacks_are_read_from_a_dump_as_from_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def waits_in_a_function_of_this_name() -> None:
        stop.wait()

    thread = threading.Thread(target=waits_in_a_function_of_this_name)
    thread.start()
    stacks = []
    try:
        for has_gil in (True, False):
            monkeypatch.setattr("toutates.observe.debug.thread_stacks.gil_enabled", lambda has_gil=has_gil: has_gil)
            with StackReader.open() as reader:
                stacks.append([reader.read()[thread.ident or 0] for _ in range(3)])
    finally:
        stop.set()
        thread.join()
    assert stacks[0] == stacks[1]
    assert any(frame.startswith("waits_in_a_function_of_this_name (") for frame in stacks[0][0])
    assert stacks[0][0][0].startswith("_bootstrap (")


def test_a_dump_is_read_whatever_is_in_it() -> None:
    first = 'Thread 0x00ff [w] (most recent call first):\n  File "/x/a.py", line 3 in f\n  ...\n\n'
    text = first + "Current thread 0x1 (most recent call first):\n  <no Python frame>\n"
    assert parse_dump(text) == {255: ("f (/x/a.py)",), 1: ()}
    assert parse_dump("") == {}
    assert parse_dump('  File "/x/a.py", line 3 in f\n') == {}


def test_a_profile_is_bounded() -> None:
    profile = Profile(Weight.CPU)
    for number in range(MAX_STACKS + 100):
        profile.add(("worker-0", f"f{number}"), 2)
    assert len(profile.stacks) == MAX_STACKS + 1
    assert profile.stacks["worker-0", OTHERS] == 200
    assert collapsed(profile).count("\n") == MAX_STACKS + 1


def test_threads_that_wait_weigh_something_only_by_the_clock() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="waits")
    thread.start()
    profiles: list[Profile] = []

    async def main() -> None:
        profiles.extend([await Profiler().take(0.5, 50, weight) for weight in Weight])

    try:
        trio.run(main)
    finally:
        stop.set()
        thread.join()
    by_cpu, by_clock = ([sum(us for stack, us in one.stacks.items() if stack[0] == "waits")] for one in profiles)
    assert by_cpu[0] < by_clock[0]


def test_a_profile_that_is_cancelled_ends_at_once() -> None:
    async def main() -> None:
        profiler = Profiler()
        with trio.move_on_after(0.2) as scope:
            await profiler.take(3_600, 10, Weight.CPU)  # which nobody waits for
        assert scope.cancelled_caught
        await profiler.take(0.1, 10, Weight.CPU)  # and leaves room for the next

    trio.run(main)


# --- pages -----------------------------------------------------------------------------------------------------------


def test_a_page_may_run_what_it_has_and_nothing_else() -> None:
    for page in (load_page("status.html"), flame_page(Profile(Weight.CPU, {("</script><script>alert(1)", "f"): 5}))):
        assert "default-src 'none'" in page.policy
        assert "unsafe" not in page.policy
        assert page.policy.count("'sha256-") == 2
        text = page.html.decode()
        assert text.count("<script>") == 1
        assert "</script><script>alert" not in text
        for outside in ("http://", "https://", "//cdn", "@import", "url("):
            assert outside not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("site", "foreign"),
    [("none", False), ("same-origin", False), ("same-site", True), ("cross-site", True), ("x", True)],
)
def test_pages_of_others_are_known_by_what_browsers_say(site: str, foreign: bool) -> None:
    assert of_foreign_page({"sec-fetch-site": site}) is foreign
    assert not of_foreign_page({})
