"""A gate at which threads wait."""

from __future__ import annotations

import os
import threading
import time

import pytest

from toutates.system.gate import Gate


def test_it_is_closed_at_first_and_behind_whoever_went_through() -> None:
    gate, through = Gate(), threading.Semaphore(0)

    def go_through() -> None:
        while True:
            gate.wait()
            through.release()

    threading.Thread(target=go_through, daemon=True).start()
    for _ in range(100):
        assert not through.acquire(timeout=0.001)
        gate.open()
        assert through.acquire(timeout=120)


def test_one_that_is_open_already_lets_one_through_however_often_it_was_opened() -> None:
    gate = Gate()
    gate.open()
    gate.open()
    gate.wait()
    waiter = threading.Thread(target=gate.wait)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    gate.open()
    waiter.join(120)
    assert not waiter.is_alive()


@pytest.mark.alone
def test_who_waits_takes_no_time_of_the_core() -> None:
    gate = Gate()
    took: list[float] = []

    def wait() -> None:
        began = time.thread_time()
        gate.wait()
        took.append(time.thread_time() - began)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    gate.open()
    waiter.join(120)
    assert took[0] < 0.1


def test_its_descriptor_is_closed_with_it() -> None:
    gate = Gate()
    descriptor = gate._fd
    del gate
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_without_a_descriptor_left_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Gate()
