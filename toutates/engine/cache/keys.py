"""What tells requests apart whose answers are kept.

A key is a hash of everything that an answer is made from: the version as it was loaded, the shapes of the inputs, the
outputs that are asked for, the number of rows, the bytes of each input and, where the model reads them, the request's
parameters. Nobody can make two requests of the same key (BLAKE2b, 160 bits), so nobody gets the answer of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Final

import numpy as np

from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import Parameters
from toutates.engine.servable import Buffer, Content, view_of
from toutates.protocol.strings import StringRows

__all__ = ["OPT_OUT", "contents_of", "key_of", "new_version", "of_way", "said_to_model", "spans_of"]

#: The request parameter that keeps a request away from the cache, where it is false.
OPT_OUT: Final = "response_cache"
#: Parameters that say when a request runs, not what it computes; and of sequences, which models with a cache have not.
_OF_SCHEDULING: Final = frozenset({OPT_OUT, "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
_KEY_BYTES: Final = 20
#: Inputs of at most so many bytes are joined before they are hashed, which is quicker than several calls.
SMALL_BYTES: Final = 8_192
_VERSIONS: Final = count()


def new_version() -> int:
    """A number that no other version has, nor the same one loaded again."""
    return next(_VERSIONS)


def of_way(version: int, row_shapes: RowShapes, outputs: Sequence[int] | None) -> bytes:
    """What the keys of all rows of some shapes begin with."""
    return repr((version, tuple(row_shapes), None if outputs is None else tuple(outputs))).encode()


def said_to_model(parameters: Parameters) -> bytes:
    """What a model may read of a request's parameters."""
    return repr(sorted((name, value) for name, value in parameters.items() if name not in _OF_SCHEDULING)).encode()


def key_of(way: bytes, rows: int, said: bytes, contents: Sequence[Buffer]) -> bytes:
    """The key of a request; 2 us for one small input.

    Args:
        way: see ``of_way``.
        rows: how many.
        said: see ``said_to_model``; b"" for nothing.
        contents: the bytes of each input.
    """
    parts: list[Buffer] = [b"%b %d %d %b" % (way, rows, len(said), said)]
    size = 0
    for content in contents:
        parts += (b" %d " % len(content), content)
        size += len(content)
    if size <= SMALL_BYTES:
        return blake2b(b"".join(parts), digest_size=_KEY_BYTES).digest()
    found = blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        found.update(part)
    return found.digest()


def spans_of(buffer: Buffer, spans: Sequence[int]) -> list[Buffer]:
    """The bytes of each input of a message (``Port.add_packed``)."""
    if spans[-1] - spans[0] > SMALL_BYTES:
        buffer = memoryview(buffer)
    return [buffer[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2)]


def contents_of(contents: Sequence[Content | Piece]) -> list[Buffer]:
    """The bytes of each input, which are given as bytes or as arrays."""
    return [_bytes_of(content) for content in contents]


def _bytes_of(content: Content | Piece) -> Buffer:
    if isinstance(content, StringRows):
        return content.content
    if isinstance(content, np.ndarray):
        return np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
    return view_of(content)
