"""Runs what may never return, in a thread that can be left to itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["NotInTime", "within"]

T = TypeVar("T")


class NotInTime(Exception):
    """A job has not returned. Its thread goes on, and ends with the process at the latest."""


def within(seconds: float, job: Callable[[], T], *, name: str, too_late: Callable[[T], None]) -> T:
    """The result of ``job``, which runs in a thread of its own. Blocks.

    Args:
        seconds: how long it may take.
        job: to be run.
        name: of the thread.
        too_late: takes a result that comes after the time.

    Raises:
        NotInTime: it has not returned. Anything else is the job's own.
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
        # Between the time and this line it may have come to an end; and it may raise such an error itself.
        if result.cancel():
            raise NotInTime from None
        return result.result()
