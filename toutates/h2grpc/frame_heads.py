"""Memory for the heads of frames that are received between the pieces of a large message."""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.frames import FRAME_HEAD_SIZE

__all__ = ["FRAMES_AHEAD", "FrameHeads"]

#: Frames that one read may bring of a large message, besides the one that is under way.
FRAMES_AHEAD: Final = 64


class FrameHeads:
    """Room for the heads of FRAMES_AHEAD frames, and for bytes that nobody wants. One per driver.

    Attributes:
        data: the heads, one after the other.
        views: of each head.
        sink: for bytes that are to be dropped.
    """

    __slots__ = ("data", "sink", "views")

    def __init__(self) -> None:
        self.data = bytearray(FRAMES_AHEAD * FRAME_HEAD_SIZE)
        whole = memoryview(self.data)
        self.views = [whole[at : at + FRAME_HEAD_SIZE] for at in range(0, len(whole), FRAME_HEAD_SIZE)]
        self.sink = memoryview(bytearray(16_384))
