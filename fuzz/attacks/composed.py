"""Models that are made of others, or of Python: small requests that make them hold much, and fail or end half way."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import count
from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import (
    END_HEADERS,
    Code,
    Kind,
    field,
    frame,
    framed,
    greeting,
    infer_message,
    request_block,
    unary,
)

__all__ = ["EndlessEnsemble", "EnsembleFailures", "EnsembleFan", "EnsembleReloads", "PythonBulk"]

_BLOCK: Final = request_block()


def _ask(stream_id: int, model: str, number: int, shape: Sequence[int] = (1,)) -> bytes:
    body = framed(infer_message(model, shape, struct.pack("<q", number), "INT64"))
    return unary(stream_id, _BLOCK, body)


def _reset(stream_id: int) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream_id, struct.pack(">I", Code.CANCEL))


async def _answered(peer: Peer, calls: int) -> None:
    while peer.answered < calls:
        await peer.wait_answer()


class EnsembleFan(Attack):
    """Requests whose steps' tensors are large, and all there at once."""

    name = "ensemble-fan"
    summary = "requests of 60 bytes to an ensemble that holds six tensors of 4 MiB for each at once, 50 at a time"
    limit = "`capacity_bytes` of the ensemble (half of the memory at most; here 64 MiB): RESOURCE_EXHAUSTED"
    stops = ("grpc-status 8",)
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        for sent in count(0, 50):
            calls = b"".join(_ask(2 * (sent + at) + 1, "fan", 1_048_576) for at in range(50))
            await peer.send(calls, 50)
            await _answered(peer, sent + 50)


class EnsembleFailures(Attack):
    """Requests that fail in the middle of a chain, or are cancelled there, among good ones."""

    name = "ensemble-failures"
    summary = "requests to an ensemble, of which a third fails half way and a fifth is cancelled, 400 at a time"
    limit = "a failed step is run again for each of its requests once; what nobody waits for goes no further"
    stops = ("grpc-status 13", "grpc-status 3")

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        answered = 0
        for sent in count(0, 400):
            calls = []
            for at in range(400):
                stream_id = 2 * (sent + at) + 1
                calls.append(_ask(stream_id, "flow", 9 if at % 3 == 0 else at % 3, (1, 1)))
                if at % 5 == 4:
                    calls.append(_reset(stream_id))
            answered += 400 - 400 // 5
            await peer.send(b"".join(calls), 400)
            await _answered(peer, answered)


class EnsembleReloads(Attack):
    """Members of an ensemble that go and come while it is asked."""

    name = "ensemble-reloads"
    summary = "a member of an ensemble unloaded and loaded again, with 100 requests to the ensemble before each"
    limit = (
        "requests under way keep the members that they began with, others are refused: UNAVAILABLE; loads take turns"
    )
    stops = ("grpc-status 14",)
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        path = "/inference.GRPCInferenceService/RepositoryModel"
        body = framed(field(2, b"pass"))
        sent = 0
        while True:
            for what in ("Unload", "Load"):
                calls = [_ask(2 * (sent + at) + 1, "flow", 1, (1, 1)) for at in range(100)]
                calls.append(unary(2 * (sent + 100) + 1, request_block(path + what), body))
                sent += 101
                await peer.send(b"".join(calls), 101)
                await _answered(peer, sent)


class EndlessEnsemble(Attack):
    """Streams to an ensemble whose member sends without end, and nobody reads; some are reset, and begin anew."""

    name = "endless-ensemble"
    summary = "6 streams to an ensemble whose decoupled member sends 64 KiB without end, without a window for it"
    limit = "a stream begins nothing while a MiB of its answers waits; the member waits when it sends, at 16 MiB; "
    limit += "`--limit stall_timeout` (60 s)"
    stops = ("closed", "reset", "GOAWAY")
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting(stream_window=0))
        block = request_block("/inference.GRPCInferenceService/ModelStreamInfer")
        body = framed(infer_message("endless_flow", [1], struct.pack("<q", 16_384), "INT64"))
        for stream_id in range(1, 13, 2):
            await peer.send(
                frame(Kind.HEADERS, END_HEADERS, stream_id, block) + frame(Kind.DATA, 0, stream_id, body), 1
            )
        for stream_id in (1, 5):
            await peer.pause(0.1)
            await peer.send(_reset(stream_id))
        await peer.wait_over()


class PythonBulk(Attack):
    """Requests to a Python model that take long, or have a large answer; callers of the former leave at once."""

    name = "python-bulk"
    summary = "requests to a Python model for 1 MiB, and for 20 ms whose callers leave at once, 60 at a time"
    limit = "only they wait for the model's process; what nobody waits for is not run; answers count as any"
    stops = ()
    connections: ClassVar = 2

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        answered = 0
        for sent in count(0, 60):
            calls = []
            for at in range(60):
                stream_id = 2 * (sent + at) + 1
                is_slow = at % 3 == 2
                calls.append(_ask(stream_id, "bulk", -20 if is_slow else 262_144))
                if is_slow:
                    calls.append(_reset(stream_id))
            answered += 40
            await peer.send(b"".join(calls), 60)
            await _answered(peer, answered)
