"""The server's readiness, as a worker sees it, for health checks."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Readiness"]


class Readiness:
    """One worker's view. It is read and changed on that worker's thread only, by ``Worker.call_soon`` from others.

    Attributes:
        serving: whether the server is ready.
        exiting: whether the server is shutting down.
        on_change: functions to call when one of them has changed.
    """

    def __init__(self, *, serving: bool) -> None:
        self.serving = serving
        self.exiting = False
        self.on_change: list[Callable[[], None]] = []

    def update(self, *, serving: bool) -> None:
        """Set whether the server is ready. It has no effect while the server is shutting down."""
        if not self.exiting and serving is not self.serving:
            self.serving = serving
            self._changed()

    def begin_exit(self) -> None:
        """Note that the server is shutting down."""
        if not self.exiting:
            self.exiting = True
            self.serving = False
            self._changed()

    def _changed(self) -> None:
        for tell in self.on_change:
            tell()
