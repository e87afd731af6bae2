"""Content codings: gzip and deflate, both ways (RFC 9110 section 8.4)."""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from toutates.http1.responses import Refused

__all__ = [
    "CODINGS",
    "INFLATE_STEP",
    "SAME_CODINGS",
    "STATE_BYTES",
    "Deflater",
    "HasRoom",
    "Inflater",
    "choose_coding",
    "too_large",
]

#: zlib's window bits by the name of a coding; "deflate" is zlib's own format (RFC 9110 section 8.4.1.2).
CODINGS: Final = {"gzip": 31, "deflate": 15}
#: Other names: of gzip (RFC 9110 section 8.4.1.3), and of none.
SAME_CODINGS: Final = {"x-gzip": "gzip", "identity": ""}
#: Bytes that one step of an ``Inflater`` gives at most: some tens of microseconds.
INFLATE_STEP: Final = 32_768
#: Bytes that one step takes at most: zlib copies what it leaves of them.
_TAKEN_STEP: Final = 16_384
#: What zlib keeps of a stream beside what comes out: its window, and its tables.
STATE_BYTES: Final = 40_960
#: Bodies that become larger than this have memory of their own, from the beginning twice as much address space.
_OWN_MEMORY: Final = 1_048_576
#: Members of a gzip body (RFC 1952 section 2.2). Each costs some microseconds, whatever is in it; block compressors
#: (bgzip) make one of 64 KB.
_MAX_MEMBERS: Final = 65_536
_FIRST_OF_GZIP: Final = 0x1F
#: Of zlib's levels 1 to 9: higher ones cost a server more than they save a network.
LEVEL: Final = 1

_WEIGHT: Final = re.compile(r";\s*q=([01](?:\.\d{0,3})?)\s*$")


