"""A gate at which threads wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.cpu_time import lines_run
from tests.waiting import wait_until
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


def test_who_waits_does_nothing_meanwhile() -> None:
    """No loop that asks again: it runs as many lines as who finds the gate open."""
    gate, lines = Gate(), [0, 0]

    def wait(at: int) -> None:
        lines[at] = lines_run(gate.wait)

    gate.open()
    wait(0)
    waiter = threading.Thread(target=wait, args=(1,))
    waiter.start()
    # In the kernel, asleep.
    state = Path(f"/proc/self/task/{waiter.native_id}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S")
    gate.open()
    waiter.join(120)
    assert lines[1] == lines[0] > 0


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
