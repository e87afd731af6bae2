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
        on_models: functions to call when the table of models has changed, while ``models_watched``.
        models_watched: whether somebody wants to know that. The main thread reads it too.
    """

    def __init__(self, *, serving: bool) -> None:
        self.serving = serving
        self.exiting = False
        self.on_change: list[Callable[[], None]] = []
        self.on_models: list[Callable[[], None]] = []
        self.models_watched = False
        #: whether ``models_changed`` is on its way: the main thread sets it, the worker's unsets it
        self._models_due = False

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

    def tell_of_models(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """On the main thread, after the table of models was replaced: have the worker's thread told, once for many.

        Args:
            call_soon: the worker's.
        """
        if self.models_watched and not self._models_due:
            self._models_due = True
            call_soon(self._tell_of_models)

    def _tell_of_models(self) -> None:
        self._models_due = False  # before anybody looks at the table, so that no change is missed
        for tell in self.on_models:
            tell()

    def _changed(self) -> None:
        for tell in self.on_change:
            tell()
