"""Ports of this machine: one where nobody listens, and one for a program that cannot choose its own."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["dead_port", "free_port"]


@contextmanager
def dead_port() -> Iterator[int]:
    """A port where connections are refused for as long as the block lasts: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def free_port() -> int:
    """A port that is free, and stays so until somebody is told to listen there.

    The system gives ports of a range to whoever wants any, such as each client's connection, so that one which it has
    given, and got back, may be taken again at any time. This one is below that range.
    """
    range_of_the_system = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.SystemRandom().randrange(15_000, max(25_000, int(range_of_the_system[0])))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
