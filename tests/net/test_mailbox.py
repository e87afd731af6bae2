"""Callbacks that come from other threads."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from toutates.net.mailbox import Mailbox


def nothing() -> None:
    pass


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    with select.epoll() as found:
        yield found


@pytest.fixture
def mailbox(epoll: select.epoll) -> Mailbox:
    found = Mailbox()
    found.open(epoll)
    return found


def test_only_a_worker_that_sleeps_is_woken_and_once(mailbox: Mailbox, epoll: select.epoll) -> None:
    def woken() -> bool:
        return bool(epoll.poll(0))

    mailbox.put(nothing)
    assert not woken()
    assert mailbox.take() == [nothing]
    assert mailbox.fall_asleep()
    mailbox.put(nothing)
    assert woken()
    mailbox.put(nothing)
    assert not woken()
    assert not mailbox.fall_asleep()


def test_a_worker_that_is_woken_finds_the_lock_free(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []

    def write(fd: int, value: int) -> None:
        free.append(not mailbox._lock.locked())

    monkeypatch.setattr(os, "eventfd_write", write)
    mailbox.fall_asleep()
    mailbox.put(nothing)
    assert free == [True]


def test_who_comes_while_it_is_closed_writes_into_no_file_of_others(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.eventfd_write
    closed = []

    def late(fd: int, value: int) -> None:
        mailbox.close()
        with open(os.devnull, "rb") as other:  # takes the lowest number that is free
            closed.append(other.fileno() == fd)
            write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", late)
    mailbox.fall_asleep()
    mailbox.put(nothing)
    assert closed == [False]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(mailbox.fd)


def test_a_closed_one_wakes_nobody(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.fall_asleep()
    mailbox.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(mailbox.fd)
    monkeypatch.setattr(os, "eventfd_write", pytest.fail)
    mailbox.put(nothing)
