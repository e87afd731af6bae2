"""A backend for the model "versions" of ``repository`` that a test makes, in the place of ONNX Runtime."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from toutates.engine.lane import Batch
from toutates.engine.result import Outputs
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["SIGNATURE", "Adding"]

INT32: Final = BY_NAME["INT32"]
SIGNATURE: Final = Signature((TensorSpec("INPUT", INT32, (4,)),), (TensorSpec("OUTPUT", INT32, (4,)),), batched=True)


class Adding:
    """A backend that adds the number of its version."""

    on_cpu = one_thread = True

    def __init__(self, number: int) -> None:
        self.started_ns = self.ended_ns = 0
        self._number = number

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        """See ``Backend``."""
        self.started_ns = time.monotonic_ns()
        [x] = batch.lane.inputs(batch, first, rows).values()
        assert isinstance(x, np.ndarray)
        y = x + self._number
        self.ended_ns = time.monotonic_ns()
        return Outputs((y.tobytes(),), (y.nbytes // rows,), (y.shape[1:],))

    def close(self) -> None:
        """See ``Backend``."""
