"""The bytes of tensors as arrays in JSON.

Numbers are written in the shortest form that is read as the same double again: FP32 0.1 is 0.10000000149011612, as with
Triton. NaN and infinities, which JSON lacks, are the bare words that Triton writes and JavaScript-like readers take.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toutates.protocol.datatypes import Datatype
from toutates.protocol.rest.arrays import Pause, struct_format
from toutates.system.errors import InvalidRequest

__all__ = ["PIECE_ELEMENTS", "ValueWriter"]

#: Elements that are written at once: 1 ms.
PIECE_ELEMENTS: Final = 8_192

Buffer = bytes | memoryview

_encode: Final = msgspec.json.Encoder().encode


class ValueWriter:
    """Writes arrays of one output's elements.

    Args:
        name: of the output, for errors.
        datatype: its datatype.
    """

    __slots__ = ("_count", "_datatype", "_name", "_size", "_unpack")

    def __init__(self, name: str, datatype: Datatype) -> None:
        self._name = name
        self._datatype = datatype
        self._size = datatype.size
        #: of so many elements, the last number that was written
        self._count = -1
        self._unpack: Callable[[Buffer], tuple[Any, ...]] = struct.Struct("").unpack

    def write(self, content: Buffer, pause: Pause | None = None) -> bytes:
        """An array of the elements of a tensor, flat.

        Args:
            content: as raw contents have them.
            pause: called between two pieces.

        Raises:
            InvalidRequest: BYTES that are not UTF-8.
        """
        if not self._size:
            return self._write_strings(content, pause)
        count = len(content) // self._size
        if count > PIECE_ELEMENTS or self._datatype.name == "BF16":
            return self._write_pieces(content, count, pause)
        if count != self._count:
            self._unpack = struct.Struct(struct_format(self._datatype, count)).unpack
            self._count = count
        return _array_of(self._unpack(content))

    def _write_pieces(self, content: Buffer, count: int, pause: Pause | None) -> bytes:
        pieces: list[bytes] = []
        for at in range(0, count, PIECE_ELEMENTS):
            pieces.append(_array_of(self._values(content, at, min(PIECE_ELEMENTS, count - at)))[1:-1])
            if pause is not None:
                pause()
        return b"[%b]" % b",".join(pieces)

    def _values(self, content: Buffer, at: int, count: int) -> Sequence[Any]:
        """Some elements, from the one with the index ``at`` on."""
        if self._datatype.name == "BF16":
            bits = np.frombuffer(content, np.uint16, count, 2 * at).astype(np.uint32) << 16
            values: list[float] = bits.view(np.float32).tolist()
            return values
        return struct.unpack_from(struct_format(self._datatype, count), content, at * self._size)

    def _write_strings(self, content: Buffer, pause: Pause | None) -> bytes:
        octets = bytes(content)
        pieces: list[bytes] = []
        at = 0
        while at < len(octets):
            texts: list[str] = []
            while at < len(octets) and len(texts) < PIECE_ELEMENTS:
                start = at + 4
                at = start + int.from_bytes(octets[at:start], "little")
                texts.append(self._text(octets[start:at]))
            pieces.append(_encode(texts)[1:-1])
            if pause is not None:
                pause()
        return b"[%b]" % b",".join(pieces)

    def _text(self, element: bytes) -> str:
        try:
            return element.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"output '{self._name}' has an element that is not UTF-8, which JSON cannot carry; ask for the output "
                "with the parameter 'binary_data'"
            ) from None


def _array_of(values: Any) -> bytes:
    text = _encode(values)
    # ``msgspec`` writes null for what JSON has no number for; nothing else that is written here has an n.
    return json.dumps(values, separators=(",", ":")).encode() if b"n" in text else text
