"""Messages between a process and the clients that it has started: a length, and an object by ``pickle``."""

from __future__ import annotations

import os
import pickle
from typing import Any, Final

__all__ = ["read_message", "send_message"]

_SIZE: Final = 8


def send_message(fd: int, message: object) -> None:
    """Send an object.

    Raises:
        BrokenPipeError: the other process has ended.
    """
    octets = pickle.dumps(message)
    view = memoryview(len(octets).to_bytes(_SIZE, "big") + octets)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int) -> Any:
    """The next object, which a process of our own has sent.

    Raises:
        EOFError: the other process has ended.
    """
    return pickle.loads(_read(fd, int.from_bytes(_read(fd, _SIZE), "big")))


def _read(fd: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(fd, min(size, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
