"""What is remembered of one kind of requests over REST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toutates.engine.result import Outputs
from toutates.engine.servable import Port
from toutates.infer.plan import Plan
from toutates.infer.validation import ValidatedRequest
from toutates.models.table import ServedVersion
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.request import Form, OutputForms
from toutates.protocol.rest.response import ResponseTemplate

__all__ = ["LARGE_CONTENTS", "RestPlan"]

#: Raw contents of outputs from which on JSON is written in another thread: 1 ms for 10,000 numbers.
LARGE_CONTENTS: Final = 32_768


class RestPlan(Plan):
    """A plan, and how its requests are read and answered.

    Attributes:
        form: reads requests of this kind; None where each is read the long way.
        outputs: in which form each output is sent; None for the flat objects of the generate extension.
        response: constant bytes of the last response.
        response_shapes: row shapes of the outputs that ``response`` was made for.
        quick: whether ``response`` is written at once, of outputs as they are.
    """

    __slots__ = ("form", "outputs", "quick", "response", "response_shapes")

    def __init__(
        self,
        version: ServedVersion,
        request: ValidatedRequest,
        port: Port,
        outputs: OutputForms | None,
        form: Form | None = None,
    ) -> None:
        super().__init__(version, request, port)
        self.form = form
        self.outputs = outputs
        self.quick = False
        self.response: ResponseTemplate | None = None
        self.response_shapes: tuple[tuple[int, ...], ...] | None = None

    def template_for(self, outputs: Outputs) -> None:
        """There is none of a message: ``response_for`` gives the answer's."""
        return

    def response_for(
        self, tensors: Sequence[WireTensor], sizes: Sequence[int | None], row_shapes: tuple[tuple[int, ...], ...]
    ) -> ResponseTemplate:
        """The template of a response, which is remembered for outputs of the same row shapes.

        Args:
            tensors: the outputs returned, in their order.
            sizes: bytes of each; None for those that differ from answer to answer.
            row_shapes: of the batch's outputs.
        """
        forms = self.outputs
        assert forms is not None
        binary = [forms.is_binary(tensor.name) for tensor in tensors]
        self.response = ResponseTemplate(self.version.model, str(self.version.number), tensors, binary, sizes)
        self.response_shapes = row_shapes
        known = None not in sizes and not self.request.classes
        self.quick = known and sum([sizes[at] or 0 for at in self.response.texts]) <= LARGE_CONTENTS
        return self.response
