"""Outputs whose sizes a model's file or configuration tells wrongly: what runs at load show, before a version is ready.

Exporters write sizes that they have seen once. What a run gives is sent all the same; but metadata is not to promise
what the model does not keep, so an axis that a run contradicts is open in it, for as long as the version is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toutates.engine.packing import OtherSizes, OutputArray
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["SeenShapes"]

logger = logging.getLogger(__name__)


class SeenShapes:
    """Compares what runs give with what is declared.

    Args:
        signature: the tensors of a run.

    Attributes:
        most_rows: of a run, where the model is batched.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        #: by the name of an output, the axes that are not as declared, behind that of the batch
        self._axes: dict[str, set[int]] = {}
        self._said: list[str] = []
        self.most_rows = 0

    @property
    def problem(self) -> str:
        """What was declared wrongly, in a sentence; "" for nothing."""
        return "; ".join(self._said)

    def note(self, outputs: Sequence[OutputArray], rows: int) -> None:
        """Take in what a run has given; arguments as for ``note_shapes``."""
        self.note_shapes([array.shape for array in outputs], rows)

    def note_shapes(self, shapes: Sequence[tuple[int, ...]], rows: int) -> None:
        """Take in the shapes that a run has given.

        Args:
            shapes: of the signature's outputs.
            rows: of the run, where the model is batched. An output with another number of them tells nothing.
        """
        batched = self._signature.batched
        self.most_rows = max(self.most_rows, rows if batched else 1)
        for tensor, given in zip(self._signature.outputs, shapes, strict=True):
            shape, declared = given, tensor.graph_shape
            if batched:
                if shape[:1] != (rows,):
                    continue
                shape = shape[1:]
            if len(shape) != len(declared):
                if batched or declared:
                    self._say(tensor, given)
                continue
            wrong = {at for at, size in enumerate(declared) if size not in (-1, shape[at])}
            if wrong:
                self._say(tensor, given)
                self._axes[tensor.name] = self._axes.get(tensor.name, set()) | wrong

    def _say(self, tensor: TensorSpec, given: Sequence[int]) -> None:
        what = OtherSizes.told(tensor, given, batched=self._signature.batched)
        if not any(said.startswith(f"output '{tensor.name}' ") for said in self._said):
            self._said.append(what)

    def opened(self, signature: Signature) -> Signature:
        """A signature with the wrong axes of its outputs open: the same object where there are none."""
        if not self._axes:
            return signature
        return replace(signature, outputs=tuple([_opened(tensor, self._axes) for tensor in signature.outputs]))


def _opened(tensor: TensorSpec, axes: Mapping[str, set[int]]) -> TensorSpec:
    wrong = axes.get(tensor.name)
    # Of a shape that clients see otherwise, no axis is known to be that of the run.
    if not wrong or tensor.reshape is not None:
        return tensor
    return replace(tensor, shape=tuple([-1 if at in wrong else size for at, size in enumerate(tensor.shape)]))
