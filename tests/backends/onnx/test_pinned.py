"""Pinned memory. There is no GPU in these tests: a stand-in takes the part of CUDA's runtime, and nothing else."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import numpy as np
import pytest

from toutates.backends.onnx.pinned import PinnedMemory, find_cuda_runtime
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec


class FakeRuntime:
    """Remembers what is pinned; answers ``code`` to every attempt."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        if self.code == 0:
            self.pinned[pointer] = size
        return self.code

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.pinned[pointer]
        return 0


def test_an_array_is_pinned_for_as_long_as_it_or_a_view_of_it_lives() -> None:
    runtime = FakeRuntime()
    array = np.empty((4, 8), np.float32)
    PinnedMemory(runtime).pin(array)
    assert runtime.pinned == {array.ctypes.data: 128}
    view = array.reshape(-1).view(np.uint8).data
    del array
    gc.collect()
    assert runtime.pinned
    del view
    gc.collect()
    assert not runtime.pinned


def test_memory_that_cuda_refuses_to_pin_is_used_as_it_is_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    memory = PinnedMemory(FakeRuntime(code=2))
    with caplog.at_level(logging.WARNING):
        memory.pin(np.empty(8))
        memory.pin(np.empty(8))
    assert [record.message for record in caplog.records] == ["batch buffers of 64 bytes cannot be pinned: CUDA error 2"]


def test_the_batches_of_a_supertensor_are_pinned_when_it_is_told_to() -> None:
    runtime = FakeRuntime()
    signature = Signature(
        (TensorSpec("x", BY_NAME["FP32"], (4,)),), (TensorSpec("y", BY_NAME["FP32"], (4,)),), batched=True
    )
    pinned = PinnedMemory(runtime)
    supertensor = SuperTensor("m", signature, batch_size=8, capacity=2, pin=pinned.pin)
    lane = supertensor.lane(((0, (4,)),))
    with supertensor.lock:
        batch = supertensor.open_batch(lane, 1)
    assert runtime.pinned == {batch.arrays[0].ctypes.data: 8 * 4 * 4}


def test_a_process_without_cuda_has_no_runtime(tmp_path: Path) -> None:
    # Not this process: other packages, such as PyTorch, bring CUDA's runtime into it on machines without a GPU as well.
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n7f02-7f03 rw-p 00000000 00:00 0\n")
    assert find_cuda_runtime(maps) is None


def test_the_runtime_is_found_among_the_libraries_of_the_process(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 2 /opt/nvidia/lib/libcudart.so.12\n"
    )
    # It is looked for by path, so that the one which ONNX Runtime uses is opened and no other.
    with pytest.raises(OSError, match=r"/opt/nvidia/lib/libcudart\.so\.12"):
        find_cuda_runtime(maps)
