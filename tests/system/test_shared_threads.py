"""Threads that do one job after the other: how many there are, and that nothing of their jobs is left."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import trio
import trio.testing

from toutates.system.shared_threads import SharedThreads


class Thing:
    """What a job makes."""


def test_one_thread_does_one_job_after_the_other_under_their_names() -> None:
    async def main() -> None:
        threads = SharedThreads(2)
        seen = [await threads.run(lambda: (threading.get_ident(), threading.current_thread().name), n) for n in "ab"]
        threads.end()
        assert [name for _, name in seen] == ["a", "b"]
        assert len({ident for ident, _ in seen}) == 1

    trio.run(main)


def test_jobs_side_by_side_have_a_thread_each() -> None:
    async def main() -> None:
        threads, both = SharedThreads(2), threading.Barrier(2)
        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(threads.run, lambda: both.wait(120), name)
        threads.end()

    trio.run(main)


def test_what_a_job_made_is_freed_when_its_thread_has_been_told_to_tidy() -> None:
    """On free-threaded Python too, where an object waits for the thread that made it."""

    async def main() -> None:
        threads = SharedThreads(1)
        gc.collect()
        gc.disable()
        try:
            thing = await threads.run(Thing, "job")
            known = weakref.ref(thing)
            del thing
            threads.tidy()
            assert known() is None
        finally:
            gc.enable()
            threads.end()

    trio.run(main)


def test_an_error_of_a_job_comes_to_its_caller_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        threads = SharedThreads(1)
        with pytest.raises(KeyError, match="lost"):
            await threads.run(fail, "job")
        assert await threads.run(lambda: 7, "job") == 7
        threads.end()

    trio.run(main)


def test_a_cancelled_caller_waits_for_the_job() -> None:
    async def main() -> None:
        threads, ended = SharedThreads(1), list[bool]()
        may_end = threading.Event()
        with trio.CancelScope() as scope:
            scope.cancel()
            threading.Timer(0.05, may_end.set).start()
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(threads.run, lambda: ended.append(may_end.wait(120)), "job")
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
        assert ended == [True]
        threads.end()

    trio.run(main)
