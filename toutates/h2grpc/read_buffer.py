"""Received bytes that are not handled yet: an incomplete frame, or frames left for the next call of ``go_on``."""

from __future__ import annotations

from toutates.h2grpc.budget import MemoryBudget

__all__ = ["ReadBuffer"]

#: Reads that are kept separately before they are joined: a read of one or two bytes takes twenty times its size.
MOST_PIECES_HELD = 64


class ReadBuffer:
    """Keeps the bytes. Those of an incomplete frame are counted in the budget; frames left for ``go_on`` are not.

    Args:
        budget: of all connections.

    Attributes:
        waiting: whether any bytes are kept.
        held_bytes: bytes of an incomplete frame.
        rest: the read whose last frames are left for ``go_on``; b"" for none.
        rest_at: offset in it of the first frame that is left.
    """

    __slots__ = ("_budget", "_joined", "_needed", "_pieces", "held_bytes", "rest", "rest_at", "waiting")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        #: bytes of the incomplete frame when it is complete
        self._needed = 0
        #: how many of the first pieces are joined from several reads
        self._joined = 0
        self.rest_at = 0
        self.held_bytes = 0
        self.rest = b""
        self.waiting = False

    @property
    def size(self) -> int:
        """Bytes kept altogether."""
        return self.held_bytes + len(self.rest)

    def hold(self, data: bytes, needed: int) -> None:
        """Keep the beginning of a frame, until ``needed`` bytes of it have come."""
        self._pieces = [data]
        self.held_bytes = len(data)
        self._needed = needed
        self._joined = 0
        self._budget.used += len(data)
        self.waiting = True

    def leave(self, data: bytes, at: int) -> None:
        """Keep the frames of ``data`` from offset ``at`` on for ``go_on``."""
        self.rest = data
        self.rest_at = at
        self.waiting = True

    def take_rest(self) -> tuple[bytes, int]:
        """Remove and return ``rest`` and ``rest_at``."""
        rest, self.rest = self.rest, b""
        self.waiting = bool(self._pieces)
        return rest, self.rest_at

    def join(self, data: bytes, start: int) -> bytes:
        """Append ``data[start:]`` to the kept bytes; returns all of them once a frame is complete, b"" before."""
        data = data[start:]
        rest, at = self.take_rest()
        if rest:
            data = rest[at:] + data
        if not self._pieces:
            return data
        self._pieces.append(data)
        self.held_bytes += len(data)
        self._budget.used += len(data)
        if self.held_bytes < self._needed:
            if len(self._pieces) - self._joined >= MOST_PIECES_HELD:
                self._pieces[self._joined :] = [b"".join(self._pieces[self._joined :])]
                self._joined += 1
            return b""
        data = b"".join(self._pieces)
        self.drop()
        return data

    def drop(self) -> None:
        """Forget all bytes."""
        self._budget.used -= self.held_bytes
        self._pieces = []
        self.held_bytes = 0
        self.rest = b""
        self.waiting = False
