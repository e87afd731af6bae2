"""The scan of a request against protobuf's own reading of it, and layouts against the scan."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protobuf_fields import field_of as field
from tests.protobuf_fields import varint
from toutates.infer.scanning import Scan, read_layout, scan
from toutates.protocol.grpc_service_pb2 import InferParameter, ModelInferRequest

#: What protobuf raises; its pure-Python implementation has an exception of its own for strings that are not UTF-8.
UNREADABLE = (DecodeError, UnicodeDecodeError)


texts = st.text(max_size=20)
parameters = st.dictionaries(
    texts,
    st.one_of(
        st.builds(InferParameter, bool_param=st.booleans()),
        st.builds(InferParameter, int64_param=st.integers(-(2**63), 2**63 - 1)),
        st.builds(InferParameter, string_param=texts),
    ),
    max_size=2,
)
shapes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
inputs = st.lists(
    st.builds(ModelInferRequest.InferInputTensor, name=texts, datatype=texts, shape=shapes, parameters=parameters),
    max_size=3,
)
outputs = st.lists(
    st.builds(ModelInferRequest.InferRequestedOutputTensor, name=texts, parameters=parameters), max_size=3
)
raws = st.lists(st.binary(max_size=200), max_size=4)
requests = st.builds(
    ModelInferRequest,
    model_name=texts,
    model_version=texts,
    id=st.one_of(texts, st.text(min_size=100, max_size=300)),
    parameters=parameters,
    inputs=inputs,
    outputs=outputs,
    raw_input_contents=raws,
)
#: Fields that no version of the message has, of every wire type that is still in use.
unknown_fields = st.one_of(
    st.builds(field, st.integers(8, 100), st.binary(max_size=9)),
    st.builds(lambda number, value: varint(number << 3) + varint(value), st.integers(8, 99), st.integers(0, 2**63)),
    st.builds(lambda number: varint(number << 3 | 5) + b"abcd", st.integers(8, 99)),
    st.builds(lambda number: varint(number << 3 | 1) + b"abcdefgh", st.integers(8, 99)),
)


def pieces_of(message: ModelInferRequest) -> list[bytes]:
    """Each top-level field as it is sent."""
    data = message.SerializeToString(deterministic=True)
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        start = at
        at += 1
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length
        pieces.append(data[start:at])
    return pieces


@st.composite
def wire_messages(draw: st.DrawFn) -> bytes:
    """A valid message: its fields in any order, some of them unknown or given again."""
    pieces = pieces_of(draw(requests))
    pieces += draw(st.lists(unknown_fields, max_size=2))
    if pieces:
        pieces += draw(st.lists(st.sampled_from(pieces), max_size=2))
    return b"".join(draw(st.permutations(pieces)))


def assert_scan_is_what_protobuf_reads(data: bytes, before: bytes = b"", after: bytes = b"") -> None:
    """``scan`` declines, or it separates what protobuf puts together; it never does anything else."""
    buffer = before + data + after
    scanned = scan(buffer, len(before), len(before) + len(data))
    if scanned is None:
        return
    key, id_field, spans = scanned
    pairs = list(zip(spans[::2], spans[1::2], strict=True))
    assert all(len(before) <= start <= end <= len(before) + len(data) for start, end in pairs)
    try:
        expected = ModelInferRequest.FromString(data)
    except UNREADABLE:
        # The key alone is what is wrong then, so that no plan is ever found by it.
        with pytest.raises(UNREADABLE):
            ModelInferRequest.FromString(key)
        return
    assert [buffer[start:end] for start, end in pairs] == list(expected.raw_input_contents)
    assert ModelInferRequest.FromString(id_field) == ModelInferRequest(id=expected.id)
    rest = ModelInferRequest()
    rest.CopyFrom(expected)
    rest.ClearField("id")
    rest.ClearField("raw_input_contents")
    assert ModelInferRequest.FromString(key) == rest


@given(wire_messages())
def test_scan_separates_what_protobuf_reads(data: bytes) -> None:
    assert_scan_is_what_protobuf_reads(data)


@given(requests)
def test_scan_reads_what_protobuf_writes(message: ModelInferRequest) -> None:
    data = message.SerializeToString()
    assert scan(data, 0, len(data)) is not None
    assert_scan_is_what_protobuf_reads(data)


@given(wire_messages(), st.binary(max_size=20), st.binary(max_size=20))
def test_scan_stays_within_the_message(data: bytes, before: bytes, after: bytes) -> None:
    assert_scan_is_what_protobuf_reads(data, before, after)


@settings(max_examples=30)
@given(wire_messages())
def test_scan_of_a_message_cut_anywhere_is_never_more_than_protobuf_reads(data: bytes) -> None:
    for end in range(len(data)):
        assert_scan_is_what_protobuf_reads(data[:end])
        assert_scan_is_what_protobuf_reads(data[:end], after=data[end:])


@given(st.binary(max_size=60))
def test_scan_of_garbage_declines_or_reads_as_protobuf_does(data: bytes) -> None:
    assert_scan_is_what_protobuf_reads(data)


@given(wire_messages(), st.data())
def test_scan_of_a_message_with_one_byte_changed_declines_or_reads_as_protobuf_does(
    message: bytes, data: st.DataObject
) -> None:
    if message:
        at = data.draw(st.integers(0, len(message) - 1))
        changed = bytearray(message)
        changed[at] = data.draw(st.integers(0, 255))
        assert_scan_is_what_protobuf_reads(bytes(changed))


@given(requests, texts, raws)
def test_requests_that_differ_in_id_and_raw_contents_have_one_key(
    message: ModelInferRequest, identifier: str, contents: list[bytes]
) -> None:
    other = ModelInferRequest()
    other.CopyFrom(message)
    other.id = identifier
    del other.raw_input_contents[:]
    other.raw_input_contents.extend(contents)
    keys = set()
    for each in (message, other):
        data = each.SerializeToString(deterministic=True)
        scanned = scan(data, 0, len(data))
        assert scanned is not None
        keys.add(scanned[0])
    assert len(keys) == 1


# --- layouts


def read_by_layout(of: bytes, data: bytes, before: bytes = b"") -> Scan | None:
    """``data``, of the length of ``of``, as the layout of ``of`` has it; None where it is not of that layout."""
    scanned = scan(of, 0, len(of))
    assert scanned is not None
    layout = read_layout(of, 0, len(of))
    buffer = before + data + b"after"
    if not buffer.startswith(layout.head, len(before)):
        return None
    if layout.single:
        assert layout.spans == (len(layout.head), len(of))
        assert layout.id_field == (0, 0)
    read = layout.read(buffer, len(before))
    return None if read is None else (scanned[0], read[0], [bound - len(before) for bound in read[1]])


@given(requests, st.data())
def test_requests_that_differ_in_id_and_contents_of_the_same_lengths_have_one_layout(
    message: ModelInferRequest, data: st.DataObject
) -> None:
    first = message.SerializeToString()
    message.id = data.draw(st.text("abc-0", min_size=len(message.id.encode()), max_size=len(message.id.encode())))
    for index, content in enumerate(message.raw_input_contents):
        message.raw_input_contents[index] = data.draw(st.binary(min_size=len(content), max_size=len(content)))
    second = message.SerializeToString()
    assert len(first) == len(second)
    read = read_by_layout(first, second, before=b"before")
    assert read == scan(second, 0, len(second)) or len(message.id.encode()) > 127


@settings(max_examples=300)
@given(wire_messages(), st.data())
def test_a_message_with_one_byte_changed_is_of_the_layout_only_if_a_scan_says_the_same(
    message: bytes, data: st.DataObject
) -> None:
    if not message or scan(message, 0, len(message)) is None:
        return
    at = data.draw(st.integers(0, len(message) - 1))
    changed = message[:at] + bytes([data.draw(st.integers(0, 255))]) + message[at + 1 :]
    read = read_by_layout(message, changed)
    assert read is None or read == scan(changed, 0, len(changed))


@given(requests, requests)
def test_another_request_of_the_same_length_is_not_taken_for_the_first(
    one: ModelInferRequest, other: ModelInferRequest
) -> None:
    first, second = one.SerializeToString(), other.SerializeToString()
    # Of the same length by a longer content in the shorter one, so that only what is constant tells them apart.
    if abs(len(first) - len(second)) > 100:
        return
    shorter = one if len(first) < len(second) else other
    shorter.raw_input_contents.append(b"x" * max(0, abs(len(first) - len(second)) - 2))
    first, second = one.SerializeToString(), other.SerializeToString()
    if len(first) == len(second):
        read = read_by_layout(first, second)
        assert read is None or read == scan(second, 0, len(second))


def test_the_layout_of_one_content_behind_everything_else_is_single() -> None:
    message = ModelInferRequest(model_name="m", raw_input_contents=[b"content"])
    data = message.SerializeToString()
    assert read_layout(data, 0, len(data)).single
    message.id = "1"
    data = message.SerializeToString()
    assert not read_layout(data, 0, len(data)).single
    data = ModelInferRequest(model_name="m", raw_input_contents=[b"a", b"b"]).SerializeToString()
    assert not read_layout(data, 0, len(data)).single


# --- the scan again


@pytest.mark.parametrize(
    "data",
    [
        field(3, b"a") + field(3, b"b"),
        field(3, b"\xff"),
        field(3, b"a" * 200 + b"\xc3"),
        field(8, b"x"),
        b"\x08\x01",
        b"\x3a",
        b"\x3a\x80",
        b"\x3a" + b"\x80" * 9 + b"\x00",
        b"\x3a" + b"\x80" * 10 + b"\x00",
        b"\x3a" + b"\xff" * 9 + b"\x7f",
    ],
    ids=[
        "two_ids",
        "id_not_utf_8",
        "long_id_cut_within_a_character",
        "unknown_field",
        "varint_field",
        "no_length",
        "cut_length",
        "long_length_of_zero",
        "longer_length_of_zero",
        "huge_length",
    ],
)
def test_scan_leaves_to_protobuf_what_no_client_writes(data: bytes) -> None:
    scanned = scan(data, 0, len(data))
    assert scanned is None or scanned == (b"", b"", [len(data), len(data)])


def test_scan_takes_contents_and_ids_of_every_length() -> None:
    for size in (0, 1, 127, 128, 16_383, 16_384, 2_097_152):
        data = field(3, b"i" * size) + field(7, b"r" * size)
        scanned = scan(data, 0, len(data))
        assert scanned is not None
        assert scanned[:2] == (b"", field(3, b"i" * size)[:70_000])  # of a longer one than is taken, the beginning
        assert data[scanned[2][0] : scanned[2][1]] == b"r" * size


@pytest.mark.parametrize("before", [b"", field(7, b"raw"), field(3, b"id")])
@pytest.mark.parametrize("after", [b"", field(7, b"more"), field(3, b"other")])
def test_many_constant_bytes_are_no_key_and_not_copied(before: bytes, after: bytes) -> None:
    class Buffer(bytes):
        """Says how much of it was copied at once."""

        most = 0

        def __getitem__(self, at: Any) -> Any:
            part: Any = super().__getitem__(at)
            if isinstance(at, slice):
                Buffer.most = max(Buffer.most, len(part))
            return part

    message = Buffer(before + field(5, bytes(100_000)) + after)
    scanned = scan(message, 0, len(message))
    if before[:1] == after[:1] == field(3, b"")[:1]:
        assert scanned is None
    else:
        assert scanned is not None
        key, identifier, spans = scanned
        assert key == b""
        assert bool(identifier) is (field(3, b"")[:1] in (before[:1], after[:1]))
        assert len(spans) == 2 * sum(part[:1] == field(7, b"")[:1] for part in (before, after))
    assert Buffer.most < 1_000
