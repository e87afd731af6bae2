"""Standard output and standard error that may be closed, a pipe that nobody reads, or a file on a full disk.

The server writes its tables to standard output and its log to standard error (``toutates.system.logs.output``). A
failure to write costs no request and changes no exit code: the line is lost, and the next one is tried.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["standard_streams", "write_anything"]


@contextmanager
def standard_streams() -> Iterator[None]:
    """Keep descriptors 0 to 2 open within the block, and the exit code free of failures to flush at its end.

    If one of these descriptors were closed, a socket could get its number, and a client what libraries print there. If
    flushing failed at the end of the process, Python would turn exit code 0 into 120.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    write_anything()
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                _give_up(stream)


def write_anything() -> None:
    """Have standard output escape what its encoding cannot say, as standard error does. ``LC_ALL=C`` may mean ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _give_up(stream: TextIO) -> None:
    """Discard what is in a stream's buffer."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
    except (OSError, ValueError):
        pass  # closed, or not a file at all
