"""Whether the server can answer, as seen from every worker; the subject of health checks."""

from __future__ import annotations

from trio_util import AsyncValue

__all__ = ["Readiness"]


class Readiness:
    """One worker's view. Changed and awaited on that worker's thread only (``Worker.call_soon`` brings it there).

    Attributes:
        serving: whether ServerReady says yes; awaitable by streaming health checks.
        exiting: set for good once the server shuts down.
    """

    def __init__(self, *, serving: bool) -> None:
        self.serving = AsyncValue(serving)
        self.exiting = AsyncValue(False)

    def update(self, *, serving: bool) -> None:
        """A model has become ready, or is no longer; too late once the server shuts down."""
        if not self.exiting.value:
            self.serving.value = serving

    def begin_exit(self) -> None:
        """The server is shutting down."""
        self.exiting.value = True
        self.serving.value = False
