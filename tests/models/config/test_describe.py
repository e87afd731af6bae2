"""ModelMetadata and ModelConfig, as Triton's clients expect them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from toutates.models.config.describe import model_config, model_metadata
from toutates.models.config.pbtxt import parse_pbtxt
from toutates.models.config.settings import (
    ModelSettings,
    ProfilingSettings,
    RateLimit,
    ResourceNeed,
    SessionSettings,
    WarmupInput,
    WarmupSample,
)
from toutates.models.config.triton_configuration import triton_configuration
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelVersionPolicy
from toutates.protocol.signature import Signature, TensorSpec

ONNX = ModelConfig(platform="onnxruntime_onnx", backend="onnxruntime")
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
    assert json_format.MessageToDict(model_metadata("m", [1, 10, 9], BATCHED, ONNX)) == {
        "name": "m",
        "versions": ["1", "9", "10"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "points", "datatype": "FP32", "shape": ["-1", "2", "-1"]},
            {"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]},
        ],
        "outputs": [{"name": "softmax", "datatype": "BF16", "shape": ["-1", "8"]}],
    }


def test_metadata_of_a_backend_without_a_platform_names_the_backend() -> None:
    assert model_metadata("m", [1], BATCHED, ModelConfig(backend="python")).platform == "python"


def test_metadata_of_an_unbatched_model_shows_whole_shapes() -> None:
    metadata = model_metadata("m", [1], UNBATCHED, ONNX)
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
    metadata = model_metadata("m", [1], signature, ONNX)
    assert [list(tensor.shape) for tensor in (*metadata.inputs, *metadata.outputs)] == [[-1, 1]] * 3


def test_config_with_a_batch_size_of_one_names_no_scheduler() -> None:
    config = model_config("m", BATCHED, ModelSettings(batch_size=1))
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize("count", [1, 3])
def test_config_on_a_gpu_names_the_device(count: int) -> None:
    [group] = model_config("m", BATCHED, ModelSettings(num_executors=count), gpu=True).instance_group
    assert (group.name, group.kind, group.count, list(group.gpus)) == ("m", group.KIND_GPU, count, [0])


def shown(text: str, signature: Signature = BATCHED, **more: Any) -> ModelConfig:
    """What clients see of a config.pbtxt."""
    given = parse_pbtxt(text, Path("config.pbtxt"))
    settings = triton_configuration(given, "m", Path("config.pbtxt")).settings
    return model_config("m", signature, settings, given=given, **more)


def test_a_config_that_leaves_tensors_out_is_completed_from_the_graph_and_gets_a_scheduler() -> None:
    config = shown("max_batch_size: 8 input { name: 'points' data_type: TYPE_FP32 dims: [ 2, 5 ] format: FORMAT_NCHW }")
    assert (config.name, config.platform, config.backend) == ("m", "onnxruntime_onnx", "onnxruntime")
    assert [(tensor.name, tensor.format) for tensor in config.input] == [("points", ModelInput.FORMAT_NCHW)]
    assert [tensor.name for tensor in config.output] == ["softmax"]
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    assert (config.max_batch_size, config.default_model_filename) == (8, "model.onnx")
    assert [tensor.name for tensor in shown("max_batch_size: 8").input] == ["points", "text"]
    assert not shown("max_batch_size: 1").HasField("dynamic_batching")
    assert shown("").max_batch_size == 64  # of the settings, where the graph can be batched
    assert shown("", UNBATCHED).max_batch_size == 0
    assert not shown("", UNBATCHED).HasField("dynamic_batching")


def test_a_config_that_is_complete_is_left_as_it_is() -> None:
    both = "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }"
    config = shown(f"max_batch_size: 8 {both} version_policy {{ all {{ }} }}")
    assert ([tensor.name for tensor in config.input], [tensor.name for tensor in config.output]) == (["x"], ["y"])
    assert not config.HasField("dynamic_batching")
    assert list(shown(f"max_batch_size: 8 dynamic_batching {{ }} {both}").dynamic_batching.preferred_batch_size) == [8]
    own = shown(f"max_batch_size: 8 dynamic_batching {{ preferred_batch_size: 4 }} {both}")
    assert list(own.dynamic_batching.preferred_batch_size) == [4]
    assert not shown(f"dynamic_batching {{ }} {both}", UNBATCHED).dynamic_batching.preferred_batch_size


CPU, GPU, AUTO = ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_AUTO


@pytest.mark.parametrize(
    ("text", "gpu", "groups"),
    [
        ("", False, [("m", CPU, 1, [])]),
        ("", True, [("m", GPU, 1, [0])]),
        ("", None, [("m", AUTO, 1, [])]),
        ("instance_group { count: 2 }", False, [("m_0", CPU, 2, [])]),
        ("instance_group { count: 2 }", True, [("m_0", GPU, 2, [0])]),
        ("instance_group { count: 2 }", None, [("m_0", AUTO, 2, [])]),
        ("instance_group { gpus: 1 }", None, [("m_0", GPU, 1, [1])]),
        ("instance_group { gpus: 1 }", False, [("m_0", GPU, 1, [1])]),
        ("instance_group { name: 'own' kind: KIND_GPU }", False, [("own", GPU, 1, [0])]),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }", True,
         [("m_0", CPU, 1, []), ("m_1", GPU, 1, [0, 2])]),
    ],
)  # fmt: skip
def test_instance_groups_are_completed_as_they_are_read(text: str, gpu: bool | None, groups: list[Any]) -> None:
    config = shown(text, gpu=gpu)
    assert [(one.name, one.kind, one.count, list(one.gpus)) for one in config.instance_group] == groups


@pytest.mark.parametrize(
    ("devices", "gpu", "groups"),
    [
        (("cpu", "gpu:1"), False, [("m_0", CPU, 2, []), ("m_1", GPU, 1, [1])]),
        (("auto",), None, [("m_0", AUTO, 3, [])]),
        (("auto",), True, [("m_0", GPU, 3, [0])]),
        (("cpu",), None, [("m_0", CPU, 3, [])]),
        (("gpu:2",), False, [("m_0", GPU, 3, [2])]),
    ],
)
def test_devices_of_executors_are_instance_groups(
    devices: tuple[str, ...], gpu: bool | None, groups: list[Any]
) -> None:
    config = model_config("m", BATCHED, ModelSettings(num_executors=3, devices=devices), gpu=gpu)
    assert [(one.name, one.kind, one.count, list(one.gpus)) for one in config.instance_group] == groups


def test_what_differs_from_the_defaults_of_a_session_is_a_parameter() -> None:
    def parameters(session: SessionSettings) -> dict[str, str]:
        config = model_config("m", BATCHED, ModelSettings(session=session))
        return {key: value.string_value for key, value in config.parameters.items()}

    assert parameters(SessionSettings()) == {}
    assert parameters(SessionSettings(4, 2, "parallel", "all", False, False, "cpu:0", True)) == {
        "intra_op_thread_count": "4",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    }
    assert parameters(SessionSettings(execution_mode="sequential")) == {"execution_mode": "0"}


def test_a_bounded_queue_is_shown_with_and_without_batching() -> None:
    for signature, preferred in ((BATCHED, [64]), (UNBATCHED, [])):
        batching = model_config("m", signature, ModelSettings(max_queue_size=7)).dynamic_batching
        assert batching.default_queue_policy.max_queue_size == 7
        assert list(batching.preferred_batch_size) == preferred
    own = ModelSettings(preferred_batch_sizes=(8, 16), max_queue_delay_us=5)
    batching = model_config("m", BATCHED, own).dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([8, 16], 5)


LIMIT = RateLimit((ResourceNeed("R1", 2), ResourceNeed("R2", 3, is_global=True)), 2)


@pytest.mark.parametrize(
    "settings",
    [
        ModelSettings(),
        ModelSettings(capacity_bytes=10**6, allocator="cuda_pinned", profiling=ProfilingSettings("p", 3)),
        ModelSettings(latency_target_ms=12.5, num_executors=3, rate_limits=(LIMIT, RateLimit((), 2), RateLimit())),
        ModelSettings(num_executors=2, rate_limits=(LIMIT,)),
        ModelSettings(profiling=ProfilingSettings("p"), session=SessionSettings(graph_level="off")),
        ModelSettings(warmup=(WarmupSample("a", {"points": WarmupInput("FP32", (2, 3), "random")}, 4, 2),)),
        ModelSettings(warmup=(WarmupSample("a", {"text": WarmupInput("BYTES", (1,), "file", "f")}),)),
    ],
)
def test_settings_come_back_from_a_config_that_holds_what_triton_has_no_field_for(settings: ModelSettings) -> None:
    config = model_config("m", BATCHED, settings, with_own=True)
    read = triton_configuration(config, "m", Path("config.pbtxt")).settings
    limits = tuple(settings.rate_limit(at) for at in range(settings.num_executors)) if settings.rate_limits else ()
    assert read == replace(settings, devices=("cpu",), model_filename="model.onnx", rate_limits=limits)
    # Clients are shown no keys of this server's own.
    assert not any(key.startswith("toutates.") for key in model_config("m", BATCHED, settings).parameters)


def test_only_reshapes_that_triton_takes_are_shown() -> None:
    scalar, reshaped = (
        TensorSpec("s", BY_NAME["FP32"], (1,), reshape=()),
        TensorSpec("x", BY_NAME["FP32"], (4,), reshape=(2, 2)),
    )
    for batched, shown_reshapes in ((False, [None, [2, 2]]), (True, [[], [2, 2]])):
        config = model_config("m", Signature((scalar, reshaped), (), batched=batched), ModelSettings())
        reshapes = [list(one.reshape.shape) if one.HasField("reshape") else None for one in config.input]
        assert reshapes == shown_reshapes


def test_the_version_policy_of_the_model_is_shown() -> None:
    policy = ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=3))
    assert model_config("m", BATCHED, ModelSettings(), version_policy=policy).version_policy == policy
