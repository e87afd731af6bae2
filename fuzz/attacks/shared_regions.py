"""System shared memory (``--allow-client-shm``): regions to the limit, keys of no object, objects that shrink."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import stat
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import END_STREAM, Kind, field, framed, greeting, request_block, unary, varint

__all__ = ["RegionBulk", "RegionHoles", "RegionNames", "RegionStorm", "RegionsToTheLimit", "ShrinkingRegions"]

_FOLDER: Final = Path("/dev/shm")
_SERVICE: Final = "/inference.GRPCInferenceService/"
_INFER: Final = request_block()
_REGISTER: Final = request_block(_SERVICE + "SystemSharedMemoryRegister")
_UNREGISTER: Final = request_block(_SERVICE + "SystemSharedMemoryUnregister")
_STATUS: Final = request_block(_SERVICE + "SystemSharedMemoryStatus")
_PATIENCE_S: Final = 10.0
#: Of madvise(2): MADV_POPULATE_READ.
_POPULATE: Final = 22
#: How often an owner maps an object: the system takes the pages from each mapping.
_MAPPINGS: Final = 32
#: Of fallocate(2): FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
_PUNCH: Final = 1 | 2


def _register(stream_id: int, name: str | bytes, key: str | bytes, offset: int, size: int) -> bytes:
    said = [text.encode() if isinstance(text, str) else text for text in (name, key)]
    message = field(1, said[0]) + field(2, said[1]) + b"\x18" + varint(offset) + b"\x20" + varint(size)
    return unary(stream_id, _REGISTER, framed(message))


def _unregister(stream_id: int, name: str) -> bytes:
    return unary(stream_id, _UNREGISTER, framed(field(1, name.encode())))


def _status(stream_id: int, name: str) -> bytes:
    return unary(stream_id, _STATUS, framed(field(1, name.encode())))


def _parameter(name: str, value: bytes) -> bytes:
    return field(1, name.encode()) + field(2, value)


def _placed(name: str, offset: int, size: int) -> tuple[bytes, bytes, bytes]:
    """The parameters of a tensor that is in a region."""
    return (
        _parameter("shared_memory_region", b"\x1a" + varint(len(name)) + name.encode()),
        _parameter("shared_memory_offset", b"\x10" + varint(offset)),
        _parameter("shared_memory_byte_size", b"\x10" + varint(size)),
    )


def _infer(stream_id: int, source: str, target: str, size: int, offset: int = 0) -> bytes:
    """A request to the model "shapes", whose tensors are in regions."""
    given = b"".join(field(4, one) for one in _placed(source, offset, size))
    taken = b"".join(field(2, one) for one in _placed(target, 0, size))
    tensor = field(1, b"INPUT") + field(2, b"FP32") + field(3, b"\x01" + varint(size // 4)) + given
    message = field(1, b"shapes") + field(5, tensor) + field(6, field(1, b"OUTPUT") + taken)
    return unary(stream_id, _INFER, framed(message))


class _Regions(Attack):
    """An attack with objects of its own, which go at its end, as its regions do.

    Attributes:
        object_bytes: of each of the objects "a" and "b".
    """

    connections: ClassVar = 2
    object_bytes: ClassVar[int] = 8_388_608

    def __init__(self) -> None:
        self._names: set[str] = set()

    def register(self, stream_id: int, name: str, key: str, offset: int, size: int) -> bytes:
        """A call that registers a region, which goes at the attack's end."""
        self._names.add(name)
        return _register(stream_id, name, key, offset, size)

    def key(self, name: str) -> str:
        """Of an object of this process."""
        return f"toutates-{self.name}-{os.getpid()}-{name}"

    def path(self, name: str) -> Path:
        """Where it is."""
        return _FOLDER / self.key(name)

    def prepare(self) -> None:
        """See ``Attack``."""
        for name in "ab":
            with self.path(name).open("wb") as file:
                file.truncate(self.object_bytes)  # no page of it is there until it is written

    def tidy(self, host: str, port: int) -> None:
        """See ``Attack``."""
        for path in _FOLDER.glob(self.key("*")):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        calls = [_unregister(2 * at + 1, name) for at, name in enumerate(sorted(self._names))]
        with contextlib.suppress(OSError), socket.create_connection((host, port), _PATIENCE_S) as sock:
            sock.sendall(greeting() + b"".join(calls))
            received = b""
            while sum(kind == Kind.HEADERS and flags & END_STREAM for kind, flags in _frames(received)) < len(calls):
                data = sock.recv(65_536)
                if not data:
                    return
                received += data

    async def call(self, peer: Peer, calls: list[bytes]) -> None:
        """Send calls, and wait for the answers to all."""
        answered = peer.answered + len(calls)
        await peer.send(b"".join(calls), len(calls))
        while peer.answered < answered:
            await peer.wait_answer()


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Kind and flags of the frames that are there."""
    at = 0
    while len(data) >= at + 9:
        yield data[at + 3], data[at + 4]
        at += 9 + int.from_bytes(data[at : at + 3], "big")


class RegionsToTheLimit(_Regions):
    """Regions without end, and the answer that tells them all."""

    name = "regions-to-the-limit"
    summary = "600 regions registered with names of 500 bytes, all told by SystemSharedMemoryStatus 20 times"
    limit = "512 regions of all clients, names and keys of 512 bytes, bytes as many as memory: RESOURCE_EXHAUSTED"
    stops = ("grpc-status 8",)

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        key = self.key("a")
        for begin in count(1, 2_000):
            ids = iter(range(begin, begin + 2_000, 2))
            name = "n" * 490 + str(id(peer) % 1_000)
            await self.call(peer, [self.register(next(ids), f"{name}{at}", key, 0, 4_096) for at in range(600)])
            await self.call(peer, [_status(next(ids), "") for _ in range(20)])
            await self.call(peer, [_unregister(next(ids), f"{name}{at}") for at in range(0, 300)])


class RegionNames(_Regions):
    """Keys of what is no object of shared memory, and places that no object has."""

    name = "region-names"
    summary = (
        "registrations by paths outside of /dev/shm, links, FIFOs, sockets, folders, devices, and by sizes to 2^64-1"
    )
    limit = (
        "a key is one name in /dev/shm of a regular file, opened without following links: INVALID_ARGUMENT, INTERNAL"
    )
    stops = ("grpc-status 3", "grpc-status 13")

    def prepare(self) -> None:
        """See ``Attack``."""
        super().prepare()
        self.path("link").symlink_to("/etc/passwd")
        self.path("to-object").symlink_to(self.path("a"))
        self.path("loop").symlink_to(self.path("loop"))
        self.path("folder").mkdir()
        os.mkfifo(self.path("fifo"))
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(self.path("socket")))
        with contextlib.suppress(OSError):  # only root may
            os.mknod(self.path("device"), 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero

    def _keys(self) -> Iterator[str | bytes]:
        for name in ("link", "to-object", "loop", "folder", "fifo", "socket", "device", "none", "a/", "a/../a"):
            yield self.key(name)
        yield from ("", "/", "///", ".", "..", "../shm/" + self.key("a"), "../../etc/passwd", "/etc/passwd", "/dev/shm")
        yield from ("sem.x", "a\0b", "x" * 255, "x" * 256, "y" * 8_192, "\u0301" * 100, b"\xff\xfe")

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        places = [(0, 0), (1, 4_096), (4_096, self.object_bytes), (0, self.object_bytes + 1)]
        places += [(2**64 - 1, 2**64 - 1), (2**63, 2**63), (2**64 - 4_096, 8_192), (0, 2**64 - 1), (2**63, 1)]
        ids = count(1, 2)
        while True:
            calls = [_register(next(ids), "placed", key, 0, 4_096) for key in self._keys()]
            calls += [self.register(next(ids), "placed", self.key("a"), *place) for place in places]
            calls += [_register(next(ids), name, self.key("a"), 0, 4_096) for name in ("n" * 513, b"\xc3\x28")]
            await self.call(peer, calls)


class RegionStorm(_Regions):
    """The same names registered and unregistered by several at once, while requests use them."""

    name = "region-storm"
    summary = "two names registered, used by 10 requests and unregistered, 300 calls at a time, on 2 connections"
    limit = "a region in use stays until its last request has ended; the table's lock is held for constant time"
    stops = ("grpc-status 5", "grpc-status 6")

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        ids = count(1, 2)
        while True:
            calls = []
            for _ in range(20):
                calls += [self.register(next(ids), name, self.key(name), 0, 65_536) for name in "ab"]
                calls += [_infer(next(ids), "a", "b", 4_096) for _ in range(10)]
                calls += [_unregister(next(ids), name) for name in "ab"]
                calls.append(_status(next(ids), ""))
            await self.call(peer, calls)


class ShrinkingRegions(_Regions):
    """Objects that shrink and grow while requests read and write them."""

    name = "shrinking-regions"
    summary = "inputs and outputs of 4 MiB in objects that shrink to nothing and grow again all the time, 8 at a time"
    limit = (
        "objects are read and written as files and not mapped, so that there is no SIGBUS: INVALID_ARGUMENT, INTERNAL"
    )
    stops = ("grpc-status 3", "grpc-status 13")

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        await self.call(
            peer, [self.register(at * 2 + 1, "s" + name, self.key(name), 0, 4_194_304) for at, name in enumerate("ab")]
        )
        ids = count(5, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shrink_and_grow)
            while True:
                await self.call(peer, [_infer(next(ids), "sa", "sb", 4_194_304) for _ in range(8)])

    async def _shrink_and_grow(self) -> None:
        for at in count():
            os.truncate(self.path("ab"[at % 2]), (0, 4_096, self.object_bytes, 100_001)[at % 4])
            os.truncate(self.path("ab"[at % 2]), self.object_bytes)
            await trio.sleep(0.001)


class RegionBulk(_Regions):
    """Requests of a hundred bytes that name as much memory as they like."""

    name = "region-bulk"
    summary = "requests of 150 bytes whose inputs and outputs are 16 MiB of an object that has no pages, 100 at a time"
    limit = "256 MiB of inputs and of outputs wait for a thread beside their worker: RESOURCE_EXHAUSTED"
    stops = ("grpc-status 8",)
    object_bytes = 67_108_864

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        size = 16_777_216
        await self.call(
            peer,
            [
                self.register(at * 2 + 1, "l" + name, self.key(name), 0, self.object_bytes)
                for at, name in enumerate("ab")
            ],
        )
        ids = count(5, 2)
        while True:
            # Beyond the region, beyond all numbers, and right ones.
            calls = [_infer(next(ids), "la", "lb", size, offset) for offset in (2**64 - size, 2**63, self.object_bytes)]
            await self.call(peer, calls + [_infer(next(ids), "la", "lb", size) for _ in range(100)])


class RegionHoles(_Regions):
    """Objects whose owner has the system fill them, and take everything away again, for as long as he likes.

    The system writes nothing to an object meanwhile, and to let go of the last use of one takes as long.
    """

    name = "region-holes"
    summary = (
        "outputs of 32 bytes in objects of 256 MiB, mapped 32 times, that are filled and punched without end, 16 at a "
        "time, and regions of them registered and unregistered"
    )
    limit = "a thread beside the worker alone opens, reads, writes and closes objects, and nobody maps them"
    stops = ()
    object_bytes = 268_435_456

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        await peer.send(greeting())
        over = threading.Event()
        threads = [threading.Thread(target=self._fill_and_punch, args=(name, over)) for name in "ab"]
        for thread in threads:
            thread.start()
        try:
            calls = [self.register(at * 2 + 1, "h" + name, self.key(name), 0, 65_536) for at, name in enumerate("ab")]
            await self.call(peer, calls)
            ids = count(5, 2)
            while True:
                calls = [_infer(next(ids), "ha", "hb", 32) for _ in range(16)]
                calls += [self.register(next(ids), "hc", self.key("a"), 0, 65_536), _unregister(next(ids), "hc")]
                await self.call(peer, calls)
        finally:
            over.set()

    def _fill_and_punch(self, name: str, over: threading.Event) -> None:
        fallocate = ctypes.CDLL(None).fallocate64
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        descriptor = os.open(self.path(name), os.O_RDWR)
        mappings = [mmap.mmap(descriptor, self.object_bytes) for _ in range(_MAPPINGS)]
        while not over.is_set():
            fallocate(descriptor, 0, 0, self.object_bytes)
            for mapping in mappings:
                mapping.madvise(_POPULATE)
            fallocate(descriptor, _PUNCH, 0, self.object_bytes)
        for mapping in mappings:
            mapping.close()
        os.close(descriptor)
