"""The memory that all connections of one worker may hold for peers that are slow."""

from __future__ import annotations

__all__ = ["MemoryBudget"]


class MemoryBudget:
    """Bytes of requests that are not whole yet, and of responses that are not read yet.

    Connections add what they hold to ``used`` and take it off again; each asks ``exceeded`` before it holds more.

    Args:
        limit: bytes.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def exceeded(self) -> bool:
        """Whether connections hold more than they may."""
        return self.used > self.limit
