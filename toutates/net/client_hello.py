"""The first message of a TLS client, read only for the protocols it offers.

OpenSSL has the last word on everything else in it. What it does not tell its caller is the difference between a client
that offers other protocols than ours, which RFC 7301 section 3.2 wants refused, and one that offers none at all.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HANDSHAKE", "offered_protocols"]

#: The record type that a connection begins with (RFC 8446 section 5.1).
HANDSHAKE: Final = 22

_RECORD_HEAD_BYTES: Final = 5
_CLIENT_HELLO: Final = 1
_MESSAGE_HEAD_BYTES: Final = 4
#: Above it OpenSSL refuses the message.
_MAX_HELLO_BYTES: Final = 16_384
#: Clients use one. Each time that bytes come all records are walked, so there must not be any number of them.
_MAX_RECORDS: Final = 64
_RANDOM_BYTES: Final = 32
_ALPN: Final = 16


def offered_protocols(data: bytes) -> tuple[bytes, ...] | None:
    """The protocols offered by the ClientHello that ``data``, all bytes received so far, begins with.

    Returns:
        Their names, by the client's preference; ``()`` where it offers none, or where the message cannot be read, which
        OpenSSL then says; None while more bytes are needed.
    """
    message = b""
    at = 0
    for _ in range(_MAX_RECORDS):
        if len(data) - at < _RECORD_HEAD_BYTES:
            return None
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != HANDSHAKE or not length:
            return ()
        at += _RECORD_HEAD_BYTES
        message += data[at : at + length]
        if len(message) >= _MESSAGE_HEAD_BYTES:
            size = int.from_bytes(message[1:_MESSAGE_HEAD_BYTES], "big")
            if message[0] != _CLIENT_HELLO or size > _MAX_HELLO_BYTES:
                return ()
            if len(message) >= _MESSAGE_HEAD_BYTES + size:
                try:
                    return _alpn_names(message[_MESSAGE_HEAD_BYTES : _MESSAGE_HEAD_BYTES + size])
                except ValueError:
                    return ()
        at += length
    return ()


def _alpn_names(hello: bytes) -> tuple[bytes, ...]:
    """Of the message's body (RFC 8446 section 4.1.2, RFC 7301 section 3.1).

    Raises:
        ValueError: a length in it leads beyond its end.
    """
    rest = hello[2 + _RANDOM_BYTES :]
    for length_bytes in (1, 2, 1):  # session identifier, cipher suites, compression methods
        _, rest = _split(rest, length_bytes)
    if not rest:  # extensions are optional in TLS 1.2
        return ()
    extensions, _ = _split(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2], "big")
        content, extensions = _split(extensions[2:], 2)
        if kind == _ALPN:
            names, _ = _split(content, 2)
            found = []
            while names:
                name, names = _split(names, 1)
                found.append(name)
            return tuple(found)
    return ()


def _split(data: bytes, length_bytes: int) -> tuple[bytes, bytes]:
    """A vector with its length before it, and what follows it."""
    end = length_bytes + int.from_bytes(data[:length_bytes], "big")
    if not length_bytes <= end <= len(data):
        raise ValueError("a vector is longer than what it stands in")
    return data[length_bytes:end], data[end:]
