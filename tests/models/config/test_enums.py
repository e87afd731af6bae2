"""Numbers that no enum has, in every field of a ModelConfig that has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToJson

from toutates.models.config.triton_configuration import read_triton_configuration
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.repositories.control.load_request import override_of
from toutates.system.errors import ConfigurationError, InvalidRequest


def ways(message: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of the fields that lead to each enum of a message."""
    for field in message.fields:
        if field.enum_type is not None:
            yield (*way, field.name)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from ways(field.message_type, (*way, field.name))
        elif field.message_type is not None:
            value = field.message_type.fields_by_name["value"].message_type
            yield from ways(value, (*way, field.name)) if value is not None else ()


def with_number(way: tuple[str, ...], number: int) -> ModelConfig:
    """A configuration with a number in the place of an enum."""
    config = ModelConfig()
    message: Any = config
    for name in way[:-1]:
        field = message.DESCRIPTOR.fields_by_name[name]
        inner = getattr(message, name)
        if field.message_type.GetOptions().map_entry:
            key = "k" if field.message_type.fields_by_name["key"].type == field.TYPE_STRING else 1
            message = inner[key]
        else:
            message = inner.add() if field.is_repeated else inner
    message.SetInParent()
    setattr(message, way[-1], number)
    return config


WAYS = list(ways(ModelConfig.DESCRIPTOR))


def test_there_are_enums_in_many_places() -> None:
    assert ("input", "data_type") in WAYS
    assert ("dynamic_batching", "priority_queue_policy", "timeout_action") in WAYS
    assert len(WAYS) >= 12


@pytest.mark.parametrize("way", WAYS, ids=".".join)
@pytest.mark.parametrize("number", [99, -1, 2**31 - 1])
def test_a_number_that_no_enum_has_is_refused_with_the_names_that_there_are(
    tmp_path: Path, way: tuple[str, ...], number: int
) -> None:
    config = with_number(way, number)
    (tmp_path / "config.pbtxt").write_text(text_format.MessageToString(config))
    with pytest.raises(ConfigurationError, match=rf"{way[-1]}: .*\(got {number}\); write one of [A-Z]") as caught:
        read_triton_configuration(tmp_path, "m")
    assert str(caught.value).startswith(f"{tmp_path / 'config.pbtxt'}: {way[0]}")
    document = json.loads(MessageToJson(config))
    with pytest.raises(InvalidRequest, match=rf"{way[-1]}: .*\(got {number}\)"):
        override_of("m", json.dumps(document))


def test_the_place_of_a_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text(
        'input { name: "x" data_type: 99 } instance_group { kind: 77 } '
        'model_warmup { name: "w" inputs { key: "x" value { data_type: 55 } } }'
    )
    with pytest.raises(ConfigurationError) as caught:
        read_triton_configuration(tmp_path, "m")
    for place in ("input 'x' data_type: ", "instance_group[0].kind: ", "model_warmup 'w' inputs['x'].data_type: "):
        assert place in str(caught.value)
