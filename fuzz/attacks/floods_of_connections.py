"""Connections as such: very many, or none that ever speaks HTTP/2."""

from __future__ import annotations

import os
from typing import Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import PREFACE, greeting

__all__ = ["ConnectionChurn", "HoldConnections", "PortScan"]


class HoldConnections(Attack):
    """Greeted connections, held for as long as they last."""

    name = "hold-connections"
    summary = "300 greeted connections, held"
    limit = "`--limit connections` (100000): GOAWAY; without file descriptors accepting pauses"
    stops = ()
    connections = 300

    async def strike(self, peer: Peer) -> None:
        await peer.send(greeting())
        await peer.wait_over()


class ConnectionChurn(Attack):
    """Connections made and closed as fast as they can be."""

    name = "connection-churn"
    summary = "connections made and closed at once, by FIN and by RST"
    limit = "32 are accepted per round, between requests"
    stops = ()
    connections = 8

    async def strike(self, peer: Peer) -> None:
        peer.tally.strikes += 1
        if peer.tally.connections % 2:
            peer.end_by_reset()
        await trio.lowlevel.checkpoint()


_PROBES: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS / RTSP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS ClientHello
    b"SSH-2.0-scan\r\n",
    b"\x00\x00\x00\x2a\xffSMBr" + bytes(40),
    PREFACE[:10] + b"\r\n",
    PREFACE + b"\xff" * 50,
    b"",
)


class PortScan(Attack):
    """What comes along on every open port of the Internet."""

    name = "port-scan"
    summary = "HTTP/1, TLS, SSH, SMB, random bytes, half a preface, connections that say nothing and leave"
    limit = "an HTTP/1 request is answered 404; anything else ends its connection"
    stops = ("HTTP/1.1 404", "GOAWAY PROTOCOL_ERROR")
    connections = 8

    async def strike(self, peer: Peer) -> None:
        number = peer.tally.connections % (len(_PROBES) + 1)
        probe = _PROBES[number] if number < len(_PROBES) else os.urandom(200)
        await peer.send(probe, 1)
        peer.end_writing()
        with trio.move_on_after(0.5):
            await peer.over.wait()