def choose_coding(accept_encoding: str) -> str:
    """The coding to answer an Accept-Encoding header with: "gzip", "deflate", or "" for none."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        found = _WEIGHT.search(item)
        name = item.partition(";")[0].strip()
        weights[SAME_CODINGS.get(name, name)] = float(found[1]) if found else 1.0
    others = weights.get("*", 0.0)
    best = max(CODINGS, key=lambda coding: weights.get(coding, others))  # gzip, where both are as welcome
    return best if weights.get(best, others) > 0 else ""


#: Whether there is memory for so many bytes.
HasRoom = Callable[[int], bool]


class _Decompress(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    def decompress(self, data: bytes | bytearray, max_length: int = 0, /) -> bytes: ...


class _Inflated:
    """What has come out. Where it is large it has pages of its own, so that it takes as much memory as it has bytes:
    an array that grows is moved over and over among others, and leaves holes as large as itself.
    """

    def __init__(self) -> None:
        self._small = bytearray()
        self._memory: mmap.mmap | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: bytes) -> None:
        """Raises MemoryError."""
        end = self._size + len(piece)
        if end <= _OWN_MEMORY:
            self._small += piece
        else:
            if self._memory is None or end > len(self._memory):
                self._grow()
            assert self._memory is not None
            self._memory[self._size : end] = piece
        self._size = end

    def _grow(self) -> None:
        try:
            if self._memory is not None:
                self._memory.resize(2 * len(self._memory))
                return
            self._memory = mmap.mmap(-1, 2 * _OWN_MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(str(error)) from error
        self._memory[: self._size] = self._small
        self._small = bytearray()

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return self._size if self._memory is None else self._size + len(self._small)

    @property
    def missing(self) -> int:
        """Bytes that lie in memory of their own alone, and are still to be copied to what is handed out."""
        return self._size - len(self._small)

    def copy_some(self) -> None:
        """Copy the next MiB of these."""
        assert self._memory is not None
        at = len(self._small)
        self._small += self._memory[at : min(at + _OWN_MEMORY, self._size)]

    def take(self) -> bytearray:
        """All of it, once nothing is ``missing``."""
        return self._small


class Inflater:
    """A compressed body, decompressed step by step, so that no piece of it takes long however much it becomes.

    A body in gzip may have several members, one behind the other (RFC 1952 section 2.2).

    Args:
        coding: of CODINGS.
        max_size: bytes that may come out.
        has_room: is asked before each step but the first whether there is memory for more, with the bytes that would
            then be held and are not counted (``counted``); None where nobody minds.

    Attributes:
        counted: bytes of the body that have been counted where ``has_room`` looks.
    """

    def __init__(self, coding: str, max_size: int, has_room: HasRoom | None = None) -> None:
        self._has_room = has_room
        self._coding = coding
        self._stream: _Decompress = zlib.decompressobj(CODINGS[coding])
        self._members = 1
        self._max_size = max_size
        #: what was put, and how far it has been read
        self._waiting: bytes | bytearray = b""
        self._at = 0
        self._ended = False
        self.counted = 0
        self.body = _Inflated()

    @property
    def size(self) -> int:
        """Bytes that are held, before and after decompression, beside STATE_BYTES."""
        return self.body.size + len(self._waiting)

    def put(self, piece: bytes | bytearray) -> None:
        """Take the next piece of the compressed body, once ``step`` has dealt with the last one. It must not change."""
        self._waiting, self._at = piece, 0

    def step(self) -> bool:
        """Decompress INFLATE_STEP bytes more, or copy a MiB of a large body that may be whole.

        Returns False when everything that was put is decompressed.

        Raises:
            Refused: the body is broken or too large, or there is no memory for it.
        """
        if self.body:
            self._need_room(INFLATE_STEP)
        taken = self._waiting[self._at : self._at + _TAKEN_STEP]
        if self._ended:
            if not taken:
                return self._copy_some()
            self._begin_member(taken)
        try:
            # One byte above the bound is enough to see that the body is too large.
            made = self._stream.decompress(taken, min(INFLATE_STEP, self._max_size + 1 - len(self.body)))
        except zlib.error:
            raise Refused(400, "the request's body is not what its content-encoding says") from None
        self.body.add(made)
        if len(self.body) > self._max_size:
            raise too_large(self._max_size)
        self._ended = self._stream.eof
        rest = self._stream.unused_data if self._ended else self._stream.unconsumed_tail
        self._at += len(taken) - len(rest)
        if self._at < len(self._waiting):
            return True
        self._waiting, self._at = b"", 0
        return len(made) == INFLATE_STEP or (self._ended and self.body.missing > 0)

    def _copy_some(self) -> bool:
        if self.body.missing:
            self._need_room(self.body.missing)
            self.body.copy_some()
        return self.body.missing > 0

    def _need_room(self, size: int) -> None:
        if not (self._has_room is None or self._has_room(self.body.size - self.counted + size)):
            raise Refused(503, "the server holds too much for slow clients to decompress the request's body")

    def _begin_member(self, taken: bytes | bytearray) -> None:
        """Begin the next member, if that is what goes on; the other format has but one."""
        if self._coding != "gzip" or taken[0] != _FIRST_OF_GZIP:
            raise Refused(400, "the request's body goes on after its compressed data")
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise Refused(400, f"the request's body has more than {_MAX_MEMBERS} members of gzip")
        self._stream = zlib.decompressobj(CODINGS[self._coding])

    def finish(self) -> bytearray:
        """The whole body, after its last piece was put, and ``step`` had nothing left to do.

        Raises:
            Refused: it ends too early.
        """
        if not self._ended:
            raise Refused(400, "the request's compressed body ends too early")
        return self.body.take()


class Deflater:
    """A body to be compressed.

    Args:
        coding: of CODINGS.
    """

    def __init__(self, coding: str) -> None:
        self._stream = zlib.compressobj(LEVEL, zlib.DEFLATED, CODINGS[coding])

    def put(self, piece: bytes) -> bytes:
        """The next piece, so that the peer can read all of it at once."""
        return self._stream.compress(piece) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self, piece: bytes = b"") -> bytes:
        """The last piece."""
        return self._stream.compress(piece) + self._stream.flush()


def too_large(max_size: int) -> Refused:
    """The refusal of a body above its bound."""
    return Refused(413, f"the request's body has more than {max_size} bytes")
