"""Varints and heads of fields, beside what protobuf writes."""

from __future__ import annotations

import pytest

from toutates.protocol.grpc_service_pb2 import InferParameter, ModelInferRequest
from toutates.protocol.wire_format import field_head, read_varint

NUMBERS = [0, 1, 127, 128, 129, 255, 256, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    return InferParameter(uint64_param=number).SerializeToString()[1:]


@pytest.mark.parametrize("number", NUMBERS)
def test_varint_is_read_with_where_it_ends(number: int) -> None:
    written = varint(number)
    assert read_varint(written, 0) == (number, len(written))
    assert read_varint(memoryview(b"\xff\xff" + written + b"\xff"), 2) == (number, 2 + len(written))


@pytest.mark.parametrize("number", NUMBERS)
def test_varint_that_the_buffer_cuts_short_is_refused(number: int) -> None:
    written = varint(number)
    for end in range(len(written)):
        with pytest.raises(IndexError):
            read_varint(written[:end], 0)


def test_varint_of_ten_bytes_is_the_longest() -> None:
    assert read_varint(b"\x80" * 9 + b"\x01", 0) == (2**63, 10)
    assert read_varint(b"\x80" * 9 + b"\x00rest", 0) == (0, 10)
    with pytest.raises(IndexError):
        read_varint(b"\x80" * 10 + b"\x00", 0)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 2**14 - 1, 2**14, 2**21 - 1, 2**21])
def test_head_of_a_field_is_what_protobuf_writes(length: int) -> None:
    content = b"x" * length
    field = field_head(7 << 3 | 2, length) + content
    assert field == ModelInferRequest(raw_input_contents=[content]).SerializeToString()
