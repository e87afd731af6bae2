"""Whether the server can answer, as seen from every worker; the subject of health checks."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Readiness"]


class Readiness:
    """One worker's view. Read and changed on that worker's thread only (``Worker.call_soon`` brings it there).

    Attributes:
        serving: whether ServerReady says yes.
        exiting: set for good once the server shuts down.
        on_change: called after a change of either; set by whoever tells the callers of Watch.
    """

    def __init__(self, *, serving: bool) -> None:
        self.serving = serving
        self.exiting = False
        self.on_change: Callable[[], None] | None = None

    def update(self, *, serving: bool) -> None:
        """A model has become ready, or is no longer; too late once the server shuts down."""
        if not self.exiting and serving is not self.serving:
            self.serving = serving
            self._changed()

    def begin_exit(self) -> None:
        """The server is shutting down."""
        if not self.exiting:
            self.exiting = True
            self.serving = False
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
