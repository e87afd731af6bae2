"""Floods of the HTTP side, where orchestrators ask whether the server lives."""

from __future__ import annotations

from typing import ClassVar, Final

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer

__all__ = ["Newcomers", "PipelinedProbes", "PipelinedRequests", "RequestsLeftBehind"]

_AT_ONCE: Final = 200


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


class _Pipelining(Attack):
    """The same request over and over, without a look at the answers."""

    on_http = True
    stops = ()
    request: ClassVar[bytes]

    async def strike(self, peer: Peer) -> None:
        flood = self.request * _AT_ONCE
        while True:
            await peer.send(flood, _AT_ONCE)


class PipelinedRequests(_Pipelining):
    """What the status page asks for."""

    name = "http-pipelining"
    summary = "GET /status.json without a pause, on 8 connections of the HTTP side; honest are its probes"
    limit = "a tenth of a CPU; probes have a budget of their own"
    connections = 8
    request = _get("/status.json")


class PipelinedProbes(_Pipelining):
    """What orchestrators ask for."""

    name = "http-probes"
    summary = "GET /health/ready without a pause, on 8 connections of the HTTP side; honest are its probes"
    limit = "a tenth of a CPU; connections take turns, and the one that has used least goes first"
    connections = 8
    request = _get("/health/ready")


class RequestsLeftBehind(Attack):
    """Connections that ask for much and are closed at once."""

    name = "http-left-behind"
    summary = "connections to the HTTP side that ask for 200 pages and are reset at once; honest are its probes"
    limit = "accepting takes turns with probes; requests of a closed connection are dropped"
    stops = ()
    on_http = True
    connections = 8

    async def strike(self, peer: Peer) -> None:
        await peer.send(_get("/") * _AT_ONCE, _AT_ONCE)
        peer.end_by_reset()


class Newcomers(Attack):
    """Connections that take the places of others, and ask for nothing."""

    name = "http-newcomers"
    summary = "200 connections to the HTTP side on which nothing is said; honest are its probes"
    limit = "who has not asked takes the place of nobody who has; 128 connections and 32 newcomers"
    stops = ("closed", "reset")
    on_http = True
    connections = 200

    async def strike(self, peer: Peer) -> None:
        await peer.wait_over()
