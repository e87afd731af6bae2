"""Which answers are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toutates.engine.tensor import Tensor
from toutates.infer.traffic.comparing import difference
from toutates.protocol.datatypes import BY_NAME


def fp32(*values: float) -> Tensor:
    return Tensor.of(np.array(values, np.float32))


def bf16(*bits: int) -> Tensor:
    return Tensor(BY_NAME["BF16"], (len(bits),), np.array(bits, np.uint16).tobytes())


@pytest.mark.parametrize(
    ("sent", "other", "found"),
    [
        (fp32(1, 2), fp32(1, 2), ""),
        (fp32(1, 2), fp32(1.0005, 2), ""),
        (fp32(1, 2), fp32(1.1, 2), "differs in 1 of 2 values, by 0.1 at most"),
        (fp32(np.nan, np.inf), fp32(np.nan, np.inf), ""),
        (fp32(np.inf), fp32(-np.inf), "differs in 1 of 1 values"),
        (fp32(1), fp32(np.nan), "differs in 1 of 1 values"),
        (fp32(), fp32(), ""),
        (fp32(1), fp32(1, 2), "is FP32 [2], not FP32 [1]"),
        (fp32(1), Tensor.of(np.array([1.0])), "is FP64 [1], not FP32 [1]"),
        (Tensor.of(np.array([7])), Tensor.of(np.array([7])), ""),
        (Tensor.of(np.array([2**60])), Tensor.of(np.array([2**60 + 1])), "differs in 1 of 1 values, by"),
        (Tensor.of(np.array([True])), Tensor.of(np.array([False])), "differs in 1 of 1 values"),
        (Tensor.of(np.array([b"a", b"b"], object)), Tensor.of(np.array([b"a", b"b"], object)), ""),
        (Tensor.of(np.array([b"a"], object)), Tensor.of(np.array([b"c"], object)), "has other elements"),
        (bf16(0x3F80), bf16(0x3F80), ""),
        (bf16(0x3F80), bf16(0x4000), "differs in 1 of 1 values, by 1 at most"),
    ],
)
def test_answers_are_equal_within_the_tolerance(sent: Tensor, other: Tensor, found: str) -> None:
    text = difference({"OUT": sent}, {"OUT": other}, 1e-3, 1e-5)
    assert found in text
    assert bool(text) is bool(found)


def test_outputs_are_compared_by_name_and_only_those_that_were_sent() -> None:
    one: dict[str, Any] = {"a": fp32(1)}
    assert difference(one, {"b": fp32(9), "a": fp32(1)}, 0, 0) == ""
    assert difference(one, {"b": fp32(1)}, 0, 0) == "output 'a' is missing"


def test_long_answers_are_compared_to_their_end() -> None:
    values = np.zeros(200_000, np.float32)
    other = values.copy()
    other[-1] = 3
    text = difference({"a": Tensor.of(values)}, {"a": Tensor.of(other)}, 1e-3, 1e-5)
    assert "differs in 1 of 200000 values, by 3 at most" in text
