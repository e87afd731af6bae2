"""ModelMetadata and ModelConfig, as Triton's clients expect them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format

from toutates.models.config.describe import model_config, model_metadata
from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

BATCHED = Signature(
    inputs=(TensorSpec("points", BY_NAME["FP32"], (2, -1)), TensorSpec("text", BY_NAME["BYTES"], (1,))),
    outputs=(TensorSpec("softmax", BY_NAME["BF16"], (8,)),),
    batched=True,
)
UNBATCHED = Signature(
    inputs=(TensorSpec("x", BY_NAME["FP16"], (-1, 3)), TensorSpec("w", BY_NAME["INT64"], (3,), optional=True)),
    outputs=(TensorSpec("y", BY_NAME["UINT8"], ()),),
    batched=False,
)


def test_metadata_of_a_batched_model_shows_a_leading_open_dimension() -> None:
    assert json_format.MessageToDict(model_metadata("m", [1, 10, 9], BATCHED)) == {
        "name": "m",
        "versions": ["1", "9", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "points", "datatype": "FP32", "shape": ["-1", "2", "-1"]},
            {"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]},
        ],
        "outputs": [{"name": "softmax", "datatype": "BF16", "shape": ["-1", "8"]}],
    }


def test_metadata_of_an_unbatched_model_shows_whole_shapes() -> None:
    metadata = model_metadata("m", [1], UNBATCHED)
    assert [list(tensor.shape) for tensor in metadata.inputs] == [[-1, 3], [3]]
    assert list(metadata.outputs[0].shape) == []


def test_config_of_a_batched_model_is_complete_and_normalised() -> None:
    config = model_config("m", BATCHED, ModelSettings(batch_size=256, num_executors=6))
    assert json_format.MessageToDict(config, preserving_proto_field_name=True) == {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"all": {}},
        "max_batch_size": 256,
        "input": [
            {"name": "points", "data_type": "TYPE_FP32", "dims": ["2", "-1"]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": ["1"]},
        ],
        "output": [{"name": "softmax", "data_type": "TYPE_BF16", "dims": ["8"]}],
        "instance_group": [{"name": "m", "kind": "KIND_CPU", "count": 6}],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {"preferred_batch_size": [256]},
        "optimization": {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}},
    }


def test_config_of_an_unbatched_model_has_whole_dims_optional_inputs_and_no_batching() -> None:
    config = model_config("m", UNBATCHED, ModelSettings(batch_size=64))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [(list(tensor.dims), tensor.optional) for tensor in config.input] == [([-1, 3], False), ([3], True)]


def test_rows_without_dimensions_are_shown_with_one_and_reshaped_to_none() -> None:
    spec = TensorSpec("x", BY_NAME["FP32"], (1,), reshape=())
    plain = TensorSpec("y", BY_NAME["FP32"], (1,))
    signature = Signature(inputs=(spec, plain), outputs=(replace(spec, name="z"),), batched=True)
    config = model_config("m", signature, ModelSettings())
    tensors: list[Any] = [*config.input, *config.output]
    assert [list(tensor.dims) for tensor in tensors] == [[1], [1], [1]]
    assert [tensor.HasField("reshape") for tensor in tensors] == [True, False, True]
    assert [list(tensor.reshape.shape) for tensor in tensors] == [[], [], []]
    metadata = model_metadata("m", [1], signature)
    assert [list(tensor.shape) for tensor in (*metadata.inputs, *metadata.outputs)] == [[-1, 1]] * 3


def test_config_with_a_batch_size_of_one_names_no_scheduler() -> None:
    config = model_config("m", BATCHED, ModelSettings(batch_size=1))
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize("count", [1, 3])
def test_config_on_a_gpu_names_the_device(count: int) -> None:
    [group] = model_config("m", BATCHED, ModelSettings(num_executors=count), gpu=True).instance_group
    assert (group.name, group.kind, group.count, list(group.gpus)) == ("m", group.KIND_GPU, count, [0])
