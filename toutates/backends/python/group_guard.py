"""The process that ends what models have forked when the server cannot any more, because it was killed.

The kernel ends the processes of models themselves with the server, but not those that they have forked. A group of
processes has no owner whose end ends it, so somebody has to outlive the server for a moment.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

__all__ = ["GroupGuard"]

logger = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).parent / "child" / "group_guard.py"


class GroupGuard:
    """Has process groups killed once this process is gone. Methods may be called in any thread.

    The process that does it is there as long as there is a group, and is started again when it was killed itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def add(self, group: int) -> None:
        """A group is to be killed with this process."""
        with self._lock:
            self._groups.add(group)
            if self._process is None or not self._tell(f"+{group}\n"):
                self._start()

    def remove(self, group: int) -> None:
        """A group was killed. To be called before its first process is waited for, whose number is then free."""
        with self._lock:
            self._groups.discard(group)
            if not self._groups:
                self._end()
            elif self._process is not None and not self._tell(f"-{group}\n"):
                self._start()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # which closes the pipe and waits
            self._process = None

    def _start(self) -> None:
        self._end()
        try:
            # A session of its own, so that a signal to the server's group does not end it as well; and none of the
            # server's files, which would stay open after the server.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            logger.warning("what Python models fork would outlive a server that is killed: %s", error)
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._tell("".join([f"+{group}\n" for group in self._groups]))

    def _tell(self, lines: str) -> bool:
        """Whether the process has been told; if not, it has ended, or does not read."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        content = lines.encode()
        try:
            return process.stdin.write(content) == len(content)
        except OSError:
            return False
