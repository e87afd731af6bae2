"""Triton's generate extension: flat objects in and out."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tests.protocol.rest.support import LIMIT
from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.generate import read_generate_request, server_sent_event, write_generate_response
from toutates.protocol.rest.request import Target
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest, MalformedMessage, RequestError

MOCK = Signature(
    (
        TensorSpec("PROMPT", BY_NAME["BYTES"], (1,)),
        TensorSpec("STREAM", BY_NAME["BOOL"], (1,)),
        TensorSpec("REPETITION", BY_NAME["INT32"], (1,), optional=True),
    ),
    (TensorSpec("TEXT", BY_NAME["BYTES"], (1,)),),
    batched=False,
)
TARGET = Target("mock", "", LIMIT)


def read(document: Any, signature: Signature = MOCK) -> tuple[ModelInferRequest, list[bytes]]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_generate_request(body, TARGET, signature)


def test_members_are_inputs_and_parameters() -> None:
    message, contents = read(
        {"PROMPT": "hello", "id": "42", "STREAM": [True], "max_tokens": 5, "stop": "x", "priority": "high", "t": 0.5}
    )
    assert message.id == "42"
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in message.inputs] == [
        ("PROMPT", "BYTES", [1]),
        ("STREAM", "BOOL", [1]),
    ]
    assert contents == [b"\x05\0\0\0hello", b"\x01"]
    assert message.parameters["max_tokens"].int64_param == 5
    assert message.parameters["stop"].string_param == "x"
    assert message.parameters["t"].double_param == 0.5
    assert set(message.parameters) == {"max_tokens", "stop", "t"}


def test_members_of_parameters_are_those_of_the_request() -> None:
    message, contents = read({"parameters": {"REPETITION": 3, "k": True}})
    assert [tensor.name for tensor in message.inputs] == ["REPETITION"]
    assert contents == [b"\x03\0\0\0"]
    assert message.parameters["k"].bool_param


@pytest.mark.parametrize(
    ("shape", "batched", "count", "expected"),
    [
        ((-1,), False, 3, [3]),
        ((1,), True, 1, [1, 1]),
        ((1,), True, 3, [3, 1]),
        ((-1,), True, 3, [1, 3]),
        ((-1, 2, -1), True, 6, [1, 1, 2, 3]),
        ((-1, 2), False, 6, [3, 2]),
        ((), False, 1, []),
        ((4,), False, 3, None),
        ((-1, 2), False, 3, None),
        ((0, -1), False, 3, None),
        ((-1,), False, 0, [0]),
    ],
)
def test_the_shape_follows_from_the_model(
    shape: tuple[int, ...], batched: bool, count: int, expected: list[int] | None
) -> None:
    signature = Signature((TensorSpec("x", BY_NAME["FP32"], shape),), (), batched)
    document = {"x": list(range(count))}
    if expected is None:
        with pytest.raises(InvalidRequest, match="The schema can not convert input 'x' to tensor with proper shape"):
            read(document, signature)
        return
    message, contents = read(document, signature)
    assert list(message.inputs[0].shape) == expected
    assert contents == [np.arange(count, dtype=np.float32).tobytes()]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", MalformedMessage, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", MalformedMessage, "attempt to get members for non-object"),
        (b'{"PROMPT":123,"STREAM":1}', MalformedMessage, "attempt to access JSON non-string as string"),
        (b'{"STREAM":"false","PROMPT":1}', MalformedMessage, "attempt to access JSON non-boolean as boolean"),
        (b'{"PROMPT":[["a"]]}', MalformedMessage, "attempt to access JSON non-string as string"),
        (b'{"PROMPT":{}}', MalformedMessage, "attempt to access JSON non-string as string"),
        (b'{"id":1}', MalformedMessage, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            b'{"PROMPT":"a","PROMPT":"b","id":"7"}',
            InvalidRequest,
            "[request id: 7] input 'PROMPT' already exists in request",
        ),
        (
            b'{"PARAMS":{}}',
            InvalidRequest,
            "parameter 'PARAMS' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            b'{"parameters":{"nested":{}}}',
            InvalidRequest,
            "Converting keyword: 'parameters': parameter 'nested' has invalid type. It should be either 'int', 'bool', "
            "or 'string'.",
        ),
        (
            b'{"parameters":1}',
            MalformedMessage,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
    ],
)
def test_mistakes_are_told_in_tritons_words(body: bytes, kind: type[RequestError], text: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(text) + "$"):
        read(body)


def test_a_body_and_an_input_have_a_limit() -> None:
    body = json.dumps({"PROMPT": "a" * 20}).encode()
    with pytest.raises(InvalidRequest, match=" bytes exceeds the maximum allowed input size of 10 bytes"):
        read_generate_request(body, Target("mock", "", 10), MOCK)
    signature = Signature((TensorSpec("x", BY_NAME["FP64"], (-1,)),), (), batched=False)
    text = "request size of 23 bytes with input 'x' of size 64 bytes exceeds the maximum allowed input size of 63. "
    with pytest.raises(InvalidRequest, match="^" + re.escape(text)):
        read_generate_request(b'{"x":[1,1,1,1,1,1,1,1]}', Target("mock", "", 63), signature)


def test_an_input_cannot_be_called_parameters_beside_the_object() -> None:
    signature = Signature((TensorSpec("parameters", BY_NAME["FP32"], (1,)),), (), batched=False)
    with pytest.raises(InvalidRequest, match="also given as input tensor name"):
        read({"parameters": 1}, signature)


def test_a_response_is_a_flat_object_with_sorted_members() -> None:
    tensors = [WireTensor("TEXT", "BYTES", (1,)), WireTensor("N", "INT32", (2,)), WireTensor("e", "FP32", (0,))]
    contents = [encode_bytes_tensor(np.array(["a[0]"], np.object_)), np.array([1, 2], np.int32).tobytes(), b""]
    body = write_generate_response("mock", "1", "42", tensors, contents, {"k": 1.5})
    assert body == (b'{"N":[1,2],"TEXT":"a[0]","e":[],"id":"42","k":1.5,"model_name":"mock","model_version":"1"}')
    assert server_sent_event(body) == b"data: " + body + b"\n\n"
    assert "id" not in json.loads(write_generate_response("mock", "1", "", tensors, contents))
