"""Which dimension of a model's tensors is the length of a row, and what is done to make rows equally long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toutates.engine.lane import RowShapes
from toutates.engine.lengths import Buckets, RunCost
from toutates.protocol.signature import Signature
from toutates.system.errors import InvalidRequest

__all__ = ["DEFAULT_MOST_ELEMENTS", "PaddedInput", "Padding"]

#: Padded elements of a batch where the configuration does not bound them. A text encoder on a CPU gains nothing by
#: more.
DEFAULT_MOST_ELEMENTS: Final = 4_096


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """An input whose rows differ in length.

    Attributes:
        axis: the dimension that does, of a row in the graph.
        value: what rows are filled up with, of the input's datatype.
    """

    axis: int
    value: float = 0


@dataclass(frozen=True, slots=True)
class Padding:
    """How rows of different length are put into one batch. All padded inputs of a row have one length.

    Attributes:
        inputs: by the input's index, the mask among them.
        mask: index of the input that the server makes where a request leaves it out: 1 for each element of a row, 0 for
            the padding. None for none.
        outputs: by the output's index, the dimension of a row that is cut back to the row's own length.
        buckets: lengths that rows are padded to.
        most_elements: padded elements of a batch; a longer row runs alone.
        run_cost: of the version's runs.
    """

    inputs: Mapping[int, PaddedInput]
    mask: int | None = None
    outputs: Mapping[int, int] = field(default_factory=dict)
    buckets: Buckets = field(default_factory=Buckets)
    most_elements: int = DEFAULT_MOST_ELEMENTS
    run_cost: RunCost = field(default_factory=RunCost, compare=False)

    def form_of(self, row_shapes: RowShapes, signature: Signature, model: str) -> tuple[RowShapes, int]:
        """The row shapes with -1 in place of the length, and the length.

        Args:
            row_shapes: of the inputs of a request.
            signature: the model's tensors.
            model: its name, for errors.

        Raises:
            InvalidRequest: the inputs have different lengths, or one that no row may have.
        """
        length = -1
        form: list[tuple[int, tuple[int, ...]]] = []
        first = ""
        for index, shape in row_shapes:
            padded = self.inputs.get(index)
            if padded is None:
                form.append((index, shape))
                continue
            own, name = shape[padded.axis], signature.inputs[index].name
            if length < 0:
                length, first = own, name
            elif own != length:
                raise InvalidRequest(
                    f"inputs '{first}' and '{name}' for model '{model}' have {length} and {own} elements along the "
                    "dimension that is padded; send as many in both"
                )
            form.append((index, (*shape[: padded.axis], -1, *shape[padded.axis + 1 :])))
        if length < 1:
            raise InvalidRequest(
                f"input '{first}' for model '{model}' has no elements along the dimension that is padded; send 1 or "
                "more"
            )
        longest = self.buckets.longest
        if longest and length > longest:
            raise InvalidRequest(
                f"input '{first}' for model '{model}' has {length} elements along the dimension that is padded; the "
                f"model takes {longest} at most"
            )
        return tuple(form), length

    def closed(self, form: RowShapes, length: int) -> RowShapes:
        """A form's row shapes for rows of a length."""
        return tuple([(index, tuple([length if size == -1 else size for size in shape])) for index, shape in form])
