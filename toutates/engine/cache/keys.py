"""What tells requests apart whose answers are kept.

A key is a hash of everything that an answer is made from: the version as it was loaded, the shapes of the inputs, the
outputs that are asked for, the number of rows, the bytes of each input and, where the model reads them, the request's
parameters. Nobody can make two requests of the same key (BLAKE2b, 160 bits), so nobody gets the answer of another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def key_of(way: bytes, rows: int, said: bytes, contents: Iterator[memoryview]) -> bytes:
    """The key of a request.

    Args:
        way: see ``of_way``.
        rows: how many.
        said: see ``said_to_model``; b"" for nothing.
        contents: the bytes of each input.
    """
    found = blake2b(way, digest_size=_KEY_BYTES)
    found.update(b"%d %d %b" % (rows, len(said), said))
    for content in contents:
        found.update(b" %d " % len(content))
        found.update(content)
    return found.digest()


def spans_of(buffer: Buffer, spans: Sequence[int]) -> Iterator[memoryview]:
    """The bytes of each input of a message (``Port.add_packed``)."""
    whole = memoryview(buffer)
    return (whole[spans[at] : spans[at + 1]] for at in range(0, len(spans), 2))


def contents_of(contents: Sequence[Content | Piece]) -> Iterator[memoryview]:
    """The bytes of each input, which are given as bytes or as arrays."""
    for content in contents:
        if isinstance(content, StringRows):
            yield memoryview(content.content)
        elif isinstance(content, np.ndarray):
            yield np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
        else:
            yield view_of(content)
