"""Reads the stacks of all threads, on builds with and without the GIL.

With the GIL, other threads do not run while ``sys._current_frames`` is read. Without it, frames would change and be
freed while they are read, which can crash the process. So there ``faulthandler`` writes the stacks, for which it stops
every thread for some 0.2 ms, and its text is read back.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

from toutates.system.interpreter import gil_enabled

__all__ = ["Stack", "StackReader", "short_path", "thread_names"]

#: Frames from the outermost to the innermost, as "function (file)".
Stack = tuple[str, ...]

#: Innermost frames of a stack that are read, as many as faulthandler writes.
MAX_DEPTH: Final = 100

_ROOT: Final = str(Path(__file__).resolve().parents[3]) + "/"
_LIBRARIES: Final = re.compile(r"^.*/(?:site-packages|python3\.\d+t?)/")
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'  File "(.*)", line \d+ in (.*)')


@lru_cache(maxsize=4_096)
def short_path(path: str) -> str:
    """A source file's path without the folder of packages; as it is where it belongs to no package."""
    return _LIBRARIES.sub("", path.removeprefix(_ROOT))


def thread_names() -> dict[int, str]:
    """The names of Python's threads, by identifier."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


class StackReader:
    """Reads stacks any number of times. Made by ``open``, and used by one thread."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[StackReader]:
        """Make a reader for the block; without the GIL it has a file in memory."""
        if gil_enabled():
            yield cls(None)
            return
        file = os.memfd_create("toutates-stacks", os.MFD_CLOEXEC)
        try:
            yield cls(file)
        finally:
            os.close(file)

    def read(self) -> dict[int, Stack]:
        """The stacks of all threads, by identifier."""
        return _from_frames() if self._file is None else _from_dump(self._file)


def _from_frames() -> dict[int, Stack]:
    stacks: dict[int, Stack] = {}
    for thread, frame in sys._current_frames().items():
        frames: list[str] = []
        at: FrameType | None = frame
        while at is not None and len(frames) < MAX_DEPTH:
            code = at.f_code
            frames.append(_label(code.co_name, code.co_filename))
            at = at.f_back
        frames.reverse()
        stacks[thread] = tuple(frames)
    return stacks


def _from_dump(file: int) -> dict[int, Stack]:
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    faulthandler.dump_traceback(file)
    size = os.lseek(file, 0, os.SEEK_CUR)
    return parse_dump(os.pread(file, size, 0).decode(errors="replace"))


def parse_dump(text: str) -> dict[int, Stack]:
    """The stacks in a text of ``faulthandler.dump_traceback``."""
    stacks: dict[int, Stack] = {}
    frames: list[str] = []
    thread: int | None = None
    for line in text.splitlines():
        label = _label_of_line(line)
        if label:
            frames.append(label)
        elif match := _THREAD.match(line):
            if thread is not None:
                stacks[thread] = tuple(reversed(frames))
            thread, frames = int(match[1], 16), []
    if thread is not None:
        stacks[thread] = tuple(reversed(frames))
    return stacks


@lru_cache(maxsize=4_096)
def _label_of_line(line: str) -> str:
    match = _FRAME.match(line)
    return _label(match[2], match[1]) if match else ""


@lru_cache(maxsize=4_096)
def _label(function: str, path: str) -> str:
    return f"{function} ({short_path(path)})"
