"""ModelInfer requests that are refused: each with its status and its text, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.process import ServerProcess
from tests.e2e.support import (
    INFER,
    Tensor,
    bytes_tensor,
    channel_to,
    grpc,
    infer,
    outputs_of,
    pb,
    refused,
    request,
    statistics_of,
)
from tests.waiting import PATIENCE_S

NO_ID = "[request id: <id_unknown>] "
INVALID = "INVALID_ARGUMENT"


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def bystander(server: ServerProcess) -> Iterator[Any]:
    """The connection of somebody else."""
    with channel_to(server.address) as channel:
        yield channel


def assert_answers(channel: Any) -> None:
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    response = infer(channel, request("addsub", int32("INPUT0", values), int32("INPUT1", values)))
    np.testing.assert_array_equal(outputs_of(response)["OUTPUT0"], 2 * values)


def int32(name: str, values: Any) -> Tensor:
    return Tensor.of(name, "INT32", values)


def row(name: str, shape: tuple[int, ...] = (1, 16), datatype: str = "INT32", size: int | None = 64) -> Tensor:
    """An input for addsub, right unless said otherwise."""
    return Tensor(name, datatype, shape, None if size is None else bytes(size))


def good(**fields: Any) -> Any:
    return request("addsub", row("INPUT0"), row("INPUT1"), **fields)


Change = Callable[[Any], object]


def changed(change: Change) -> Any:
    """A good request after ``change``."""
    message = good()
    change(message)
    return message


def with_parameter(key: str, **value: Any) -> Any:
    message = good()
    message.parameters[key].CopyFrom(pb.InferParameter(**value))
    return message


def with_input_parameters(content: bool = True, **parameters: Any) -> Any:
    """A good request whose first input has these parameters."""
    message = good()
    if not content:
        del message.raw_input_contents[:]
    for key, value in parameters.items():
        message.inputs[0].parameters[key].CopyFrom(pb.InferParameter(**value))
    return message


def with_output_parameters(output: str = "OUTPUT0", **parameters: Any) -> Any:
    message = good(outputs=[output])
    for key, value in parameters.items():
        message.outputs[0].parameters[key].CopyFrom(pb.InferParameter(**value))
    return message


def texts(raw: bytes, shape: tuple[int, ...] = (1, 4), **fields: Any) -> Any:
    return request("identity_BYTES", Tensor("INPUT", "BYTES", shape, raw), **fields)


def typed(datatype: str, shape: tuple[int, ...] = (1, 4), **contents: Any) -> Any:
    message = request(f"identity_{datatype}", Tensor("INPUT", datatype, shape, None))
    message.inputs[0].contents.SetInParent()
    for field, values in contents.items():
        getattr(message.inputs[0].contents, field).extend(values)
    return message


def dynamic(shape: tuple[int, ...], size: int = 0) -> Any:
    return request("dynamic", Tensor("INPUT", "FP32", shape, bytes(size)))


def classes_of(model: str, datatype: str, size: int) -> Any:
    message = request(model, Tensor("INPUT", datatype, [1, 4], bytes(size)), outputs=["OUTPUT"])
    message.outputs[0].parameters["classification"].int64_param = 1
    return message


REGION: dict[str, Any] = {"shared_memory_region": {"string_param": "r"}}
SIZE: dict[str, Any] = {"shared_memory_byte_size": {"int64_param": 64}}
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    "'triton_' are allowed: triton_enable_empty_final_response"
)
NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape."
)
TOO_MANY_BYTES = "exceeds maximum size of 9223372036854775807"

Case = tuple[str, Any, str, str]

VERSION_CASES: list[Case] = [
    (
        "version_is_no_number",
        good(model_version="x"),
        INVALID,
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        "version_overflows",
        good(model_version="9" * 30),
        INVALID,
        f"failed to get model version from specified version string '{'9' * 30}' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        "version_is_negative",
        good(model_version="-1"),
        INVALID,
        "invalid model version specified '-1' , version should be an integral value > 0",
    ),
    (
        "version_is_zero",
        good(model_version="0"),
        "NOT_FOUND",
        "Request for unknown model: 'addsub' version 0 is not found",
    ),
    (
        "version_is_unknown",
        good(model_version="77"),
        "NOT_FOUND",
        "Request for unknown model: 'addsub' version 77 is not found",
    ),
    ("model_is_unknown", request("nothing"), "NOT_FOUND", "Request for unknown model: 'nothing' is not found"),
    ("model_has_no_name", request(""), "NOT_FOUND", "Request for unknown model: '' is not found"),
    (
        "model_is_unknown_and_version_is_no_number",
        request("nothing", model_version="x"),
        INVALID,
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        "model_is_unknown_in_utf_8",
        request("ünbekannt"),
        "NOT_FOUND",
        "Request for unknown model: 'ünbekannt' is not found",
    ),
]

PARAMETER_CASES: list[Case] = [
    (
        "sequence_id_of_a_wrong_type",
        with_parameter("sequence_id", bool_param=True),
        INVALID,
        "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
    ),
    (
        "sequence_id_too_long",
        with_parameter("sequence_id", string_param="x" * 129),
        "UNIMPLEMENTED",
        "string correlation ID cannot be longer than 128 characters",
    ),
    (
        "sequence_start_of_a_wrong_type",
        with_parameter("sequence_start", int64_param=1),
        INVALID,
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    ),
    (
        "sequence_end_of_a_wrong_type",
        with_parameter("sequence_end", string_param="x"),
        INVALID,
        "invalid value type for 'sequence_end' parameter, expected bool_param.",
    ),
    (
        "priority_of_a_wrong_type",
        with_parameter("priority", string_param="1"),
        INVALID,
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    (
        "priority_is_negative",
        with_parameter("priority", int64_param=-1),
        INVALID,
        "invalid value for 'priority', expected value >= 0.",
    ),
    (
        "timeout_of_a_wrong_type",
        with_parameter("timeout", uint64_param=1),
        INVALID,
        "invalid value type for 'timeout' parameter, expected int64_param.",
    ),
    (
        "final_response_of_a_wrong_type",
        with_parameter("triton_enable_empty_final_response", int64_param=1),
        INVALID,
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
    ),
    ("reserved_parameter", with_parameter("triton_x", int64_param=1), INVALID, RESERVED),
    (
        "own_parameter_of_type_uint64",
        with_parameter("mine", uint64_param=1),
        INVALID,
        "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.",
    ),
    (
        "own_parameter_without_a_value",
        with_parameter("mine"),
        INVALID,
        "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.",
    ),
]

DATA_CASES: list[Case] = [
    (
        "shared_memory_and_contents",
        changed(
            lambda m: (
                m.inputs[0].parameters["shared_memory_region"].CopyFrom(pb.InferParameter(string_param="r")),
                m.inputs[0].parameters["shared_memory_byte_size"].CopyFrom(pb.InferParameter(int64_param=64)),
                m.inputs[0].contents.int_contents.extend([0] * 16),
            )
        ),
        INVALID,
        "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'addsub'",
    ),
    (
        "typed_and_raw_contents",
        changed(lambda m: m.inputs[1].contents.int_contents.extend([0] * 16)),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'INPUT1' for model 'addsub'",
    ),
    (
        "no_data_for_the_second_input",
        request("addsub", row("INPUT0"), row("INPUT1", size=None)),
        INVALID,
        "unable to find data for input tensor 'INPUT1' for model 'addsub' in request.",
    ),
    (
        "typed_contents_in_a_field_of_another_type",
        typed("FP32", int_contents=[1, 2, 3, 4]),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT' for model 'identity_FP32' of type 'INT32', "
        "expected datatype 'FP32'",
    ),
    (
        "typed_contents_for_a_type_that_has_none",
        typed("FP16", fp32_contents=[1, 2, 3, 4]),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT' for model 'identity_FP16' of type 'FP32', "
        "expected datatype 'FP16'",
    ),
    (
        "typed_contents_in_two_fields",
        typed("INT32", int_contents=[1, 2, 3, 4], fp64_contents=[1.0]),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT' for model 'identity_INT32', "
        "binary data was already supplied.",
    ),
    (
        "typed_contents_that_are_empty",
        typed("INT32"),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'identity_INT32'. Expected 16, got 0",
    ),
    (
        "typed_contents_of_no_rows_that_are_empty",
        typed("INT32", (0, 4)),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'identity_INT32'. Expected 16, got 0; its batch "
        "dimension is 0, and a request has 1 row or more",
    ),
    (
        "typed_texts_where_the_shape_has_none",
        typed("BYTES", (0, 4), bytes_contents=[b"a"]),
        INVALID,
        NO_ID + "unexpected number of string elements 1 for inference input 'INPUT' for model 'identity_BYTES', "
        "expecting 0; its shape has a dimension of 0, and so no elements",
    ),
    (
        "typed_contents_that_are_too_many",
        typed("INT16", int_contents=[1] * 5),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'identity_INT16'. Expected 8, got 10",
    ),
    (
        "typed_texts_that_are_too_few",
        typed("BYTES", bytes_contents=[b"a"] * 3),
        INVALID,
        NO_ID + "expected 4 string elements for inference input 'INPUT' for model 'identity_BYTES', got 3",
    ),
    (
        "typed_contents_of_no_rows",
        typed("INT32", (0, 4), int_contents=[1, 2, 3, 4]),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'identity_INT32'. Its batch dimension "
        "is 0, so expected 0, got 16; send 1 row or more",
    ),
]

SHARED_MEMORY_CASES: list[Case] = [
    (
        "region_of_a_wrong_type",
        with_input_parameters(shared_memory_region={"int64_param": 1}),
        INVALID,
        "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param.",
    ),
    (
        "region_without_a_size",
        with_input_parameters(**REGION),
        INVALID,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'",
    ),
    (
        "size_without_a_region",
        with_input_parameters(**SIZE),
        INVALID,
        "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'INPUT0'",
    ),
    (
        "size_of_a_wrong_type",
        with_input_parameters(**REGION, shared_memory_byte_size={"string_param": "64"}),
        INVALID,
        "invalid value type for 'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param.",
    ),
    (
        "offset_without_a_region",
        with_input_parameters(shared_memory_offset={"int64_param": 0}),
        INVALID,
        "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'INPUT0'",
    ),
    (
        "offset_of_a_wrong_type",
        with_input_parameters(**REGION, **SIZE, shared_memory_offset={"bool_param": True}),
        INVALID,
        "invalid value type for 'shared_memory_offset' parameter for tensor 'INPUT0', expected int64_param.",
    ),
    (
        "region_of_an_input_is_unknown",
        with_input_parameters(content=False, **REGION, **SIZE),
        "NOT_FOUND",
        "Unable to find shared memory region: 'r'",
    ),
    (
        "region_of_an_output_is_unknown",
        with_output_parameters(**REGION, **SIZE),
        "NOT_FOUND",
        "Unable to find shared memory region: 'r'",
    ),
    (
        "region_of_an_output_without_a_size",
        with_output_parameters(**REGION),
        INVALID,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'OUTPUT0'",
    ),
    (
        "region_and_classes",
        with_output_parameters(**REGION, **SIZE, classification={"int64_param": 1}),
        INVALID,
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        "classification_of_a_wrong_type",
        with_output_parameters(classification={"string_param": "1"}),
        INVALID,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    (
        "classification_of_nothing",
        with_output_parameters(classification={"int64_param": 0}),
        INVALID,
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    *[
        (
            f"classes_of_{datatype}",
            classes_of(f"identity_{datatype}", datatype, size),
            INVALID,
            f"class result not available for output due to unsupported type '{datatype}'",
        )
        for datatype, size in (("BOOL", 4), ("FP16", 8), ("BF16", 8), ("BYTES", 16))
    ],
]

MODEL_CASES: list[Case] = [
    (
        "input_given_twice",
        request("addsub", row("INPUT0"), row("INPUT0")),
        INVALID,
        NO_ID + "input 'INPUT0' already exists in request",
    ),
    (
        "input_given_twice_the_second_time_without_data",
        request("addsub", row("INPUT0"), row("INPUT0", size=None), id="a"),
        INVALID,
        "[request id: a] input 'INPUT0' already exists in request",
    ),
    (
        "output_asked_for_twice",
        good(outputs=["OUTPUT1", "OUTPUT1"], id="7"),
        INVALID,
        "[request id: 7] output 'OUTPUT1' already exists in request",
    ),
    (
        "output_is_unknown",
        good(outputs=["OUTPUT0", "OUTPUT7"], id="7"),
        INVALID,
        "unexpected inference output 'OUTPUT7' for model 'addsub'",
    ),
    (
        "no_inputs",
        request("addsub"),
        INVALID,
        NO_ID + "expected 2 inputs but got 0 inputs for model 'addsub'. Got input(s) [], but missing required "
        "input(s) ['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    (
        "one_input_of_two",
        request("addsub", row("INPUT0"), id="7"),
        INVALID,
        "[request id: 7] expected 2 inputs but got 1 inputs for model 'addsub'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    (
        "three_inputs_of_two",
        request("addsub", row("INPUT0"), row("INPUT1"), row("INPUT2")),
        INVALID,
        NO_ID + "expected 2 inputs but got 3 inputs for model 'addsub'. Got input(s) ['INPUT0','INPUT1','INPUT2'], "
        "but missing required input(s) ]. Please provide all required input(s).",
    ),
    (
        "no_inputs_where_some_are_optional",
        request("optional"),
        INVALID,
        NO_ID + "expected number of inputs between 1 and 2 but got 0 inputs for model 'optional'. Got input(s) [], "
        "but missing required input(s) ['INPUT']. Please provide all required input(s).",
    ),
    (
        "the_optional_input_alone",
        request("optional", Tensor("bias", "INT32", [4], bytes(16))),
        INVALID,
        NO_ID + "expected number of inputs between 1 and 2 but got 1 inputs for model 'optional'. Got input(s) "
        "['bias'], but missing required input(s) ['INPUT']. Please provide all required input(s).",
    ),
    (
        "input_is_unknown",
        request("addsub", row("INPUT0"), row("INPUT7"), id="7"),
        INVALID,
        "unexpected inference input 'INPUT7' for model 'addsub'",
    ),
    (
        "shape_is_empty",
        request("addsub", row("INPUT0"), row("INPUT1", ())),
        INVALID,
        NO_ID + "input 'INPUT1' has no shape but model requires batch dimension for 'addsub'",
    ),
    (
        "batch_dimensions_differ",
        request("addsub", row("INPUT0"), row("INPUT1", (2, 16), size=128)),
        INVALID,
        NO_ID + "input 'INPUT1' batch size does not match other inputs for 'addsub'",
    ),
    (
        "batch_is_larger_than_the_ring",
        request("addsub", row("INPUT0", (33, 16), size=33 * 64), row("INPUT1", (33, 16), size=33 * 64), id="7"),
        INVALID,
        "[request id: 7] inference request batch-size must be <= 32 for 'addsub'",
    ),
    (
        "datatype_differs",
        request("addsub", row("INPUT0"), row("INPUT1", datatype="FP32")),
        INVALID,
        NO_ID + "inference input 'INPUT1' data-type is 'FP32', but model 'addsub' expects 'INT32'",
    ),
    (
        "datatype_is_unknown",
        request("addsub", row("INPUT0", datatype="FLOAT"), row("INPUT1"), id="ä"),
        INVALID,
        "[request id: ä] inference input 'INPUT0' data-type is '<invalid>', but model 'addsub' expects 'INT32'",
    ),
    (
        "both_inputs_are_wrong",
        request("addsub", row("INPUT0", datatype="FP32"), row("INPUT1", datatype="FP32")),
        INVALID,
        NO_ID + "inference input 'INPUT1' data-type is 'FP32', but model 'addsub' expects 'INT32'",
    ),
    (
        "dimension_is_negative",
        dynamic((1, -1), 4),
        INVALID,
        NO_ID + "All input dimensions should be specified for input 'INPUT' for model 'dynamic', got [1,-1]",
    ),
    (
        "batch_dimension_is_negative",
        dynamic((-1, 1), 4),
        INVALID,
        NO_ID + "All input dimensions should be specified for input 'INPUT' for model 'dynamic', got [-1,1]",
    ),
    (
        "shape_differs",
        request("addsub", row("INPUT0", (1, 17), size=68), row("INPUT1"), id="7"),
        INVALID,
        "[request id: 7] unexpected shape for input 'INPUT0' for model 'addsub'. Expected [-1,16], got [1,17]." + NOTE,
    ),
    (
        "rank_differs",
        request("addsub", row("INPUT0", (16,)), row("INPUT1", (16,))),
        INVALID,
        NO_ID + "unexpected shape for input 'INPUT1' for model 'addsub'. Expected [-1,16], got [16]." + NOTE,
    ),
    (
        "shape_differs_without_a_batch_dimension",
        request("fixed", Tensor("INPUT", "FP32", [2, 4], bytes(32))),
        INVALID,
        NO_ID + "unexpected shape for input 'INPUT' for model 'fixed'. Expected [2,3], got [2,4]. ",
    ),
    (
        "long_id",
        request("mlp", Tensor.of("INPUT", "FP32", [[0.0] * 64]), id="x" * 65_537),
        INVALID,
        "the request's id has 65537 bytes, at most 65536 are taken",
    ),
    (
        "shape_of_a_scalar",
        request("scalar", Tensor("INPUT", "FP32", [1, 1], bytes(4))),
        INVALID,
        NO_ID + "unexpected shape for input 'INPUT' for model 'scalar'. Expected [1], got [1,1]. ",
    ),
    (
        "rows_without_dimensions_in_one_dimension",
        request("rank1", Tensor("INPUT", "INT32", [3], bytes(12))),
        INVALID,
        NO_ID + "unexpected shape for input 'INPUT' for model 'rank1'. Expected [-1,1], got [3]." + NOTE,
    ),
    (
        "bytes_are_too_few",
        request("addsub", row("INPUT0", size=60), row("INPUT1")),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT0' for model 'addsub'. Expected 64, got 60",
    ),
    (
        "bytes_are_too_many",
        request("addsub", row("INPUT0", size=65), row("INPUT1"), id="7"),
        INVALID,
        "[request id: 7] input byte size mismatch for input 'INPUT0' for model 'addsub'. Expected 64, got 65",
    ),
    (
        "bytes_are_wrong_for_both",
        request("addsub", row("INPUT0", size=1), row("INPUT1", size=2)),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT1' for model 'addsub'. Expected 64, got 2",
    ),
    (
        "no_rows",
        dynamic((0, 3)),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'dynamic'. Expected 12, got 0; its batch "
        "dimension is 0, and a request has 1 row or more",
    ),
    (
        "no_elements_and_some_bytes",
        dynamic((2, 0), 12),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'dynamic'. Expected 0, got 12; its shape has a "
        "dimension of 0, and so no elements",
    ),
    (
        "no_rows_and_one_row_of_bytes",
        dynamic((0, 3), 12),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'dynamic'. Its batch dimension is 0, so "
        "expected 0, got 12; send 1 row or more",
    ),
    (
        "dimensions_overflow",
        dynamic((2**40, 2**40)),
        INVALID,
        NO_ID + f"byte size for tensor 'INPUT' {TOO_MANY_BYTES}",
    ),
    (
        "dimensions_overflow_by_the_size_of_an_element",
        dynamic((1, 2**62)),
        INVALID,
        NO_ID + f"byte size for tensor 'INPUT' {TOO_MANY_BYTES}",
    ),
    (
        "dimension_is_huge",
        dynamic((1, 2**60), 4),
        INVALID,
        NO_ID + f"input byte size mismatch for input 'INPUT' for model 'dynamic'. Expected {2**62}, got 4",
    ),
    (
        "dimensions_overflow_but_for_a_zero",
        dynamic((2**62, 0)),
        INVALID,
        NO_ID + f"byte size for tensor 'INPUT' {TOO_MANY_BYTES}",
    ),
    (
        "a_row_without_a_batch",
        request("mlp", Tensor("INPUT", "FP32", [0, 64], bytes(256))),
        INVALID,
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'mlp'. Its batch dimension is 0, so expected 0, "
        "got 256; send 1 row or more",
    ),
    (
        "rows_without_elements_are_too_many",
        dynamic((2**40, 0)),
        INVALID,
        NO_ID + "inference request batch-size must be <= 1024 for 'dynamic'",
    ),
    (
        "texts_are_too_few",
        texts(bytes_tensor(b"a", b"b", b"c")),
        INVALID,
        NO_ID + "expected 4 string elements for inference input 'INPUT' for model 'identity_BYTES', got 3",
    ),
    (
        "texts_are_too_many",
        texts(bytes_tensor(*b"abcde".split(b" ") * 5), id="7"),
        INVALID,
        "[request id: 7] unexpected number of string elements 5 for inference input 'INPUT' for model "
        "'identity_BYTES', expecting 4",
    ),
    (
        "text_has_a_cut_length",
        texts(bytes_tensor(b"a", b"b", b"c") + b"\1\0"),
        INVALID,
        NO_ID + "incomplete string length indicator for inference input 'INPUT' for model 'identity_BYTES', "
        "expecting 4 bytes but only 2 bytes available.",
    ),
    (
        "text_is_cut",
        texts(bytes_tensor(b"a", b"b", b"c") + b"\5\0\0\0ab"),
        INVALID,
        NO_ID + "incomplete string data for inference input 'INPUT' for model 'identity_BYTES', "
        "expecting string of length 5 but only 2 bytes available.",
    ),
    (
        "text_has_a_huge_length",
        texts(b"\xff\xff\xff\xff"),
        INVALID,
        NO_ID + "incomplete string data for inference input 'INPUT' for model 'identity_BYTES', "
        "expecting string of length 4294967295 but only 0 bytes available.",
    ),
    (
        "texts_of_a_huge_shape",
        texts(b"", (2**40, 4)),
        INVALID,
        NO_ID + "expected 4398046511104 string elements for inference input 'INPUT' for model 'identity_BYTES', got 0",
    ),
]

CASES = [*VERSION_CASES, *PARAMETER_CASES, *DATA_CASES, *SHARED_MEMORY_CASES, *MODEL_CASES]


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [pytest.param(message, status, text, id=name) for name, message, status, text in CASES],
)
def test_request_is_refused_in_tritons_words(
    channel: Any, bystander: Any, message: Any, status: str, text: str
) -> None:
    for _ in range(2):
        assert refused(channel, message) == (status, text)
    assert_answers(channel)
    assert_answers(bystander)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(texts(b"\1\0\0\0a\2", id="7"), "[request id: 7] ", id="texts"),
        pytest.param(dynamic((2**40, 0)), NO_ID, id="rows"),
    ],
)
def test_prefix_has_the_id_of_each_request_of_one_kind(channel: Any, message: Any, text: str) -> None:
    assert refused(channel, message)[1].startswith(text)
    message.id = "other"
    assert refused(channel, message)[1].startswith("[request id: other] ")


def test_a_kind_of_request_that_was_right_is_refused_when_its_bytes_are_not(channel: Any) -> None:
    for _ in range(3):
        assert_answers(channel)
    for size, raws in ((60, [60, 64]), (0, [64, 0]), (68, [68, 60])):
        message = request("addsub", row("INPUT0", size=raws[0]), row("INPUT1", size=raws[1]))
        status, text = refused(channel, message)
        assert status == INVALID
        assert text.startswith(NO_ID + "input byte size mismatch")
        assert str(size) in text or str(raws[1]) in text
    message = request("mlp", Tensor("INPUT", "FP32", [1, 64], bytes(256)))
    infer(channel, message)
    message.raw_input_contents[0] = bytes(252)
    assert refused(channel, message)[1] == (
        NO_ID + "input byte size mismatch for input 'INPUT' for model 'mlp'. Expected 256, got 252"
    )


def test_a_kind_of_request_that_was_right_is_refused_when_its_data_is_missing(channel: Any) -> None:
    message = good()
    infer(channel, message)
    del message.raw_input_contents[1:]
    assert refused(channel, message)[1] == (
        "unable to find data for input tensor 'INPUT1' for model 'addsub' in request."
    )


@pytest.mark.parametrize("cut", [1, 5, 20, 60])
def test_a_message_cut_short_is_an_internal_error(channel: Any, cut: int) -> None:
    data = good(id="x").SerializeToString()
    status, text = refused(channel, data[:-cut])
    assert (status, text.split(":")[0]) == ("INTERNAL", "the message is not a ModelInferRequest")
    assert "toutates" not in text
    assert_answers(channel)


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a", b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\0"])
def test_garbage_in_place_of_a_message_is_an_internal_error(channel: Any, data: bytes) -> None:
    assert refused(channel, data)[0] == "INTERNAL"
    assert_answers(channel)


def test_an_id_that_is_not_utf_8_is_an_internal_error_by_every_way(channel: Any) -> None:
    for model in (good(), texts(bytes_tensor(b"a", b"b", b"c", b"d"))):
        data = model.SerializeToString()
        call_twice = [channel.unary_unary(INFER)(data + b"\x1a\x01i", timeout=PATIENCE_S) for _ in range(2)]
        assert pb.ModelInferResponse.FromString(call_twice[1]).id == "i"
        assert refused(channel, data + b"\x1a\x01\xff")[0] == "INTERNAL"
    assert_answers(channel)


def test_unknown_fields_and_fields_in_any_order_are_as_good(channel: Any) -> None:
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    message = request("addsub", int32("INPUT0", values), int32("INPUT1", values), id="i")
    raws = pb.ModelInferRequest(raw_input_contents=message.raw_input_contents).SerializeToString()
    del message.raw_input_contents[:]
    rest = message.SerializeToString()
    for data in (raws + rest, rest + raws, rest + b"\xfa\x3e\x02ab" + raws, rest + raws + b"\x98\x06\x01"):
        for _ in range(2):
            response = pb.ModelInferResponse.FromString(channel.unary_unary(INFER)(data, timeout=PATIENCE_S))
            assert response.id == "i"
            np.testing.assert_array_equal(outputs_of(response)["OUTPUT0"], 2 * values)


def test_refusals_do_not_touch_the_statistics(channel: Any) -> None:
    before = statistics_of(channel, "addsub")
    for _, message, _, _ in CASES:
        if message.model_name == "addsub":
            refused(channel, message)
    assert statistics_of(channel, "addsub") == before


def test_a_hundred_thousand_inputs_are_refused_in_no_time(channel: Any) -> None:
    message = request("addsub", *[Tensor(f"I{at}", "INT32", [], None) for at in range(100_000)])
    for _ in range(2):
        status, text = refused(channel, message, timeout=PATIENCE_S)
        assert (status, text[:38]) == (INVALID, "the request has more than 16384 fields")
        message.raw_input_contents.extend([b""] * 100_000)


def test_a_few_thousand_inputs_are_refused_in_no_time_and_counted(channel: Any) -> None:
    message = request("addsub", *[Tensor(f"I{at}", "INT32", [], None) for at in range(3_000)])
    message.inputs[0].contents.SetInParent()
    message.raw_input_contents.append(b"")
    assert refused(channel, message, timeout=PATIENCE_S)[0] == INVALID
    del message.inputs[0].contents.int_contents[:]
    message.inputs[0].ClearField("contents")
    del message.raw_input_contents[:]
    message.raw_input_contents.extend([b""] * 3_000)
    status, text = refused(channel, message, timeout=PATIENCE_S)
    assert status == INVALID
    assert text.startswith(NO_ID + "expected 2 inputs but got 3000 inputs for model 'addsub'.")


def test_a_failure_of_onnx_runtime_is_an_internal_error_with_its_text(channel: Any) -> None:
    status, text = refused(channel, request("gather", Tensor.of("INPUT", "INT64", [[8]])))
    assert status == "INTERNAL"
    assert text.startswith("onnx runtime error 1: ")
    assert text.endswith("indices element out of data bounds, idx=8 must be within the inclusive range [-8,7]")
    assert_answers(channel)


def test_a_poisoned_row_fails_its_own_request_only(server: ServerProcess) -> None:
    def body(at: int) -> bytes:
        index = 99 if at % 10 == 3 else at % 8
        data: bytes = request("gather", Tensor.of("INPUT", "INT64", [[index]]), id=str(at)).SerializeToString()
        return data

    with channel_to(server.address) as one, channel_to(server.address) as two:
        futures = [(one, two)[at % 2].unary_unary(INFER).future(body(at), timeout=PATIENCE_S) for at in range(120)]
        for at, future in enumerate(futures):
            if at % 10 == 3:
                error = future.exception()
                assert error.code() is grpc.StatusCode.INTERNAL
                assert "idx=99" in error.details()
            else:
                response = pb.ModelInferResponse.FromString(future.result())
                assert response.id == str(at)
                assert outputs_of(response)["OUTPUT"].tolist() == [[100 + at % 8]]
