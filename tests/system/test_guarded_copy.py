"""Copies to mappings of files, and of objects of shared memory, that become shorter."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from toutates.system.guarded_copy import MOST_MAPPED, GuardedCopies, Mapping
from toutates.system.poison import VARIABLE
from toutates.system.shared_memory import FOLDER, SharedObject

PAGE = mmap.PAGESIZE
SIZE = 320 * 1024
CONTENT = os.urandom(SIZE)


@pytest.fixture
def copies() -> Iterator[GuardedCopies]:
    copies = GuardedCopies()
    stage = copies._take()
    if stage is None:
        pytest.skip("the system has no huge pages for files")
    stage.close()
    yield copies
    copies.close()


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("file")
    os.ftruncate(fd, SIZE)
    yield fd
    os.close(fd)


@pytest.fixture
def path() -> Iterator[Path]:
    path = FOLDER / f"toutates-test-{os.getpid()}-{threading.get_ident()}"
    path.write_bytes(bytes(SIZE))
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("offset", "start", "size"), [(0, 0, SIZE), (PAGE, 0, SIZE - PAGE), (0, 13, 300_001), (PAGE, 5, 1), (0, SIZE, 0)]
)
def test_bytes_get_to_their_place(copies: GuardedCopies, file: int, offset: int, start: int, size: int) -> None:
    mapping = Mapping(file, offset, SIZE - offset)
    assert copies.copy(CONTENT[:size], mapping, start) == size
    mapping.close()
    first = offset + start
    assert os.pread(file, SIZE, 0) == bytes(first) + CONTENT[:size] + bytes(SIZE - first - size)


def test_in_the_test_mode_a_stage_has_nothing_of_the_copy_before(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = bytes(range(0x90, 0xA0))
    monkeypatch.setenv(VARIABLE, pattern.hex())
    copies = GuardedCopies()
    mapping = Mapping(file, 0, SIZE)
    if not copies.copy(CONTENT, mapping, 0):
        pytest.skip("the system has no huge pages for files")
    assert copies.copy(b"short", mapping, 0) == 5
    mapping.close()
    [stage] = copies._spare
    assert bytes(stage._view[:64]) == b"short" + (4 * pattern)[5:]
    copies.close()


@pytest.mark.parametrize("left", [0, 1, PAGE, 5 * PAGE - 1, 70 * PAGE])
def test_of_a_file_that_has_become_shorter_the_pages_that_are_there_are_written(
    copies: GuardedCopies, file: int, left: int
) -> None:
    mapping = Mapping(file, 0, SIZE)
    assert copies.copy(bytes(SIZE), mapping, 0) == SIZE
    os.ftruncate(file, left)
    assert copies.copy(CONTENT, mapping, 0) == -(-left // PAGE) * PAGE
    mapping.close()
    assert os.fstat(file).st_size == left
    assert os.pread(file, SIZE, 0) == CONTENT[:left]


def test_without_huge_pages_nothing_is_copied_and_objects_are_written_as_files(
    file: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Mapping] = []
    monkeypatch.setattr(Mapping, "make_huge", lambda mapping: tried.append(mapping))
    copies = GuardedCopies()
    mapping = Mapping(file, 0, SIZE)
    assert [copies.copy(CONTENT, mapping, 0) for _ in range(9)] == [0] * 9
    assert len(tried) == 3
    mapping.close()
    one = SharedObject(path.name, copies)
    one.map(0, SIZE)
    assert one.write([CONTENT[:100_000], CONTENT[100_000:]], 0) == SIZE
    one.close()
    assert path.read_bytes() == CONTENT


def test_threads_that_try_at_the_same_time_do_not_make_it_be_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = GuardedCopies()
    tried: list[Mapping] = []

    def fail_in_two_threads(mapping: Mapping) -> bool:
        tried.append(mapping)
        if len(tried) == 3:  # the last time; and another thread comes before it is counted
            assert made._take() is None
        return False

    monkeypatch.setattr(Mapping, "make_huge", fail_in_two_threads)
    assert [made._take() for _ in range(9)] == [None] * 9
    assert len(tried) == 4


def test_a_file_that_there_is_no_room_for_is_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: write(fd, content[:100_000]))
    copies = GuardedCopies()
    assert copies._take() is None
    copies.close()


def test_so_much_is_mapped_and_other_objects_are_written_as_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For it takes long to let go of what was mapped and written."""
    unmapped: list[int] = []
    close = Mapping.close

    def noted(mapping: Mapping) -> None:
        unmapped.append(mapping.size)
        close(mapping)

    monkeypatch.setattr(Mapping, "close", noted)
    copies = GuardedCopies(SIZE + PAGE)
    first, second = (SharedObject(path.name, copies) for _ in range(2))
    first.map(0, SIZE)
    second.map(0, 2 * PAGE)
    assert second.write([CONTENT], 0) == SIZE
    assert path.read_bytes() == CONTENT
    second.close()
    assert not unmapped
    first.close()
    assert unmapped == [SIZE]
    third = SharedObject(path.name, copies)
    third.map(0, SIZE)
    third.close()
    assert unmapped == [SIZE, SIZE]
    os.truncate(path, MOST_MAPPED + PAGE)
    large = SharedObject(path.name, GuardedCopies())
    large.map(0, MOST_MAPPED + 1)
    large.close()
    assert unmapped == [SIZE, SIZE]


