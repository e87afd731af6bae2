"""Every bound that a connection enforces, each with the reason for its number."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection.

    Attributes:
        max_head_size: bytes of a request's head, that is of its request line and header fields. More is answered with
            431. Browsers send 1 to 4 KiB; this is what most servers take.
        max_fields: header fields of a request. More are answered with 431: each is a Python object.
        max_body_size: bytes of a request's body, before and after decompression, where ``admit`` names no other bound.
            More are answered with 413.
        large_body_size: bytes of a body from which on it gets memory of its own, if its head allows that
            (``Head.in_memory``). Asking for the bytes of a smaller one by themselves costs more than copying them.
        max_chunk_line: bytes of the line before a chunk of a body. It is a number; extensions mean nothing to us.
        max_chunks: chunks of a body that are not empty. More are answered with 400: each costs far more than its bytes.
        max_pipelined: requests of one connection that wait for their answers. Further ones are not read meanwhile.
        remembered_heads: heads that a connection remembers, so that one that comes again is not parsed again. A client
            sends the same few over and over.
        max_remembered_size: bytes of a head that is remembered.
        max_remembered_bytes: what remembered heads take together as objects, which is several times their bytes.
        keep_alive_s: seconds for which the driver keeps a connection without a request, at least. Clients are told so
            by ``Keep-Alive`` (RFC 2068 section 19.7.1.1); 0 tells them nothing.
    """

    max_head_size: int = 16_384
    max_fields: int = 128
    max_body_size: int = 1024 * 1024
    large_body_size: int = 65_536
    max_chunk_line: int = 1_024
    max_chunks: int = 65_536
    max_pipelined: int = 16
    remembered_heads: int = 8
    max_remembered_size: int = 2_048
    max_remembered_bytes: int = 131_072
    keep_alive_s: int = 0
