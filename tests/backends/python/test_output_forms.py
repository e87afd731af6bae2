"""How responses of a Python model are written to where outputs are expected."""

from __future__ import annotations

import numpy as np
import pytest

from toutates.backends.python.child.model import OutputForms
from toutates.backends.python.child.requests import InferenceResponse
from toutates.backends.python.child.tensors import Tensor


@pytest.mark.parametrize(
    ("given", "is_whole"), [("yz", True), ("zy", True), ("yy", False), ("y", False), ("yzy", True), ("yx", False)]
)
def test_an_output_that_is_given_twice_stands_for_no_other(given: str, is_whole: bool) -> None:
    forms = OutputForms(["y", "z"], ["FP32", "FP32"])
    places = [np.full((4, 2), 77, np.float32) for _ in "yz"]
    response = InferenceResponse([Tensor(name, np.ones((1, 2), np.float32)) for name in given])
    assert forms.write([response], [1], [1], places, batched=True) is is_whole
