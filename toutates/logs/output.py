"""Gets lines out: a bounded queue, and one thread that writes them to a file descriptor.

A log may go to a pipe that nobody reads, a disk that is full, a terminal that is stopped, a file system that hangs.
None of that is worth a request, so nobody but this thread ever waits for it. What does not fit into the queue is lost,
as is what the destination refuses; both are counted, and told as soon as there is a way to.

The thread looks before it writes (``poll``), so that it can end while nobody reads: a pipe that is ready takes PIPE_BUF
bytes. Where that does not help, a hung file system, the process ends without it.
"""

from __future__ import annotations

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
#: What is written at once: PIPE_BUF, so that lines of two writers on one pipe do not mix; more into files.
PIECE: Final = 4_096
FILE_PIECE: Final = 65_536
#: How often the thread looks whether it has to end while nobody takes what it writes.
LOOK_MS: Final = 100

#: Work of the log's that has a time: gets the time, monotonic nanoseconds, and says how much later it has to be called
#: again; None for when it asks for it by ``wake``.
Chore = Callable[[int], int | None]
#: The time that a chore gets when it is called for the last time.
LAST: Final = 2**63 - 1


class LogOutput:
    """See the module. ``put`` and ``wake`` may be called by any thread.

    Args:
        fd: where lines go.
        tell_loss: makes the line that tells of others: how many were lost, and why.

    Attributes:
        lost: lines that were, of all times.
    """

    def __init__(self, fd: int, tell_loss: Callable[[int, str], str]) -> None:
        self._fd = fd
        self._tell_loss = tell_loss
        #: guards the next seven; reentrant, because a finalizer may log at any time
        self._changed = Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._closing_at_ns: int | None = None
        self._woken = False
        self._untold = 0
        self._why = ""
        self.lost = 0
        self._chores: list[Chore] = []
        #: for the thread alone: whether the last line was refused, which is no time to tell of others; whether some of
        #: it was not; and how many lost lines the current one tells of
        self._is_refused = False
        self._torn = False
        self._telling = 0
        # A daemon: a write that hangs must not keep the process. Otherwise it ends with ``close``.
        self._thread = Thread(target=self._run, name="log", daemon=True)

    def start(self, *chores: Chore) -> None:
        """Begin to write.

        Args:
            chores: called by the thread, see ``Chore``. They must not raise.
        """
        self._chores = list(chores)
        self._thread.start()

    def put(self, line: str) -> None:
        """Have a line written, which ends with a newline; or lose it, if too many wait. Takes constant time."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if len(self._lines) >= MAX_LINES or self._bytes + len(data) > MAX_BYTES:
                self._lose(1, "they came faster than they could be written")
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def wake(self) -> None:
        """Have the chores done."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def place(self, cpus: set[int]) -> None:
        """Have the thread, which runs, run on these CPUs."""
        assert self._thread.native_id is not None
        try:
            os.sched_setaffinity(self._thread.native_id, cpus)
        except (OSError, ValueError):
            pass  # it runs where it may

    def close(self, timeout_s: float) -> None:
        """Write what is left, and end the thread.

        Args:
            timeout_s: what is not written by then is lost.
        """
        if not self._thread.is_alive():
            return
        with self._changed:
            self._closing_at_ns = time.monotonic_ns() + int(timeout_s * 1e9)
            self._changed.notify()
        self._thread.join(timeout_s + 2 * LOOK_MS / 1_000)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        piece_size = FILE_PIECE if _is_file(self._fd) else PIECE
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while True:
            wait_s = self._do_chores()
            with self._changed:
                if not (self._lines or self._has_loss_to_tell or self._woken or self._closing_at_ns is not None):
                    self._changed.wait(wait_s)
                self._woken = False
                is_closing = self._closing_at_ns is not None
            if is_closing:
                self._do_chores(last=True)
            while lines := self._take(piece_size):
                if not self._write(poller, lines, piece_size):
                    return
            if is_closing:
                return

    def _do_chores(self, *, last: bool = False) -> float | None:
        """Returns seconds until the next one is due; None if none is."""
        now_ns = LAST if last else time.monotonic_ns()
        waits_ns = [wait_ns for chore in self._chores if (wait_ns := chore(now_ns)) is not None]
        return min(waits_ns) / 1e9 if waits_ns else None

    @property
    def _has_loss_to_tell(self) -> bool:
        return self._untold > 0 and not self._is_refused

    def _take(self, size: int) -> list[bytes]:
        """Lines of about ``size`` bytes together, one at least if there are any."""
        taken: list[bytes] = []
        length = 0
        with self._changed:
            while self._lines and (not taken or length + len(self._lines[0]) <= size):
                taken.append(self._lines.popleft())
                length += len(taken[-1])
            self._bytes -= length
            if not taken and self._has_loss_to_tell:  # behind the lines that came before
                taken.append(self._tell_loss(self._untold, self._why).encode("utf-8", "backslashreplace"))
                self._telling, self._untold = self._untold, 0
        return taken

    def _write(self, poller: select.poll, lines: list[bytes], piece_size: int) -> bool:
        """Write lines, or lose them; returns whether there is time for more."""
        data = memoryview(b"".join((b"\n" if self._torn else b"", *lines)))
        is_begun = False
        try:
            while data:
                while not poller.poll(LOOK_MS):
                    closing_at_ns = self._closing_at_ns
                    if closing_at_ns is not None and time.monotonic_ns() >= closing_at_ns:
                        return False
                try:
                    data = data[os.write(self._fd, data[:piece_size]) :]
                    is_begun = True
                except BlockingIOError:  # not ours to set, but others share the file: ready, and yet not for so much
                    time.sleep(LOOK_MS / 1_000)
        except OSError as error:
            with self._changed:
                self._is_refused = True
                if self._telling:
                    self._untold += self._telling
                else:
                    self._lose(len(lines), error.strerror or "it could not be written")
            self._torn |= is_begun
        else:
            self._is_refused = self._torn = False
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
