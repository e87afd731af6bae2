"""What tells requests apart whose answers are kept.

A key is made of everything that an answer is made from: the version as it was loaded, the shapes of the inputs, the
outputs that are asked for, the number of rows, the bytes of each input and, where the model reads them, the request's
parameters. A small request's key holds its inputs as they are, because Python hashes and compares 256 bytes in a fifth
of what a digest of them takes. That of a larger one is a digest (SHA-256, 192 bits of it). So nobody can make two
requests of the same key, and nobody gets the answer of another request.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from typing import Final

import numpy as np

from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import Parameters
from toutates.engine.servable import Buffer, Content, view_of
from toutates.protocol.strings import StringRows

__all__ = [
    "EXACT_BYTES",
    "OPT_OUT",
    "contents_of",
    "head_of",
    "key_of",
    "new_version",
    "of_way",
    "said_to_model",
    "spans_of",
]

#: The request parameter that keeps a request away from the cache, where it is false.
OPT_OUT: Final = "response_cache"
#: Parameters that say when a request runs, not what it computes; and of sequences, which models with a cache have not.
_OF_SCHEDULING: Final = frozenset({OPT_OUT, "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
#: Inputs of at most so many bytes are in the key themselves.
EXACT_BYTES: Final = 1_024
#: Fewer than the head of a key has, so that no digest is the key of a small request.
_DIGEST_BYTES: Final = 24
#: Inputs of at most so many bytes are joined before they are hashed, which is quicker than several calls.
SMALL_BYTES: Final = 8_192
#: What follows in a key: the bytes of one input; or lengths, what is said to the model, and the bytes of all inputs.
_ONE_INPUT: Final = b"\0"
_SEVERAL: Final = b"\1"
_VERSIONS: Final = count()


def new_version() -> int:
    """A number that no other version has, nor the same one loaded again."""
    return next(_VERSIONS)


def of_way(version: int, row_shapes: RowShapes, outputs: Sequence[int] | None) -> bytes:
    """What the keys of all rows of some shapes begin with, 24 bytes."""
    way = repr((version, tuple(row_shapes), None if outputs is None else tuple(outputs)))
    return sha256(way.encode()).digest()[:_DIGEST_BYTES]


def head_of(way: bytes, rows: int) -> bytes:
    """What the keys of requests of ``rows`` rows begin with; see ``of_way``.

    Followed by the bytes of the one input, it is the key of a small request that says nothing to its model.
    """
    return way + rows.to_bytes(8, "little") + _ONE_INPUT


def said_to_model(parameters: Parameters) -> bytes:
    """What a model may read of a request's parameters."""
    return repr(sorted((name, value) for name, value in parameters.items() if name not in _OF_SCHEDULING)).encode()


def key_of(head: bytes, said: bytes, contents: Sequence[Buffer]) -> bytes:
    """The key of a request.

    Args:
        head: see ``head_of``.
        said: see ``said_to_model``; b"" for nothing.
        contents: the bytes of each input.
    """
    parts: list[Buffer] = [head, *contents]
    if said or len(contents) != 1:
        lengths = b"".join([len(part).to_bytes(8, "little") for part in (said, *contents)])
        parts[0] = b"%b%b%b%b" % (head[: -len(_ONE_INPUT)], _SEVERAL, lengths, said)
    size = sum(map(len, contents))
    if size <= EXACT_BYTES and len(said) <= EXACT_BYTES:
        return b"".join(parts)
    if size <= SMALL_BYTES:
        return sha256(b"".join(parts)).digest()[:_DIGEST_BYTES]
    found = sha256()
    for part in parts:
        found.update(part)
    return found.digest()[:_DIGEST_BYTES]


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
