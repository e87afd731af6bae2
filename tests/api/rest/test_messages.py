"""Messages of protobuf as JSON."""

from __future__ import annotations

from toutates.api.rest.messages import as_document
from toutates.protocol.model_config_pb2 import ModelConfig


def test_a_message_is_written_with_its_defaults() -> None:
    config = ModelConfig(name="m")
    config.dynamic_batching.priority_queue_policy[2**40].max_queue_size = 1
    config.instance_group.add(count=2)
    config.parameters["k"].string_value = "v"
    document = as_document(config)
    assert document["dynamic_batching"]["priority_queue_policy"] == {
        str(2**40): {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 1,
        }
    }
    assert document["instance_group"][0]["kind"] == "KIND_AUTO"
    assert document["parameters"] == {"k": {"string_value": "v"}}
    assert document["input"] == []
    assert "optimization" not in document
    assert "sequence_batching" not in document
