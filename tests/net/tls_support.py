"""A TlsEngine and OpenSSL's client opposite it, without sockets."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.certificates import SERVER_NAME, Files, client_context, issue
from toutates.net import harden_tls
from toutates.net.tls import TlsEngine

__all__ = ["TlsPair", "server_context"]


def server_context(folder: Path, *, mutual: bool = False, files: Files | None = None) -> ssl.SSLContext:
    """What a server uses, with a certificate of the tests' authority."""
    files = files or issue(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden_tls(context)
    context.load_cert_chain(files.cert, files.key)
    if mutual:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsPair:
    """The two sides of a connection.

    Attributes:
        piece_bytes: how many bytes of the client's the engine is given at a time; 0 for all.
    """

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext | None = None, *, piece_bytes: int = 0) -> None:
        self.piece_bytes = piece_bytes
        self.engine = TlsEngine(server, 8_192)
        self.to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = (client or client_context()).wrap_bio(
            self.to_client, self._from_client, server_hostname=SERVER_NAME
        )

    def upstream(self) -> bytes:
        """What the client has written since the last call."""
        return self._from_client.read()

    def carry(self, octets: bytes) -> bytes:
        """Give the engine what a client sent; returns the plaintext, and puts the answer where the client reads."""
        size = self.piece_bytes or len(octets) or 1
        try:
            return b"".join([self.engine.receive(octets[at : at + size]) for at in range(0, len(octets), size)])
        finally:
            self.to_client.write(self.engine.take_output())

    def shake_hands(self) -> None:
        """Until both sides are done.

        Raises:
            ConnectionFault: by the engine.
            ssl.SSLError: by the client.
        """
        done = False
        while not done:
            try:
                self.client.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            assert self.carry(self.upstream()) == b""
        assert self.engine.established

    def end_of_handshake(self) -> None:
        """What the client learns at last; with TLS 1.3 it may think first that all is well.

        Raises:
            ssl.SSLError: that the server refuses it.
        """
        self.client.do_handshake()
        self.client.read(1)

    def send(self, plaintext: bytes) -> bytes:
        """Send from the client; returns what the engine makes of it."""
        self.client.write(plaintext)
        return self.carry(self.upstream())

    def answer(self, plaintext: bytes) -> bytes:
        """Send from the engine; returns what the client makes of it."""
        self.engine.encrypt(plaintext)
        self.to_client.write(self.engine.take_output())
        return self.read()

    def read(self) -> bytes:
        """What the client has received; b"" at the end."""
        pieces = []
        try:
            while piece := self.client.read(65_536):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            assert pieces, "the client waits"
        return b"".join(pieces)
