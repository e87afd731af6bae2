"""Shapes that clients see where the graph has others."""

from __future__ import annotations

import pytest

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec, reshape_fits


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


def test_scalar_is_one_element_for_clients_who_may_leave_its_dimension_out() -> None:
    scalar = TensorSpec("x", BY_NAME["FP32"], (1,), reshape=())
    assert scalar.is_scalar
    assert scalar.to_graph((1,)) == scalar.to_graph(()) == scalar.graph_shape == ()
    assert scalar.to_wire(()) == (1,)
    # What is not of the shape that was promised is shown as it is.
    assert scalar.to_wire((7,)) == (7,)


@pytest.mark.parametrize(
    ("shape", "reshape"), [((1,), None), ((1,), (1, 1)), ((1, 1), ()), ((2,), (2,)), ((), None), ((), ())], ids=str
)
def test_other_tensors_are_no_scalars(shape: tuple[int, ...], reshape: tuple[int, ...] | None) -> None:
    spec = TensorSpec("x", BY_NAME["FP32"], shape, reshape=reshape)
    assert not spec.is_scalar
    assert spec.graph_shape == (shape if reshape is None else reshape)


def test_batch_is_the_first_dimension_that_clients_see() -> None:
    spec = TensorSpec("x", BY_NAME["FP32"], (2, -1))
    assert Signature((spec,), (), batched=True).wire_shape(spec) == (-1, 2, -1)
    assert Signature((spec,), (), batched=False).wire_shape(spec) == (2, -1)
