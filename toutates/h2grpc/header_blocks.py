"""Header blocks that come in several frames, HEADERS and CONTINUATION (RFC 9113 section 4.3)."""

from __future__ import annotations

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import Limits

__all__ = ["HeaderBlocks"]


class HeaderBlocks:
    """Assembles one header block at a time.

    Args:
        limits: bounds of a block.
        budget: counts the bytes of an incomplete block.

    Attributes:
        stream_id: the stream of the incomplete block; 0 if there is none.
    """

    __slots__ = ("_budget", "_flags", "_fragments", "_limits", "stream_id")

    def __init__(self, limits: Limits, budget: MemoryBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._flags = 0
        self._fragments: list[bytes] = []
        self.stream_id = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the incomplete block."""
        return sum(map(len, self._fragments))

    def begin(self, stream_id: int, flags: int, fragment: bytes) -> None:
        """Begin a block, with the payload of HEADERS without END_HEADERS."""
        self.stream_id = stream_id
        self._flags = flags
        self._fragments = [fragment]
        self._budget.used += len(fragment)

    def add(self, fragment: bytes) -> None:
        """Add the payload of a CONTINUATION frame.

        Raises:
            ConnectionFault: there are too many of them, or the block is too large.
        """
        if not self.stream_id:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "CONTINUATION without a header block")
        self._fragments.append(fragment)
        self._budget.used += len(fragment)
        if len(self._fragments) > self._limits.max_continuations + 1:
            text = "header block in too many CONTINUATION frames"
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, text, "continuations")
        self.check_size(self.held_bytes)

    def check_size(self, size: int) -> None:
        """Refuse a block of more than ``max_header_block_size`` bytes.

        Raises:
            ConnectionFault: it is too large.
        """
        if size > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large", "header_block_size")

    def take(self) -> tuple[int, bytes]:
        """Return the flags of the block's HEADERS and the whole block, and forget it."""
        whole = self._flags, b"".join(self._fragments)
        self.drop()
        return whole

    def drop(self) -> None:
        """Forget the block."""
        self._budget.used -= self.held_bytes
        self._fragments = []
        self.stream_id = 0
