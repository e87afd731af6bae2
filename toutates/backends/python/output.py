"""What the processes of models print goes to the log, with the model's name, and no more of it than a log can take."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from toutates.backends.python.child.logger import MARK
from toutates.backends.python.group_guard import GroupGuard
from toutates.system.logs.limit import LineLimit
from toutates.system.text import printable

__all__ = ["OutputReader", "PrintedOutput"]

logger = logging.getLogger(__name__)

#: Lines of one model in ten seconds that reach the log. The others are counted.
MAX_LINES: Final = 200
#: Characters of a line.
MAX_LINE: Final = 2_000
#: As much as a pipe has.
_READ_BYTES: Final = 65_536
#: Shortest time between two rounds of reading, seconds. Each takes the GIL from those who answer requests, and a model
#: that prints short lines would have one for each; what is printed meanwhile waits in the pipe.
_ROUND_S: Final = 0.01
#: Lines that are kept for the error of requests when the process dies.
_KEPT_LINES: Final = 20
_LEVELS: Final = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "V": logging.DEBUG}


class PrintedOutput:
    """What one process prints. Written by the reader's thread; ``last`` may be read by any.

    Args:
        model: name of the model.
        instance: name of the instance.
        limit: of the lines, shared by all processes of the version.
    """

    def __init__(self, model: str, instance: str, limit: LineLimit[str]) -> None:
        self.ended = threading.Event()
        self._model, self._instance, self._limit = model, instance, limit
        self._rest = b""
        self._fatal = ""
        #: whether the last line was left out, and so most that follow
        self._is_limited = False
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    @property
    def last(self) -> str:
        """The last line that says something; "" if there is none."""
        lines = [line for line in list(self._last) if line.strip()]
        # What Python says last of an error is a sentence; of a crash it is a stack, whose first line is one.
        return self._fatal or (lines or [""])[-1].strip()

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        data = self._rest + data
        read_whole = 0 if self._is_limited else MAX_LINES
        left_out = data.count(b"\n") - read_whole - _KEPT_LINES
        if left_out > 0:
            # Each of them would be left out: they are not even made.
            *lines, data = data.split(b"\n", read_whole) if read_whole else [data]
            for line in lines:
                self._line(line)
            self._may_log()
            logger.debug("model '%s' (%s): %d lines were not even read", self._model, self._instance, left_out)
            _, *lines = data.rsplit(b"\n", _KEPT_LINES + 1)
        else:
            lines = data.split(b"\n")
        self._rest = lines.pop()[-MAX_LINE:]
        for line in lines:
            self._line(line)

    def end(self) -> None:
        """Take the last line, though it has no end: nothing more will be printed."""
        if self._rest:
            self._line(self._rest)
        self.ended.set()

    def _line(self, data: bytes) -> None:
        text = data[: MAX_LINE + 100].decode(errors="replace").rstrip("\r")
        letter = "I"
        if text.startswith(MARK):
            letter = text[1:2]
            where, _, text = text[2:].partition(MARK)
            text = f"{where}: {text}"
        self.log(letter, text)

    def log(self, letter: str, text: str) -> None:
        """Take a line of a level; see ``child.logger``."""
        level = _LEVELS.get(letter, logging.INFO)
        self._last.append(printable(text, MAX_LINE))
        if text.startswith("Fatal Python error"):
            self._fatal = self._last[-1]
        if self._may_log():
            fields = {"model": self._model, "instance": self._instance}
            logger.log(level, "model '%s' (%s): %s", self._model, self._instance, self._last[-1], extra=fields)

    def _may_log(self) -> bool:
        """Count a line; returns whether it may be logged. The first that may not is told of."""
        left_out = self._limit.count(self._instance, time.monotonic_ns(), MAX_LINES)
        self._is_limited = left_out > 0
        if left_out == 1:
            logger.warning(
                "model '%s' (%s) prints more than %d lines in ten seconds; the others are left out",
                self._model,
                self._instance,
                MAX_LINES,
                extra={"model": self._model, "instance": self._instance},
            )
        return not left_out


class OutputReader:
    """Starts all processes, reads what they print, and notices their ends, in one thread.

    The thread is a daemon, and is started with the first of them.

    Attributes:
        groups: process groups that end with the server, whatever ends it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._thread: threading.Thread | None = None
        #: processes to be started, and who waits for them
        self._starts: deque[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]] = deque()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._woken, select.EPOLLIN)
        #: by descriptor
        self._outputs: dict[int, PrintedOutput] = {}
        #: what is to be called when a process has ended, by its descriptor
        self._exits: dict[int, Callable[[], None]] = {}
        self.groups = GroupGuard()

    def add(self, descriptor: int, output: PrintedOutput) -> None:
        """Read a pipe until its end; then close it.

        Args:
            descriptor: of the pipe. It belongs to this reader from now on.
            output: takes what is read.
        """
        os.set_blocking(descriptor, False)
        with self._lock:
            self._outputs[descriptor] = output
            self._begin()
        self._poll.register(descriptor, select.EPOLLIN)

    def watch(self, pid: int, on_exit: Callable[[], None]) -> None:
        """Have a function called in the reader's thread, which it must not block, when a process has ended.

        A kernel that cannot tell it does not.

        Args:
            pid: of a process that has not been waited for.
            on_exit: the function.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return
        with self._lock:
            self._exits[descriptor] = on_exit
            self._begin()
        self._poll.register(descriptor, select.EPOLLIN)

    def start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a process in the reader's thread, which lives as long as the server.

        The kernel ends it with the thread that has started it (``bootstrap``), and others end before the server does.

        Raises:
            OSError: it cannot be started.
        """
        started: Future[subprocess.Popen[bytes]] = Future()
        with self._lock:
            self._starts.append((start, started))
            self._begin()
        os.eventfd_write(self._woken, 1)
        return started.result()

    def _start(self) -> None:
        os.eventfd_read(self._woken)
        while self._starts:
            start, started = self._starts.popleft()
            try:
                started.set_result(start())
            except Exception as error:
                started.set_exception(error)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="model output", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        next_s = 0.0
        while True:
            events = self._poll.poll()
            if (early_s := next_s - time.monotonic()) > 0:
                time.sleep(early_s)
                events = self._poll.poll()
            next_s = time.monotonic() + _ROUND_S
            for descriptor, _ in events:
                try:
                    if descriptor == self._woken:
                        self._start()
                    else:
                        self._read(descriptor)
                except Exception:
                    logger.exception("reading what a model prints failed")

    def _read(self, descriptor: int) -> None:
        with self._lock:
            on_exit = self._exits.pop(descriptor, None)
            output = self._outputs.get(descriptor)
        if output is None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            if on_exit is not None:
                on_exit()
            return
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            output.feed(data)
            return
        self._poll.unregister(descriptor)
        with self._lock:
            del self._outputs[descriptor]
        os.close(descriptor)  # last: from here on the number may be another pipe's, which ``add`` is told of
        output.end()
