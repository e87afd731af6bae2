"""BYTES tensors as ranges of the bytes that they came in."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.protocol import strings
from toutates.protocol.strings import (
    MANY_ELEMENTS,
    MAX_ELEMENTS,
    EncodedStrings,
    StringRows,
    StringTensor,
    join_rows,
)
from toutates.system.errors import InvalidRequest

BYTE_STRINGS = st.lists(st.binary(max_size=40), max_size=20)


def raw(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def received(data: bytes | memoryview, shape: Sequence[int]) -> StringRows:
    return StringRows.received(data, shape, tensor="X", model="M")


def find(data: bytes | memoryview, shape: Sequence[int]) -> list[bytes]:
    return join_rows([received(data, shape)], shape).elements()


@given(BYTE_STRINGS)
def test_elements_are_found_whatever_they_hold(elements: list[bytes]) -> None:
    encoded = EncodedStrings.of(elements, (len(elements),))
    assert encoded.content == raw(*elements)
    for data in (encoded.content, memoryview(encoded.content), memoryview(bytearray(encoded.content))):
        assert find(data, (len(elements),)) == elements
    assert StringTensor.of(elements, (len(elements),)).elements() == elements


@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        pytest.param(raw(b"ab") * 14, 16, "expected 16 string elements for {0}, got 14", id="too_few"),
        pytest.param(b"", 1, "expected 1 string elements for {0}, got 0", id="none"),
        pytest.param(b"", 10**15, f"expected {10**15} string elements for {{0}}, got 0", id="huge_shape"),
        pytest.param(
            raw(b"ab") * 19, 16, "unexpected number of string elements 17 for {0}, expecting 16", id="too_many"
        ),
        pytest.param(
            raw(b""),
            0,
            "unexpected number of string elements 1 for {0}, expecting 0; its shape has a dimension of 0, and so no "
            "elements",
            id="not_empty",
        ),
        pytest.param(
            raw(b"ab") + b"\0\0\0",
            1,
            "incomplete string length indicator for {0}, expecting 4 bytes but only 3 bytes available.",
            id="cut_length",
        ),
        pytest.param(
            raw(b"ab") + b"\1",
            2,
            "incomplete string length indicator for {0}, expecting 4 bytes but only 1 bytes available.",
            id="cut_length_and_too_few",
        ),
        pytest.param(
            b"\5\0\0\0abc",
            1,
            "incomplete string data for {0}, expecting string of length 5 but only 3 bytes available.",
            id="cut_data",
        ),
        pytest.param(
            b"\xff\xff\xff\xff",
            1,
            "incomplete string data for {0}, expecting string of length 4294967295 but only 0 bytes available.",
            id="length_is_unsigned",
        ),
    ],
)
def test_decoding_refuses_in_tritons_words(data: bytes, count: int, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find(data, (count,))
    assert str(caught.value) == text.format("inference input 'X' for model 'M'")


@given(st.binary(max_size=60), st.integers(0, 8))
def test_only_what_encoding_gives_is_accepted(data: bytes, count: int) -> None:
    try:
        elements = find(data, (count,))
    except InvalidRequest:
        return
    assert len(elements) == count
    assert raw(*elements) == data


@given(st.binary(max_size=60) | BYTE_STRINGS.map(lambda elements: raw(*elements)), st.integers(0, 8))
def test_rows_where_they_lie_are_as_copied_ones(data: bytes, count: int) -> None:
    answers: list[list[bytes] | str] = []
    memory = bytearray(b"before" + data + b"|behind")
    lying = memoryview(memory)[6 : 6 + len(data) + 1]
    for is_copied in (True, False):
        try:
            rows = received(data, (count,)) if is_copied else StringRows.lying(lying, (count,), tensor="X", model="M")
            answers.append(join_rows([rows], (count,)).elements())
            rows.release()
        except InvalidRequest as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert memory == b"before" + data + b"|behind"
    lying.release()
    memory.clear()  # which is refused as long as there is a view of it


@given(BYTE_STRINGS)
def test_many_elements_are_found_and_refused_as_few_are(elements: list[bytes]) -> None:
    """The same answers from both ways, for whole and for damaged data."""
    whole = raw(*elements)
    for data in (whole, whole[:-1], whole + b"\1", whole + raw(b"")):
        for count in (len(elements), len(elements) + 1):
            answers = []
            for most in (MANY_ELEMENTS, 2):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(strings, "MANY_ELEMENTS", most)
                    try:
                        answers.append(str(find(data, (count,))))
                    except InvalidRequest as error:
                        answers.append(str(error))
            assert answers[0] == answers[1]


def test_no_more_elements_are_looked_for_than_the_shape_has() -> None:
    data = raw(*[b""] * 1_000)
    rows = received(b"", (0,))
    with pytest.raises(InvalidRequest, match=r"unexpected number of string elements 4 .* expecting 3"):
        rows = received(data, (3,))
    assert rows.where() == ([], [])


def test_many_elements_are_not_looked_for_when_they_come() -> None:
    damaged = raw(*[b""] * MANY_ELEMENTS) + b"\1\0\0\0"
    rows = received(damaged, (MANY_ELEMENTS + 1,))
    assert rows.many
    with pytest.raises(InvalidRequest, match="incomplete string data for inference input 'X' for model 'M'"):
        rows.where()
    assert not received(b"", (0,)).many


def test_a_shape_of_more_elements_than_are_taken_is_refused_by_the_limit() -> None:
    shape = (MAX_ELEMENTS + 1,)
    with pytest.raises(InvalidRequest, match=f"more than {MAX_ELEMENTS} string elements for inference input 'X'"):
        find(bytes(4 * (MAX_ELEMENTS + 1)), shape)
    assert len(received(bytes(4 * MAX_ELEMENTS), (MAX_ELEMENTS,)).where()[0]) == MAX_ELEMENTS
    with pytest.raises(InvalidRequest, match=f"expected {MAX_ELEMENTS + 1} string elements .* got {MAX_ELEMENTS}$"):
        find(bytes(4 * MAX_ELEMENTS), shape)


@given(st.lists(st.lists(st.binary(max_size=20), max_size=4), min_size=1, max_size=4), st.booleans())
def test_rows_of_several_requests_are_joined_in_order(requests: list[list[bytes]], many: bool) -> None:
    pieces = [received(raw(*elements), (len(elements), 1)) for elements in requests]
    every = [element for elements in requests for element in elements]
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(strings, "MANY_ELEMENTS", -1)
        assert join_rows(pieces, (len(every), 1)).elements() == every


@given(st.lists(st.binary(max_size=5), min_size=12, max_size=12), st.integers(0, 4), st.integers(0, 4))
def test_some_rows_are_as_a_slice_of_an_array(elements: list[bytes], first: int, rows: int) -> None:
    array = np.empty(12, np.object_)
    array[:] = elements
    expected = array.reshape(4, 3)[first : first + rows]
    part = received(raw(*elements), (4, 3))[first : first + rows]
    assert join_rows([part], expected.shape).elements() == expected.ravel().tolist()
    encoded = EncodedStrings.of(elements, (4, 3))
    assert bytes(encoded.rows(first, len(expected))) == raw(*expected.ravel())


def test_elements_are_found_once_before_any_thread_writes_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * MANY_ELEMENTS
    rows = received(raw(*[b"text"] * count), (count, 1))
    first, second = rows[: count // 2], rows[count // 2 :]
    walking, written = threading.Event(), threading.Event()

    def rest() -> None:
        # The thread that began first is in the middle; the other one has all the time it needs to overtake it.
        if threading.current_thread() is slow:
            walking.set()
            written.wait(0.3)

    monkeypatch.setattr(strings, "rest", rest)
    found: list[int] = []
    slow = threading.Thread(target=lambda: found.append(len(second.where()[0])))
    slow.start()
    assert walking.wait(120)
    tensor = join_rows([first], (count // 2, 1))
    for start, length in zip(tensor.starts, tensor.lengths, strict=True):
        tensor.content[start + length] = 0xFF
    written.set()
    slow.join(120)
    assert found == [count - count // 2]


def test_rows_without_elements_are_sliced() -> None:
    rows = received(b"", (3, 0))[1:2]
    assert join_rows([rows], (1, 0)).elements() == []


def test_large_rows_of_an_output_are_not_copied_and_small_ones_are() -> None:
    encoded = EncodedStrings.of([b"x" * 100_000, b"y"], (2, 1))
    large = encoded.rows(0, 1)
    assert isinstance(large, memoryview)
    assert large.obj is encoded.content
    small = encoded.rows(1, 1)  # which would keep all of the batch's output
    assert small == raw(b"y")
    assert isinstance(small, bytes)
