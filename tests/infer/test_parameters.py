"""Parameters of requests and tensors that are refused, in Triton's words."""

from __future__ import annotations

from typing import Any

import pytest

from toutates.infer.parameters import check_parameters, shared_memory_place
from toutates.infer.regions import Place
from toutates.protocol.grpc_service_pb2 import InferParameter
from toutates.system.errors import InvalidRequest, Unsupported

RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage."


def refusal(key: str, **value: Any) -> str:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        check_parameters({key: InferParameter(**value)})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sequence_id", {"int64_param": 1}),
        ("sequence_id", {"string_param": "x" * 128}),
        ("sequence_start", {"bool_param": True}),
        ("sequence_end", {"bool_param": False}),
        ("priority", {"int64_param": 0}),
        ("priority", {"uint64_param": 2**64 - 1}),
        ("timeout", {"int64_param": -1}),
        ("triton_enable_empty_final_response", {"bool_param": True}),
        ("own", {"int64_param": 1}),
        ("own", {"bool_param": True}),
        ("own", {"string_param": ""}),
        ("own", {"double_param": 1.5}),
    ],
)
def test_parameters_of_the_right_type_are_taken(key: str, value: dict[str, Any]) -> None:
    check_parameters({key: InferParameter(**value)})


@pytest.mark.parametrize(
    ("key", "value", "types"),
    [
        ("sequence_id", {"bool_param": True}, "int64_param or string_param"),
        ("sequence_start", {"int64_param": 1}, "bool_param"),
        ("sequence_end", {}, "bool_param"),
        ("priority", {"string_param": "1"}, "int64_param or uint64_param"),
        ("timeout", {"uint64_param": 1}, "int64_param"),
        ("triton_enable_empty_final_response", {"int64_param": 1}, "bool_param"),
        ("own", {"uint64_param": 1}, "int64_param, bool_param, or string_param"),
        ("own", {}, "int64_param, bool_param, or string_param"),
    ],
)
def test_a_parameter_of_another_type_is_refused(key: str, value: dict[str, Any], types: str) -> None:
    assert refusal(key, **value) == f"invalid value type for '{key}' parameter, expected {types}."


def test_values_that_cannot_be_are_refused() -> None:
    assert refusal("priority", int64_param=-1) == "invalid value for 'priority', expected value >= 0."
    assert "longer than 128 characters" in refusal("sequence_id", string_param="x" * 129)
    assert refusal("triton_x", bool_param=True).startswith(RESERVED)


def region(**values: Any) -> Place | None:
    return shared_memory_place("T", {f"shared_memory_{key}": InferParameter(**value) for key, value in values.items()})


TEXT = {"string_param": "r"}
SIZE = {"int64_param": 4}


def test_a_region_is_named_with_its_size() -> None:
    assert region() is None
    assert region(region=TEXT, byte_size=SIZE) == Place("r", 0, 4)
    assert region(region=TEXT, byte_size=SIZE, offset=SIZE) == Place("r", 4, 4)


def test_negative_numbers_of_a_region_are_large_ones() -> None:
    negative = {"int64_param": -32}
    assert region(region=TEXT, byte_size=negative, offset=negative) == Place("r", 2**64 - 32, 2**64 - 32)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"region": SIZE}, "'shared_memory_region' parameter for tensor 'T', expected string_param."),
        ({"byte_size": SIZE}, "'shared_memory_byte_size' can not be specified without 'shared_memory_region'"),
        ({"offset": SIZE}, "'shared_memory_offset' can not be specified without 'shared_memory_region'"),
        (
            {"region": TEXT, "byte_size": TEXT},
            "'shared_memory_byte_size' parameter for tensor 'T', expected int64",
        ),
        (
            {"region": TEXT, "byte_size": SIZE, "offset": TEXT},
            "'shared_memory_offset' parameter for tensor 'T', exp",
        ),
        ({"region": TEXT}, "'shared_memory_byte_size' must be specified along with 'shared_memory_region'"),
    ],
)
def test_a_region_that_is_half_described_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        region(**values)
    assert text in str(caught.value)
