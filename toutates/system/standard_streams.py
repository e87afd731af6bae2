"""Standard output and standard error where they cannot be trusted: closed, a pipe that nobody reads, a full disk.

The server writes its tables to the one and its log to the other (``toutates.system.logs.output``). Neither is worth a
request, nor an exit code: what cannot be written is lost, and the next line is tried again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["standard_streams"]


@contextmanager
def standard_streams() -> Iterator[None]:
    """For the life of the process: something is open under the numbers 0 to 2, and the end does not fail for them.

    Without the first, a socket would get the number, and what libraries print there would go to a client. Without the
    second, what is still in a buffer at the end would turn exit code 0 into Python's 120.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                _give_up(stream)


def _give_up(stream: TextIO) -> None:
    """Let a stream's buffer drain into nothing."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
    except (OSError, ValueError):
        pass  # closed, or not a file at all
