"""BYTES tensors: elements of any bytes, located in the received bytes and never copied one by one.

On the wire an element is a 4-byte little-endian length and that many bytes; elements are in row-major order. An element
is a range of the received bytes, and no Python object is made for it. ``StringRows`` holds the ranges of a request's
elements, ``StringTensor`` is the input of a run, and ``EncodedStrings`` is its output, encoded for responses.

Finding the ranges takes 0.1 us per element, because each length says where the next one is. Few elements are located at
once, by the worker. Many are located in the executor's thread when the batch runs, with pauses in which other threads
can have the GIL.

The errors raised here are the client's fault, and have Triton's texts.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.system.errors import InvalidRequest

__all__ = [
    "MANY_ELEMENTS",
    "MAX_ELEMENTS",
    "EncodedStrings",
    "StringRows",
    "StringTensor",
    "are_many",
    "join_rows",
    "rest",
]

#: Elements that a worker locates at once at most, in 0.5 ms; in other threads, elements between two calls of ``rest``.
MANY_ELEMENTS: Final = 4_096
#: Elements of one tensor at most. ONNX Runtime takes 32 bytes for each, and 25 ns to free it, while it holds the GIL.
MAX_ELEMENTS: Final = 1_048_576
#: Outputs of at most so many bytes are copied into their response; larger ones are sent from the batch's memory.
_LARGE_BYTES: Final = 65_536
#: How long ``rest`` sleeps. Any time will do, because sleeping releases the GIL.
_REST_S: Final = 1e-6

_LENGTH = struct.Struct("<I")
_OBJECT: Final = np.dtype(np.object_)

#: Positions or lengths of elements: a list of few, an array of int64 of many.
Numbers = Sequence[int] | npt.NDArray[np.int64]


def rest() -> None:
    """Let other threads have the GIL; called about every millisecond by long computations. Not for workers."""
    time.sleep(_REST_S)


def are_many(count: int, size: int) -> bool:
    """Whether a worker may not locate so many elements in so many bytes."""
    return min(count, size >> 2) > MANY_ELEMENTS


class _Source:
    """The bytes of one tensor of one request, and the ranges of its elements once they are located.

    Args:
        content: the encoded elements, and one unused byte after them; may be written to.
        count: elements that the shape asks for.
        tensor, model: names, for errors.
        prefix: of error texts.
    """

    __slots__ = ("_lock", "_prefix", "_subject", "_where", "content", "count")

    def __init__(self, content: bytearray | memoryview, count: int, tensor: str, model: str, prefix: str) -> None:
        self.content = content
        self.count = count
        self._subject = f"for inference input '{tensor}' for model '{model}'"
        self._prefix = prefix
        self._where: tuple[Numbers, Numbers] | None = None
        #: guards ``_where``. The rows of one request may be in two batches, whose threads both come here. Once the
        #: elements are located, a run may overwrite the byte after each (``StringTensor``), which is part of the next
        #: element's length, so no thread may be locating elements then.
        self._lock = threading.Lock()

    def where(self) -> tuple[Numbers, Numbers]:
        """Where each element begins, and its length; see ``StringRows.where``."""
        with self._lock:
            if self._where is None:
                self._where = self._find_many() if self.count > MANY_ELEMENTS else self._find_few()
            return self._where

    def _find_few(self) -> tuple[list[int], list[int]]:
        starts: list[int] = []
        lengths: list[int] = []
        end = self._find(0, self.count, starts, lengths)
        self._check_end(end, len(starts))
        return starts, lengths

    def _find_many(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        all_starts: list[npt.NDArray[np.int64]] = []
        all_lengths: list[npt.NDArray[np.int64]] = []
        end = found = 0
        most = min(self.count, MAX_ELEMENTS)
        while found < most:
            starts: list[int] = []
            lengths: list[int] = []
            end = self._find(end, min(MANY_ELEMENTS, most - found), starts, lengths)
            if not starts:
                break
            all_starts.append(np.array(starts, np.int64))
            all_lengths.append(np.array(lengths, np.int64))
            found += len(starts)
            rest()
        if found == MAX_ELEMENTS < self.count and len(self.content) - 1 - end >= 4:
            raise self._error(
                f"more than {MAX_ELEMENTS} string elements {self._subject}, which has {self.count}; no more are taken "
                "in one request"
            )
        self._check_end(end, found)
        return np.concatenate(all_starts), np.concatenate(all_lengths)

    def _find(self, end: int, most: int, starts: list[int], lengths: list[int]) -> int:
        """Locate up to ``most`` elements from offset ``end`` on; returns the offset of the last one's end."""
        content, length_at = self.content, _LENGTH.unpack_from
        size = len(content) - 1
        for _ in range(most):
            start = end + 4
            if start > size:
                break
            (length,) = length_at(content, end)
            end = start + length
            if end > size:
                raise self._error(
                    f"incomplete string data {self._subject}, "
                    f"expecting string of length {length} but only {size - start} bytes available."
                )
            starts.append(start)
            lengths.append(length)
        return end

    def _check_end(self, end: int, found: int) -> None:
        """Check that ``found`` elements, the last of which ends at ``end``, are as many as the shape asks for."""
        left = len(self.content) - 1 - end
        if left >= 4:
            raise self._error(
                f"unexpected number of string elements {self.count + 1} {self._subject}, expecting {self.count}"
                + ("" if self.count else "; its shape has a dimension of 0, and so no elements")
            )
        if left:
            raise self._error(
                f"incomplete string length indicator {self._subject}, expecting 4 bytes but only {left} bytes "
                "available."
            )
        if found < self.count:
            raise self._error(f"expected {self.count} string elements {self._subject}, got {found}")

    def _error(self, text: str) -> InvalidRequest:
        return InvalidRequest(self._prefix + text)


