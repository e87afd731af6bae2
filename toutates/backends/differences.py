"""How much outputs differ of rows that are run together and one by one (``backends.probing``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, prod, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.protocol.strings import EncodedStrings

__all__ = ["EXACT", "INEXACT", "Arrays", "differ", "other_rows", "size_of"]

#: The outputs of a run, in the signature's order.
Arrays = Sequence[npt.NDArray[Any] | EncodedStrings]

#: How much floats may differ, as a part of the output's largest magnitude, and in graphs that are not exact.
EXACT: Final = 0.01
INEXACT: Final = 0.1
#: Which part of whole numbers, booleans and texts may differ.
_DISCRETE: Final = 0.25


def size_of(array: npt.NDArray[Any] | EncodedStrings) -> int:
    """How many elements an output has."""
    return prod(array.shape)


def other_rows(outputs: Arrays, rows: int, uncounted: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """The outputs that have another number of rows, and their shapes."""
    return [
        (index, array.shape)
        for index, array in enumerate(outputs)
        if array.shape[:1] != (rows,) and index not in uncounted
    ]


def differ(
    together: npt.NDArray[Any] | EncodedStrings,
    apart: Sequence[npt.NDArray[Any] | EncodedStrings],
    rows: int,
    datatype: str,
) -> tuple[float, bool]:
    """How much an output differs, as a part of what is allowed, and whether it is of floats."""
    if isinstance(together, EncodedStrings):
        return _texts_differ(together, [one for one in apart if isinstance(one, EncodedStrings)], rows), False
    arrays = [one for one in apart if isinstance(one, np.ndarray)]
    joined = np.concatenate(arrays, axis=0) if arrays[0].ndim else np.stack(arrays)
    part = together[: len(joined)] if together.ndim and len(together) == rows else together
    if part.shape != joined.shape:
        return float("inf"), False
    if datatype == "BF16":
        part, joined = _widened(part), _widened(joined)
    if part.dtype.kind != "f":
        return (np.count_nonzero(part != joined) / (part.size or 1)) / _DISCRETE, False
    if not part.size:
        return 0.0, True
    if part.dtype.itemsize < 4:
        part, joined = part.astype(np.float32), joined.astype(np.float32)
    # NumPy's dot is the quickest look at all numbers: a sum of squares is finite where they are. No number is larger
    # than the root of that sum, and the largest is not less than the root of the mean.
    flat = part.reshape(-1)
    squares = float(flat.dot(flat))
    if isfinite(squares):
        off = (part - joined).reshape(-1)
        off_squares = float(off.dot(off)) * part.size
        if off_squares <= EXACT * EXACT * squares:
            return sqrt(off_squares / squares) / EXACT if off_squares else 0.0, True
        difference = float(np.abs(off).max())
        if isfinite(difference):
            return difference / (EXACT * float(max(np.abs(part).max(), np.abs(joined).max()))), True
    return _differ_unbounded(part, joined), True


def _differ_unbounded(part: npt.NDArray[Any], joined: npt.NDArray[Any]) -> float:
    """``_differ`` where some values are infinite, or no numbers."""
    same = (part == joined) | (np.isnan(part) & np.isnan(joined))
    finite = np.isfinite(part) & np.isfinite(joined)
    if not (same | finite).all():
        return float("inf")
    if not finite.any():
        return 0.0
    one, other = part[finite], joined[finite]
    most = max(np.abs(one).max(), np.abs(other).max())
    difference = np.abs(one - other).max()
    return float(difference / (EXACT * most)) if difference else 0.0


def _texts_differ(together: EncodedStrings, apart: Sequence[EncodedStrings], rows: int) -> float:
    joined = [text for one in apart for text in _texts(one)]
    own = _texts(together)
    if len(own) * len(apart) != len(joined) * rows:
        return float("inf")
    differing = sum([text != other for text, other in zip(own, joined, strict=False)])
    return differing / (len(joined) or 1) / _DISCRETE


def _texts(strings: EncodedStrings) -> list[bytes]:
    bounds = [int(bound) for bound in strings.bounds]
    return [strings.content[start + 4 : end] for start, end in pairwise(bounds)]


def _widened(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """BF16 as FP32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
