"""Keys of answers: equal for equal requests, however they come, and for no others."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from toutates.engine.cache.keys import EXACT_BYTES, SMALL_BYTES, contents_of, head_of, key_of, of_way, spans_of

SHAPES = ((0, (2,)), (1, (3,)))
WAY = of_way(1, SHAPES, None)
HEAD = head_of(WAY, 1)


def test_whatever_an_answer_is_made_of_makes_another_key() -> None:
    keys = [
        key_of(HEAD, b"", [b"ab"]),
        key_of(head_of(WAY, 2), b"", [b"ab"]),
        key_of(head_of(of_way(2, SHAPES, None), 1), b"", [b"ab"]),
        key_of(head_of(of_way(1, SHAPES, (0,)), 1), b"", [b"ab"]),
        key_of(head_of(of_way(1, SHAPES[:1], None), 1), b"", [b"ab"]),
        key_of(HEAD, b"said", [b"ab"]),
        key_of(HEAD, b"", [b"said", b"ab"]),
        key_of(HEAD, b"", [b"saida", b"b"]),
        key_of(HEAD, b"sai", [b"da", b"b"]),
        key_of(HEAD, b"", [b"ab", b""]),
        key_of(HEAD, b"", [b"", b"ab"]),
        key_of(HEAD, b"", [b"ba"]),
        key_of(HEAD, b"", []),
    ]
    for one, other in combinations(keys, 2):
        assert one != other


def test_a_small_request_of_one_input_has_it_behind_the_head() -> None:
    assert key_of(HEAD, b"", [b"ab"]) == HEAD + b"ab"


@pytest.mark.parametrize("size", [EXACT_BYTES, EXACT_BYTES + 1, SMALL_BYTES, SMALL_BYTES + 1])
def test_keys_of_any_size_tell_the_last_byte_apart_and_take_little_memory(size: int) -> None:
    one, other = bytes(size), bytes(size - 1) + b"1"
    assert key_of(HEAD, b"", [one]) != key_of(HEAD, b"", [other])
    assert key_of(HEAD, b"", [one, one]) != key_of(HEAD, b"", [one, other])
    assert key_of(HEAD, b"", [one]) == key_of(HEAD, b"", [bytearray(one)]) == key_of(HEAD, b"", [memoryview(one)])
    assert len(key_of(HEAD, one, [one])) <= len(HEAD) + 2 * EXACT_BYTES + 64


def test_no_digest_is_as_long_as_the_key_of_a_small_request() -> None:
    assert len(key_of(HEAD, b"", [bytes(SMALL_BYTES)])) < len(HEAD)


@pytest.mark.parametrize("values", [3, 3_000])
def test_bytes_arrays_and_parts_of_a_message_have_the_same_key(values: int) -> None:
    array = np.arange(values, dtype=np.float32)
    message = b"head" + array.tobytes() + b"tail"
    expected = key_of(HEAD, b"", [array.tobytes()])
    assert key_of(HEAD, b"", contents_of([array])) == expected
    assert key_of(HEAD, b"", spans_of(message, (4, 4 + array.nbytes))) == expected
