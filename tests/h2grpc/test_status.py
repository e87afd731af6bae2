from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.h2grpc.status import MAX_ENCODED_MESSAGE_BYTES, encode_message, parse_timeout


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b""),
        ("plain text, with (punctuation)!", b"plain text, with (punctuation)!"),
        ("100%", b"100%25"),
        ("a\nb\tc\x7f", b"a%0Ab%09c%7F"),
        ("é\U0001f600", b"%C3%A9%F0%9F%98%80"),
        ("\ud800", b"%3F"),
        (" both ends ", b"%20both ends%20"),
        (" ", b"%20"),
    ],
)
def test_message_is_percent_encoded(text: str, encoded: bytes) -> None:
    assert encode_message(text) == encoded


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2_100))
def test_encoded_message_decodes_to_itself_and_is_a_valid_field_value(text: str) -> None:
    encoded = encode_message(text)
    assert unquote_to_bytes(encoded).decode().startswith(text[:700])
    assert encoded == encoded.strip()
    assert all(0x20 <= octet <= 0x7E for octet in encoded)


@pytest.mark.parametrize("character", ["a", "%", "é", "\U0001f600", " ", "a "])
def test_long_message_is_cut_between_characters(character: str) -> None:
    text = character * 10_000
    encoded = encode_message(text)
    assert MAX_ENCODED_MESSAGE_BYTES - 12 < len(encoded) <= MAX_ENCODED_MESSAGE_BYTES + 4
    assert text.startswith(unquote_to_bytes(encoded).decode())


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        (b"1n", 1),
        (b"3m", 3_000_000),
        (b"501u", 501_000),
        (b"101S", 101 * 10**9),
        (b"1M", 60 * 10**9),
        (b"99999999H", 99_999_999 * 3_600 * 10**9),
        (b"0S", 0),
        (b"", None),
        (b"5", None),
        (b"S", None),
        (b"123456789S", None),
        (b"1s", None),
        (b"1 S", None),
        (b"1S\n", None),
        (b"-1S", None),
        ("\u0661S".encode(), None),
    ],
)
def test_timeout_follows_its_grammar(value: bytes, nanoseconds: int | None) -> None:
    assert parse_timeout(value) == nanoseconds
