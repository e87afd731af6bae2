"""What a config.pbtxt declares of tensors, held against a graph's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from toutates.models.config.declared import Declared, DeclaredTensor
from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import TensorSpec
from toutates.system.errors import ConfigurationError

SOURCE: Final = Path("config.pbtxt")


def graph(name: str, *shape: int, optional: bool = False, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, BY_NAME[datatype], shape, optional)


def of(name: str, *shape: int, dims: tuple[int, ...] | None = None, optional: bool = False) -> DeclaredTensor:
    return DeclaredTensor(name, "TYPE_FP32", shape if dims is None else dims, shape, optional)


def apply(
    inputs: list[DeclaredTensor],
    outputs: list[DeclaredTensor],
    graph_inputs: list[TensorSpec],
    graph_outputs: list[TensorSpec],
    max_batch_size: int = 0,
) -> ModelSettings:
    declared = Declared(SOURCE, "m", max_batch_size, tuple(inputs), tuple(outputs))
    return declared.apply(ModelSettings(), graph_inputs, graph_outputs)


def test_outputs_are_found_by_name_and_may_be_left_out() -> None:
    outputs = [graph("a", -1, 2), graph("b", -1, 3)]
    settings = apply([of("x", 4)], [of("b", 3)], [graph("x", -1, 4)], outputs, 8)
    assert settings.outputs == ("b",)
    assert dict(settings.input_shapes) == {"x": (-1, 4)}
    assert dict(settings.output_shapes) == {"b": (-1, 3)}
    assert not settings.input_wire_shapes
    with pytest.raises(ConfigurationError, match="unexpected inference output 'c', allowed outputs are: a, b"):
        apply([of("x", 4)], [of("c", 3)], [graph("x", -1, 4)], outputs, 8)


@pytest.mark.parametrize(
    ("declared", "own", "batched", "fits"),
    [
        ((4,), (-1, 4), True, True),
        ((4,), (-1, -1), True, True),
        ((-1,), (-1, 4), True, False),
        ((5,), (-1, 4), True, False),
        ((4, 1), (-1, 4), True, False),
        ((4,), (1, 4), True, False),
        ((2, 4), (2, -1), False, True),
        ((2, 4), (-1, 4), False, True),
        ((3, 4), (2, -1), False, False),
        ((2,), (2, 4), False, False),
        ((7,), (), False, True),  # a rank that the graph leaves open
    ],
)
def test_inputs_narrow_what_the_graph_leaves_open(
    declared: tuple[int, ...], own: tuple[int, ...], batched: bool, fits: bool
) -> None:
    result = [of("y", 1)], [graph("x", *own)], [graph("y", *((-1, 1) if batched else (1,)))], 8 if batched else 0
    if fits:
        settings = apply([of("x", *declared)], *result)
        assert settings.input_shapes["x"] == ((-1, *declared) if batched else declared)
    else:
        with pytest.raises(ConfigurationError, match="model 'm', tensor 'x'"):
            apply([of("x", *declared)], *result)


@pytest.mark.parametrize(("declared", "fits"), [((-1,), True), ((4,), False)])
def test_outputs_are_as_the_graph_has_them(declared: tuple[int, ...], fits: bool) -> None:
    given = [of("x", 1)], [of("y", *declared)], [graph("x", -1, 1)], [graph("y", -1, -1)], 8
    if fits:
        assert apply(*given).output_shapes["y"] == (-1, -1)
    else:
        with pytest.raises(ConfigurationError) as caught:
            apply(*given)
        assert "the model expects 2 dimensions (shape [-1,-1]) but the model configuration specifies 2" in str(
            caught.value
        )
        assert "making complete shape [-1,4])" in str(caught.value)
        assert "write dims: [-1]" in str(caught.value)


def test_a_graph_without_declarations_is_batched_if_all_its_tensors_may_be() -> None:
    x, y = graph("x", -1, 2), graph("y", -1)
    assert apply([of("x", 2)], [], [x], [y]).input_shapes["x"] == (-1, 2)
    assert apply([of("x", -1, 2)], [of("y", -1)], [x], [y]).input_shapes["x"] == (-1, 2)  # complete: as it says
    assert apply([of("x", 3, 2)], [], [x], [graph("y", 1)]).input_shapes["x"] == (3, 2)
    with pytest.raises(ConfigurationError, match=r"the first dimension is fixed of y \(got 8\)"):
        apply([], [], [x], [graph("y", 1)], 8)
    with pytest.raises(ConfigurationError, match=r"the first dimension is fixed of w \(got 8\)"):
        apply([], [], [x, graph("w", -1, optional=True)], [y], 8)


def test_inputs_that_the_graph_needs_are_declared_and_those_with_a_default_may_be() -> None:
    x, w, y = graph("x", 2), graph("w", 2, optional=True), [graph("y", 2)]
    assert apply([of("x", 2)], [], [x, w], y).required_inputs == ("x",)
    assert apply([of("x", 2), of("w", 2)], [], [x, w], y).required_inputs == ("x", "w")
    assert apply([of("x", 2), of("w", 2, optional=True)], [], [x, w], y).required_inputs == ("x",)
    with pytest.raises(ConfigurationError, match="configuration expects 1 inputs, model provides 2; add x"):
        apply([of("w", 2)], [], [x, w], y)
    with pytest.raises(ConfigurationError, match="input 'x' optional: the graph has no default for the input"):
        apply([of("x", 2, optional=True)], [], [x], y)


def test_other_datatypes_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        apply([of("x", 2)], [], [graph("x", 2, datatype="INT8")], [graph("y", 2)])
    assert "configuration expects datatype TYPE_FP32 for input 'x', model provides TYPE_INT8" in str(caught.value)


def test_scalars_are_declared_with_one_dimension_and_clients_see_it() -> None:
    settings = apply([of("x", 1)], [of("y", 1)], [graph("x")], [graph("y", 1)])
    assert dict(settings.input_shapes) == {"x": ()}
    assert dict(settings.input_wire_shapes) == {"x": (1,)}
    assert dict(settings.output_shapes) == {"y": (1,)}
    assert not settings.output_wire_shapes
    reshaped = apply([of("x", 6, dims=(2, 3))], [], [graph("x", -1, 6)], [graph("y", -1)], 8)
    assert dict(reshaped.input_wire_shapes) == {"x": (-1, 2, 3)}
