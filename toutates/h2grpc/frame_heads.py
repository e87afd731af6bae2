"""Memory for the heads of frames that are received between the pieces of a large message."""

from __future__ import annotations

from typing import Final

from toutates.h2grpc.frames import FRAME_HEAD_SIZE

__all__ = ["FRAMES_AHEAD", "MOST_HEAD", "FrameHeads"]

#: Frames that one read may bring of a large message, besides the one that is under way: 1 MiB in frames of 16 KiB.
FRAMES_AHEAD: Final = 66
#: Bytes that may come before a message that is foreseen: its header block, and other frames.
MOST_HEAD: Final = 2_048


class FrameHeads:
    """Room for the heads of FRAMES_AHEAD frames, and for bytes that nobody wants. One per driver.

    Attributes:
        data: the heads, one after the other.
        views: of each head.
        head: for the head of a request that is foreseen, and the first bytes of its message.
        sink: for bytes that are to be dropped.
    """

    __slots__ = ("data", "head", "sink", "views")

    def __init__(self) -> None:
        self.data = bytearray(FRAMES_AHEAD * FRAME_HEAD_SIZE)
        whole = memoryview(self.data)
        self.views = [whole[at : at + FRAME_HEAD_SIZE] for at in range(0, len(whole), FRAME_HEAD_SIZE)]
        self.head = memoryview(bytearray(MOST_HEAD + 64))
        self.sink = memoryview(bytearray(16_384))
