"""Reading a small file that an operator wrote."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from toutates.system.errors import ConfigurationError

__all__ = ["read_small_file"]


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
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise ConfigurationError("is not a regular file", source=source, remedy="put a text file there")
        with source.open("rb", buffering=0) as file:
            data = _read(file, most + 1)
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


def _read(file: FileIO, most: int) -> bytes:
    """So many bytes, or all that there are."""
    data = file.read(most)
    while len(data) < most and (more := file.read(most - len(data))):
        data += more
    return data
