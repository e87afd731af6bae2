"""What answers are made of: vectors in base64 and JSON, and long strings; in pieces of a millisecond each."""

from __future__ import annotations

import sys
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

import msgspec
import numpy as np

from toutates.api.text.problems import Kind, Problem
from toutates.backends.text.interface import Float32, SparseVector

__all__ = ["arrays_of", "base64_of", "floats_of", "sparse_of", "string_of"]

#: Numbers, or letters, that are written at once, in 1 ms.
PIECE: Final = 8_192

_encode: Final = msgspec.json.Encoder().encode
_LITTLE_ENDIAN: Final = np.dtype("<f4")
_IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"


@cache
def _encoder() -> Callable[[Any], bytes]:
    """Makes base64 of memory without gaps. Python's own takes 1 us for 384 values, and pybase64 0.2, by SIMD.

    It is looked for with the first vector, so that servers without text models do not load it.
    """
    try:
        from pybase64 import b64encode
    except ImportError:
        return partial(b2a_base64, newline=False)
    encode: Callable[[Any], bytes] = b64encode
    return encode


def base64_of(vector: Float32) -> bytes:
    """A vector's bytes, float32 and little-endian, in base64."""
    if _IS_LITTLE_ENDIAN:
        try:
            return _encoder()(vector)  # of its memory as it is
        except (BufferError, ValueError):  # which has gaps
            pass
    return _encoder()(np.ascontiguousarray(vector, _LITTLE_ENDIAN))


def floats_of(vector: Float32) -> bytes:
    """An array of the values of a vector [dimensions]; 25 us for 384 values.

    Raises:
        Problem: one of them is no number, which JSON has no word for.
    """
    text = _encode(vector.tolist())
    if b"n" in text:
        raise Problem(Kind.FAILED, "the model's vector has a value that is not a finite number")
    return text


def arrays_of(vectors: Float32) -> Iterator[bytes]:
    """Pieces of an array of vectors [rows, dimensions].

    Raises:
        Problem: as ``floats_of`` does.
    """
    before = b"["
    for row in vectors:
        yield before + floats_of(row)
        before = b","
    yield b"]" if len(vectors) else b"[]"


def sparse_of(vector: SparseVector) -> Iterator[bytes]:
    """Pieces of an array of the objects index and value."""
    count = len(vector.indices)
    before = b"["
    for at in range(0, count, PIECE):
        indices: list[int] = vector.indices[at : at + PIECE].tolist()
        values: list[float] = vector.values[at : at + PIECE].tolist()
        piece = [{"index": index, "value": value} for index, value in zip(indices, values, strict=True)]
        yield before + _encode(piece)[1:-1]
        before = b","
    yield b"]" if count else b"[]"


def string_of(text: str) -> Iterator[bytes]:
    """Pieces of a string."""
    yield b'"'
    for at in range(0, len(text), PIECE):
        yield _encode(text[at : at + PIECE])[1:-1]
    yield b'"'
