"""File descriptors: connections leave enough of them for everything else that a server does."""

from __future__ import annotations

import os
import resource
from typing import Final

__all__ = ["KEPT_BACK", "most_descriptor", "warning_of_few"]

#: Descriptors that no connection of a worker gets: those of models, of processes of Python models, of downloads, and of
#: the control plane. A quarter of all where there are few.
KEPT_BACK: Final = 256
#: So many connections there should be room for, where nobody says how many there may be.
WANTED: Final = 500
#: What a worker has open beside its connections.
_OF_WORKER: Final = 8
_UNLIMITED: Final = 2**31


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def most_descriptor() -> int:
    """The first descriptor that no connection may have. The system gives the lowest that is free."""
    limit = _limit()
    return limit - min(KEPT_BACK, limit // 4)


def warning_of_few(workers: int, connections: int | None) -> str:
    """What is said at the start where there are few; "" where there are enough.

    Args:
        workers: how many accept connections.
        connections: that are to be possible; None for WANTED.
    """
    limit, own = _limit(), len(os.listdir("/proc/self/fd")) + _OF_WORKER * workers
    wanted = connections or WANTED
    needed = own + wanted + KEPT_BACK
    if limit >= needed:
        return ""
    room = max(0, most_descriptor() - own)
    return (
        f"ulimit -n: {limit} file descriptors are enough for {room} connections, since some are kept back for models, "
        f"their processes and the control plane; {needed} are needed for {wanted}. Raise it: `ulimit -n {needed}`, "
        "LimitNOFILE= of systemd, or --ulimit nofile= of Docker"
    )
