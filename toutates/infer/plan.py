"""A plan: what is remembered of one kind of ModelInfer requests, so that the next one is not parsed and validated."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final

from toutates.engine.lane import GatheredLane
from toutates.engine.result import Outputs, Parameters
from toutates.engine.servable import Port
from toutates.engine.submitter import StringPort, Submitter
from toutates.infer.regions import Place
from toutates.infer.scanning import Layout, read_layout
from toutates.infer.shared_tensors import SharedTensors
from toutates.infer.validation import ValidatedRequest
from toutates.models.table import ServedVersion
from toutates.protocol.infer_response import ResponseTemplate, WireTensor, build_template, write_response
from toutates.protocol.sequence_parameters import ID_MASK, Said, named

__all__ = ["Plan"]

#: Contents of a response that has a template. It is far enough below the greatest size of a message that the other
#: parts of the response fit.
MAX_TEMPLATED_BYTES: Final = 2**30
#: Most layouts that a plan remembers, and most bytes of their constants.
MAX_LAYOUTS: Final = 64
MAX_LAYOUT_BYTES: Final = 16_384
#: What responses of ensembles say of requests that say nothing of a sequence.
_NO_SEQUENCE: Final = named((0, False, False))


class Plan:
    """What is remembered of one kind of requests. Belongs to one worker, and to the model table it was made from.

    Attributes:
        version: the model version that answers.
        request: what validation made of the request.
        rows: rows of the request.
        port: this worker's port to the version.
        way: the port's way for the request's row shapes.
        writer: ``way``, if it takes bytes; None if it takes arrays.
        packed: ``writer``, if all inputs are raw contents of a known size, or ``way`` if the only one is BYTES that may
            stay where they are; None otherwise. Requests of such a plan are taken from the received buffer into the
            batch.
        shared: its tensors in shared memory; None without any. Requests of such a plan have a port of their own, which
            lets go of their regions.
        all_shared: whether all inputs are in shared memory, and have a known size. Requests of such a plan differ in
            their ids alone.
        span_count: length of the list of spans of a request that fits the plan.
        sizes: bytes of each raw content that is used, by position in the lane.
        in_order: whether the raw contents come in the lane's order, and none is left over.
        layouts: layouts of requests that fit the plan, by length of the message.
        fixed_template: ``template``, once it is known to fit all outputs of the lane.
        parameters: of every response, beside those that the model gives; None for none.
        names: that its callers have to be allowed beside the model's: the name that they ask for, where that is not
            the model's, and all models that it leads to.
    """

    __slots__ = (
        "all_shared",
        "fixed_template",
        "in_order",
        "layouts",
        "names",
        "packed",
        "parameters",
        "port",
        "request",
        "rows",
        "shapes",
        "shared",
        "sizes",
        "span_count",
        "template",
        "version",
        "way",
        "writer",
    )

    def __init__(
        self, version: ServedVersion, request: ValidatedRequest, port: Port, shared: SharedTensors | None = None
    ) -> None:
        self.version = version
        self.request = request
        self.port = port
        self.rows = request.rows
        row_shapes = tuple(zip(request.inputs, request.shapes, strict=True))
        self.way = port.way(row_shapes, request.outputs)
        self.shared = shared
        if shared is not None:
            shared.find_device(port, row_shapes, request.rows)
        self.sizes = tuple(
            size for size, source in zip(request.sizes, request.sources, strict=True) if not isinstance(source, Place)
        )
        self.span_count = 2 * request.raw_count
        self.in_order = request.sources == tuple(range(request.raw_count))
        self.writer = self.way if self.way.packed else None
        # Requests of decoupled versions take the longer way, on which they leave the order of their stream.
        is_raw = None not in request.sources and shared is None and not version.decoupled
        self.packed = self.writer if is_raw else None
        if is_raw and isinstance(self.way, GatheredLane) and self.way.lends_strings and isinstance(port, Submitter):
            self.packed, self.port = self.way, StringPort(port)
        self.all_shared = (
            shared is not None and shared.spans is not None and self.writer is not None and not version.decoupled
        )
        self.layouts: dict[int, Layout] = {}
        self.names: tuple[str, ...] = ()
        # Triton's ensembles tell the sequence of each response, whether there is one or not.
        self.parameters: Parameters | None = None if version.dependent is None else _NO_SEQUENCE
        self.shapes: tuple[tuple[int, ...], ...] | None = None
        self.template: ResponseTemplate | None = None
        self.fixed_template: ResponseTemplate | None = None

    def layout_of(self, key: bytes, buffer: bytes, start: int, end: int) -> Layout | None:
        """The layout of a request of this kind whose contents fit the plan; None once there are too many.

        Ids of every length make a layout of their own, which holds about as many bytes as the plan's key.
        """
        layout = self.layouts.get(end - start)
        if layout is None and len(self.layouts) < min(MAX_LAYOUTS, MAX_LAYOUT_BYTES // len(key)):
            layout = self.layouts[end - start] = read_layout(buffer, start, end)
        return layout

    def of_sequence(self, said: Said) -> Plan:
        """The plan for a request that says this of a sequence: itself, unless responses tell their sequence."""
        if self.parameters is None:
            return self
        identifier, start, end = said
        if isinstance(identifier, int) and identifier > ID_MASK >> 1:
            identifier -= ID_MASK + 1  # in a response it is a number with a sign, as in the request
        plan = copy(self)
        plan.parameters = named((identifier, start, end))
        plan.forget_templates()
        return plan

    def forget_templates(self) -> None:
        """Forget what was made for responses."""
        self.shapes = self.template = self.fixed_template = None

    def parameters_with(self, given: Parameters | None) -> Parameters | None:
        """The parameters of a response to which the model has given some."""
        return given if self.parameters is None else {**self.parameters, **(given or {})}

    def wire_tensor(self, index: int, row_shape: tuple[int, ...], rows: int) -> WireTensor:
        """The description of output ``index`` in a response."""
        signature = self.version.signature
        tensor = signature.outputs[index]
        shape = tensor.to_wire(row_shape)
        return WireTensor(tensor.name, tensor.datatype.name, (rows, *shape) if signature.batched else shape)

    def outputs_in(self, outputs: Outputs) -> Sequence[int]:
        """The outputs that the request asks for and that are there."""
        asked, missing = self.request.outputs, outputs.missing
        return [index for index in asked if index not in missing] if missing else asked

    def tensor_of(self, outputs: Outputs, index: int, rows: int) -> WireTensor:
        """The description of output ``index`` in a response, whatever the model has given."""
        form = None if outputs.forms is None else outputs.forms.get(index)
        if form is None:
            return self.wire_tensor(index, outputs.row_shapes[index], rows)
        return WireTensor(self.version.signature.outputs[index].name, form[0].name, form[1])

    def template_for(self, outputs: Outputs) -> ResponseTemplate | None:
        """The template of a response that is cut from ``outputs``.

        None for responses whose sizes differ, because they hold BYTES or classes in place of numbers, for outputs
        some of which go to shared memory, and for responses that may be too large to be sent.
        """
        request = self.request
        self.shapes, self.template = outputs.row_shapes, None
        if request.classes or request.places:
            if len(request.places) == len(request.outputs):
                self.template = self._template_of_places(outputs)
            return self.template
        if any(not self.version.signature.outputs[index].datatype.size for index in request.outputs):
            return None
        sizes = [outputs.row_bytes[index] * self.rows for index in request.outputs]
        if sum(sizes) > MAX_TEMPLATED_BYTES:
            return None
        self.template = build_template(
            self.version.model,
            str(self.version.number),
            [self.wire_tensor(index, outputs.row_shapes[index], self.rows) for index in request.outputs],
            request.outputs,
            sizes,
            self.parameters,
        )
        if outputs.fixed:
            self.fixed_template = self.template
        return self.template

    def _template_of_places(self, outputs: Outputs) -> ResponseTemplate:
        """The template of a response all of whose outputs are in shared memory: it has no bytes of theirs."""
        model, number = self.version.model, str(self.version.number)
        tensors = [self.wire_tensor(index, outputs.row_shapes[index], self.rows) for index in self.request.outputs]
        whole = b"".join(write_response(model, number, b"", tensors, [b""] * len(tensors), self.parameters))
        head = bytes(write_response(model, number, b"", [], [])[0])
        return ResponseTemplate(head, whole[len(head) :], (), -1, 0, len(whole))
