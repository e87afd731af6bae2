"""Writes lines: a bounded queue, and one thread that writes them in the order in which they came.

A log may go to a pipe that nobody reads, a full disk, a stopped terminal, or a file system that hangs. No request may
wait for that, so this thread alone does. Lines that do not fit into the queue are lost, and so are lines that the
destination refuses. Both are counted, and a line says how many as soon as one can be written.

The tables of standard output go through the same queue, so that they do not mix with the log where both streams are one
terminal or file.

The thread polls before it writes, so that it can end while nobody reads: a pipe that is ready takes PIPE_BUF bytes. If
the thread hangs all the same, in a file system, the process ends without it.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

__all__ = ["LAST", "Chore", "LogOutput"]

MAX_LINES: Final = 20_000
MAX_BYTES: Final = 8 * 2**20
#: Bytes per write: PIPE_BUF, so that lines of two writers on one pipe do not mix; more for files.
PIECE: Final = 4_096
FILE_PIECE: Final = 65_536
#: Pause between two looks whether the thread has to end, while nobody reads what it writes.
LOOK_MS: Final = 100
#: How long text for another destination may wait for its reader, and the log behind it.
OTHERS_WAIT_S: Final = 1.0

#: Periodic work on the log's thread. It gets the time, monotonic nanoseconds, and returns after how many nanoseconds it
#: is to be called again; None for not before ``wake``.
Chore = Callable[[int], int | None]
#: The time that a chore gets in its last call.
LAST: Final = 2**63 - 1


class _Destination:
    """A file descriptor that lines are written to. Used by the thread alone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.piece_size = FILE_PIECE if _is_file(fd) else PIECE
        self.poller = select.poll()
        self.poller.register(fd, select.POLLOUT)
        #: whether only a part of the last line was written
        self.torn = False


