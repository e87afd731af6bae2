"""One connection's header blocks, remembered ones among them.

Invariant: our decoder and the ``hpack`` package's give the same fields and hold the same dynamic table, block by block,
until both refuse a block; ours refuses with HeaderBlockError and nothing else, and for its size when the other does.
And what a ``HeaderReader`` makes of a block, from its memory of blocks and verdicts where it can, is what it makes of
the same fields when it has seen nothing before.

A case is some blocks, each behind a byte that tells requests from trailers and its length in two bytes.
"""

from __future__ import annotations

import random

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from tests.fuzz.sessions import mutate
from tests.h2grpc.frames import STREAM, UNARY, literal, request
from tests.h2grpc.support import METHODS
from toutates.h2grpc import Limits
from toutates.h2grpc.header_field import make_field
from toutates.h2grpc.headers import HeaderBlockError, HeaderReader
from toutates.h2grpc.hpack_decoder import MAX_RESIZES, HpackDecoder
from toutates.h2grpc.request_head import RequestHead, RequestJudge, trailers_complaint

__all__ = ["check", "make_case", "read", "write"]

Pair = tuple[bytes, bytes]
#: The fields, or whether the block was refused for its size.
Outcome = list[Pair] | bool

LIMITS = Limits(max_header_list_size=1_500, header_memory_entries=3)
LARGEST_LIST = 2 * LIMITS.max_header_list_size

NAMES = (
    b":path",
    b":status",
    b"content-type",
    b"content-length",
    b"te",
    b"grpc-timeout",
    b"grpc-encoding",
    b"x-0",
    b"",
    b"\xff",
)
VALUES = (b"", b"trailers", b"1S", b"99m", b"soon", b"gzip", b"5", b"v" * 130, b"v" * 600, b"application/grpc", b" ")


# --- cases -----------------------------------------------------------------------------------------------------------


def write(blocks: list[tuple[bool, bytes]]) -> bytes:
    """Blocks as a case; the flag tells trailers."""
    return b"".join(bytes([trailers]) + len(octets).to_bytes(2, "big") + octets for trailers, octets in blocks)


def read(case: bytes) -> list[tuple[bool, bytes]]:
    """The inverse of ``write``, for any bytes."""
    blocks = []
    while len(case) >= 3:
        length = int.from_bytes(case[1:3], "big")
        blocks.append((bool(case[0] & 1), case[3 : 3 + length]))
        case = case[3 + length :]
    return blocks


def make_case(rng: random.Random) -> bytes:
    """Blocks by the encoder of the ``hpack`` package and by hand; some broken, many sent again."""
    encoder = Encoder()
    blocks: list[tuple[bool, bytes]] = []
    for _ in range(rng.randint(1, 12)):
        if blocks and rng.random() < 0.4:
            blocks.append(rng.choice(blocks))
            continue
        octets = _by_encoder(encoder, rng) if rng.random() < 0.5 else _by_hand(rng)
        if rng.random() < 0.1:
            octets = mutate(octets, rng)
        blocks.append((rng.random() < 0.15, octets[:65_535]))
    return write(blocks)


def _fields(rng: random.Random) -> list[Pair]:
    fields = [
        (_octets(name), _octets(value)) for name, value in request(rng.choice((UNARY, UNARY, STREAM, "/nowhere")))
    ]
    fields += [(rng.choice(NAMES), rng.choice((*VALUES, rng.randbytes(5)))) for _ in range(rng.choice((0, 1, 1, 3)))]
    if rng.random() < 0.2:
        del fields[rng.randrange(len(fields))]
    if rng.random() < 0.1:
        rng.shuffle(fields)
    return fields


