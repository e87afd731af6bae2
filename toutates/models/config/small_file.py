"""Reading a small file that an operator wrote."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = ["read_small_file"]

#: Bytes that are read at once of a file that is smaller, or does not say how large it is.
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
        status = os.stat(source)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError("is not a regular file", source=source, remedy="put a text file there")
        with source.open("rb", buffering=0) as file:
            data = _read(file, max(status.st_size + 1, _LEAST_PIECE), most + 1)
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


def _read(file: FileIO, piece: int, most: int) -> bytes:
    """So many bytes, or all that there are.

    Args:
        file: to be read.
        piece: bytes to be read at once. For ``most`` bytes the C library would get memory from the system each time.
        most: bytes that are read.
    """
    data = file.read(min(piece, most))
    while len(data) < most and (more := file.read(min(piece, most - len(data)))):
        data += more
    return data
