"""What validation makes of a request, and what it refuses in which order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.infer.test_scanning import requests
from toutates.infer.validation import request_prefix, validate
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
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
