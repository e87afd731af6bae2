"""Typed contents of large requests: read as protobuf would, within what a worker has time for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_time import least_cpu_s, lines_run
from toutates.protocol import typed_contents
from toutates.protocol.datatypes import BY_NAME, typed_contents_to_raw
from toutates.protocol.grpc_service_pb2 import InferTensorContents, ModelInferRequest
from toutates.protocol.typed_contents import TypedReader, cut_contents
from toutates.system.errors import InvalidRequest

_NUMBERS = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-(2**31), 2**31 - 1),
    "UINT16": st.integers(0, 2**32 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "BYTES": st.binary(max_size=200),
}


def read(message: bytes, datatype: str) -> bytes:
    return bytes(TypedReader("M").read([memoryview(message)], BY_NAME[datatype], "X"))


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def field(tag: int, content: bytes) -> bytes:
    return varint(tag) + varint(len(content)) + content


@pytest.mark.parametrize("datatype", _NUMBERS)
@given(data=st.data())
def test_contents_are_what_protobuf_finds(datatype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(_NUMBERS[datatype], max_size=12))
    contents = InferTensorContents()
    name = BY_NAME[datatype].contents_field
    assert name is not None
    getattr(contents, name).extend(values)
    message = contents.SerializeToString()
    expected = typed_contents_to_raw(contents, BY_NAME[datatype], tensor="X", model="M")
    assert read(message, datatype) == expected
    # The same field twice is one that is as long as both.
    assert read(message * 2, datatype) == expected * 2


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_a_refusal(message: bytes) -> None:
    for datatype in _NUMBERS:
        try:
            TypedReader("M").read([memoryview(message)], BY_NAME[datatype], "X")
        except InvalidRequest:
            continue


def test_contents_are_cut_out_and_nothing_else() -> None:
    request = ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"one", b""])
    request.parameters["p"].int64_param = 3
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="FP32", shape=[2])
    request.inputs[0].contents.fp32_contents.extend([1.5, 2.5])
    request.outputs.add(name="y")
    cut = cut_contents(memoryview(request.SerializeToString()))
    assert cut is not None
    assert [bytes(raw) for raw in cut.raws] == [b"one", b""]
    assert [[bytes(piece) for piece in pieces] for pieces in cut.typed] == [
        [request.inputs[0].contents.SerializeToString()],
        [],
    ]
    rest = ModelInferRequest.FromString(cut.rest)
    assert rest.inputs[0].HasField("contents")
    assert not rest.inputs[1].HasField("contents")
    request.inputs[0].contents.Clear()
    request.inputs[0].contents.SetInParent()
    del request.raw_input_contents[:]
    assert rest == request


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x2a", id="no length"),
        pytest.param(b"\x2a\x05ab", id="cut"),
        pytest.param(b"\x2a\x02\x2a\x05", id="cut within an input"),
        pytest.param(b"\x0b\x0c", id="a group"),
        pytest.param(b"\x02\x00", id="number 0"),
        pytest.param(b"\xff" * 11, id="a long number"),
    ],
)
def test_malformed_messages_are_not_cut(message: bytes) -> None:
    assert cut_contents(memoryview(message)) is None


@pytest.mark.parametrize(
    ("message", "datatype", "text"),
    [
        pytest.param(b"\x35\0\0\0\0", "FP32", "is not packed", id="unpacked floats"),
        pytest.param(b"\x08\x01", "BOOL", "is not packed", id="unpacked booleans"),
        pytest.param(field(0x32, bytes(5)), "FP32", "is malformed", id="half a float"),
        pytest.param(field(0x1A, b"\x80"), "INT64", "is malformed", id="half a number"),
        pytest.param(field(0x1A, b"\xff" * 11 + b"\0"), "INT64", "is malformed", id="a long number"),
        pytest.param(b"\x1a\x05", "INT64", "is malformed", id="cut"),
        pytest.param(
            field(0x1A, bytes(524_289)),
            "INT64",
            "is too large, at most 524288 bytes of integers are taken in one request; send raw_input_contents",
            id="too many numbers",
        ),
        pytest.param(
            b"\x42\0" * 8_193, "BYTES", "has too many elements, at most 8192 of bytes_contents", id="too many strings"
        ),
        pytest.param(b"\x32\0" * 16_385, "FP32", "is in more than 16384 pieces", id="too many pieces"),
        pytest.param(field(0x1A, b"\1"), "FP32", "of type 'INT64', expected datatype 'FP32'", id="of another type"),
        pytest.param(
            field(0x1A, b"\1") + field(0x32, bytes(4)), "INT64", "binary data was already supplied.", id="of two types"
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_reason(message: bytes, datatype: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="explicit tensor data for input tensor 'X' for model 'M'") as caught:
        read(message, datatype)
    assert text in str(caught.value)


def test_limits_are_of_a_request_and_not_of_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_contents, "MAX_VARINT_BYTES", 10)
    reader = TypedReader("M")
    half = [memoryview(field(0x1A, bytes(6)))]
    assert reader.read(half, BY_NAME["INT64"], "a") == bytes(48)
    with pytest.raises(InvalidRequest, match="is too large"):
        reader.read(half, BY_NAME["INT64"], "b")


MOST: Final = pytest.mark.parametrize(
    ("message", "datatype"),
    [
        pytest.param(field(0x1A, (b"\xff" * 9 + b"\1") * 52_428), "INT64", id="long numbers"),
        pytest.param(field(0x1A, b"\x80\1" * 262_144), "INT64", id="short numbers"),
        pytest.param(b"\x42\1x" * 8_192, "BYTES", id="strings"),
        pytest.param(field(0x32, bytes(25_000_000)), "FP32", id="floats"),
        pytest.param(b"\x35\0\0\0\0" * 5_000_000, "FP32", id="unpacked floats"),
    ],
)


@MOST
def test_the_most_that_is_taken_takes_few_steps(message: bytes, datatype: str) -> None:
    assert lines_run(lambda: _read([memoryview(message)], datatype)) < 300_000  # 8,192 strings are most of it


@pytest.mark.alone  # numbers are read in C
@MOST
def test_the_most_that_is_taken_takes_a_worker_no_longer_than_a_turn(message: bytes, datatype: str) -> None:
    """CPU time, of the best of several tries; a turn is 20 ms, and the machine that this runs on may be slow."""
    assert least_cpu_s(lambda: _read([memoryview(message)], datatype), times=5) < 0.1


def _read(pieces: Sequence[memoryview], datatype: str) -> None:
    try:
        np.frombuffer(TypedReader("M").read(pieces, BY_NAME[datatype], "X"), np.uint8)
    except InvalidRequest:
        assert datatype == "FP32"


@pytest.mark.parametrize(
    ("message", "datatype", "expected"),
    [
        pytest.param(field(0x1A, bytes(524_288)), "INT64", bytes(8 * 524_288), id="numbers"),
        pytest.param(b"\x42\0" * 8_192, "BYTES", bytes(4 * 8_192), id="strings"),
        pytest.param(b"\x32\0" * 16_384, "FP32", b"", id="pieces"),
        pytest.param(field(0x1A, b"\xff" * 9 + b"\1"), "INT64", b"\xff" * 8, id="a number of ten bytes"),
    ],
)
def test_as_much_as_the_limits_say_is_taken(message: bytes, datatype: str, expected: bytes) -> None:
    assert read(message, datatype) == expected


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(b"\x78\x96\x01", id="number"),
        pytest.param(b"\x79" + b"12345678", id="eight bytes"),
        pytest.param(b"\x7d" + b"1234", id="four bytes"),
        pytest.param(b"\x7a\x02ab", id="bytes"),
    ],
)
def test_fields_that_nobody_knows_are_passed_over(unknown: bytes) -> None:
    numbers = field(0x1A, b"\1\2")
    assert read(unknown + numbers + unknown, "INT64") == np.array([1, 2], np.int64).tobytes()
    tensor = field(0x2A, unknown + field(0x2A, numbers) + unknown)
    raw = field(0x3A, b"raw")
    cut = cut_contents(memoryview(unknown + tensor + unknown + raw))
    assert cut is not None
    assert cut.rest == unknown + field(0x2A, unknown + b"\x2a\0" + unknown) + unknown
    assert [[bytes(piece) for piece in pieces] for pieces in cut.typed] == [[numbers]]
    assert [bytes(one) for one in cut.raws] == [b"raw"]
    for end in range(1, len(unknown)):
        assert cut_contents(memoryview(unknown[:end])) is None


def test_contents_that_come_in_pieces_leave_one_field_behind() -> None:
    pieces = [field(0x1A, b"\1"), field(0x1A, b"\2\3")]
    cut = cut_contents(memoryview(field(0x2A, b"".join(field(0x2A, piece) for piece in pieces))))
    assert cut is not None
    assert cut.rest == field(0x2A, b"\x2a\0")
    assert TypedReader("M").read(cut.typed[0], BY_NAME["INT64"], "X") == np.array([1, 2, 3], np.int64).tobytes()
