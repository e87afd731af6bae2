"""Reading a small file that an operator wrote."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = ["read_small_file"]

#: Bytes that are read at once of a file that is smaller, or does not say how large it is. For as many as may be read
#: the C library would get memory from the system each time.
_LEAST_PIECE: Final = 4_096


def read_small_file(source: Path, most: int) -> bytes | None:
    """The file's bytes; None where there is no such file.

    A link to nothing is an error rather than an absent file: its owner meant something by it.

    Args:
        source: the file.
        most: bytes that it may have.

    Raises:
        ConfigurationError: it is larger, cannot be read, or is no file.
    """
    try:
        # Asked for before opening: a FIFO would block the start of the server.
        size = _regular_size(source, os.stat(source))
        # By the system's own calls: Python's files would ask for the size once more, and read until nothing comes.
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = _read(fd, size, most + 1)
        finally:
            os.close(fd)
    except FileNotFoundError as exc:
        if not source.is_symlink():
            return None
        raise ConfigurationError("is a link to a file that does not exist", source=source, remedy="mend it") from exc
    except OSError as exc:
        problem = f"cannot be read: {exc.strerror}"
        raise ConfigurationError(problem, source=source, remedy="make it readable for the server's user") from exc
    if len(data) > most:
        problem = f"is larger than {most} bytes"
        raise ConfigurationError(problem, source=source, remedy="keep only the settings in it")
    return data


def _regular_size(source: Path, status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("is not a regular file", source=source, remedy="put a text file there")
    return status.st_size


def _read(fd: int, size: int, most: int) -> bytes:
    """So many bytes, or all that there are.

    Args:
        fd: of the file, to be read.
        size: bytes that it says it has. It may have more by now.
        most: bytes that are read.
    """
    piece = max(size + 1, _LEAST_PIECE)
    data = os.read(fd, min(piece, most))
    # Of a file that has as many bytes as it says, less than was asked for is all.
    while len(data) < most and len(data) != size and (more := os.read(fd, min(piece, most - len(data)))):
        data += more
    return data
