"""Locks between processes of one host: ``flock`` on a file that may be removed, or take another place, when done."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from toutates.system.errors import RepositoryError

__all__ = ["lock_of", "try_lock"]

_POLL_SECONDS: Final = 0.02


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock a file, which is made if it is not there; None if another thread or process holds it.

    Returns:
        A file descriptor that is open for reading and writing; closing it ends the lock, as the process's end does.

    Raises:
        OSError: the file cannot be opened, or the file system knows no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            # Who held it until now may have removed or renamed the file, and this one's lock would keep nobody out.
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def lock_of(path: Path, seconds: float, stop: threading.Event) -> Iterator[int]:
    """Hold a lock that others hold briefly; gives the descriptor of its file.

    Raises:
        OSError: see ``try_lock``.
        RepositoryError: another has held it for this long, or ``stop`` was set.
    """
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise RepositoryError(f"'{path}' has been locked by another process for {seconds:.0f} s; see what it does")
        if stop.wait(_POLL_SECONDS):
            raise RepositoryError("the server is stopping")
    try:
        yield descriptor
    finally:
        os.close(descriptor)
