"""Random rows of inputs, by which a probe finds out how a model computes (``backends.probing``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.protocol.datatypes import Datatype
from toutates.protocol.strings import StringTensor

__all__ = ["Inputs", "one_row", "random_rows"]

#: The rows of each input, by its index.
Inputs = Mapping[int, npt.NDArray[Any] | StringTensor]

#: Whole numbers are below these: most are indices or pixels. The lesser ones are valid nearly everywhere.
_MOST_WHOLE: Final = 16
_MOST_OF_A_BYTE: Final = 256
_LEAST_WHOLE: Final = 2
#: Prime, so that rows of usual sizes are different parts of the pool.
_POOL_SIZE: Final = 4_093
#: Rows are of different magnitude, and every fourth one has negative numbers too.
_SCALES: Final = np.array([1, 1, 0.25, 2], np.float32)
_NEGATIVE: Final = 1
_EVERY: Final = 4


@cache
def _pool() -> npt.NDArray[np.float32]:
    """Random numbers from 0 to 1, the same in every process: what a probe finds does not differ from load to load."""
    numbers: npt.NDArray[np.float32] = np.random.default_rng(1729).random(_POOL_SIZE, np.float32)
    numbers.flags.writeable = False
    return numbers


def random_rows(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> npt.NDArray[Any] | StringTensor:
    """Random rows of an input, whose range is valid for most models. They are not to be changed."""
    return _small_random(datatype, shape, at, narrow) if prod(shape) < _POOL_SIZE else _new(datatype, shape, at, narrow)


#: Many models have inputs of the same few shapes.
@lru_cache(64)
def _small_random(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> Any:
    return _new(datatype, shape, at, narrow)


def _new(datatype: Datatype, shape: tuple[int, ...], at: int, narrow: bool) -> npt.NDArray[Any] | StringTensor:
    pool, count = _pool(), prod(shape)
    start = 211 * at % (_POOL_SIZE >> 1)
    numbers = pool[start : start + count] if start + count <= _POOL_SIZE else np.resize(np.roll(pool, -start), count)
    if not datatype.size:
        # Texts that are numbers as well.
        return StringTensor.of([b"%d" % number for number in (numbers * 1_000).astype(np.int64).tolist()], shape)
    kind = "f" if datatype.name == "BF16" else datatype.numpy.kind
    if kind == "b":
        return (numbers < 0.5).reshape(shape)
    if kind in "iu":
        most = _LEAST_WHOLE if narrow else _MOST_OF_A_BYTE if datatype.name == "UINT8" else _MOST_WHOLE
        whole = (numbers * most).astype(datatype.numpy).reshape(shape)
        if not narrow:
            # Zeros are in the first row alone: what leaves numbers out, such as a triangle of a matrix, writes zeros.
            np.maximum(whole[1:], 1, out=whole[1:])
        return whole
    rows = numbers.reshape(shape[0], -1) * np.resize(_SCALES, shape[0])[:, None]
    rows[_NEGATIVE::_EVERY] = 2 * rows[_NEGATIVE::_EVERY] - 1
    rows = rows.reshape(shape)
    if datatype.name == "BF16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype(datatype.numpy, copy=False)


def one_row(inputs: Mapping[int, npt.NDArray[Any] | StringTensor], row: int) -> Inputs:
    """One of these rows, by itself."""
    return {index: _row_of(array, row) for index, array in inputs.items()}


def _row_of(array: npt.NDArray[Any] | StringTensor, row: int) -> npt.NDArray[Any] | StringTensor:
    if isinstance(array, StringTensor):
        size = prod(array.shape[1:])
        return StringTensor.of(array.elements()[row * size : (row + 1) * size], (1, *array.shape[1:]))
    return array[row : row + 1]
