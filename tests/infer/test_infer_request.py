"""The scan of a request against protobuf's own reading of it, and what validation makes of one."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]  # not in the stubs
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from toutates.infer.scanning import Scan, read_layout, scan
from toutates.infer.validation import request_prefix, validate
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import InferParameter, ModelInferRequest
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest, RequestError, Unsupported

ADDSUB = Signature(
    inputs=(TensorSpec("A", BY_NAME["INT32"], (16,)), TensorSpec("B", BY_NAME["INT32"], (16,))),
    outputs=(TensorSpec("S", BY_NAME["INT32"], (16,)), TensorSpec("D", BY_NAME["INT32"], (16,))),
    batched=True,
)

#: What protobuf raises; its pure-Python implementation has an exception of its own for strings that are not UTF-8.
UNREADABLE = (DecodeError, UnicodeDecodeError)


def varint(value: int) -> bytes:
    encoded: bytes = _VarintBytes(value)
    return encoded


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


# --- scan

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
        assert scanned[:2] == (b"", field(3, b"i" * size))
        assert data[scanned[2][0] : scanned[2][1]] == b"r" * size


# --- validate


def message(*names: str, **fields: Any) -> ModelInferRequest:
    """A request with these inputs, of addsub's type and shape."""
    request = ModelInferRequest(**fields)
    for name in names or ("A", "B"):
        request.inputs.add(name=name, datatype="INT32", shape=[2, 16])
    return request


def test_validation_finds_rows_sources_and_sizes() -> None:
    validated = validate(message(), [128, 128], ADDSUB, "m")
    assert (validated.rows, validated.inputs, validated.shapes) == (2, (0, 1), ((16,), (16,)))
    assert (validated.sources, validated.sizes, validated.raw_count) == ((0, 1), (128, 128), 2)
    assert validated.outputs == (1, 0)  # sorted by name
    assert not validated.classes


def test_validation_puts_inputs_into_the_models_order() -> None:
    validated = validate(message("B", "A"), [128, 128, 5], ADDSUB, "m")
    assert (validated.inputs, validated.sources, validated.raw_count) == ((0, 1), (1, 0), 3)


def test_validation_leaves_typed_contents_without_a_source() -> None:
    request = message()
    for tensor in request.inputs:
        tensor.contents.int_contents.extend([1] * 32)
    assert validate(request, [], ADDSUB, "m").sources == (None, None)


def test_validation_reads_classes() -> None:
    request = message()
    request.outputs.add(name="S").parameters["classification"].int64_param = 3
    validated = validate(request, [128, 128], ADDSUB, "m")
    assert (validated.outputs, validated.classes) == ((0,), {0: 3})


def test_validation_of_texts_leaves_their_size_open() -> None:
    signature = Signature((TensorSpec("T", BY_NAME["BYTES"], (-1,)),), (), batched=True)
    request = ModelInferRequest()
    request.inputs.add(name="T", datatype="BYTES", shape=[3, 5])
    assert validate(request, [7], signature, "m").sizes == (None,)


def test_validation_takes_the_shape_off_squeezed_rows() -> None:
    signature = Signature((TensorSpec("X", BY_NAME["INT8"], (1,), reshape=()),), (), batched=True)
    request = ModelInferRequest()
    request.inputs.add(name="X", datatype="INT8", shape=[3, 1])
    validated = validate(request, [3], signature, "m")
    assert (validated.rows, validated.shapes, validated.sizes) == (3, ((),), (3,))


def test_validation_without_a_batch_dimension_counts_one_row() -> None:
    signature = Signature((TensorSpec("X", BY_NAME["FP64"], (2, -1)),), (), batched=False)
    request = ModelInferRequest()
    request.inputs.add(name="X", datatype="FP64", shape=[2, 3])
    validated = validate(request, [48], signature, "m")
    assert (validated.rows, validated.shapes, validated.sizes) == (1, ((2, 3),), (48,))


def test_optional_inputs_may_be_left_out() -> None:
    signature = Signature(
        (TensorSpec("X", BY_NAME["INT8"], (1,)), TensorSpec("O", BY_NAME["INT8"], (2,), optional=True)),
        (),
        batched=False,
    )
    request = ModelInferRequest()
    request.inputs.add(name="X", datatype="INT8", shape=[1])
    assert validate(request, [1], signature, "m").inputs == (0,)
    request.inputs.add(name="O", datatype="INT8", shape=[2])
    assert validate(request, [1, 2], signature, "m").inputs == (0, 1)


@pytest.mark.parametrize(("identifier", "shown"), [("", "<id_unknown>"), ("7", "7"), ("ä b", "ä b")])
def test_prefix_names_the_request(identifier: str, shown: str) -> None:
    assert request_prefix(identifier) == f"[request id: {shown}] "


def test_the_first_failing_step_is_the_one_reported() -> None:
    """One thing after another is put right, and each time the next one is named."""
    request = ModelInferRequest(id="7")
    request.parameters["triton_x"].bool_param = True
    request.inputs.add(name="A", datatype="FP32", shape=[2, 9])
    request.inputs.add(name="X", datatype="INT32", shape=[3, 16])
    request.outputs.add(name="Y").parameters["classification"].bool_param = True

    def refusal(*sizes: int) -> str:
        with pytest.raises(InvalidRequest) as caught:
            validate(request, sizes, ADDSUB, "m")
        return str(caught.value)

    assert refusal().startswith("parameter keys starting with 'triton_'")
    request.parameters.clear()
    assert refusal(1) == "unable to find data for input tensor 'X' for model 'm' in request."
    assert refusal(1, 1) == "invalid value type for 'classification' parameter, expected int64_param"
    request.outputs[0].parameters.clear()
    assert refusal(1, 1) == "unexpected inference output 'Y' for model 'm'"
    request.outputs[0].name = "S"
    assert refusal(1, 1) == "unexpected inference input 'X' for model 'm'"
    request.inputs[1].name = "B"
    assert refusal(1, 1) == "[request id: 7] input 'B' batch size does not match other inputs for 'm'"
    request.inputs[1].shape[0] = 2
    assert refusal(1, 1).startswith("[request id: 7] inference input 'A' data-type is 'FP32'")
    request.inputs[0].datatype = "INT32"
    assert refusal(1, 1).startswith("[request id: 7] unexpected shape for input 'A' for model 'm'.")
    request.inputs[0].shape[1] = 16
    assert refusal(128, 1).endswith("input byte size mismatch for input 'B' for model 'm'. Expected 128, got 1")
    assert refusal(1, 128).endswith("input byte size mismatch for input 'A' for model 'm'. Expected 128, got 1")
    assert validate(request, [128, 128], ADDSUB, "m").rows == 2


@given(requests, st.sampled_from([True, False]))
def test_validation_raises_nothing_but_request_errors(request: ModelInferRequest, batched: bool) -> None:
    tensors = tuple(TensorSpec(tensor.name, BY_NAME["INT8"], (-1,)) for tensor in request.inputs)
    signature = Signature(tensors, tensors, batched=batched and bool(tensors))
    try:
        validate(request, [len(raw) for raw in request.raw_input_contents], signature, "m")
    except RequestError:
        pass


def test_a_long_sequence_id_is_not_supported() -> None:
    request = message()
    request.parameters["sequence_id"].string_param = "x" * 129
    with pytest.raises(Unsupported, match="string correlation ID cannot be longer than 128 characters"):
        validate(request, [128, 128], ADDSUB, "m")
