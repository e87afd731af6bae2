"""How far the answers of a copy in another type may be from those of the model, and how far they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from toutates.bench.calls import Refused
from toutates.bench.outputs import Output, difference
from toutates.bench.references import Reference

__all__ = ["COSINE", "DIFFERENCE", "Accuracy", "Near", "read_accuracy"]

COSINE: Final = "cosine"
DIFFERENCE: Final = "difference"

_ACCURACY: Final = re.compile(r"(cosine|difference)\s*(<=|>=)\s*(\d+(?:\.\d+)?)\s*(%?)")
_EXPECTED: Final = "expected an accuracy such as cosine>=0.999 or difference<=1%"
_FLOATS: Final = ("FP16", "FP32", "FP64", "BF16")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What answers have to hold. Outputs that are no floating point have to be equal.

    Attributes:
        text: as it was given.
        measure: COSINE of a row of an output and the model's own, the least of all rows; or DIFFERENCE, the greatest
            one of a value, as a share of the greatest absolute value of the model's output.
        bound: at least, or at most.
    """

    text: str
    measure: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return value >= self.bound if self.measure == COSINE else value <= self.bound

    def worse(self, one: float, other: float) -> float:
        """The worse of two values."""
        return min(one, other) if self.measure == COSINE else max(one, other)

    def of(self, given: Mapping[str, Output], expected: Mapping[str, Output]) -> float:
        """The value of an answer.

        Args:
            given: outputs of the copy.
            expected: those of the model.
        """
        best, worst = (1.0, -1.0) if self.measure == COSINE else (0.0, float("inf"))
        value = best
        for name, wanted in expected.items():
            had = given.get(name)
            if had is None or had.datatype != wanted.datatype or had.values.size != wanted.values.size:
                return worst
            if wanted.datatype not in _FLOATS:
                if difference({name: had}, {name: wanted}):
                    return worst
                continue
            own = self._of(had, wanted)
            value = self.worse(value, worst if np.isnan(own) else own)
        return value

    def shown(self, value: float) -> str:
        """A value in words."""
        return f"{self.measure} {value:.6g}" if self.measure == COSINE else f"{self.measure} {value:.3%}"

    def _of(self, given: Output, expected: Output) -> float:
        rows = expected.shape[0] if len(expected.shape) > 1 and expected.values.size else 1
        one, other = (np.asarray(side.values, np.float64).reshape(max(1, rows), -1) for side in (given, expected))
        if not other.size:
            return 1.0 if self.measure == COSINE else 0.0
        if self.measure == DIFFERENCE:
            scale = float(np.abs(other).max())
            gap = float(np.abs(one - other).max())
            return gap / scale if scale else float(gap and np.inf)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        products = (one * other).sum(axis=1)
        # Rows of nothing but zeros have no direction: they are alike if both are.
        alike = np.where((one == other).all(axis=1), 1.0, 0.0)
        return float(np.divide(products, lengths, out=alike, where=lengths != 0).min())


def read_accuracy(text: str) -> Accuracy:
    """Read an accuracy.

    Raises:
        ValueError: it is none, with what was expected.
    """
    match = _ACCURACY.fullmatch(text.strip())
    if match is None:
        raise ValueError(_EXPECTED)
    measure, sign, number, percent = match.groups()
    if (sign == ">=") is not (measure == COSINE):
        raise ValueError(f"{_EXPECTED}; a cosine is at least something (>=), a difference at most (<=)")
    bound = float(number) * (0.01 if percent else 1.0)
    if (measure == COSINE and (percent or not 0 < bound <= 1)) or bound <= 0:
        raise ValueError(f"{_EXPECTED}; a cosine is above 0 and at most 1, a difference above 0")
    return Accuracy(text.strip(), measure, bound)


class Near(Reference):
    """Outputs of the model that answers of a copy have to be near to."""

    def __init__(self, reference: Reference, accuracy: Accuracy) -> None:
        super().__init__(reference.expected, reference.read)
        self._accuracy = accuracy

    def difference(self, message: bytes) -> str:
        """How an answer is too far away, in words; "" if it is not."""
        try:
            value = self._accuracy.of(self.read(message), self.expected)
        except Refused as error:
            return str(error)
        if self._accuracy.holds(value):
            return ""
        return f"{self._accuracy.shown(value)}, which is not {self._accuracy.text}"
