"""Regions of shared memory: registered over gRPC and REST, named by tensors, read, written and unregistered.

Invariant, for any bytes: a step is done or refused with a RequestError, and over both protocols in the same words. No
file is opened but regular ones of the folder of objects. What a tensor names lies within its region, and this within
its object as that was when it was registered; what is read is what the object has there, what is written is there
afterwards, and an object is never made longer. Regions and their bytes stay within bounds, and at the end every object
that was opened is closed, once.

A case is a list of steps: a letter, the length of what follows in two bytes, and that.
"""

from __future__ import annotations

import json
import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.fuzz.sessions import mutate
from tests.waiting import wait_until
from toutates.api.dataplane import shared_memory
from toutates.api.rest import messages
from toutates.infer import regions as regions_module
from toutates.infer.parameters import shared_memory_place
from toutates.infer.regions import Place, Regions
from toutates.protocol.grpc_service_pb2 import (
    ModelInferRequest,
    SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusRequest,
    SystemSharedMemoryUnregisterRequest,
)
from toutates.protocol.parsing import parse
from toutates.system.errors import MalformedMessage, RequestError
from toutates.system.shared_memory import SharedObject

__all__ = ["MOST_REGIONS", "NAMES", "NUMBERS", "check", "make_case", "tensor_of"]

MOST_REGIONS = 3
MOST_BYTES = 100_000
OBJECT_BYTES = 65_536
NAMES: tuple[str, ...] = (*"aaaaaabbb", "c", "d", "", "a b", "é", "n" * 512, "n" * 513, "nul\0", "/a")
KEYS: tuple[str, ...] = (
    *("one", "/one", "two", "//two") * 6,
    *("link", "folder", "fifo", "sem.one", "none", "", "/", "..", ".", "../secret", "/etc/passwd", "folder/x"),
    *("one\0", "x" * 255, "x" * 256, "k" * 513, "é", "triton_python_backend_shm_region_x"),
)
NUMBERS = (
    *(0, 4_096) * 5,
    1,
    4,
    4_095,
    4_097,
    8_192,
    65_536,
    65_537,
    60_000,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
ODD = ("null", "true", '"4"', "-1", "1.5", "18446744073709551616", "[]", "1e3", "01")
SIZES = (0, 1, 4_096, OBJECT_BYTES, OBJECT_BYTES, 100_000)
STEPS = "rguspt"
#: In memory where there is such a folder: a case makes eight files.
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


# --- cases -----------------------------------------------------------------------------------------------------------


def make_case(rng: random.Random) -> bytes:
    """Steps that are nearly right; with some bytes changed at times."""
    octets = b""
    for _ in range(rng.randrange(1, 16)):
        step = rng.choice("rrggpppppust")
        what = MAKERS[step](rng)
        octets += step.encode() + len(what).to_bytes(2, "big") + what
    return mutate(octets, rng) if rng.random() < 0.3 else octets


def _rest(rng: random.Random) -> bytes:
    members = {"key": json.dumps(rng.choice(KEYS)), "byte_size": str(rng.choice(NUMBERS))}
    if rng.random() < 0.7:
        members["offset"] = str(rng.choice(NUMBERS))
    if rng.random() < 0.1:
        members[rng.choice(("key", "byte_size", "offset", "more"))] = rng.choice(ODD)
    if rng.random() < 0.05:
        del members[rng.choice(list(members))]
    body = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
    return rng.choice(NAMES).encode() + b"\n" + body.encode()


def _grpc(rng: random.Random) -> bytes:
    return SystemSharedMemoryRegisterRequest(
        name=rng.choice(NAMES), key=rng.choice(KEYS), offset=rng.choice(NUMBERS), byte_size=rng.choice(NUMBERS)
    ).SerializeToString()


def _name(rng: random.Random) -> bytes:
    return rng.choice(NAMES).encode()


def tensor_of(rng: random.Random) -> bytes:
    """An input that is in a region, or nearly."""
    tensor = ModelInferRequest.InferInputTensor(name="x")
    parameters = tensor.parameters
    if rng.random() < 0.95:
        parameters["shared_memory_region"].string_param = rng.choice(NAMES)
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        number = rng.choice(NUMBERS)
        if rng.random() < 0.9:
            parameters[name].int64_param = number if number < 2**63 else number - 2**64
    if rng.random() < 0.05:
        parameters[rng.choice(list(parameters) or ["x"])].uint64_param = 4
    return tensor.SerializeToString()


def _resize(rng: random.Random) -> bytes:
    return bytes([rng.randrange(2), rng.randrange(len(SIZES))])


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    **{"r": _rest, "g": _grpc, "u": _name, "s": _name, "p": tensor_of, "t": _resize}
}


# --- the invariant ---------------------------------------------------------------------------------------------------


class Watched(SharedObject):
    """An object of the case's folder."""

    __slots__ = ("closed",)

    folder: Path
    opened: list[Watched]

    def __init__(self, key: str) -> None:
        self.closed = 0
        super().__init__(key, self.folder)
        path = Path(os.readlink(f"/proc/self/fd/{self._fd}"))
        assert path.parent == self.folder, path
        assert stat.S_ISREG(os.fstat(self._fd).st_mode), path
        assert not path.name.startswith("sem."), path
        self.opened.append(self)

    def close(self) -> None:
        self.closed += 1
        super().close()