class LogOutput:
    """The queue and its thread. ``put`` and ``wake`` may be called by any thread.

    Args:
        fd: where the log goes.
        tell_loss: makes the line that says how many lines were lost, and why.

    Attributes:
        fd: as given.
        lost: number of lost lines since the start.
    """

    def __init__(self, fd: int, tell_loss: Callable[[int, str], str]) -> None:
        self.fd = self._fd = fd
        self._tell_loss = tell_loss
        #: guards the next seven; reentrant, because a finalizer may log at any time
        self._changed = Condition()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._closing_at_ns: int | None = None
        self._woken = False
        self._untold = 0
        self._why = ""
        self.lost = 0
        self._chores: list[Chore] = []
        #: for the thread alone: whether the last line of the log was refused, which is no time to tell of others; and
        #: how many lost lines the current one tells of
        self._is_refused = False
        self._telling = 0
        # A daemon: a write that hangs must not keep the process. Otherwise it ends with ``close``.
        self._thread = Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add_chore(self, chore: Chore) -> None:
        """Have the thread call ``chore``, which must not raise, from now on."""
        with self._changed:
            self._chores.append(chore)
        self.wake()

    def put(self, line: str, fd: int | None = None) -> None:
        """Queue text, which ends with a newline; or lose it, if too much waits. Takes constant time.

        Args:
            line: a line of the log; for another ``fd`` it may be a whole table.
            fd: where it goes; None for the log.
        """
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if len(self._lines) >= MAX_LINES or self._bytes + len(data) > MAX_BYTES:
                self._lose(1, "they came faster than they could be written")
                return
            self._lines.append((self._fd if fd is None else fd, data))
            self._bytes += len(data)
            self._changed.notify()

    def wake(self) -> None:
        """Have the chores called now."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def place(self, cpus: set[int]) -> None:
        """Pin the running thread to these CPUs."""
        assert self._thread.native_id is not None
        try:
            os.sched_setaffinity(self._thread.native_id, cpus)
        except (OSError, ValueError):
            pass  # it stays where it is

    def close(self, timeout_s: float) -> bool:
        """Write the rest, and end the thread.

        Args:
            timeout_s: lines that are not written by then are lost.

        Returns:
            Whether the thread has ended. If not, it still uses its descriptor.
        """
        if not self._thread.is_alive():
            return True
        with self._changed:
            self._closing_at_ns = time.monotonic_ns() + int(timeout_s * 1e9)
            self._changed.notify()
        self._thread.join(timeout_s + 2 * LOOK_MS / 1_000)
        return not self._thread.is_alive()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        destinations = {self._fd: _Destination(self._fd)}
        while True:
            wait_s = self._do_chores()
            with self._changed:
                if not (self._lines or self._has_loss_to_tell or self._woken or self._closing_at_ns is not None):
                    self._changed.wait(wait_s)
                self._woken = False
                is_closing = self._closing_at_ns is not None
            if is_closing:
                self._do_chores(last=True)
            while taken := self._take(destinations[self._fd].piece_size):
                fd, lines = taken
                if fd not in destinations:
                    destinations[fd] = _Destination(fd)
                if not self._write(destinations[fd], lines):
                    return
            if is_closing:
                return

    def _do_chores(self, *, last: bool = False) -> float | None:
        """Call the chores; returns seconds until the next one is due, None if none is."""
        now_ns = LAST if last else time.monotonic_ns()
        waits_ns = [wait_ns for chore in self._chores if (wait_ns := chore(now_ns)) is not None]
        return min(waits_ns) / 1e9 if waits_ns else None

    @property
    def _has_loss_to_tell(self) -> bool:
        return self._untold > 0 and not self._is_refused

    def _take(self, size: int) -> tuple[int, list[bytes]] | None:
        """Lines of about ``size`` bytes together, of one destination, one at least; None if there are none."""
        fd = self._fd
        taken: list[bytes] = []
        length = 0
        with self._changed:
            while self._lines:
                next_fd, line = self._lines[0]
                if taken and (next_fd != fd or length + len(line) > size):
                    break
                fd = next_fd
                length += len(line)
                taken.append(line)
                self._lines.popleft()
            self._bytes -= length
            if not taken and self._has_loss_to_tell:  # after the lines that came before the loss
                taken.append(self._tell_loss(self._untold, self._why).encode("utf-8", "backslashreplace"))
                self._telling, self._untold = self._untold, 0
        return (fd, taken) if taken else None

    def _write(self, destination: _Destination, lines: list[bytes]) -> bool:
        """Write lines, or lose them; returns whether there is time for more."""
        is_log = destination.fd == self._fd
        data = memoryview(b"".join((b"\n" if destination.torn else b"", *lines)))
        is_begun = False
        give_up_ns = time.monotonic_ns() + int(OTHERS_WAIT_S * 1e9)
        try:
            while data:
                while not destination.poller.poll(LOOK_MS):
                    now_ns = time.monotonic_ns()
                    closing_at_ns = self._closing_at_ns
                    if closing_at_ns is not None and now_ns >= closing_at_ns:
                        return False
                    if not is_log and now_ns >= give_up_ns:
                        raise OSError(errno.EAGAIN, "nobody reads it")
                try:
                    data = data[os.write(destination.fd, data[: destination.piece_size]) :]
                    is_begun = True
                except BlockingIOError:  # another process made the shared file non-blocking, and less fits than polled
                    time.sleep(LOOK_MS / 1_000)
        except OSError as error:
            why = error.strerror or "it could not be written"
            with self._changed:
                self._is_refused |= is_log
                if self._telling:
                    self._untold += self._telling
                elif is_log:
                    self._lose(len(lines), why)
                else:
                    count = sum(line.count(b"\n") for line in lines)
                    self._lose(count, f"standard output cannot be written: {why}")
            destination.torn |= is_begun
        else:
            destination.torn = False
            if is_log:
                self._is_refused = False
        self._telling = 0
        return True

    def _lose(self, lines: int, why: str) -> None:
        self.lost += lines
        self._untold += lines
        self._why = why


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
