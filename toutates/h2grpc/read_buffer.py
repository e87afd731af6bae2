"""Received bytes that cannot be handled yet: half a frame, or frames that one turn had no time for."""

from __future__ import annotations

from toutates.h2grpc.budget import MemoryBudget

__all__ = ["ReadBuffer"]

#: Reads that are held as they came: those of a byte or two take twenty times their size.
MOST_PIECES_HELD = 64


class ReadBuffer:
    """The bytes. Half a frame is counted in the budget; the rest of a read is not, since it is taken up at once.

    Args:
        budget: of all connections.

    Attributes:
        waiting: whether there are any.
        held_bytes: bytes that do not make a whole frame yet.
        rest: bytes that were left for another turn; b"" for none.
        rest_at: where in them the next frame begins.
    """

    __slots__ = ("_budget", "_joined", "_needed", "_pieces", "held_bytes", "rest", "rest_at", "waiting")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        #: how many bytes it takes to go on
        self._needed = 0
        #: pieces that were joined from several reads
        self._joined = 0
        self.rest_at = 0
        self.held_bytes = 0
        self.rest = b""
        self.waiting = False

    @property
    def size(self) -> int:
        """All bytes that are kept."""
        return self.held_bytes + len(self.rest)

    def hold(self, data: bytes, needed: int) -> None:
        """Keep the beginning of a frame, until ``needed`` bytes of it are here."""
        self._pieces = [data]
        self.held_bytes = len(data)
        self._needed = needed
        self._joined = 0
        self._budget.used += len(data)
        self.waiting = True

    def leave(self, data: bytes, at: int) -> None:
        """Keep the frames of ``data`` from ``at`` for another turn."""
        self.rest = data
        self.rest_at = at
        self.waiting = True

    def take_rest(self) -> tuple[bytes, int]:
        """What was left for another turn, and where in it the next frame begins; b"" for nothing."""
        rest, self.rest = self.rest, b""
        self.waiting = bool(self._pieces)
        return rest, self.rest_at

    def join(self, data: bytes, start: int) -> bytes:
        """What was kept with ``data[start:]`` behind it, once that is enough to go on; b"" before."""
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
        """Forget everything."""
        self._budget.used -= self.held_bytes
        self._pieces = []
        self.held_bytes = 0
        self.rest = b""
        self.waiting = False
