"""What goes wrong on a worker: lines for the log, and how often peers met a limit."""

from __future__ import annotations

import logging
import time
from collections import Counter

from toutates.h2grpc.limits import LIMIT_NAMES
from toutates.net.quiet_log import QuietLog

__all__ = ["Incidents"]

#: A worker's lines have its name, wherever they are written.
logger = logging.getLogger("toutates.net.worker")


class Incidents:
    """Logs for one worker, within the bounds of ``QuietLog``.

    Args:
        name: of the worker.

    Attributes:
        log: where lines go.
        limit_hits: how often each limit was met, by its name in ``limits.LIMIT_NAMES``; other threads may read it.
    """

    def __init__(self, name: str) -> None:
        self.log = QuietLog(logger, name)
        self.limit_hits: Counter[str] = Counter(dict.fromkeys(LIMIT_NAMES, 0))

    def bug(self, what: str, error: Exception, peer: str = "") -> None:
        """Log an exception that nobody expects, with its traceback."""
        kind = f"failures of the {what}"
        self.log.log(logging.ERROR, kind, time.monotonic_ns(), "%s failed", what, error=error, peer=peer)

    def ended(self, peer: str, text: str) -> None:
        """Log that a connection has ended early."""
        kind = "connections that ended early"
        self.log.log(logging.INFO, kind, time.monotonic_ns(), "connection from %s ended: %s", peer, text, peer=peer)

    def out_of_memory(self, peer: str) -> None:
        """Log that a connection is ended because memory ran out."""
        kind = "connections ended because memory ran out"
        text = "out of memory: connection from %s is ended"
        self.log.log(logging.WARNING, kind, time.monotonic_ns(), text, peer, peer=peer)

    def accepting_pauses(self, reason: str) -> None:
        """Log that accepting pauses, because the process is out of file descriptors or memory."""
        text = "accepting pauses: %s"
        self.log.log(logging.WARNING, "pauses of accepting", time.monotonic_ns(), text, reason)

    def not_taken(self, peer: str, reason: str) -> None:
        """Log that the system had no room for a connection that was accepted."""
        kind = "connections that could not be taken"
        text = "connection from %s could not be taken: %s"
        self.log.log(logging.WARNING, kind, time.monotonic_ns(), text, peer, reason)