def check(case: bytes) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        (Path(scratch) / "secret").write_bytes(bytes(OBJECT_BYTES))
        folder = Path(scratch).resolve() / "shm"
        folder.mkdir()
        Watched.folder, Watched.opened = folder, []
        for name in ("one", "two", "sem.one", "é"):
            (folder / name).write_bytes(name.encode().ljust(OBJECT_BYTES, b"-"))
        (folder / "link").symlink_to("../secret")
        (folder / "folder").mkdir()
        os.mkfifo(folder / "fifo")
        with patch.object(regions_module, "SharedObject", Watched):
            _check(case, folder)


def _is_counted(table: Regions) -> bool:
    known = list(table._regions.values())
    return table._room.used == (len(known), sum(region.byte_size for region in known))


def _check(case: bytes, folder: Path) -> None:
    tables = [Regions(allowed=True, most=MOST_REGIONS, most_bytes=MOST_BYTES) for _ in range(2)]
    try:
        for step, what in _steps(case):
            if step == "t":
                if len(what) == 2:
                    os.truncate(folder / ("one", "two")[what[0] % 2], SIZES[what[1] % len(SIZES)])
            elif step == "p":
                _use(tables, what, folder)
            else:
                outcomes = [_outcome(call) for call in _calls(step, what, tables)]
                assert outcomes[1:] == outcomes[:-1], f"{outcomes} over gRPC and REST"
            for table in tables:
                wait_until(partial(_is_counted, table), 0.0005)  # what a request used last is closed beside it
                known = list(table._regions.values())
                assert len(known) <= MOST_REGIONS
                assert sum(region.byte_size for region in known) <= MOST_BYTES
                assert not any(region.uses for region in known)
    finally:
        for table in tables:
            table.close()
    assert [one.closed for one in Watched.opened] == [1] * len(Watched.opened)


def _steps(case: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while len(case) >= at + 3:
        end = at + 3 + int.from_bytes(case[at + 1 : at + 3], "big")
        yield STEPS[case[at] % len(STEPS)] if chr(case[at]) not in STEPS else chr(case[at]), case[at + 3 : end]
        at = end


def _calls(step: str, what: bytes, tables: list[Regions]) -> list[Callable[[], Any]]:
    """The same over gRPC and over REST; only one of them where the other cannot say it."""
    over_grpc, over_rest = tables
    if step in "us":
        name = what.decode(errors="replace")
        if step == "u":
            gone = SystemSharedMemoryUnregisterRequest(name=name)
            return [lambda table=table: shared_memory.unregister_system(table, gone) for table in tables]  # type: ignore[misc]
        asked = SystemSharedMemoryStatusRequest(name=name)
        return [lambda table=table: _told(shared_memory.system_status(table, asked)) for table in tables]  # type: ignore[misc]
    if step == "r":
        named, _, body = what.partition(b"\n")
        name = named.decode(errors="replace")
        try:
            request = messages.system_registration(name, body)
        except RequestError:
            return []
    else:
        try:
            request = parse(SystemSharedMemoryRegisterRequest, what)
        except MalformedMessage:
            return []
        request.DiscardUnknownFields()
        if not request.name:  # which no path can say
            return []
        name = request.name
        body = json.dumps({"key": request.key, "offset": request.offset, "byte_size": request.byte_size}).encode()
        assert messages.system_registration(name, body) == request
    return [
        lambda: shared_memory.register_system(
            over_grpc, SystemSharedMemoryRegisterRequest.FromString(request.SerializeToString())
        ),
        lambda: shared_memory.register_system(over_rest, messages.system_registration(name, body)),
    ]


def _told(response: Any) -> Any:
    return messages.system_regions(response)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RequestError as error:
        return type(error), str(error)


def _use(tables: list[Regions], what: bytes, folder: Path) -> None:
    """A tensor that is in a region: read, and written. Then the region goes, of both tables."""
    table, other = tables
    try:
        tensor = parse(ModelInferRequest.InferInputTensor, what)
    except MalformedMessage:
        return
    try:
        place = shared_memory_place(tensor.name, tensor.parameters)
        if place is None:
            return
        held = table.acquire([place, place])
    except RequestError:
        return
    region = table._regions[place.region]
    assert region.uses == 2
    assert 0 <= place.offset + place.byte_size <= region.byte_size
    assert region.offset + region.byte_size <= max(SIZES)
    try:
        _read(table, place, folder)
        _write(table, place, folder)
    finally:
        for one in (table, other):
            one.unregister(region.kind, region.name)
        assert table._regions[place.region] is region, "gone while it is in use"
        table.release(held)
        assert place.region not in table._regions


def _read(table: Regions, place: Place, folder: Path) -> None:
    region = table._regions[place.region]
    start = region.offset + place.offset
    expected = (folder / region.key.lstrip("/")).read_bytes()[start : start + place.byte_size]
    found = bytearray(place.byte_size)
    try:
        with memoryview(found) as view:
            table.read(place, view, "x")
    except RequestError:
        assert len(expected) < place.byte_size
    else:
        assert found == expected


def _write(table: Regions, place: Place, folder: Path) -> None:
    region = table._regions[place.region]
    path, start = folder / region.key.lstrip("/"), region.offset + place.offset
    before = path.read_bytes()
    pieces: list[bytes | bytearray | memoryview] = [b"w" * (place.byte_size // 3), b"v" * (place.byte_size // 2)]
    written = b"".join(pieces)
    try:
        table.write(place, pieces, "y")
    except RequestError:
        assert len(before) < start + len(written)
        assert path.read_bytes() == before
    else:
        assert path.read_bytes() == before[:start] + written + before[start + len(written) :]
