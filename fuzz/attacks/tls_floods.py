"""Clients that speak TLS, whose records cost the server much for the little that they carry (RFC 8446 section 5)."""

from __future__ import annotations

import ssl
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.key_updates import KeyUpdates
from fuzz.attacks.peer import Ended, Peer
from fuzz.attacks.wire import END_HEADERS, Kind, frame, greeting, request_block
from tests.certificates import issue

__all__ = ["EmptyRecords", "KeyChanges", "OneByteRecords"]

#: Of a message that never becomes whole, in frames that fill a record.
_MESSAGE: Final = struct.pack(">BI", 0, 60_000_000)
_FRAME: Final = 16_375
#: One-byte records in a burst: as many as the largest read takes.
_BURST: Final = 11_000


class _TlsFlood(Attack):
    """Shakes hands by OpenSSL, and then makes records by hand: first a greeting, and then whatever ``records`` yields.

    The data are an upload, in the middle of a frame of DATA, so that every byte is a valid next one.
    """

    stops: ClassVar[Sequence[str]] = ("closed", "reset")
    connections = 16
    reads = False

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``."""
        files = issue(folder)
        self.authority = files.ca
        return files.server_flags()

    def records(self, client: KeyUpdates) -> Iterator[tuple[bytes, int]]:
        """What is sent, without end: records and how many of them count as strikes."""
        raise NotImplementedError

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        client = await _shake_hands(peer)
        over = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_discard, peer)
            try:
                await peer.send(client.data(greeting() + frame(Kind.HEADERS, END_HEADERS, 1, request_block())))
                await peer.send(client.data(frame(Kind.DATA, 0, 1, _MESSAGE)))
                for octets, strikes in self.records(client):
                    await peer.send(octets, strikes)
            except Ended:
                over = True
            nursery.cancel_scope.cancel()
        if over:
            raise Ended


async def _shake_hands(peer: Peer) -> KeyUpdates:
    """Raises Ended where the server lets nobody in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with tempfile.NamedTemporaryFile() as keys:
        context.keylog_filename = keys.name
        tls = context.wrap_bio(incoming, outgoing)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await peer.send(outgoing.read())
                incoming.write(await peer.receive())
        await peer.send(outgoing.read())
        keys.seek(0)
        return KeyUpdates(keys.read().decode())


async def _discard(peer: Peer) -> None:
    try:
        while True:
            await peer.receive()
    except Ended:
        pass


class EmptyRecords(_TlsFlood):
    """Records without data, in between those with a byte."""

    name = "tls-empty-records"
    summary = "16 TLS connections that send an empty record for every byte of data"
    limit = "records without data, but for 32, are paid for by 64 with data each"

    def empty(self, client: KeyUpdates) -> bytes:
        """The next record without data."""
        return client.data(b"")

    def records(self, client: KeyUpdates) -> Iterator[tuple[bytes, int]]:
        """See ``_TlsFlood``."""
        yield client.data(_head(_FRAME)), 0
        while True:
            yield b"".join([self.empty(client) + client.data(b"x") for _ in range(100)]), 100


class KeyChanges(EmptyRecords):
    """The same of changes of the client's key, each of which has the server change its own."""

    name = "tls-key-changes"
    summary = "16 TLS connections that change their keys for every byte that they send"

    def empty(self, client: KeyUpdates) -> bytes:
        """See ``EmptyRecords``."""
        return client.change(answer=True)


class OneByteRecords(_TlsFlood):
    """Large records, so that reads become large, and then those of a byte each."""

    name = "tls-one-byte-records"
    summary = "16 TLS connections with an upload, a MB of it in large records and then 11,000 records of a byte, again \
and again"
    limit = "many records in a read make the next ones smaller; 32 KiB are decrypted at a time"
    stops = ()

    def records(self, client: KeyUpdates) -> Iterator[tuple[bytes, int]]:
        """See ``_TlsFlood``."""
        sent = 0
        while sent < 50_000_000:
            for _ in range(64):
                yield client.data(_head(_FRAME) + bytes(_FRAME)), 1
            for size in (_FRAME,) * (_BURST // _FRAME) + (_BURST % _FRAME,):
                yield b"".join([client.data(_head(size)), *(client.data(b"x") for _ in range(size))]), size
            sent += 64 * _FRAME + _BURST


def _head(size: int) -> bytes:
    """Of a frame of DATA with so many bytes."""
    return frame(Kind.DATA, 0, 1, bytes(size))[:9]
