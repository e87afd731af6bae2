"""Why something is missing from the report."""

from __future__ import annotations

__all__ = ["NoFigure", "Unavailable"]


class NoFigure(Exception):
    """A load did not go as it must, and its numbers mean nothing."""


class Unavailable(Exception):
    """A server or a tool cannot take part; the text says why, and which package brings it."""
