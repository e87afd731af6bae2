"""Kinds of jobs do not wait for each other, and none uses the threads that Trio has for everything."""

from __future__ import annotations

import ast
import gc
import threading
import weakref
from pathlib import Path

import trio
import trio.testing

import toutates
from toutates.system.thread_pools import ThreadPool

ROOT = Path(toutates.__file__).parent


def test_every_job_in_a_thread_has_a_limiter() -> None:
    found = 0
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if "to_thread" not in text:
            continue
        tree = ast.parse(text)
        limited = {
            id(one)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and any(key.arg == "limiter" for key in call.keywords)
            for one in (call.func, *call.args[:1])  # called, or made a partial of
        }
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and "to_thread" in {one.name for one in node.names}), path
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("trio.to_thread."):
                assert id(node) in limited, f"{path}:{node.lineno}: use a ThreadPool"
                found += 1
    assert found


def test_jobs_of_one_kind_do_not_wait_for_those_of_another() -> None:
    slow, quick = ThreadPool("slow", 2), ThreadPool("quick", 1)
    release = threading.Event()

    def wait() -> None:
        release.wait(120)

    async def run() -> str:
        release.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(slow.run, wait)
            await trio.testing.wait_all_tasks_blocked()
            assert slow.limiter.borrowed_tokens == 2
            name = await quick.run(lambda: threading.current_thread().name)
            release.set()
        return name

    assert trio.run(run) == "quick"
    assert trio.run(run) == "quick"  # another run has threads of its own


def test_what_a_job_was_given_is_gone_once_it_has_failed() -> None:
    class Message:
        pass

    def refuse(message: Message) -> None:
        assert message is not None
        raise ValueError

    async def run() -> None:
        message = Message()
        gone = weakref.ref(message)
        try:
            await ThreadPool("refusals", 1).run(refuse, message)
        except ValueError:
            pass
        del message
        with trio.fail_after(120):
            while gone():  # noqa: ASYNC110  # the thread lets go of it a moment later
                await trio.sleep(0.01)

    gc.disable()
    try:
        trio.run(run)
    finally:
        gc.enable()
