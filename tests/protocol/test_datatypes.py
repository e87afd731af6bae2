"""Element types, the BYTES encoding, and typed contents."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.protocol.datatypes import (
    BY_NAME,
    BY_ORT_TYPE,
    encode_bytes_tensor,
    typed_contents_to_raw,
)
from toutates.protocol.grpc_service_pb2 import InferTensorContents
from toutates.protocol.model_config_pb2 import DataType
from toutates.system.errors import InvalidRequest

INTEGERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
NAMES = ["BOOL", *INTEGERS, "FP16", "FP32", "FP64", "BYTES", "BF16"]

BYTE_STRINGS = st.lists(st.binary(max_size=40), max_size=20)


def objects(elements: list[Any]) -> npt.NDArray[np.object_]:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def raw(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def identity_session(onnx_type: int, shape: list[int | None]) -> onnxruntime.InferenceSession:
    value = [onnx.helper.make_tensor_value_info(name, onnx_type, shape) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "identity", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


# The table


def test_table_has_the_protocols_types() -> None:
    assert list(BY_NAME) == NAMES
    assert len(BY_ORT_TYPE) == len(BY_NAME)
    assert [DataType.Value(BY_NAME[name].config_name) for name in NAMES] == list(range(1, 15))


@pytest.mark.parametrize("name", NAMES)
def test_table_agrees_with_onnx_and_onnxruntime(name: str) -> None:
    datatype = BY_NAME[name]
    session = identity_session(datatype.onnx_type, [None])
    assert session.get_inputs()[0].type == datatype.ort_type
    assert BY_ORT_TYPE[datatype.ort_type] is datatype
    if name == "BF16":
        assert datatype.numpy == np.uint16
    else:
        assert onnx.helper.tensor_dtype_to_np_dtype(datatype.onnx_type) == datatype.numpy
    assert datatype.size == (0 if name == "BYTES" else datatype.numpy.itemsize)


@pytest.mark.parametrize("name", NAMES)
def test_table_agrees_with_messages(name: str) -> None:
    datatype = BY_NAME[name]
    assert datatype.config_name == ("TYPE_STRING" if name == "BYTES" else f"TYPE_{name}")
    fields = InferTensorContents.DESCRIPTOR.fields_by_name
    assert datatype.contents_field in fields or name in ("FP16", "BF16")


# BYTES


@given(BYTE_STRINGS)
def test_bytes_tensor_is_encoded_element_by_element(elements: list[bytes]) -> None:
    assert encode_bytes_tensor(objects(elements)) == raw(*elements)


@given(st.lists(st.text(max_size=10), max_size=10))
def test_text_is_encoded_as_utf8(elements: list[str]) -> None:
    assert encode_bytes_tensor(objects(elements)) == raw(*(element.encode() for element in elements))


def test_bytes_tensor_is_encoded_row_major() -> None:
    array = objects([b"a", b"b", b"c", b"d"]).reshape(2, 2)
    assert encode_bytes_tensor(array) == raw(b"a", b"b", b"c", b"d")
    assert encode_bytes_tensor(array.T) == raw(b"a", b"c", b"b", b"d")
    assert encode_bytes_tensor(np.empty((0, 3), dtype=np.object_)) == b""


def test_encoding_refuses_other_elements() -> None:
    with pytest.raises(TypeError):
        encode_bytes_tensor(objects([1]))


# Typed contents


@st.composite
def typed_contents(draw: st.DrawFn) -> tuple[str, InferTensorContents, bytes]:
    """A datatype, contents of its field, and NumPy's bytes for the same numbers."""
    name = draw(st.sampled_from([name for name in NAMES if BY_NAME[name].contents_field]))
    field = str(BY_NAME[name].contents_field)
    wide, element = {
        "bool_contents": (np.bool_, st.booleans()),
        "int_contents": (np.int32, st.integers(-(2**31), 2**31 - 1)),
        "int64_contents": (np.int64, st.integers(-(2**63), 2**63 - 1)),
        "uint_contents": (np.uint32, st.integers(0, 2**32 - 1)),
        "uint64_contents": (np.uint64, st.integers(0, 2**64 - 1)),
        "fp32_contents": (np.float32, st.floats(width=32, allow_nan=False)),
        "fp64_contents": (np.float64, st.floats(allow_nan=False)),
        "bytes_contents": (np.object_, st.binary(max_size=10)),
    }[field]
    values: list[Any] = draw(st.lists(element, max_size=12))
    contents = InferTensorContents(**{field: values})
    if name == "BYTES":
        return name, contents, raw(*values)
    size = BY_NAME[name].size
    wide_elements: npt.NDArray[Any] = np.array(values, dtype=wide)
    bytes_of_each = wide_elements.view(np.uint8).reshape(len(values), wide_elements.itemsize)
    return name, contents, bytes_of_each[:, :size].tobytes()