def _by_encoder(encoder: Encoder, rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        encoder.header_table_size = rng.choice((0, 40, 300, 4_096))
    fields = [(name, value, rng.random() < 0.1) for name, value in _fields(rng)]
    return encoder.encode(fields, huffman=rng.random() < 0.6)


def _by_hand(rng: random.Random) -> bytes:
    octets = b""
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2))):  # more are refused, which the oracle does not do
        octets += _integer(rng.choice((0, 31, 32, 70, 300, 4_096, 4_096, 4_097, 2**31)), 5, 0x20, rng)
    for name, value in _fields(rng):
        form = rng.choice((0x00, 0x10, 0x40))
        kind = rng.random()
        if kind < 0.3:
            octets += _integer(rng.choice((1, 2, 4, 8, 16, 61, 62, 62, 63, 64, 70, 200)), 7, 0x80, rng)
        elif kind < 0.5:
            bits = 6 if form == 0x40 else 4
            octets += _integer(rng.choice((1, 4, 8, 19, 31, 62, 63)), bits, form, rng) + literal(b"", value)[2:]
        else:
            octets += literal(name, value, form)
    return octets


def _integer(value: int, bits: int, form: int, rng: random.Random) -> bytes:
    """RFC 7541 section 5.1; at times with more octets than it takes."""
    prefix = (1 << bits) - 1
    if value < prefix:
        return bytes([form | value])
    out = bytearray([form | prefix])
    value -= prefix
    while value >= 0x80:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    while rng.random() < 0.05:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


# --- what must hold --------------------------------------------------------------------------------------------------


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    ours, theirs = HpackDecoder(LARGEST_LIST), Decoder(max_header_list_size=LARGEST_LIST)
    reader = HeaderReader(METHODS, LIMITS, "gzip")
    for trailers, octets in read(case):
        expected, found = _outcome_of_hpack(theirs, octets), _outcome_of_ours(ours, octets)
        if found is True and _resizes(octets) > MAX_RESIZES:
            return  # which the package takes
        assert found == expected, f"block {octets.hex()} gives {found}, should be {expected}"
        if isinstance(expected, bool):
            _check_refusal(reader, octets, trailers=trailers, hostile=expected)
            return
        entries = [field[:2] for field in ours.entries]
        assert entries == [(bytes(n), bytes(v)) for n, v in theirs.header_table.dynamic_entries], "the tables differ"
        fields = tuple(make_field(name, value) for name, value in expected)
        if trailers:
            assert reader.read_trailers(octets) == trailers_complaint(fields)
        else:
            fresh = RequestJudge(METHODS, LIMITS, "gzip").judge(fields, sum(field[2] for field in fields))
            head = reader.memory.get(octets) or reader.read(octets)
            assert _contents(head) == _contents(fresh), f"block {octets.hex()} means something else when remembered"
        assert len(reader.memory) <= LIMITS.header_memory_entries
        assert reader.kept_bytes <= 256 * 1_024
        for remembered in reader.memory:
            assert len(remembered) <= 4_096, "a large block is remembered"


def _outcome_of_hpack(decoder: Decoder, octets: bytes) -> Outcome:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(octets, raw=True)]
    except HPACKError as error:
        return isinstance(error, OversizedHeaderListError)


def _outcome_of_ours(decoder: HpackDecoder, octets: bytes) -> Outcome:
    try:
        return [field[:2] for field in decoder.decode(octets)[0]]
    except HeaderBlockError as error:
        return error.hostile


def _resizes(octets: bytes) -> int:
    """How many dynamic table size updates a block begins with."""
    at = updates = 0
    while at < len(octets) and octets[at] & 0xE0 == 0x20:
        updates += 1
        more = octets[at] & 0x1F == 0x1F
        at += 1
        while more and at < len(octets):
            more = octets[at] >= 0x80
            at += 1
    return updates


def _check_refusal(reader: HeaderReader, octets: bytes, *, trailers: bool, hostile: bool) -> None:
    assert octets not in reader.memory, "a block that means nothing now is remembered"
    refusal: HeaderBlockError | None = None
    try:
        reader.read_trailers(octets) if trailers else reader.read(octets)
    except HeaderBlockError as error:
        refusal = error
    assert refusal is not None, f"block {octets.hex()} is read"
    assert refusal.hostile is hostile


def _contents(head: RequestHead) -> dict[str, object]:
    """Everything that a head says; not what the reader adds, which is how it is counted."""
    contents = {name: getattr(head, name) for name in RequestHead.__slots__ if name not in ("kept_bytes", "long_way")}
    contents["fields"] = [field[:2] for field in head.fields]
    if head.error is not None:
        contents["error"] = (head.error.status, head.error.text, head.error.metadata)
    return contents
