"""Bodies in chunks (RFC 9112 section 7.1).

httptools does not say where in its input a message ends, and the next request has to begin there. So the frame around
the chunks is read here, strictly; the tests hold it against llhttp.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from toutates.http1.head import check_trailers
from toutates.http1.limits import Limits
from toutates.http1.responses import Refused

__all__ = ["ChunkReader"]

#: A size, and extensions, which mean nothing here.
_SIZE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:;[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"[^\"\\\x00-\x1f\x7f]*\"))?)*"
)
_END: Final = b"\r\n"


class _At(IntEnum):
    SIZE = 0
    DATA = 1
    DATA_END = 2
    TRAILERS = 3


class ChunkReader:
    """Reads the chunked framing of one body.

    Attributes:
        ended: whether the body, and what follows it, has been read.
    """

    __slots__ = ("_at", "_count", "_limits", "_missing", "ended")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._at = _At.SIZE
        self._missing = 0
        #: chunks so far that are not empty
        self._count = 0
        self.ended = False

    def step(self, data: bytes, at: int) -> tuple[int, bytes] | None:
        """Read one piece of the framing, or the data of a chunk as far as they have come.

        Args:
            data: what came.
            at: where it goes on.

        Returns:
            where it goes on next, and a piece of the body, which may be empty; None where more bytes are needed.

        Raises:
            Refused: this is no body in chunks.
        """
        if self._at is _At.DATA:
            piece = data[at : at + self._missing]
            if not piece:
                return None
            self._missing -= len(piece)
            if not self._missing:
                self._at = _At.DATA_END
            return at + len(piece), piece
        if self._at is _At.DATA_END:
            if not _END.startswith(data[at : at + 2]):
                raise Refused(400, "a chunk of the request's body is longer than it says")
            if len(data) - at < 2:
                return None
            self._at = _At.SIZE
            return at + 2, b""
        return self._line(data, at)

    def _line(self, data: bytes, at: int) -> tuple[int, bytes] | None:
        """The line before a chunk, or all trailers."""
        trailers = self._at is _At.TRAILERS
        if trailers and data.startswith(_END, at):
            self.ended = True
            return at + 2, b""
        most = self._limits.max_head_size if trailers else self._limits.max_chunk_line
        mark = b"\r\n\r\n" if trailers else _END
        end = data.find(mark, at, at + most)
        line = data[at : at + most if end < 0 else end]
        if end < 0 and len(line) < most:
            return None
        if end < 0:
            raise Refused(431 if trailers else 400, "what is around the chunks of the request's body is too long")
        if trailers:
            check_trailers(line + mark)
            self.ended = True
        else:
            self._begin_chunk(line)
        return end + len(mark), b""

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise Refused(400, "a chunk of the request's body begins with no size")
        self._missing = int(found[1], 16)
        self._at = _At.DATA if self._missing else _At.TRAILERS
        self._count += 1
        most = self._limits.max_chunks
        if self._count > most and self._missing:
            text = f"Chunked request body exceeds maximum of {most} non-empty chunks. Send fewer or larger HTTP chunks."
            raise Refused(400, text)

    @property
    def missing(self) -> int:
        """Bytes of the chunk that have not come yet."""
        return self._missing
