"""Memory of GPUs by CUDA IPC: what CUDA is asked, and what becomes of its errors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.fake_cuda import FakeCuda
from toutates.system import cuda
from toutates.system.cuda import Cuda, CudaError, gpus_seen, load_cuda
from toutates.system.errors import Cancelled

SIZE = 3_000_000


@pytest.fixture
def owner() -> Iterator[FakeCuda]:
    """The GPUs as a client sees them."""
    owner = FakeCuda()
    yield owner
    owner.free_all()


@pytest.fixture
def gpus() -> FakeCuda:
    """The same GPUs as this process sees them."""
    return FakeCuda()


@pytest.fixture
def opened(gpus: FakeCuda) -> Cuda:
    return Cuda(gpus.runtime, gpus.driver)


def handle_of(owner: FakeCuda, size: int = SIZE, device: int = 0) -> bytes:
    owner.cudaSetDevice(device)
    _, address = owner.cudaMalloc(size)
    _, handle = owner.cudaIpcGetMemHandle(address)
    return bytes(handle.octets.raw)


def read(memory: Any, offset: int, size: int) -> bytes:
    into = bytearray(size)
    assert memory.read_into(memoryview(into), offset) == size
    return bytes(into)


def test_bytes_are_written_and_read_where_they_belong(owner: FakeCuda, opened: Cuda) -> None:
    memory = opened.open(1, handle_of(owner, device=1))
    assert (memory.device, memory.size) == (1, SIZE)
    large = bytes(range(256)) * 8_192  # two MiB
    assert memory.write([b"ab", bytearray(b"cd"), memoryview(b"ef"), b"", large], 10) == 16 + len(large)
    assert read(memory, 8, 10) == b"\0\0abcdef" + large[:2]
    assert read(memory, 16 + len(large) - 3, 5) == large[-3:] + b"\0\0"
    assert read(memory, 0, 0) == b""
    assert memory.write([large, large], 0) == SIZE  # has no room, and nothing is written
    assert read(memory, 10, 2) == b"ab"
    memory.close()


def test_memory_may_be_opened_twice_and_is_gone_once_both_are_closed(
    owner: FakeCuda, gpus: FakeCuda, opened: Cuda
) -> None:
    handle = handle_of(owner)
    first, second = opened.open(0, handle), opened.open(0, handle)
    first.close()
    assert second.write([b"x"], 0) == 1
    assert len(gpus.allocations) == 1
    second.close()
    assert not gpus.allocations


@pytest.mark.parametrize(("device", "text"), [(-1, "no GPU -1 among 2"), (2, "no GPU 2"), (1, "cudaErrorInvalidValue")])
def test_memory_is_opened_on_its_own_gpu_alone(owner: FakeCuda, opened: Cuda, device: int, text: str) -> None:
    with pytest.raises(CudaError, match=text):
        opened.open(device, handle_of(owner))


def test_memory_whose_size_is_unknown_is_closed_again(owner: FakeCuda, gpus: FakeCuda, opened: Cuda) -> None:
    gpus.broken = {"cuMemGetAddressRange"}
    with pytest.raises(CudaError, match=r"cudaErrorIllegalAddress \(700\)"):
        opened.open(0, handle_of(owner))
    assert not gpus.allocations


@pytest.mark.parametrize("function", ["cudaSetDevice", "cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_a_copy_that_fails_says_so(owner: FakeCuda, gpus: FakeCuda, opened: Cuda, function: str) -> None:
    memory = opened.open(0, handle_of(owner))
    gpus.broken = {function}
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        memory.write([b"x"], 0)
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        read(memory, 0, 1)


def test_memory_that_cannot_be_closed_leaves_a_line(
    owner: FakeCuda, gpus: FakeCuda, opened: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    memory = opened.open(0, handle_of(owner))
    gpus.broken = {"cudaIpcCloseMemHandle"}
    with caplog.at_level(logging.WARNING):
        memory.close()
    assert "memory of GPU 0 could not be let go of: cudaErrorIllegalAddress (700)" in caplog.text


def test_a_caller_who_leaves_is_noticed_at_each_mib(owner: FakeCuda, gpus: FakeCuda, opened: Cuda) -> None:
    memory = opened.open(0, handle_of(owner))
    asked = iter((True, False))
    with pytest.raises(Cancelled):
        memory.write([bytes(SIZE)], 0, lambda: next(asked))
    assert gpus.copied == 1_048_576


# --- what is there


@contextmanager
def _without_cuda() -> Iterator[None]:
    """As if no package of CUDA's were installed."""
    saved = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cuda"}
    for name in saved:
        del sys.modules[name]
    sys.modules["cuda"] = ModuleType("cuda")  # a package of that name which is another one
    try:
        yield
    finally:
        del sys.modules["cuda"]
        sys.modules |= saved


def test_without_the_package_there_is_no_cuda_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with _without_cuda(), caplog.at_level(logging.INFO):
        assert load_cuda() is None
        assert not gpus_seen()
    assert not caplog.records


def test_without_a_gpu_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with FakeCuda(devices=0).installed(), caplog.at_level(logging.INFO):
        assert load_cuda() is None
        assert "no CUDA shared memory: there is no GPU" in caplog.text
        monkeypatch.setattr(cuda, "DRIVER_FILES", (Path("/nowhere"),))
        assert not gpus_seen()
        monkeypatch.setattr(cuda, "DRIVER_FILES", (Path("/nowhere"), Path("/dev/null")))
        assert gpus_seen()


def test_without_a_driver_nvidias_own_package_says_why(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("cuda.bindings.runtime")
    if any(path.exists() for path in cuda.DRIVER_FILES):
        pytest.skip("there is a driver")
    with caplog.at_level(logging.INFO):
        assert load_cuda() is None
    assert "no CUDA shared memory: cudaErrorInsufficientDriver (35)" in caplog.text


@pytest.mark.gpu
def test_a_gpu_is_found() -> None:
    found = load_cuda()
    if found is None:
        pytest.skip("no GPU can be used: there is none, or no driver, or cuda-bindings is not installed")
    assert found.devices >= 1
    assert gpus_seen()
    with pytest.raises(CudaError):
        found.open(0, bytes(range(64)))