class StringRows:
    """Rows of a BYTES tensor of a request; a slice of it is some of the rows, as with an array."""

    __slots__ = ("_count", "_first", "_row", "_source")

    def __init__(self, source: _Source, first: int, count: int, row: int) -> None:
        self._source = source
        self._first = first
        self._count = count
        self._row = row

    @classmethod
    def received(
        cls, content: bytes | bytearray | memoryview, shape: Sequence[int], *, tensor: str, model: str, prefix: str = ""
    ) -> StringRows:
        """The rows of one tensor, whose elements are located now if they are few.

        Args:
            content: the encoded elements; copied.
            shape: of the tensor; its first dimension is that of the rows.
            tensor: name of the input, for errors.
            model: name of the model, for errors.
            prefix: of error texts.

        Raises:
            InvalidRequest: the elements are few, and not as many as the shape asks for.
        """
        own = bytearray().join((content, b"\0"))  # in memory that nobody has filled with zeros first
        count = prod(shape)
        rows = cls(_Source(own, count, tensor, model, prefix), 0, count, prod(shape[1:]))
        if not rows.many:
            rows.where()
        return rows

    @classmethod
    def lying(
        cls, content: memoryview, shape: Sequence[int], *, tensor: str, model: str, prefix: str = ""
    ) -> StringRows:
        """The rows of one tensor where they lie, whose elements are located now if they are few.

        Args:
            content: the encoded elements and one byte after them, which a run overwrites as it does bytes between
                elements: nobody else may read them. There is a view of it as long as there are these rows.
            shape, tensor, model, prefix: as of ``received``.

        Raises:
            InvalidRequest: the elements are few, and not as many as the shape asks for.
        """
        count = prod(shape)
        rows = cls(_Source(content, count, tensor, model, prefix), 0, count, prod(shape[1:]))
        if not rows.many:
            rows.where()
        return rows

    @property
    def many(self) -> bool:
        """Whether there may be too many elements for a worker to locate."""
        return are_many(self._source.count, len(self._source.content))

    @property
    def content(self) -> bytearray | memoryview:
        """The bytes of all elements of the request's tensor, also of other rows, and one unused byte after them."""
        return self._source.content

    def release(self) -> None:
        """Let go of the bytes that are where they lie; nobody reads these rows any more."""
        content = self._source.content
        if isinstance(content, memoryview):
            with suppress(BufferError):  # somebody reads them still, and lets go later
                content.release()

    def __getitem__(self, rows: slice) -> StringRows:
        count = self._count // self._row if self._row else 0
        first, end, _ = rows.indices(count)
        return StringRows(self._source, self._first + first * self._row, (end - first) * self._row, self._row)

    def where(self) -> tuple[Numbers, Numbers]:
        """Where each element begins in ``content``, and its length, bytes.

        Raises:
            InvalidRequest: the elements are not as many as the shape asks for.
        """
        starts, lengths = self._source.where()
        if self._count == self._source.count:
            return starts, lengths
        part = slice(self._first, self._first + self._count)
        return starts[part], lengths[part]


