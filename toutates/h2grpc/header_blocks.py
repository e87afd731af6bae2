"""The header block that is coming in, over HEADERS and CONTINUATION frames (RFC 9113 section 4.3)."""

from __future__ import annotations

from toutates.h2grpc.budget import MemoryBudget
from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import ErrorCodes
from toutates.h2grpc.limits import Limits

__all__ = ["HeaderBlocks"]


class HeaderBlocks:
    """Puts blocks together that do not come in one frame, one at a time.

    Args:
        limits: bounds of a block.
        budget: counts what is here of it.

    Attributes:
        stream_id: whose block waits for its CONTINUATIONs; 0 while none does.
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
        """Bytes of the block that are here."""
        return sum(map(len, self._fragments))

    def begin(self, stream_id: int, flags: int, fragment: bytes) -> None:
        """HEADERS without END_HEADERS."""
        self.stream_id = stream_id
        self._flags = flags
        self._fragments = [fragment]
        self._budget.used += len(fragment)

    def add(self, fragment: bytes) -> None:
        """A CONTINUATION's payload.

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
        """Refuse a block that is too large."""
        if size > self._limits.max_header_block_size:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block is too large", "header_block_size")

    def take(self) -> tuple[int, bytes]:
        """The flags of the block's HEADERS, and the whole block."""
        whole = self._flags, b"".join(self._fragments)
        self.drop()
        return whole

    def drop(self) -> None:
        """Forget the block."""
        self._budget.used -= self.held_bytes
        self._fragments = []
        self.stream_id = 0
