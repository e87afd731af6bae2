"""Fuzz the HPACK decoder with the mutated blocks of one connection.

Invariant: our decoder and the ``hpack`` package's give the same fields and hold the same dynamic table, block by block,
until both refuse a block; ours refuses with HeaderBlockError and nothing else, and for its size when the other does.

    python fuzz/fuzz_header_blocks.py [--seconds 60] [--seed N]

A case that breaks the invariant is printed in hex, each block behind its length in two bytes, and ends the run with 1;
keep it as a case in ``tests/h2grpc``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from harness import run
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toutates.h2grpc.hpack_decoder import HeaderBlockError, HpackDecoder

NAMES = [b":path", b"content-type", b"te", b"grpc-timeout", b"x-0", b"x-1", b"", b"\xff"]
MAX_LIST_SIZE = 4_096

#: the fields, or whether the block was refused for its size
Outcome = list[tuple[bytes, bytes]] | bool


def block(encoder: Encoder, rng: random.Random) -> bytes:
    """A valid block, in every form that the encoder knows."""
    if rng.random() < 0.2:
        encoder.header_table_size = rng.choice([0, 40, 300, 4_096])
    fields = [
        (rng.choice(NAMES), rng.randbytes(rng.choice([0, 1, 5, 130])), rng.random() < 0.3)
        for _ in range(rng.randint(0, 6))
    ]
    return encoder.encode(fields * rng.randint(1, 2), huffman=rng.random() < 0.6)


def mutate(octets: bytes, rng: random.Random) -> bytes:
    """Flip, drop, insert or repeat some bytes of every third block."""
    out = bytearray(octets)
    for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            out[at : at + 1] = rng.randbytes(1)
        elif kind == 1:
            del out[at : at + rng.randint(1, 4)]
        elif kind == 2:
            out[at:at] = rng.choice([b"\xff", b"\x7f", b"\x3f", b"\x80", b"\xbe", rng.randbytes(3)])
        else:
            out[at:at] = out[at : at + rng.randint(1, 40)] * rng.randint(1, 20)
    return bytes(out)


def make_case(rng: random.Random) -> bytes:
    """Some blocks, each behind its length."""
    encoder = Encoder()
    blocks = [mutate(block(encoder, rng), rng) for _ in range(rng.randint(1, 8))]
    return b"".join(len(octets).to_bytes(2, "big") + octets for octets in blocks)


def outcome_of_hpack(decoder: Decoder, octets: bytes) -> Outcome:
    """What the hpack package makes of a block."""
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(octets, raw=True)]
    except HPACKError as error:
        return isinstance(error, OversizedHeaderListError)


def outcome_of_ours(decoder: HpackDecoder, octets: bytes) -> Outcome:
    """What our decoder makes of a block."""
    try:
        return [(field.name, field.value) for field in decoder.decode(octets)[0]]
    except HeaderBlockError as error:
        return error.hostile


def check(data: bytes, _: int) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    ours, theirs = HpackDecoder(MAX_LIST_SIZE), Decoder(max_header_list_size=MAX_LIST_SIZE)
    while data:
        length = int.from_bytes(data[:2], "big")
        octets, data = data[2 : 2 + length], data[2 + length :]
        expected, found = outcome_of_hpack(theirs, octets), outcome_of_ours(ours, octets)
        assert found == expected, f"block {octets.hex()} gives {found}, should be {expected}"
        if isinstance(found, bool):
            return
        entries = [(field.name, field.value) for field in ours._entries]
        assert entries == [(bytes(n), bytes(v)) for n, v in theirs.header_table.dynamic_entries], "the tables differ"


if __name__ == "__main__":
    sys.exit(run(__doc__ or "", make_case, check))
