"""JSON in Triton's dialect: what is read, and RapidJSON's words for what is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.protocol.rest.document import (
    FEW_VALUES,
    MAX_DEAR_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_VALUES,
    parse_document,
)
from toutates.system.errors import InvalidRequest, MalformedMessage, RequestError


def refusal(text: bytes) -> str:
    with pytest.raises(MalformedMessage) as caught:
        parse_document(text)
    return str(caught.value).removeprefix("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "The document is empty. at 0"),
        (b" \n", "The document is empty. at 2"),
        (b"nul", "Invalid value. at 0"),
        (b'{"a":}', "Invalid value. at 5"),
        (b"[1,]", "Invalid value. at "),
        (b"{1:2}", "Missing a name for object member. at 1"),
        (b'{"a":1,}', "Missing a name for object member. at "),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b'{"a":[1] "b":1}', "Missing a comma or '}' after an object member. at 9"),
        (b'[{"a":1} 2]', "Missing a comma or ']' after an array element. at 9"),
        (b'{"a":[1,2', "Missing a comma or ']' after an array element. at 9"),
        (b'{"a":"}"', "Missing a comma or '}' after an object member. at 8"),
        (b'["a', "Missing a closing quotation mark in string. at 3"),
        (b'["a\n"]', "Invalid encoding in string. at 3"),
        (b'["\\x"]', "Invalid escape character in string. at 2"),
        (b'["\\u00z0"]', "Incorrect hex digit after \\u escape in string. at "),
        (b'["\\ud83d"]', "The surrogate pair in string is invalid. at 2"),
        (b'["\\\\\\udc00"]', "The surrogate pair in string is invalid. at 4"),
        (b'["\xff"]', "Invalid encoding in string. at 2"),
        (b"[] []", "The document root must not be followed by other values. at 3"),
        ('["é" 1]'.encode(), "Missing a comma or ']' after an array element. at 6"),
        (b"[1e999]", "Number too big to be stored in double. at 0"),
        (b"[%b]" % (b"9" * 5_000), "Number too big to be stored in double. at 0"),
        (b"// comment\n1", "Invalid value. at 0"),
        (b"nan", "Invalid value. at 0"),
    ],
)
def test_syntax_errors_are_told_in_rapidjsons_words(text: bytes, expected: str) -> None:
    found = refusal(text)
    assert found.startswith(expected) if expected.endswith(" ") else found == expected


@pytest.mark.parametrize(
    "text",
    [
        b"[1,]",
        b'{"a":1,}',
        b'["a\n"]',
        b'{"a":1 2}',
        b"[01]",
        b"[1",
        b"",
        b" ",
        b'["\\ud800"]',
        b'["\\x"]',
        b"[1] 2",
        b"{1:2}",
        b'{"a" 1}',
        b'["a',
        b"{",
        b'{"a":1',
        b'{"a":[{"b":"]"}',
    ],
)
def test_syntax_errors_are_those_of_rapidjson(text: bytes) -> None:
    rapidjson = pytest.importorskip("rapidjson")
    with pytest.raises(rapidjson.JSONDecodeError) as caught:
        rapidjson.loads(text)
    offset, _, reason = str(caught.value).removeprefix("Parse error at offset ").partition(": ")
    assert refusal(text) == f"{reason} at {offset}"


def test_the_first_of_equal_names_counts() -> None:
    assert parse_document(b'{"a":1,"b":{"c":1,"c":2},"a":3}') == {"a": 1, "b": {"c": 1}}


def test_words_for_numbers_are_read_outside_of_strings_alone() -> None:
    values = parse_document(b'[NaN,Inf,-Inf,Infinity,-Infinity,"Inf\\"Inf"]')
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf, -math.inf, 'Inf"Inf']


def test_surrogates_in_pairs_are_text() -> None:
    assert parse_document(b'["\\ud83d\\ude00","\\\\ud83d"]') == ["\U0001f600", "\\ud83d"]


def test_a_document_may_have_many_values_but_not_more() -> None:
    assert len(parse_document(b"[%b]" % b",".join([b"1"] * MAX_VALUES))) == MAX_VALUES
    with pytest.raises(InvalidRequest, match="more than 16384 values"):
        parse_document(b"[%b]" % b",".join([b"1"] * (MAX_VALUES + 1)))


def test_commas_in_strings_are_no_values() -> None:
    text = "," * (MAX_VALUES * 2)
    assert parse_document(json.dumps([text]).encode()) == [text]


def test_a_long_document_has_few_values_and_plain_letters() -> None:
    long = "a" * (MAX_DEAR_BYTES + 1)
    many = json.dumps([long[: MAX_DEAR_BYTES // FEW_VALUES]] * (FEW_VALUES + 1)).encode()
    for octets in (many, f'["{long}ü"]'.encode()):
        with pytest.raises(InvalidRequest, match="1048576 bytes with more than 256 values"):
            parse_document(octets)
        assert parse_document(octets, 2 * MAX_DOCUMENT_BYTES)
    for text in (long, "Inf/" + long, ",[" * (MAX_DEAR_BYTES - 9)):
        assert parse_document(json.dumps([text]).encode()) == [text]
    assert parse_document(f'["{long[:-9]}ü"]'.encode())[0].endswith("ü")


def test_a_document_that_is_too_deep_or_too_long_is_refused() -> None:
    for text in (b"[" * 10_000, b'{"a":' * 5_000, b'"%b"' % (b"a" * 3_000_000), b"[" * 250_000):
        with pytest.raises(RequestError):
            parse_document(text)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(document=_VALUES, ascii_only=st.booleans())
def test_every_document_is_read_as_it_was_written(document: Any, ascii_only: bool) -> None:
    try:
        text = json.dumps(document, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    assert parse_document(text) == document
