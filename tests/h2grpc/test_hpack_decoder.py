"""Decoder and table against the vectors of RFC 7541, and against the ``hpack`` package on whatever a peer may send."""

from __future__ import annotations

import random
import re
from typing import Final

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import literal
from toutates.h2grpc.header_field import HeaderField
from toutates.h2grpc.hpack_decoder import HeaderBlockError, HpackDecoder

Pairs = list[tuple[bytes, bytes]]

LARGEST_LIST = 32_768


def pairs(fields: list[HeaderField]) -> Pairs:
    return [field[:2] for field in fields]


def decode(decoder: HpackDecoder, block: bytes) -> Pairs:
    return pairs(decoder.decode(block)[0])


# --- RFC 7541 appendix C ---------------------------------------------------------------------------------------------

FIRST_REQUEST = ":method GET|:scheme http|:path /|:authority www.example.com"
SECOND_REQUEST = FIRST_REQUEST + "|cache-control no-cache"
THIRD_REQUEST = ":method GET|:scheme https|:path /index.html|:authority www.example.com|custom-key custom-value"
REQUEST_SIZES = (57, 110, 164)

LOCATION = "location https://www.example.com"
RESPONSE = f"|cache-control private|date Mon, 21 Oct 2013 20:13:21 GMT|{LOCATION}"
THIRD_RESPONSE = (
    f":status 200|cache-control private|date Mon, 21 Oct 2013 20:13:22 GMT|{LOCATION}|content-encoding gzip"
    "|set-cookie foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
)
RESPONSE_SIZES = (222, 222, 215)
#: The responses' examples assume a table of 256 bytes; this update says so.
TO_256 = "3fe101"

VECTORS = {
    "C.3 requests": (
        [
            ("828684410f7777772e6578616d706c652e636f6d", FIRST_REQUEST),
            ("828684be58086e6f2d6361636865", SECOND_REQUEST),
            ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", THIRD_REQUEST),
        ],
        REQUEST_SIZES,
    ),
    "C.4 requests with Huffman coding": (
        [
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", FIRST_REQUEST),
            ("828684be5886a8eb10649cbf", SECOND_REQUEST),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", THIRD_REQUEST),
        ],
        REQUEST_SIZES,
    ),
    "C.5 responses": (
        [
            (
                TO_256 + "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
                "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
                ":status 302" + RESPONSE,
            ),
            ("4803333037c1c0bf", ":status 307" + RESPONSE),
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a"
                "4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
                THIRD_RESPONSE,
            ),
        ],
        RESPONSE_SIZES,
    ),
    "C.6 responses with Huffman coding": (
        [
            (
                TO_256
                + "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97"
                "c8e9ae82ae43d3",
                ":status 302" + RESPONSE,
            ),
            ("4883640effc1c0bf", ":status 307" + RESPONSE),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960"
                "d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                THIRD_RESPONSE,
            ),
        ],
        RESPONSE_SIZES,
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_examples_of_the_rfc(name: str) -> None:
    blocks, sizes = VECTORS[name]
    decoder = HpackDecoder(LARGEST_LIST)
    for (octets, expected), table_size in zip(blocks, sizes, strict=True):
        fields, list_size = decoder.decode(bytes.fromhex(octets))
        assert pairs(fields) == [tuple(field.encode().split(b" ", 1)) for field in expected.split("|")]
        assert list_size == sum(len(name) + len(value) + 32 for name, value in pairs(fields))
        assert decoder.table_size == table_size


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_indexed_field_is_the_tables_own() -> None:
    decoder = HpackDecoder(LARGEST_LIST)
    ((inserted,), _) = decoder.decode(literal("x-id", "one", 0x40))
    ((indexed,), _) = decoder.decode(b"\xbe")
    assert indexed is inserted


def test_table_changes_count_what_makes_a_block_mean_something_else() -> None:
    decoder = HpackDecoder(LARGEST_LIST)

    def changes(block: bytes) -> bool:
        before = decoder.table_changes
        decoder.decode(block)
        return decoder.table_changes != before

    assert changes(literal("x-id", "one", 0x40))
    assert not changes(b"\xbe\x82" + literal("x-id", "two") + literal("x-id", "two", 0x10))
    assert not changes(b"\x3f\xe1\x1f")  # 4,096, as it was
    assert changes(b"\x20")
    assert not changes(literal("x-id", "one", 0x40))  # a table of size 0 stays empty
    assert changes(b"\x3f\x01")
    assert not changes(literal("x-id", "one", 0x40))  # 39 bytes, in a table of 32


def test_entry_larger_than_the_table_empties_it() -> None:
    decoder = HpackDecoder(LARGEST_LIST)
    decoder.decode(literal("x-id", "one", 0x40))
    large = b"v" * 5_000
    assert decode(decoder, literal("x-id", large, 0x40)) == [(b"x-id", large)]
    assert (len(decoder.entries), decoder.table_size) == (0, 0)


def test_name_of_an_entry_that_its_own_literal_evicts() -> None:
    decoder = HpackDecoder(LARGEST_LIST)
    decoder.decode(b"\x3f\x15" + literal("x-id", "one", 0x40))  # a table of 52 bytes
    assert decode(decoder, b"\x7e\x03two\xbe") == [(b"x-id", b"two"), (b"x-id", b"two")]


