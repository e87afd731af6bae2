"""Regions of CUDA shared memory: registered over gRPC and REST, named by tensors, read, written and unregistered.

Invariant, for any bytes: a step is done or refused with a RequestError, and over both protocols in the same words. What
a tensor names lies within its region, and this within its allocation: no copy goes beyond one. What was written is read
again. At the end every allocation that was opened is closed, as often as it was opened.

A case is a list of steps as in ``region_requests``, whose places of tensors these are too.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from tests.fake_cuda import FakeCuda, Stream
from tests.fuzz.region_requests import MOST_REGIONS, NAMES, NUMBERS, tensor_of
from tests.fuzz.sessions import mutate
from toutates.api.dataplane import shared_memory
from toutates.api.rest import messages
from toutates.infer.parameters import shared_memory_place
from toutates.infer.regions import Place, Regions
from toutates.protocol.grpc_service_pb2 import (
    CudaSharedMemoryRegisterRequest,
    CudaSharedMemoryStatusRequest,
    CudaSharedMemoryUnregisterRequest,
    ModelInferRequest,
)
from toutates.protocol.parsing import parse
from toutates.system.cuda import Cuda
from toutates.system.errors import MalformedMessage, RequestError

__all__ = ["check", "make_case"]

SIZES = (1, 4_096, 65_536)
DEVICES = (0, 1, 2, -1, 2**31, 2**63 - 1, -(2**63))
STEPS = "gusp"


def make_case(rng: random.Random) -> bytes:
    """Steps that are nearly right; with some bytes changed at times."""
    octets = b""
    for _ in range(rng.randrange(1, 16)):
        step = rng.choice("ggggpppppus")
        what = {"g": _register, "u": _name, "s": _name, "p": tensor_of}[step](rng)
        octets += step.encode() + len(what).to_bytes(2, "big") + what
    return mutate(octets, rng) if rng.random() < 0.3 else octets


def _register(rng: random.Random) -> bytes:
    number = rng.choice((0, 1, 2, 2, 2, 2, 2, 3))
    # The first byte stands for one of the case's allocations, whose handles are not known beforehand.
    handle = bytes([number]) + bytes(rng.choice((*[63] * 10, 62, 64)))
    device = number % 2 if rng.random() < 0.9 else rng.choice(DEVICES)
    size = SIZES[number % 3] if rng.random() < 0.7 else rng.choice(NUMBERS)
    return CudaSharedMemoryRegisterRequest(
        name=rng.choice(NAMES), raw_handle=handle, device_id=device, byte_size=size
    ).SerializeToString()


def _name(rng: random.Random) -> bytes:
    return rng.choice(NAMES).encode()


class Strict(FakeCuda):
    """GPUs that are asked to copy nothing but what is in one allocation."""

    def cudaMemcpyAsync(self, to: Any, source: Any, size: int, kind: int, stream: Stream) -> Any:
        answer = super().cudaMemcpyAsync(to, source, size, kind, stream)
        assert not answer[0], f"a copy of {size} bytes goes beyond its allocation"
        return answer


def check(case: bytes) -> None:
    """See the module."""
    owner = FakeCuda()
    handles = []
    try:
        for number, size in enumerate(SIZES):
            owner.cudaSetDevice(number % 2)
            _, address = owner.cudaMalloc(size)
            handles.append(bytes(owner.cudaIpcGetMemHandle(address)[1].octets.raw))
        _check(case, handles)
    finally:
        owner.free_all()


def _check(case: bytes, handles: list[bytes]) -> None:
    gpus = [Strict(), Strict()]
    tables = [Regions(allowed=True, most=MOST_REGIONS, cuda=Cuda(one.runtime, one.driver)) for one in gpus]
    try:
        at = 0
        while len(case) >= at + 3:
            end = at + 3 + int.from_bytes(case[at + 1 : at + 3], "big")
            step, what = STEPS[case[at] % 4] if chr(case[at]) not in STEPS else chr(case[at]), case[at + 3 : end]
            at = end
            if step == "p":
                _use(tables, what)
            else:
                outcomes = [_outcome(call) for call in _calls(step, what, tables, handles)]
                assert outcomes[1:] == outcomes[:-1], f"{outcomes} over gRPC and REST"
            for table, own in zip(tables, gpus, strict=True):
                known = list(table._regions.values())
                assert len(known) <= MOST_REGIONS
                assert len(known) == sum(one.opened for one in own.allocations)
    finally:
        for table in tables:
            table.close()
    assert not any(own.allocations for own in gpus)


def _calls(step: str, what: bytes, tables: list[Regions], handles: list[bytes]) -> list[Callable[[], Any]]:
    """The same over gRPC and over REST; only one of them where the other cannot say it."""
    over_grpc, over_rest = tables
    if step in "us":
        name = what.decode(errors="replace")
        if step == "u":
            gone = CudaSharedMemoryUnregisterRequest(name=name)
            return [lambda table=table: shared_memory.unregister_cuda(table, gone) for table in tables]  # type: ignore[misc]
        asked = CudaSharedMemoryStatusRequest(name=name)
        return [
            lambda table=table: messages.cuda_regions(shared_memory.cuda_status(table, asked))  # type: ignore[misc]
            for table in tables
        ]
    try:
        request = parse(CudaSharedMemoryRegisterRequest, what)
    except MalformedMessage:
        return []
    request.DiscardUnknownFields()
    if len(request.raw_handle) == 64 and request.raw_handle[0] < len(handles):
        request.raw_handle = handles[request.raw_handle[0]]
    if not request.name or request.device_id < 0 or len(request.raw_handle) != 64:  # which REST cannot say, or refuses
        return [lambda table=table: shared_memory.register_cuda(table, request) for table in tables]  # type: ignore[misc]
    handle = {"b64": base64.b64encode(request.raw_handle).decode()}
    members = {"raw_handle": handle, "device_id": request.device_id, "byte_size": request.byte_size}
    read = messages.cuda_registration(request.name, json.dumps(members).encode())
    assert read == request
    return [
        lambda: shared_memory.register_cuda(over_grpc, request),
        lambda: shared_memory.register_cuda(over_rest, read),
    ]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RequestError as error:
        return type(error), str(error)


def _use(tables: list[Regions], what: bytes) -> None:
    """A tensor that is in a region: written, and read."""
    try:
        tensor = parse(ModelInferRequest.InferInputTensor, what)
        place = shared_memory_place(tensor.name, tensor.parameters)
    except (MalformedMessage, RequestError):
        return
    if place is None:
        return
    outcomes: list[object] = []
    for table in tables:
        try:
            used = table.acquire([place])
        except RequestError as error:
            outcomes.append((type(error), str(error)))
            continue
        try:
            outcomes.append(_written_and_read(table, place))
        finally:
            table.release(used)
    assert outcomes[0] == outcomes[1]


def _written_and_read(table: Regions, place: Place) -> bytes:
    region = table._regions[place.region]
    assert place.offset + place.byte_size <= region.byte_size
    octets = bytes([place.byte_size % 251]) * place.byte_size
    table.write(place, [octets], "y")
    into = bytearray(place.byte_size)
    with memoryview(into) as view:
        table.read(place, view, "x")
    assert into == octets
    return octets
