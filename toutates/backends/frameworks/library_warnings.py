"""Warnings that a library gives while a model runs: each is in the log once for a model, and not for each request."""

from __future__ import annotations

import logging
import threading
import warnings
from types import TracebackType
from typing import Any, Final

from toutates.system.text import one_line

__all__ = ["LibraryWarnings"]

logger = logging.getLogger(__name__)

_MAX_SAID: Final = 300

_local: Final = threading.local()


class LibraryWarnings:
    """Those of one model. A context manager, which any thread may enter.

    Args:
        model: its name.
        is_silent: whether they are not to be logged.
    """

    def __init__(self, model: str, *, is_silent: bool = False) -> None:
        self._model, self._is_silent = model, is_silent
        #: by where they come from: a text may have numbers of the request
        self._seen: set[tuple[str, str, int]] = set()
        _install()

    def note(self, message: Warning | str, category: type[Warning], filename: str, line: int) -> None:
        """Log a warning, unless it was."""
        key = category.__name__, filename, line
        if key not in self._seen and not self._is_silent:
            self._seen.add(key)
            logger.warning(
                "model '%s': %s: %s", self._model, key[0], one_line(message, _MAX_SAID), extra={"model": self._model}
            )

    def __enter__(self) -> LibraryWarnings:
        _local.model = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _local.model = None


_lock: Final = threading.Lock()
_shown: Any = None


def _install() -> None:
    """Have Python ask here before it prints a warning. Once for the process."""
    global _shown
    with _lock:
        if _shown is None:
            _shown = warnings.showwarning
            warnings.showwarning = _show


def _show(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    model: LibraryWarnings | None = getattr(_local, "model", None)
    if model is not None and file is None:
        model.note(message, category, filename, lineno)
    else:
        _shown(message, category, filename, lineno, file, line)
