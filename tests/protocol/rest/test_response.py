"""Answers to infer requests: their JSON, their binary data, and how values are written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.infer_response import WireTensor, classify
from toutates.protocol.rest.response import InferResponse, ResponseTemplate
from toutates.protocol.rest.values import PIECE_ELEMENTS, ValueWriter
from toutates.system.errors import InvalidRequest

FLOATS = np.array([1, 0.1, -2.5], np.float32)
PLAIN = b"content-type: application/json\r\n"


def body(response: InferResponse) -> bytes:
    joined = b"".join(response.pieces)
    assert len(joined) == response.length
    return joined


def parts(response: InferResponse) -> tuple[Any, bytes]:
    """The JSON and the binary data behind it, as the header fields say."""
    kind, _, size = response.fields.partition(b"\r\ninference-header-content-length: ")
    assert kind == b"content-type: application/octet-stream"
    whole = body(response)
    return json.loads(whole[: int(size)]), whole[int(size) :]


def test_binary_data_stands_behind_the_json() -> None:
    template = ResponseTemplate(
        "simple", "1", [WireTensor("a", "FP32", (1, 3)), WireTensor("b", "UINT8", (1, 2))], [True, True], [12, 2]
    )
    for identifier in (b"", b"7", b"0123456789", b"7"):
        response = template.write(identifier, [FLOATS.tobytes(), memoryview(b"xy")])
        document, data = parts(response)
        expected: dict[str, Any] = {"id": identifier.decode()} if identifier else {}
        expected |= {
            "model_name": "simple",
            "model_version": "1",
            "outputs": [
                {"name": "a", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}},
                {"name": "b", "datatype": "UINT8", "shape": [1, 2], "parameters": {"binary_data_size": 2}},
            ],
        }
        assert document == expected
        assert list(document) == list(expected)
        assert data == FLOATS.tobytes() + b"xy"


def test_json_is_compact_and_its_members_are_in_tritons_order() -> None:
    template = ResponseTemplate("m", "2", [WireTensor("a", "FP32", (3,))], [False], [12], {"p": "v", "n": 1, "b": True})
    response = template.write(b"my_id", [FLOATS.tobytes()])
    assert response.fields == PLAIN
    assert body(response) == (
        b'{"id":"my_id","model_name":"m","model_version":"2","parameters":{"p":"v","n":1,"b":true},"outputs":'
        b'[{"name":"a","datatype":"FP32","shape":[3],"data":[1.0,0.10000000149011612,-2.5]}]}'
    )


def test_some_outputs_may_be_json_and_some_binary() -> None:
    tensors = [WireTensor("a", "FP32", (3,)), WireTensor("b", "BYTES", (1,)), WireTensor("c", "INT8", (2,))]
    template = ResponseTemplate("m", "1", tensors, [True, True, False], [12, None, 2])
    for text in (b"text", b"another text"):
        encoded = encode_bytes_tensor(np.array([text], np.object_))
        document, data = parts(template.write(b"", [FLOATS.tobytes(), encoded, b"\x01\xff"]))
        assert [output.get("parameters") for output in document["outputs"]] == [
            {"binary_data_size": 12},
            {"binary_data_size": 4 + len(text)},
            None,
        ]
        assert document["outputs"][2]["data"] == [1, -1]
        assert data == FLOATS.tobytes() + encoded


@pytest.mark.parametrize("size", [0, None])
def test_empty_binary_data_makes_no_binary_answer(size: int | None) -> None:
    template = ResponseTemplate("m", "1", [WireTensor("a", "FP32", (0,))], [True], [size])
    response = template.write(b"", [b""])
    assert response.fields == PLAIN
    assert json.loads(body(response))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_classes_are_strings() -> None:
    classes = classify(np.array([[0.5, 2, 1]], np.float32), 2)
    content = encode_bytes_tensor(classes)
    template = ResponseTemplate("m", "1", [WireTensor("a", "BYTES", classes.shape)], [False], [None])
    assert json.loads(body(template.write(b"", [content])))["outputs"][0]["data"] == ["2.000000:1", "1.000000:2"]


def test_no_outputs_are_an_empty_array() -> None:
    assert body(ResponseTemplate("m", "1", [], [], []).write(b"", [])) == (
        b'{"model_name":"m","model_version":"1","outputs":[]}'
    )


def test_names_are_escaped() -> None:
    template = ResponseTemplate('m"', "1", [WireTensor("\u00e9/\\", "FP32", (1,))], [True], [4])
    document, _ = parts(template.write(b"", [bytes(4)]))
    assert document["model_name"] == 'm"'
    assert document["outputs"][0]["name"] == "\u00e9/\\"


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "content", "expected"),
    [
        ("BOOL", b"\x01\x00", b"[true,false]"),
        ("UINT8", b"\x00\xff", b"[0,255]"),
        ("INT16", b"\xff\xff\x01\x00", b"[-1,1]"),
        ("UINT64", b"\xff" * 8, b"[18446744073709551615]"),
        ("INT64", b"\0" * 7 + b"\x80", b"[-9223372036854775808]"),
        ("FP16", np.array([0.1], np.float16).tobytes(), b"[0.0999755859375]"),
        ("BF16", b"\x80\x3f\x20\xc0", b"[1.0,-2.5]"),
        ("FP32", np.array([np.nan, np.inf, -np.inf, 1], np.float32).tobytes(), b"[NaN,Infinity,-Infinity,1.0]"),
        ("BF16", b"\xc0\x7f", b"[NaN]"),
        ("FP64", np.array([1e22, 5e-324]).tobytes(), b"[1e22,5e-324]"),
        ("FP32", b"", b"[]"),
        ("BYTES", b"", b"[]"),
        ("BYTES", b'\x03\0\0\0/"\\\x02\0\0\0\xc3\xa9\x01\0\0\0\x01\0\0\0\0', '["/\\"\\\\","é","\\u0001",""]'.encode()),
    ],
)
def test_values_are_written_as_triton_writes_them(datatype: str, content: bytes, expected: bytes) -> None:
    assert ValueWriter("x", BY_NAME[datatype]).write(content) == expected
    assert ValueWriter("x", BY_NAME[datatype]).write(memoryview(content)) == expected


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BF16", "BOOL"])
def test_many_values_are_written_in_pieces(datatype: str) -> None:
    kind = BY_NAME[datatype]
    values = np.arange(3 * PIECE_ELEMENTS + 5) % 100
    content = (
        values.astype(np.float32).view(np.uint16)[1::2].tobytes()
        if datatype == "BF16"
        else values.astype(kind.numpy).tobytes()
    )
    pauses: list[None] = []
    written = ValueWriter("x", kind).write(content, lambda: pauses.append(None))
    expected = values.astype(np.bool_) if datatype == "BOOL" else values
    assert json.loads(written) == expected.tolist()
    assert len(pauses) == 4


def test_many_strings_are_written_in_pieces() -> None:
    texts = [str(number) for number in range(PIECE_ELEMENTS + 1)]
    content = encode_bytes_tensor(np.array(texts, np.object_))
    pauses: list[None] = []
    assert json.loads(ValueWriter("x", BY_NAME["BYTES"]).write(content, lambda: pauses.append(None))) == texts
    assert len(pauses) == 2


def test_an_element_that_is_not_utf_8_cannot_be_written() -> None:
    with pytest.raises(InvalidRequest, match="output 'x' has an element that is not UTF-8"):
        ValueWriter("x", BY_NAME["BYTES"]).write(b"\x01\0\0\0\xff")
