"""The shared memory of batches: arrays in it, their memory once they are gone, and its size, which nobody changes."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

from toutates.backends.python.arena import Arena

PAGE = 4_096
BYTES = np.dtype(np.uint8)


def test_arrays_do_not_overlap_and_know_their_offset() -> None:
    arena = Arena(16 * PAGE)
    arrays = [arena.allocate((1_000,), BYTES) for _ in range(8)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [int(array[0]) for array in arrays] == list(range(8))
    assert len({arena.offset(array) for array in arrays}) == 8
    content = os.pread(arena.descriptor, 1_000, arena.offset(arrays[5]))
    assert content == bytes([5]) * 1_000


def test_memory_is_free_again_once_no_view_is_left() -> None:
    arena = Arena(4 * PAGE)
    array: Any = arena.allocate((4 * PAGE,), BYTES)
    view = array[10:20]
    del array
    with pytest.raises(MemoryError):
        arena.allocate((1,), BYTES)
    del view
    gc.collect()
    parts = [arena.allocate((PAGE,), BYTES) for _ in range(4)]
    del parts[1:3]
    assert arena.allocate((2 * PAGE,), BYTES).nbytes == 2 * PAGE


def test_its_size_is_sealed() -> None:
    arena = Arena(4 * PAGE)
    for size in (0, PAGE, 8 * PAGE):
        with pytest.raises(OSError, match="Operation not permitted"):
            os.ftruncate(arena.descriptor, size)


def test_pages_of_large_arrays_go_back_to_the_system() -> None:
    arena = Arena(64 * 2**20)
    array: Any = arena.allocate((32 * 2**20,), BYTES)
    array[:] = 1
    before = os.fstat(arena.descriptor).st_blocks
    del array
    gc.collect()
    assert os.fstat(arena.descriptor).st_blocks < before // 8


def test_the_file_is_closed_with_the_last_reference() -> None:
    arena = Arena(PAGE)
    descriptor = arena.descriptor
    del arena
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_the_file_is_closed_by_hand_and_arrays_keep_their_memory() -> None:
    arena = Arena(PAGE)
    array: Any = arena.allocate((PAGE,), BYTES)
    descriptor = arena.descriptor
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    array[:] = 7
    assert array.sum() == 7 * PAGE
    others = os.open("/dev/null", os.O_RDONLY)
    arena.close()  # closes nobody else's
    os.close(others)
