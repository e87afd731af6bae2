"""What a connection has to say, until its driver takes it."""

from __future__ import annotations

from typing import Any

from toutates.h2grpc.stream import Buffer

__all__ = ["BULKY_BYTES", "SMALL_PART_BYTES", "Output", "part_of_its_own"]

#: Buffers at least this long are worth handing to the kernel as they are, instead of joining them first.
BULKY_BYTES = 65_536

#: What a buffer that waits may keep besides itself.
SMALL_PART_BYTES = 4_096


class Output:
    """Buffers to send, in order.

    Args:
        dirty: where ``link`` is put as soon as there is something to send.

    Attributes:
        pieces: the buffers.
        bulky: whether they are worth sending piece by piece instead of joined: one of BULKY_BYTES is among them.
        link: the driver's own; what it needs in order to send.
    """

    __slots__ = ("bulky", "dirty", "link", "pieces")

    def __init__(self, dirty: list[Any]) -> None:
        self.dirty = dirty
        self.pieces: list[Buffer] = []
        self.bulky = False
        self.link: Any = None

    def write(self, *frames: Buffer) -> None:
        """Add frames."""
        if not self.pieces:
            self.dirty.append(self.link)
        self.pieces += frames


def part_of_its_own(view: memoryview, together: int = 0) -> memoryview:
    """``view``, or a copy of it where it keeps much more memory than it shows, such as the outputs of a whole batch.

    For what has to wait for a peer, who shall make us hold no more than is counted.

    Args:
        view: of some buffer.
        together: bytes of all views of that buffer that wait; 0 where this is the only one.
    """
    whole: Any = view.obj
    size: int = getattr(whole, "nbytes", 0) or len(whole)  # of an array or a memoryview; of bytes
    return memoryview(bytes(view)) if size > 4 * (together or len(view)) + SMALL_PART_BYTES else view
