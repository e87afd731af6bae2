"""Shapes that clients see where the graph has others."""

from __future__ import annotations

import pytest

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import TensorSpec, reshape_fits


@pytest.mark.parametrize(
    ("shape", "reshape", "fits"),
    [
        ((2, 3), (6,), True),
        ((2, 3), (5,), False),
        ((1,), (), True),
        ((), (1, 1), True),
        ((2,), (), False),
        ((2, 4, -1, 6), (8, -1, 1, 6), True),
        ((2, -1), (-1, 2), False),
        ((-1, -1), (-1, 1, -1), True),
        ((-1, -1), (-1,), False),
        ((-1,), (4,), False),
    ],
)
def test_shapes_fit_that_have_the_same_products_between_the_same_open_sizes(
    shape: tuple[int, ...], reshape: tuple[int, ...], fits: bool
) -> None:
    assert reshape_fits(shape, reshape) is fits


def test_sizes_of_open_dimensions_go_from_one_shape_to_the_other() -> None:
    spec = TensorSpec("x", BY_NAME["FP32"], (2, 4, -1, 6, -1), reshape=(8, -1, 1, 6, -1))
    assert spec.to_graph((2, 4, 5, 6, 0)) == (8, 5, 1, 6, 0)
    assert spec.to_wire((8, 5, 1, 6, 0)) == (2, 4, 5, 6, 0)
    plain = TensorSpec("x", BY_NAME["FP32"], (2, -1))
    assert plain.to_graph([2, 7]) == plain.to_wire([2, 7]) == (2, 7)


@pytest.mark.parametrize(
    ("shape", "reshape", "scalar"), [((1,), (), True), ((1,), None, False), ((2,), (2,), False), ((1, 1), (), False)]
)
def test_a_scalar_of_the_graph_has_one_dimension_for_clients(
    shape: tuple[int, ...], reshape: tuple[int, ...] | None, scalar: bool
) -> None:
    spec = TensorSpec("x", BY_NAME["FP32"], shape, reshape=reshape)
    assert spec.is_scalar is scalar
    if scalar:
        assert spec.to_graph(()) == spec.to_graph((1,)) == ()
        assert spec.to_wire(()) == (1,)
