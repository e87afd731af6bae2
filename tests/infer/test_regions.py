"""Regions of shared memory: who uses them, how many there may be, and objects that change under them."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.fake_cuda import FakeCuda
from tests.infer.shared import FOLDER, SIZE
from tests.waiting import wait_until
from toutates.infer.regions import Kind, Place, Regions, own_name
from toutates.system.cuda import Cuda
from toutates.system.errors import (
    AlreadyExists,
    ExecutionFailed,
    InvalidRequest,
    Overloaded,
    UnknownModel,
    Unsupported,
)


def open_files(key: str) -> int:
    """How often this process has the object open."""
    path = os.stat(FOLDER / key)
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, by whatever else runs here
            found += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), path)
    return found


def test_a_region_goes_with_the_last_request_that_uses_it(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, SIZE)
    assert open_files(key) == 1
    twice = [Place("r", 0, 16), Place("r", 16, 16)]
    held = [regions.acquire(twice), regions.acquire(twice[:1])]
    regions.unregister(Kind.SYSTEM, "r")
    regions.unregister(Kind.SYSTEM, "")
    for used in held:
        with pytest.raises(AlreadyExists):
            regions.register_system("r", key, 0, SIZE)
        assert [one.name for one in regions.status(Kind.SYSTEM, "")] == ["r"]
        regions.release(used)
    assert regions.status(Kind.SYSTEM, "") == []
    wait_until(lambda: open_files(key) == 0)  # another thread closes it
    with pytest.raises(UnknownModel):
        regions.acquire(twice)


def test_a_request_that_lacks_one_region_uses_none(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, SIZE)
    with pytest.raises(UnknownModel, match="'none'"):
        regions.acquire([Place("r", 0, 16), Place("none", 0, 16)])
    regions.unregister(Kind.SYSTEM, "r")
    assert regions.status(Kind.SYSTEM, "") == []


def test_regions_are_bounded_in_number_and_in_bytes(key: str) -> None:
    regions = Regions(allowed=True, most=3, most_bytes=3 * SIZE - 1)
    regions.register_system("a", key, 0, SIZE)
    regions.register_system("b", key, 0, SIZE)
    with pytest.raises(Overloaded, match="131072 are registered, and 196607 is the most"):
        regions.register_system("c", key, 0, SIZE)
    regions.register_system("c", key, 0, 1)
    with pytest.raises(Overloaded, match="3 are registered, and that is the most"):
        regions.register_system("d", key, 0, 1)
    assert open_files(key) == 3
    regions.unregister(Kind.SYSTEM, "a")
    regions.register_system("d", key, 0, SIZE)
    for name, what in (("n" * 513, "name"), ("e", "key")):
        with pytest.raises(InvalidRequest, match=f"whose {what} has 513 bytes, at most 512 are taken"):
            regions.register_system(name, "k" * 513, 0, 1)
    regions.close()
    assert open_files(key) == 0


def test_an_owner_has_its_share_whatever_others_hold_and_hears_nothing_of_them(key: str) -> None:
    holders = frozenset("ab")
    regions = Regions(allowed=True, most=8, most_bytes=SIZE, holders=lambda: holders)
    for at in range(6):
        regions.register_system(own_name("a", f"{at}"), key, 0, 1)
    with pytest.raises(Overloaded, match="'z': this caller has 6, of 6 bytes, and there is no room for more now"):
        regions.register_system(own_name("a", "z"), key, 0, 1)
    with pytest.raises(Overloaded, match="'z': this caller has 0, of 0 bytes"):
        regions.register_system(own_name("c", "z"), key, 0, SIZE)  # who has no share
    with pytest.raises(Overloaded, match=f"'z' of {SIZE} bytes: this caller has 0, of 0 bytes"):
        regions.register_system(own_name("b", "z"), key, 0, SIZE)
    for at in range(2):
        regions.register_system(own_name("b", f"{at}"), key, 0, SIZE // 8)
    regions.unregister(Kind.SYSTEM, own_name("a", "0"))
    regions.register_system(own_name("a", "z"), key, 0, 1)
    assert open_files(key) == 8
    regions.close()
    assert open_files(key) == 0


def test_nothing_is_registered_unless_it_is_allowed() -> None:
    with pytest.raises(Unsupported):
        Regions().refuse_unless_allowed()
    assert Regions().extensions == ()
    assert Regions(allowed=True).extensions == ("system_shared_memory",)


def test_places_are_judged_as_exact_arithmetic_judges_them(regions: Regions, key: str) -> None:
    """Numbers near every edge, with the answers that Triton's order of checks gives."""
    regions.register_system("r", key, 4096, SIZE - 4096)
    size = SIZE - 4096
    numbers = [edge + near for edge in (0, size, 2**31, 2**32, 2**63, 2**64) for near in (-2, -1, 0, 1)]
    numbers = [number for number in numbers if 0 <= number < 2**64]
    rng = random.Random(4)
    for _ in range(2_000):
        offset, length = rng.choice(numbers), rng.choice(numbers)
        place = Place("r", offset, length)
        text = ""
        try:
            regions.check(place)
        except InvalidRequest as error:
            text = str(error)
        if offset >= size:
            wanted = "Invalid offset for"
        elif offset + length >= 2**64:
            wanted = "Integer overflow detected: byte_size "
        elif offset + length > size:
            wanted = "Invalid offset + byte size for"
        else:
            wanted = ""
        assert text.startswith(wanted)
        assert bool(text) == bool(wanted)


