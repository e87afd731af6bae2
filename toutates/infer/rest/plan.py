"""What is remembered of one kind of requests over REST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toutates.engine.result import Outputs, Parameters
from toutates.engine.servable import Port
from toutates.infer.plan import Plan
from toutates.infer.rest.call import BodyTensors
from toutates.infer.shared_tensors import SharedTensors
from toutates.infer.validation import ValidatedRequest
from toutates.models.table import ServedVersion
from toutates.protocol.infer_response import OutputPart, WireTensor
from toutates.protocol.infer_response import ResponseTemplate as Template
from toutates.protocol.rest.request import Form, OutputForms
from toutates.protocol.rest.response import ResponseTemplate

__all__ = ["LARGE_CONTENTS", "RestPlan"]

#: Raw contents of outputs from which on JSON is written in another thread: 1 ms for 10,000 numbers.
LARGE_CONTENTS: Final = 32_768


class RestPlan(Plan):
    """A plan, and how its requests are read and answered.

    Attributes:
        form: reads requests of this kind; None where each is read the long way.
        outputs: in which form each output is sent; None for the flat objects of the generate extension, and for
            answers that are an output as it is.
        tensors: the latter's.
        coded: whether answers are to be compressed.
        response: constant bytes of the last response.
        response_shapes: row shapes of the outputs that ``response`` was made for.
        quick: whether ``response`` is written at once, of outputs as they are.
    """

    __slots__ = ("coded", "form", "outputs", "quick", "response", "response_shapes", "tensors")

    def __init__(
        self,
        version: ServedVersion,
        request: ValidatedRequest,
        port: Port,
        outputs: OutputForms | None,
        form: Form | None = None,
        shared: SharedTensors | None = None,
        *,
        coded: bool,
        tensors: BodyTensors | None = None,
    ) -> None:
        super().__init__(version, request, port, shared)
        self.form = form
        self.coded = coded
        self.tensors = tensors
        self.outputs = outputs
        self.quick = False
        self.response: ResponseTemplate | None = None
        self.response_shapes: tuple[tuple[int, ...], ...] | None = None

    def forget_templates(self) -> None:
        """See ``Plan``."""
        super().forget_templates()
        self.quick = False
        self.response = self.response_shapes = None

    def template_for(self, outputs: Outputs) -> Template | None:
        """The template of the answers to requests without an id, if all their outputs are binary data of fixed sizes.

        As ``http1.Answers.reply`` wants it, ``before`` is the head without its empty line. None for other answers,
        which ``response_for`` has.
        """
        self.shapes = outputs.row_shapes  # so that outputs of these shapes are not asked about again
        request, signature = self.request, self.version.signature
        if self.form is None or not self.form.without_id or self.coded or request.classes or not outputs.fixed:
            return None
        if request.places:
            return None
        if any(not signature.outputs[index].datatype.size for index in request.outputs):
            return None
        sizes = [outputs.row_bytes[index] * self.rows for index in request.outputs]
        tensors = [self.wire_tensor(index, outputs.row_shapes[index], self.rows) for index in request.outputs]
        constant = self.response_for(tensors, sizes, outputs.row_shapes).constant()
        if constant is None:
            return None
        head, text = constant
        parts = tuple(OutputPart(b"", index, size) for index, size in zip(request.outputs, sizes, strict=True))
        single, single_size = (parts[0].index, parts[0].size) if len(parts) == 1 else (-1, 0)
        length = len(text) + sum(sizes)
        self.fixed_template = Template(head, text, parts, single, single_size, length)
        return self.fixed_template

    def response_for(
        self,
        tensors: Sequence[WireTensor],
        sizes: Sequence[int | None],
        row_shapes: tuple[tuple[int, ...], ...],
        parameters: Parameters | None = None,
    ) -> ResponseTemplate:
        """The template of a response, which is remembered for outputs of the same row shapes, if it has no parameters.

        Args:
            tensors: the outputs returned, in their order.
            sizes: bytes of each; None for those that differ from answer to answer.
            row_shapes: of the batch's outputs.
            parameters: of the response.
        """
        response = self.response_of(self.request.outputs, tensors, sizes, parameters)
        if parameters:
            return response
        self.response = response
        self.response_shapes = row_shapes
        known = None not in sizes and not self.request.classes and not self.request.places and not self.coded
        self.quick = known and sum([sizes[at] or 0 for at in response.texts]) <= LARGE_CONTENTS
        return response

    def response_of(
        self,
        indices: Sequence[int],
        tensors: Sequence[WireTensor],
        sizes: Sequence[int | None],
        parameters: Parameters | None,
    ) -> ResponseTemplate:
        """The template of one response, which may lack outputs; ``indices`` are those it has, see ``response_for``."""
        forms = self.outputs
        assert forms is not None
        binary = [forms.is_binary(tensor.name) for tensor in tensors]
        version = self.version
        elsewhere = [index in self.request.places for index in indices]
        given = self.parameters_with(parameters)
        return ResponseTemplate(version.model, str(version.number), tensors, binary, sizes, given, elsewhere)