@dataclass(slots=True)
class StringTensor:
    """A BYTES tensor for a run.

    Attributes:
        shape: of the tensor.
        content: the bytes that the elements are in. The byte after an element belongs to no other element, and a run
            may overwrite it.
        starts, lengths: where each element is in ``content``, in row-major order.
    """

    shape: tuple[int, ...]
    content: bytearray | memoryview
    starts: Numbers
    lengths: Numbers

    @classmethod
    def of(cls, elements: Sequence[bytes], shape: Sequence[int]) -> StringTensor:
        """A tensor of these elements, in row-major order."""
        content = b"".join(_LENGTH.pack(len(element)) + element for element in elements)
        return join_rows([StringRows.received(content, shape, tensor="", model="")], shape)

    def elements(self) -> list[bytes]:
        """Each element as an object of its own."""
        content = self.content
        return [bytes(content[start : start + length]) for start, length in zip(self.starts, self.lengths, strict=True)]


def join_rows(pieces: Sequence[StringRows], shape: Sequence[int]) -> StringTensor:
    """The rows of several requests as one tensor.

    Args:
        pieces: the rows, in order.
        shape: of the whole.

    Raises:
        InvalidRequest: the elements of one of them are not as many as its shape asks for.
    """
    whole = tuple(shape)
    if len(pieces) == 1:
        return StringTensor(whole, pieces[0].content, *pieces[0].where())
    found = [piece.where() for piece in pieces]
    content = bytearray().join([piece.content for piece in pieces])
    offsets: list[int] = []
    at = 0
    for piece in pieces:
        offsets.append(at)
        at += len(piece.content)
    if prod(whole) <= MANY_ELEMENTS:
        starts: Numbers = [
            start + offset for (starts, _), offset in zip(found, offsets, strict=True) for start in starts
        ]
        return StringTensor(whole, content, starts, [length for _, lengths in found for length in lengths])
    starts = np.concatenate(
        [np.asarray(starts, np.int64) + offset for (starts, _), offset in zip(found, offsets, strict=True)]
    )
    return StringTensor(whole, content, starts, np.concatenate([np.asarray(lengths, np.int64) for _, lengths in found]))


@dataclass(slots=True)
class EncodedStrings:
    """A BYTES tensor, encoded for a response.

    Attributes:
        content: each element after its length.
        bounds: where each element's length begins in ``content``, and the end of the last.
        shape: of the tensor.
    """

    content: bytes
    bounds: Numbers
    shape: tuple[int, ...]

    @classmethod
    def of(cls, elements: Sequence[bytes], shape: Sequence[int]) -> EncodedStrings:
        """These elements, in row-major order."""
        bounds = [0]
        for element in elements:
            bounds.append(bounds[-1] + 4 + len(element))
        parts = [part for element in elements for part in (_LENGTH.pack(len(element)), element)]
        return cls(b"".join(parts), bounds, tuple(shape))

    @classmethod
    def joined(cls, pieces: Sequence[EncodedStrings]) -> EncodedStrings:
        """Tensors one after the other, by their first dimension; in all others they are alike."""
        bounds = [0]
        for piece in pieces:
            start = bounds[-1]
            bounds += [start + int(bound) for bound in piece.bounds[1:]]
        rows = sum(piece.shape[0] for piece in pieces)
        return cls(b"".join([piece.content for piece in pieces]), bounds, (rows, *pieces[0].shape[1:]))

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of an array of such elements."""
        return _OBJECT

    def cut(self, first: int, rows: int) -> EncodedStrings:
        """A copy of some rows."""
        row = prod(self.shape[1:])
        bounds = self.bounds[first * row : (first + rows) * row + 1]
        start = int(bounds[0])
        return EncodedStrings(
            bytes(self.content[start : int(bounds[-1])]),
            [int(bound) - start for bound in bounds],
            (rows, *self.shape[1:]),
        )

    def rows(self, first: int, rows: int) -> bytes | memoryview:
        """Some rows, encoded: those of the first dimension."""
        row = prod(self.shape[1:])
        start, end = int(self.bounds[first * row]), int(self.bounds[(first + rows) * row])
        if end - start > _LARGE_BYTES:
            return memoryview(self.content)[start:end]
        return self.content[start:end]
