"""Where the JSON of a body ends, and bodies that have none."""

from __future__ import annotations

import re

import pytest

from tests.protocol.rest.support import LIMIT
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.rest.lengths import RAW, json_length
from toutates.protocol.rest.raw_request import read_raw_request
from toutates.protocol.rest.request import Target
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest


@pytest.mark.parametrize(("field", "expected"), [(None, 10), ("10", 10), ("3", 3), ("0", RAW), ("+4", 4)])
def test_the_header_says_where_json_ends(field: str | None, expected: int) -> None:
    assert json_length(field, 10) == expected


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("1e3", "Unable to parse Inference-Header-Content-Length, got: 1e3"),
        ("\u0661", "Unable to parse Inference-Header-Content-Length, got: \u0661"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: 99999999999",
        ),
        ("9" * 5_000, "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, "),
        ("-1", "inference header size should be in range (0, 10), got: -1"),
        ("11", "inference header size should be in range (0, 10), got: 11"),
    ],
)
def test_a_header_that_is_no_part_of_the_body_is_refused(field: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + re.escape(text)):
        json_length(field, 10)


def signature(*inputs: tuple[str, tuple[int, ...]], batched: bool = True) -> Signature:
    specs = tuple(TensorSpec(f"INPUT{at}", BY_NAME[name], shape) for at, (name, shape) in enumerate(inputs))
    return Signature(specs, (), batched)


@pytest.mark.parametrize(
    ("form", "body", "shape", "content"),
    [
        (signature(("FP32", (-1,))), bytes(32), [1, 8], bytes(32)),
        (signature(("FP32", (-1,)), batched=False), bytes(32), [8], bytes(32)),
        (signature(("FP32", (4, -1, 2))), bytes(96), [1, 4, 3, 2], bytes(96)),
        (signature(("UINT8", (4,))), b"1234", [1, 4], b"1234"),
        (signature(("FP32", (-1,))), b"", [1, 0], b""),
        (signature(("FP32", (0, -1))), b"", [1, 0, 0], b""),
        (signature(("BYTES", (1,))), b"427", [1, 1], b"\x03\0\0\x00427"),
    ],
)
def test_a_body_without_json_is_the_only_input(form: Signature, body: bytes, shape: list[int], content: bytes) -> None:
    message, found = read_raw_request(body, Target("m", "2", LIMIT, [("h", "v")]), form)
    assert found == content
    assert (message.model_name, message.model_version) == ("m", "2")
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in message.inputs] == [
        ("INPUT0", form.inputs[0].datatype.name, shape)
    ]
    assert message.parameters["h"].string_param == "v"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            signature(("FP32", (-1,)), ("FP32", (-1,)), ("FP32", (-1,))),
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 3 inputs in "
            "'m' model configuration",
        ),
        (
            signature(("FP32", (-1, -1))),
            "[request id: <id_unknown>] The shape of the raw input 'INPUT0' can not be deduced because there are more "
            "than one variable-sized dimension",
        ),
        (
            signature(("BYTES", (-1,))),
            "[request id: <id_unknown>] For BYTE datatype raw input 'INPUT0', the model must have input shape [1]",
        ),
        (
            signature(("UINT8", (-1,))),
            "Raw input has a byte_size (11 bytes) that exceeds the maximum allowed value of 10 bytes. "
            "Use --http-max-input-size to increase the limit.",
        ),
    ],
)
def test_a_body_whose_shape_does_not_follow_is_refused(form: Signature, text: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + re.escape(text) + "$"):
        read_raw_request(bytes(11 if "byte_size" in text else 8), Target("m", "", 10), form)
