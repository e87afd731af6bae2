"""Threads of their own: how long they last, and that nothing of their jobs is left."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from toutates.system.own_thread import LeftBehind, OwnThread


class Thing:
    """What a job makes."""


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_the_thread_lasts_until_it_is_told_to_end() -> None:
    async def main() -> None:
        own = OwnThread("executor-0 größer")
        thread, system_name = await own.run(
            lambda: (threading.current_thread(), Path("/proc/thread-self/comm").read_text())
        )
        assert thread is not threading.main_thread()
        assert thread.is_alive()
        assert thread.name == "executor-0 größer"
        assert system_name == "executor-0 gr??\n"
        own.end()
        assert not thread.is_alive()
        own.end()

    trio.run(main)


def test_what_the_job_made_is_freed_when_the_thread_has_ended() -> None:
    """On free-threaded Python too, where an object waits for the thread that made it."""

    async def main() -> None:
        own = OwnThread("job")
        with without_collector():
            thing = await own.run(Thing)
            known = weakref.ref(thing)
            del thing
            own.end()
            assert known() is None

    trio.run(main)


def test_a_job_that_fails_ends_its_thread_and_is_freed_with_its_error() -> None:
    known: list[weakref.ref[Thing]] = []
    threads: list[threading.Thread] = []

    def fail() -> None:
        thing = Thing()
        known.append(weakref.ref(thing))
        threads.append(threading.current_thread())
        raise ValueError(f"no use for {thing}")

    async def main() -> None:
        with without_collector():
            with pytest.raises(ValueError, match="no use for") as caught:
                await OwnThread("job").run(fail)
            assert not threads[0].is_alive()
            del caught
            assert [one() for one in known] == [None]

    trio.run(main)


def test_a_system_without_threads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        own = OwnThread("job")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await own.run(Thing)
        own.end()

    trio.run(main)


def test_a_job_can_be_left_behind() -> None:
    may_end = threading.Event()
    threads: list[threading.Thread] = []

    async def main() -> None:
        own, leave = OwnThread("job"), trio.Event()
        token = trio.lowlevel.current_trio_token()

        def job() -> None:
            threads.append(threading.current_thread())
            token.run_sync_soon(leave.set)
            assert may_end.wait(120)

        with pytest.raises(LeftBehind):
            await own.run(job, leave)
        own.end()

    trio.run(main)
    assert threads[0].is_alive()
    may_end.set()
    threads[0].join(120)
    assert not threads[0].is_alive()


def test_a_job_that_ends_in_time_is_not_left_behind() -> None:
    async def main() -> None:
        own = OwnThread("job")
        assert await own.run(lambda: 3, trio.Event()) == 3
        own.end()

    trio.run(main)


def test_a_job_that_is_cancelled_is_waited_for() -> None:
    may_end = threading.Event()
    own = OwnThread("job")
    done: list[str] = []

    def job() -> str:
        assert may_end.wait(120)
        return "done"

    async def keep() -> None:
        done.append(await own.run(job))

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                may_end.set()
        assert done == ["done"]
        own.end()

    trio.run(main)
