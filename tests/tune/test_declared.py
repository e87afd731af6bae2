"""What is changed in a config.pbtxt, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.tune.declared import Declared
from toutates.tune.space import Space, axes_of

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_STRING dims: 1 label_filename: "labels.txt" }
instance_group { name: "m" count: 1 kind: KIND_CPU }
"""
LIGHTGBM = (
    TENSORS
    + """
backend: "lightgbm" max_batch_size: 64
dynamic_batching { preferred_batch_size: [16, 64] max_queue_delay_microseconds: 100 preserve_ordering: true }
parameters { key: "predict" value { string_value: "raw_score" } }
parameters { key: "toutates.capacity" value { string_value: "16" } }
"""
)
SETTINGS = {"backend": "lightgbm", "batching": True, "batch_size": 64, "capacity": 16, "num_executors": 1}
SETTINGS |= {"max_queue_delay_us": 100, "parameters": {"predict": "raw_score"}}


def read(text: str) -> ModelConfig:
    config = ModelConfig()
    text_format.Parse(text, config)
    return config


def space_of(text: str, settings: dict[str, Any]) -> tuple[Declared, Space]:
    declared = Declared(text)
    base = declared.base(settings)
    return declared, Space({"m": base}, axes_of("m", base, 4, keys=declared.keys))


def test_the_configuration_as_it_is_is_the_file_as_it_is() -> None:
    declared, space = space_of(LIGHTGBM, SETTINGS)
    assert read(declared.text(space.configs(space.start)["m"])) == read(LIGHTGBM)


def test_keys_are_written_into_their_fields_and_all_else_stays() -> None:
    declared, space = space_of(LIGHTGBM, SETTINGS)
    assert [axis.name for axis in space.axes] == [
        "batch_size", "num_executors", "parameters.threads", "max_queue_delay_us",
    ]  # fmt: skip
    wanted = {"batch_size": 32, "num_executors": 2, "parameters.threads": 4, "max_queue_delay_us": 0}
    point = tuple(axis.values.index(wanted[axis.name]) for axis in space.axes)
    made, expected = read(declared.text(space.configs(point)["m"])), read(LIGHTGBM)
    expected.max_batch_size = 32
    expected.instance_group[0].count = 2
    expected.dynamic_batching.max_queue_delay_microseconds = 0
    del expected.dynamic_batching.preferred_batch_size[:]
    expected.dynamic_batching.preferred_batch_size.append(16)
    expected.parameters["threads"].string_value = "4"
    expected.parameters["toutates.capacity"].string_value = "32"  # as many rows as before
    assert made == expected


def test_a_python_model_without_a_scheduler_gets_requests_one_at_a_time_whatever_is_tried() -> None:
    settings = {**SETTINGS, "backend": "python", "max_queue_delay_us": 0, "parameters": None}
    text = TENSORS + 'backend: "python" max_batch_size: 64'
    _, space = space_of(text, settings)
    assert {axis.name: list(axis.values) for axis in space.axes} == {"num_executors": [1, 2, 4, 8]}
    _, space = space_of(text + " dynamic_batching {}", settings)
    assert [axis.name for axis in space.axes] == ["batch_size", "num_executors", "max_queue_delay_us"]


def test_a_model_with_sequences_keeps_its_scheduler() -> None:
    text = TENSORS + 'backend: "python" max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 4 } }'
    settings = {**SETTINGS, "backend": "python", "batch_size": 4, "max_queue_delay_us": 0}
    declared, space = space_of(text, settings)
    assert [axis.name for axis in space.axes] == ["batch_size", "num_executors"]
    made = read(declared.text({**space.configs(space.start)["m"], "batch_size": 8, "capacity": 8}))
    assert made.WhichOneof("scheduling_choice") == "sequence_batching"
    assert (made.max_batch_size, list(made.sequence_batching.oldest.preferred_batch_size)) == (8, [])


@pytest.mark.parametrize("groups", [0, 2])
def test_instances_of_several_groups_stay(groups: int) -> None:
    one = 'instance_group { name: "m" count: 1 kind: KIND_CPU }'
    text = LIGHTGBM.replace(one, one * groups)
    declared, space = space_of(text, SETTINGS)
    assert "num_executors" not in [axis.name for axis in space.axes]
    assert read(declared.text(space.configs(space.start)["m"])) == read(text)


def test_a_parameter_that_is_a_word_stays() -> None:
    _, space = space_of(LIGHTGBM, {**SETTINGS, "parameters": {"threads": "all"}})
    assert "parameters.threads" not in [axis.name for axis in space.axes]
    _, space = space_of(LIGHTGBM, {**SETTINGS, "parameters": {"threads": "3"}})
    assert [list(axis.values) for axis in space.axes if axis.name == "parameters.threads"] == [[1, 2, 3, 4]]