def test_an_object_that_is_cut_while_it_is_used_fails_requests_and_nothing_else(regions: Regions, key: str) -> None:
    """Somebody shrinks the object and makes it whole again, over and over: a mapping would end this process."""
    regions.register_system("r", key, 0, SIZE)
    over = threading.Event()

    def cut() -> None:
        descriptor = os.open(FOLDER / key, os.O_RDWR)
        while not over.is_set():
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, SIZE)
        os.close(descriptor)

    thread = threading.Thread(target=cut)
    thread.start()
    place = Place("r", 0, SIZE)
    seen: set[type[Any] | None] = set()
    buffer = memoryview(bytearray(SIZE))
    texts: set[str] = set()

    def use() -> bool:
        for reads in (True, False):
            try:
                if reads:
                    regions.read(place, buffer, "X")
                else:
                    regions.write(place, [buffer], "X")
                seen.add(None)
            except (InvalidRequest, ExecutionFailed) as error:
                seen.add(type(error))
                texts.add(str(error))
        return len(seen) == 3

    try:
        wait_until(use, pause_s=0)
    finally:
        over.set()
        thread.join()
    assert all("has become smaller since it was registered" in text for text in texts)
    assert seen == {None, InvalidRequest, ExecutionFailed}


# --- memory of GPUs


def test_what_cuda_refuses_fails_the_request_and_names_tensor_and_gpu() -> None:
    client, gpus = FakeCuda(), FakeCuda()
    client.cudaSetDevice(1)
    handle = client.cudaIpcGetMemHandle(client.cudaMalloc(SIZE)[1])[1]
    regions = Regions(allowed=True, most_bytes=SIZE - 1, cuda=Cuda(gpus.runtime, gpus.driver))
    try:
        regions.register_cuda("r", bytes(handle.octets.raw), 1, SIZE)  # which does not count as memory of the host
        place = Place("r", 0, 64)
        held = regions.acquire([place])
        regions.write(place, [b"x" * 64], "OUT")
        into = bytearray(64)
        regions.read(place, memoryview(into), "IN")
        assert into == b"x" * 64
        gpus.broken = {"cudaMemcpyAsync"}
        with pytest.raises(
            InvalidRequest,
            match=r"^input 'IN' cannot be read from shared memory region 'r', which is of GPU 1: cudaErrorIllegal",
        ):
            regions.read(place, memoryview(into), "IN")
        with pytest.raises(ExecutionFailed, match=r"^output 'OUT' cannot be written to shared memory region 'r'"):
            regions.write(place, [b"x" * 64], "OUT")
        regions.unregister(Kind.CUDA, "r")
        assert len(gpus.allocations) == 1  # it is in use
        regions.release(held)
        wait_until(lambda: not gpus.allocations)  # another thread closes it
        with pytest.raises(UnknownModel):
            regions.acquire([place])
    finally:
        regions.close()
        client.free_all()


def test_memory_that_cannot_be_registered_is_closed_again(caplog: pytest.LogCaptureFixture) -> None:
    client, gpus = FakeCuda(), FakeCuda()
    handle = bytes(client.cudaIpcGetMemHandle(client.cudaMalloc(64)[1])[1].octets.raw)
    regions = Regions(allowed=True, most=1, cuda=Cuda(gpus.runtime, gpus.driver))
    try:
        with pytest.raises(InvalidRequest, match="'r': invalid args"):
            regions.register_cuda("r", handle, 0, 65)
        assert not gpus.allocations
        with caplog.at_level("INFO"):
            for _ in range(3):
                with pytest.raises(InvalidRequest, match="invalid args"):
                    regions.register_cuda("r", bytes(64), 0, 64)
        assert len(caplog.records) == 1
        assert "cannot be opened on GPU 0: cudaErrorInvalidValue (1)" in caplog.text
        regions.register_cuda("r", handle, 0, 64)
        with pytest.raises(Overloaded):
            regions.register_cuda("another", handle, 0, 64)
        assert gpus.allocations[0].opened == 1
    finally:
        regions.close()
        client.free_all()
    assert not gpus.allocations


def test_without_a_gpu_the_answer_is_the_same_whether_regions_are_allowed_or_not() -> None:
    for allowed in (False, True):
        regions = Regions(allowed=allowed)
        with pytest.raises(InvalidRequest, match="'r', GPUs not supported"):
            regions.register_cuda("r", bytes(64), 0, 64)
        regions.refuse_cuda_unless_allowed()
    with pytest.raises(Unsupported):
        Regions(gpus=True).refuse_cuda_unless_allowed()