def test_what_cannot_be_mapped_is_not_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Mapping:
        raise OSError(errno.ENOMEM, "no room")

    copies = GuardedCopies(SIZE)
    with monkeypatch.context() as patch:
        patch.setattr("toutates.system.guarded_copy.Mapping", refuse)
        for _ in range(2):
            one = SharedObject(path.name, copies)
            one.map(0, SIZE)
            one.close()
    one = SharedObject(path.name, copies)
    one.map(0, SIZE)
    assert one._mapping is not None
    one.close()


def test_where_an_object_cannot_be_mapped_it_is_written_as_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Mapping:
        raise OSError(errno.ENOMEM, "no room")

    monkeypatch.setattr("toutates.system.guarded_copy.Mapping", refuse)
    one = SharedObject(path.name, GuardedCopies())
    one.map(0, SIZE)
    assert one.write([CONTENT], 0) == SIZE
    one.close()
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("offset", [0, PAGE])
def test_pieces_of_every_size_are_written_to_an_object(copies: GuardedCopies, path: Path, offset: int) -> None:
    one = SharedObject(path.name, copies)
    one.map(offset, SIZE - offset)
    pieces: list[bytes | bytearray | memoryview] = [CONTENT[:70_000], memoryview(CONTENT)[70_000:70_001]]
    pieces.append(bytearray(CONTENT[70_001 : SIZE - PAGE]))
    for shift in (0, PAGE):  # the first is not in what is mapped if ``offset`` is above 0
        assert one.write(pieces, shift) == SIZE - PAGE + shift
        assert path.read_bytes()[shift:][: SIZE - PAGE] == CONTENT[: SIZE - PAGE]
    one.close()


def test_an_object_that_is_cut_while_it_is_written_costs_nothing_but_what_is_cut(
    copies: GuardedCopies, path: Path
) -> None:
    """It is shortened between the look at it and the copy each time, and by another thread all the time."""
    one = SharedObject(path.name, copies)
    one.map(0, SIZE)

    def cut_and_ask() -> bool:
        os.truncate(path, 5_000)
        return True

    for _ in range(3):
        path.write_bytes(CONTENT[::-1])
        assert one.write([CONTENT], 0, cut_and_ask) == SIZE
        assert path.read_bytes() == CONTENT  # it has grown again
    over = threading.Event()

    def cut() -> None:
        fd = os.open(path, os.O_RDWR)
        while not over.is_set():
            os.ftruncate(fd, 1_000)
            os.pwrite(fd, CONTENT, 0)
        os.close(fd)

    threads = [threading.Thread(target=cut) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        ends = {one.write([CONTENT], 0) for _ in range(500)}
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert max(ends) <= SIZE
    path.write_bytes(bytes(SIZE))
    assert one.write([CONTENT], 0) == SIZE
    assert path.read_bytes() == CONTENT
    one.close()


def test_threads_that_write_at_the_same_time_do_not_mix_what_they_write(copies: GuardedCopies, path: Path) -> None:
    one = SharedObject(path.name, copies)
    one.map(0, SIZE)
    part = SIZE // 4
    begin = threading.Barrier(4)

    def write(number: int) -> None:
        begin.wait()
        for _ in range(100):
            one.write([bytes([number]) * part], number * part)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    assert path.read_bytes() == b"".join([bytes([number]) * part for number in range(4)])