@pytest.mark.parametrize("bound", [50, 116, 117, 118])
def test_list_beyond_the_bound_is_hostile_and_decoded_no_further(bound: int) -> None:
    decoder = HpackDecoder(bound)
    block = literal("x-id", "one", 0x40) * 2 + b"\xbe" + literal("x-id", b"")[:-1]
    if bound >= 3 * 39:
        with pytest.raises(HeaderBlockError, match="Truncated") as caught:
            decoder.decode(block)
        assert not caught.value.hostile
    else:
        with pytest.raises(HeaderBlockError, match=f"^header list exceeds {bound} bytes$") as caught:
            decoder.decode(block)
        assert caught.value.hostile


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"\x80", "Invalid table index 0"),
        (b"\xbe", "Invalid table index 62"),
        (b"\x7e\x01v", "Invalid table index 62"),
        (b"\x0f\x2f\x01v", "Invalid table index 62"),
        (b"\xff\xff\xff\xff\xff\x7f", "Invalid table index 34359738494"),
        (b"\xff", "Truncated"),
        (b"\xff\x80", "Truncated"),
        (b"\xff\x80\x80\x80\x80\x80\x00", "Variable integer representation is too long"),
        (b"\x40", "Truncated"),
        (b"\x40\x01", "Truncated"),
        (b"\x40\x01n", "Truncated"),
        (b"\x40\x01n\x02v", "Truncated"),
        (b"\x00\x7f\xff\xff\xff\xff\x7fn", "Truncated"),
        (b"\x00\x01n\x81\x00", "Incomplete Huffman string"),
        (b"\x00\x84\xff\xff\xff\xff\x01v", "Invalid Huffman string"),
        (b"\x3f\xe2\x1f", "Encoder exceeded max allowable table size"),
        (b"\x82\x20", "Table size update not at the start of the block"),
    ],
)
def test_decoder_refuses(block: bytes, reason: str) -> None:
    with pytest.raises(HeaderBlockError, match=f"^header block cannot be decoded: {reason}") as caught:
        HpackDecoder(LARGEST_LIST).decode(block)
    assert not caught.value.hostile
    with pytest.raises(HPACKError):
        Decoder().decode(block, raw=True)


# --- against hpack ---------------------------------------------------------------------------------------------------


def decode_by_hpack(decoder: Decoder, block: bytes) -> Pairs | bool:
    """The fields, or whether the block was refused for its size."""
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except OversizedHeaderListError:
        return True
    except HPACKError:
        return False


#: Three updates of the size of the table at the start of a block.
TOO_MANY_UPDATES: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}", re.DOTALL)


def check(blocks: list[bytes], bound: int = LARGEST_LIST) -> int:
    """Decode the blocks of one connection both ways; returns how many were fine before one was refused."""
    ours, theirs = HpackDecoder(bound), Decoder(max_header_list_size=bound)
    for number, block in enumerate(blocks):
        if TOO_MANY_UPDATES.match(block):  # which hpack takes
            with pytest.raises(HeaderBlockError, match=r"too many table size updates|cannot be decoded"):
                ours.decode(block)
            return number
        expected = decode_by_hpack(theirs, block)
        if isinstance(expected, bool):
            with pytest.raises(HeaderBlockError) as caught:
                ours.decode(block)
            assert caught.value.hostile is expected
            return number
        assert decode(ours, block) == expected
        assert pairs(list(ours.entries)) == [(bytes(n), bytes(v)) for n, v in theirs.header_table.dynamic_entries]
        assert ours.table_size == sum(field[2] for field in ours.entries) <= ours.max_table_size
        assert ours.max_table_size == theirs.header_table.maxsize
    return len(blocks)


FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":path", b"te", b"x-id", b"grpc-timeout"]) | st.binary(max_size=150),
        st.sampled_from([b"", b"one", b"two", b"v" * 700]) | st.binary(max_size=150),
        st.booleans(),
    ),
    max_size=8,
)
TABLE_SIZES = st.lists(st.sampled_from([0, 31, 64, 200, 1_000, 4_096]), max_size=2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FIELDS, TABLE_SIZES, st.booleans()), max_size=15))
def test_decoder_and_hpack_agree_on_valid_blocks(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], list[int], bool]],
) -> None:
    encoder = Encoder()
    octets = []
    for fields, table_sizes, huffman in blocks:
        for table_size in table_sizes:
            if table_size != encoder.header_table_size:  # or hpack's encoder forgets to announce the size before
                encoder.header_table_size = table_size
        octets.append(encoder.encode(fields, huffman))
    assert check(octets) == len(octets)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([100, 1_000, LARGEST_LIST]))
def test_decoder_and_hpack_agree_on_random_octets(blocks: list[bytes], bound: int) -> None:
    check(blocks, bound)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(FIELDS, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([300, LARGEST_LIST]),
    st.randoms(use_true_random=False),
)
def test_decoder_and_hpack_agree_on_mutated_blocks(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool]], bound: int, chance: random.Random
) -> None:
    encoder = Encoder()
    octets = [bytearray(encoder.encode(fields, huffman)) for fields, huffman in blocks]
    for block in octets:
        for _ in range(chance.choice([0, 0, 1, 2])):
            at = chance.randrange(len(block) + 1)
            block[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    check([bytes(block) for block in octets], bound)


def test_table_size_updates_are_few() -> None:
    """RFC 7541 section 4.2: the smallest size and the last."""
    decoder = HpackDecoder(10_000)
    assert [field[1] for field in decoder.decode(b"\x20\x3f\xe1\x1f\x82")[0]] == [b"GET"]
    with pytest.raises(HeaderBlockError, match="too many table size updates") as info:
        decoder.decode(b"\x20\x20\x20\x82")
    assert info.value.hostile
