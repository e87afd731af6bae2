"""The output of a connection, kept until its driver takes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toutates.h2grpc.stream import Buffer

__all__ = ["BULKY_BYTES", "SMALL_PART_BYTES", "Output", "coalesce", "part_of_its_own"]

#: Buffers at least this long are given to the kernel as they are, instead of being joined with others first.
BULKY_BYTES = 65_536

#: Memory that a queued part of a buffer may keep besides itself, bytes.
SMALL_PART_BYTES = 4_096


class Output:
    """Buffers to send, in order.

    Args:
        dirty: the driver's list to which ``link`` is appended when there is something to send.

    Attributes:
        pieces: the buffers.
        bulky: whether to send them one by one instead of joined: one of them has BULKY_BYTES or more.
        link: the driver's own object for the connection.
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
    """``view``, or a copy if it keeps much more memory than it shows, such as the outputs of a whole batch.

    Used for bytes that wait for a slow peer: only the bytes that it shows are counted.

    Args:
        view: a part of some buffer.
        together: bytes of all parts of that buffer that wait; 0 if this is the only one.
    """
    whole: Any = view.obj
    size: int = getattr(whole, "nbytes", 0) or len(whole)  # of an array or a memoryview; of bytes
    return memoryview(bytes(view)) if size > 4 * (together or len(view)) + SMALL_PART_BYTES else view


def coalesce(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Join neighbouring small buffers: otherwise a message would become a frame per piece."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < BULKY_BYTES:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
