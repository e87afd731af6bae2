"""Runs what may never return, in a thread that can be left to itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["within"]

T = TypeVar("T")


def within(seconds: float, job: Callable[[], T], *, name: str, too_late: Callable[[T], None]) -> T:
    """The result of ``job``, which runs in a thread of its own. Blocks.

    Args:
        seconds: how long it may take.
        job: to be run.
        name: of the thread.
        too_late: takes a result that comes after the time.

    Raises:
        TimeoutError: it has not returned. The thread goes on, and ends with the process at the latest.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            done = job()
        except BaseException as error:
            if result.set_running_or_notify_cancel():
                result.set_exception(error)
            return
        if result.set_running_or_notify_cancel():
            result.set_result(done)
        else:
            too_late(done)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        # Between the time and this line it may have come to an end; what it raised itself is its own error.
        if result.cancel():
            raise
        return result.result()