@given(typed_contents())
def test_typed_contents_become_raw(drawn: tuple[str, InferTensorContents, bytes]) -> None:
    name, contents, expected = drawn
    received = InferTensorContents.FromString(contents.SerializeToString())
    assert typed_contents_to_raw(received, BY_NAME[name], tensor="X", model="M") == expected


def test_typed_integers_keep_their_low_bytes() -> None:
    contents = InferTensorContents(int_contents=[300, -1, -129])
    assert typed_contents_to_raw(contents, BY_NAME["INT8"], tensor="X", model="M") == b"\x2c\xff\x7f"
    contents = InferTensorContents(uint_contents=[0x12345678])
    assert typed_contents_to_raw(contents, BY_NAME["UINT16"], tensor="X", model="M") == b"\x78\x56"


def test_nan_passes_as_typed_contents() -> None:
    contents = InferTensorContents(fp32_contents=[float("nan")])
    encoded = typed_contents_to_raw(contents, BY_NAME["FP32"], tensor="X", model="M")
    assert np.isnan(np.frombuffer(encoded, np.float32)).tolist() == [True]


@pytest.mark.parametrize("name", NAMES)
def test_empty_contents_are_no_bytes(name: str) -> None:
    assert typed_contents_to_raw(InferTensorContents(), BY_NAME[name], tensor="X", model="M") == b""


@pytest.mark.parametrize(
    ("contents", "name", "used"),
    [
        pytest.param(InferTensorContents(bool_contents=[True]), "FP32", "BOOL", id="bool"),
        pytest.param(InferTensorContents(int_contents=[1]), "FP32", "INT32", id="int"),
        pytest.param(InferTensorContents(int_contents=[1]), "UINT8", "INT32", id="signed_for_unsigned"),
        pytest.param(InferTensorContents(int64_contents=[1]), "INT32", "INT64", id="int64"),
        pytest.param(InferTensorContents(uint_contents=[1]), "INT8", "UINT32", id="uint"),
        pytest.param(InferTensorContents(uint64_contents=[1]), "INT64", "UINT64", id="uint64"),
        pytest.param(InferTensorContents(fp32_contents=[1]), "FP16", "FP32", id="fp16_is_raw_only"),
        pytest.param(InferTensorContents(fp32_contents=[1]), "BF16", "FP32", id="bf16_is_raw_only"),
        pytest.param(InferTensorContents(fp64_contents=[1]), "FP32", "FP64", id="fp64"),
        pytest.param(InferTensorContents(bytes_contents=[b""]), "INT32", "BYTES", id="bytes"),
        pytest.param(InferTensorContents(int_contents=[1], fp32_contents=[1]), "FP32", "INT32", id="first_field"),
    ],
)
def test_contents_of_another_type_are_refused(contents: InferTensorContents, name: str, used: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        typed_contents_to_raw(contents, BY_NAME[name], tensor="X", model="M")
    assert str(caught.value) == (
        "unexpected explicit tensor data for input tensor 'X' for model 'M' "
        f"of type '{used}', expected datatype '{name}'"
    )


def test_contents_in_two_fields_are_refused() -> None:
    contents = InferTensorContents(int_contents=[1], fp32_contents=[1])
    with pytest.raises(InvalidRequest) as caught:
        typed_contents_to_raw(contents, BY_NAME["INT32"], tensor="X", model="M")
    assert str(caught.value) == (
        "unexpected explicit tensor data for input tensor 'X' for model 'M', binary data was already supplied."
    )
