"""Whether two answers say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.engine.tensor import Tensor
from toutates.protocol.strings import rest

__all__ = ["difference"]

#: Elements that are compared at once, so that other threads get the interpreter in between.
_AT_ONCE: Final = 65_536


def difference(sent: Mapping[str, Tensor], other: Mapping[str, Tensor], rtol: float, atol: float) -> str:
    """What the first difference between two answers is, by the name of an output; "" where they are equal.

    Args:
        sent: outputs of the answer that the client got; only these are looked at.
        other: outputs of the other answer.
        rtol, atol: see ``Shadow``. NaN is equal to NaN. BYTES and numbers without a fraction are equal or not.
    """
    for name, tensor in sent.items():
        found = other.get(name)
        if found is None:
            return f"output '{name}' is missing"
        if found.datatype is not tensor.datatype or found.shape != tensor.shape:
            ours = f"{tensor.datatype.name} {list(tensor.shape)}"
            return f"output '{name}' is {found.datatype.name} {list(found.shape)}, not {ours}"
        if text := _of_values(tensor, found, rtol, atol):
            return f"output '{name}' {text}"
    return ""


def _of_values(sent: Tensor, other: Tensor, rtol: float, atol: float) -> str:
    if not sent.datatype.size:
        return "" if bytes(sent.content) == bytes(other.content) else "has other elements"
    ours, others = _values(sent), _values(other)
    if np.array_equal(ours.view(np.uint8), others.view(np.uint8)):
        return ""  # in a tenth of the time, and what most answers are
    exact = ours.dtype.kind != "f"
    worst = 0.0
    count = 0
    for at in range(0, ours.size, _AT_ONCE):
        one, two = ours[at : at + _AT_ONCE], others[at : at + _AT_ONCE]
        if exact:
            differ = one != two
        else:
            one, two = one.astype(np.float64), two.astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                differ = ~np.isclose(two, one, rtol=rtol, atol=atol, equal_nan=True)
        found = int(np.count_nonzero(differ))
        if found:
            count += found
            with np.errstate(invalid="ignore", over="ignore"):
                apart = np.abs(one[differ].astype(np.float64) - two[differ].astype(np.float64))
            finite = apart[np.isfinite(apart)]
            worst = max(worst, float(finite.max())) if finite.size else worst
        if at + _AT_ONCE < ours.size:
            rest()
    return f"differs in {count} of {ours.size} values, by {worst:.3g} at most" if count else ""


def _values(tensor: Tensor) -> npt.NDArray[Any]:
    values = tensor.array().reshape(-1)
    # NumPy has no BF16: its bits are the upper half of a float32.
    return (values.astype(np.uint32) << 16).view(np.float32) if tensor.datatype.name == "BF16" else values
