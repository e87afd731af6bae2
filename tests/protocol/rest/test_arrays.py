"""A reader of arrays takes no text that is no array, however its brackets, commas and numbers stand."""

from __future__ import annotations

import itertools
import json

import pytest

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.rest import arrays
from toutates.protocol.rest.arrays import Unreadable, read_elements, reader_of

INT8 = BY_NAME["INT8"]
#: All texts of up to six brackets, commas and numbers within a pair of brackets.
TEXTS = [b"[%b]" % bytes(octets) for size in range(7) for octets in itertools.product(b"[],1", repeat=size)]


@pytest.mark.parametrize("piece_bytes", [arrays.PIECE_BYTES, 3])
def test_what_a_reader_takes_is_an_array_of_the_same_elements(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "PIECE_BYTES", piece_bytes)
    taken = 0
    for text in TEXTS:
        count = text.count(b",") + 1
        try:
            content = reader_of(INT8, count).read(text, 0, len(text))
        except Unreadable:
            continue
        taken += 1
        assert content == read_elements(json.loads(text), INT8, count), text
    assert taken > 15
