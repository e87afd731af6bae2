from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_by_hpack
from hypothesis import example, given
from hypothesis import strategies as st

from toutates.h2grpc import huffman
from toutates.h2grpc.huffman import decode_huffman

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.binary(max_size=300))
@example(bytes(range(256)))
def test_decoder_gives_back_what_was_encoded(text: bytes) -> None:
    assert decode_huffman(ENCODER.encode(text)) == text


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
        ("a8eb10649cbf", b"no-cache"),
        ("25a849e95ba97d7f", b"custom-key"),
        ("6402", b"302"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        ("", b""),
    ],
)
def test_strings_of_rfc_7541_appendix_c(octets: str, text: bytes) -> None:
    assert decode_huffman(bytes.fromhex(octets)) == text


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"\xff\xff\xff\xff", "Invalid"),  # EOS
        (b"\xff\xff\xff\xff\x00\x00", "Invalid"),
        (b"\x07\xff", "Incomplete"),  # "0", and padding of more than 7 bits
        (b"\x00", "Incomplete"),  # "0", and padding that is not of ones
        (b"\xff", "Incomplete"),
    ],
)
def test_decoder_refuses_what_rfc_7541_section_5_2_does(octets: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_huffman(octets)


@given(st.binary(max_size=12))
def test_decoder_and_hpack_agree_on_random_octets(octets: bytes) -> None:
    try:
        expected = decode_by_hpack(octets)
    except HPACKDecodingError as error:
        with pytest.raises(ValueError, match=str(error)):
            decode_huffman(octets)
    else:
        assert decode_huffman(octets) == expected


def test_threads_that_make_the_same_rows_decode_right() -> None:
    text = bytes(range(256)) * 20
    octets = ENCODER.encode(text)
    for _ in range(5):
        for row in huffman._ROWS:
            row.clear()
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(decode_huffman, [octets] * 8)) == [text] * 8
    assert {len(row) for row in huffman._ROWS} <= {0, 256}
