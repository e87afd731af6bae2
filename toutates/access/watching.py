"""Notices that files have changed, by their size, time and number, also behind links, as Kubernetes replaces them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["signature_of"]

Signature = tuple[tuple[int, int, int] | None, ...]


def signature_of(files: Iterable[Path]) -> Signature:
    """What changes when one of the files does."""
    return tuple(map(_one, files))


def _one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
