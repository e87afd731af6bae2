"""What validation makes of a request, and what it refuses in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.infer.test_scanning import requests
from toutates.infer.validation import validate
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.names import request_prefix
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest, RequestError, Unsupported

ADDSUB = Signature(
    inputs=(TensorSpec("A", BY_NAME["INT32"], (16,)), TensorSpec("B", BY_NAME["INT32"], (16,))),
    outputs=(TensorSpec("S", BY_NAME["INT32"], (16,)), TensorSpec("D", BY_NAME["INT32"], (16,))),
    batched=True,
)


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


# --- refusals, each by the one thing that is wrong


def refusal(request: ModelInferRequest, *sizes: int, signature: Signature = ADDSUB) -> str:
    with pytest.raises(RequestError) as caught:
        validate(request, sizes, signature, "m")
    return str(caught.value)


def region(tensor: Any) -> None:
    tensor.parameters["shared_memory_region"].string_param = "r"
    tensor.parameters["shared_memory_byte_size"].int64_param = 4


def test_names_come_once() -> None:
    assert refusal(message("A", "A"), 1, 1) == "[request id: <id_unknown>] input 'A' already exists in request"
    request = message(id="7")
    for _ in range(2):
        request.outputs.add(name="S")
    assert refusal(request, 128, 128) == "[request id: 7] output 'S' already exists in request"


def test_contents_are_in_one_place() -> None:
    request = message()
    region(request.inputs[1])
    assert refusal(request, 128) == "Unable to find shared memory region: 'r'"
    request.inputs[1].contents.int_contents.append(1)
    assert refusal(request, 128).startswith(
        "unexpected 'content' provided when using shared memory for input tensor 'B"
    )
    request = message()
    request.inputs[1].contents.int_contents.append(1)
    assert refusal(request, 128).startswith("contents field must not be specified when using raw_input_contents for 'B")


def test_outputs_have_classes_or_a_region() -> None:
    request = message()
    output = request.outputs.add(name="S")
    output.parameters["classification"].int64_param = 0
    assert refusal(request, 128, 128) == "invalid value for 'classification' parameter, expected >= 0"
    output.parameters["classification"].int64_param = 1
    assert validate(request, [128, 128], ADDSUB, "m").classes == {0: 1}
    region(output)
    assert refusal(request, 128, 128) == "output can't set both 'shared_memory_region' and 'classification'"
    del output.parameters["classification"]
    assert refusal(request, 128, 128) == "Unable to find shared memory region: 'r'"


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_values_without_an_order_have_no_classes(datatype: str) -> None:
    signature = Signature(ADDSUB.inputs, (TensorSpec("S", BY_NAME[datatype], (16,)),), batched=True)
    request = message()
    request.outputs.add(name="S").parameters["classification"].int64_param = 1
    assert f"unsupported type '{datatype}'" in refusal(request, 128, 128, signature=signature)


OPTIONAL = Signature(
    (*ADDSUB.inputs, *(TensorSpec(name, BY_NAME["INT32"], (16,), optional=True) for name in ("O", "P"))),
    ADDSUB.outputs,
    batched=True,
)


@pytest.mark.parametrize(
    ("names", "signature", "expected", "missing"),
    [
        (("A",), ADDSUB, "2 inputs", "['B']"),
        (("A", "B", "C"), ADDSUB, "2 inputs", "]"),
        (("A", "O"), OPTIONAL, "number of inputs between 2 and 4", "['B']"),
        (("A",), OPTIONAL, "number of inputs between 2 and 4", "['B']"),
        (("A", "B", "O", "P", "Q"), OPTIONAL, "number of inputs between 2 and 4", "]"),
    ],
)
def test_inputs_are_as_many_as_the_model_has(
    names: tuple[str, ...], signature: Signature, expected: str, missing: str
) -> None:
    given = ",".join(f"'{name}'" for name in names)
    assert refusal(message(*names), *[128] * len(names), signature=signature) == (
        f"[request id: <id_unknown>] expected {expected} but got {len(names)} inputs for model 'm'. Got input(s) "
        f"[{given}], but missing required input(s) {missing}. Please provide all required input(s)."
    )


def test_a_batched_input_has_a_shape() -> None:
    request = message()
    del request.inputs[1].shape[:]
    assert "input 'B' has no shape but model requires batch dimension for 'm'" in refusal(request, 128, 128)


def test_dimensions_are_given_and_fit() -> None:
    request = message()
    request.inputs[0].shape[:] = [2, -1]
    expected = "All input dimensions should be specified for input 'A' for model 'm', got [2,-1]"
    assert refusal(request, 128, 128).endswith(expected)
    request.inputs[0].shape[:] = [2, 16, 1]
    text = refusal(request, 128, 128)
    assert "Expected [-1,16], got [2,16,1]. NOTE: Setting a non-zero max_batch_size" in text
    unbatched = Signature(ADDSUB.inputs, ADDSUB.outputs, batched=False)
    request.inputs[0].shape[:] = [15]
    request.inputs[1].shape[:] = [16]
    assert refusal(request, 64, 64, signature=unbatched).endswith("Expected [16], got [15]. ")


def test_an_unknown_datatype_is_shown_as_invalid() -> None:
    request = message()
    request.inputs[0].datatype = "INT33"
    assert "data-type is '<invalid>', but model 'm' expects 'INT32'" in refusal(request, 128, 128)


@pytest.mark.parametrize(("size", "fits"), [(2**61 - 1, True), (2**61, False)])
def test_a_tensor_s_bytes_are_a_number_of_63_bits(size: int, fits: bool) -> None:
    signature = Signature((TensorSpec("A", BY_NAME["INT32"], (-1, -1)),), (), batched=False)
    request = message("A")
    request.inputs[0].shape[:] = [size, 0]
    if fits:
        assert validate(request, [0], signature, "m").sizes == (0,)
    else:
        assert "byte size for tensor 'A' exceeds maximum size of 9223372036854775807" in refusal(
            request, 0, signature=signature
        )


def test_a_scalar_needs_no_dimensions_where_nothing_is_batched() -> None:
    signature = Signature((TensorSpec("A", BY_NAME["INT32"], (1,), reshape=()),), (), batched=False)
    request = message("A")
    for shape in ([], [1]):
        request.inputs[0].shape[:] = shape
        assert validate(request, [4], signature, "m").shapes == ((),)
    vector = Signature((TensorSpec("A", BY_NAME["INT32"], (1,)),), (), batched=False)
    request.inputs[0].shape[:] = []
    assert "unexpected shape" in refusal(request, 4, signature=vector)


def test_a_batch_without_rows_has_no_bytes() -> None:
    request = message("A")
    request.inputs[0].shape[:] = [0, 16]
    one = Signature(ADDSUB.inputs[:1], (), batched=True)
    text = "Expected 64, got 0; its batch dimension is 0, and a request has 1 row or more"
    assert refusal(request, 0, signature=one).endswith(text)
    assert "Its batch dimension is 0, so expected 0, got 64; send 1 row or more" in refusal(request, 64, signature=one)
    empty = Signature((TensorSpec("A", BY_NAME["INT32"], (0,)),), (), batched=True)
    request.inputs[0].shape[:] = [0, 0]
    assert validate(request, [0], empty, "m").rows == 0
