"""Reading the protocols that a TLS client offers."""

from __future__ import annotations

import random
import ssl

import pytest

from tests.certificates import SERVER_NAME
from toutates.net.client_hello import offered_protocols


def hello(*protocols: str) -> bytes:
    """What OpenSSL's client sends first."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=SERVER_NAME).do_handshake()
    return outgoing.read()


def in_records(octets: bytes, size: int) -> bytes:
    """The same message in records of ``size`` bytes."""
    message = octets[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join([octets[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces])


@pytest.mark.parametrize("protocols", [(), ("h2",), ("http/1.1", "h2"), ("a" * 255,)])
def test_offers_are_read_in_order(protocols: tuple[str, ...]) -> None:
    assert offered_protocols(hello(*protocols)) == tuple(name.encode() for name in protocols)


def test_more_bytes_are_asked_for_until_the_message_is_whole_and_what_follows_changes_nothing() -> None:
    octets = hello("h2")
    for cut in range(len(octets)):
        assert offered_protocols(octets[:cut]) is None
    assert offered_protocols(octets + b"\x14\x03\x03\0\1\1") == (b"h2",)


@pytest.mark.parametrize("size", [11, 12, 50, 100])
def test_a_message_may_come_in_several_records(size: int) -> None:
    octets = in_records(hello("h2"), size)
    for cut in range(0, len(octets), 7):
        assert offered_protocols(octets[:cut]) is None
    assert offered_protocols(octets) == (b"h2",)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x16\x03\x01\0\0",  # a record of nothing, of which there could be any number
        b"\x16\x03\x01\0\1\1\x17\x03\x01\0\1\0",  # something else than a handshake in between
        b"\x16\x03\x01\0\4\2\0\0\0",  # a server's message
        b"\x16\x03\x01\0\4\1\xff\xff\xff",  # sixteen MiB
        b"\x16\x03\x01\0\4\1\0\0\0",  # an empty one
    ],
)
def test_what_is_no_client_hello_is_left_to_openssl(octets: bytes) -> None:
    assert offered_protocols(octets) == ()


def test_a_message_in_very_many_records_is_left_to_openssl() -> None:
    octets = in_records(hello("h2"), 1)
    assert offered_protocols(octets[: 63 * 6]) is None
    assert offered_protocols(octets[: 64 * 6]) == ()
    assert offered_protocols(octets) == ()


def test_a_hello_without_extensions_offers_nothing() -> None:
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\xc0\x2b" + b"\1\0"
    message = b"\1" + len(body).to_bytes(3, "big") + body
    assert offered_protocols(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message) == ()


def test_no_change_to_a_hello_makes_it_raise() -> None:
    octets = hello("h2", "http/1.1")
    chance = random.Random(1)
    for _ in range(20_000):
        changed = bytearray(octets)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        found = offered_protocols(bytes(changed))
        assert found is None or isinstance(found, tuple)
