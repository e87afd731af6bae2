"""ModelInfer: from a request's bytes to rows in a batch, and from a batch's outputs to responses.

One ``InferService`` belongs to one worker; nothing in it is shared but the model table and the SuperTensors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.batching.lane import PackedLane
from toutates.batching.result import BatchResult, Outputs, Split
from toutates.batching.submitter import Submitter
from toutates.errors import ExecutionFailed, InvalidRequest, Overloaded, RequestError
from toutates.h2grpc import Buffer, Call, GrpcError, Worker
from toutates.models.table import ModelTable, ServedVersion
from toutates.protocol.datatypes import (
    decode_bytes_tensor,
    encode_bytes_tensor,
    to_ort_strings,
    typed_contents_to_raw,
)
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.infer_request import scan
from toutates.protocol.infer_response import WireTensor, classify, write_response
from toutates.protocol.infer_validation import ValidatedRequest, request_prefix, size_mismatch, validate
from toutates.protocol.signature import TensorSpec
from toutates.service.plan import Plan
from toutates.service.statuses import STATUSES, as_grpc_error
from toutates.service.unary import parse

__all__ = ["InferService", "Ticket", "is_wanted"]

logger = logging.getLogger(__name__)

#: What waits for a batch: (call, plan, the request's id field as it goes into the response, arrival).
Ticket = tuple[Call, Plan, bytes, int]

#: Kinds of request remembered per worker. A client in real use has one per model and batch size.
MAX_PLANS: Final = 1_024
#: Longer keys are not remembered: names and shapes need a few hundred bytes.
MAX_KEY_BYTES: Final = 4_096
#: gRPC's own limit for a message.
MAX_RESPONSE_BYTES: Final = 2**31 - 1


def is_wanted(ticket: Any) -> bool:
    """Whether the caller of a Ticket still waits."""
    call: Call = ticket[0]
    return call.open


class InferService:
    """See the module.

    Args:
        worker: whose calls these are.
        number: the worker's, from 0.
        get_table: the model table as it is now.
    """

    def __init__(self, worker: Worker, number: int, get_table: Callable[[], ModelTable]) -> None:
        self._worker = worker
        self._number = number
        self._get_table = get_table
        self._table = get_table()
        self._plans: dict[bytes, Plan] = {}
        self._submitters: dict[ServedVersion, Submitter] = {}

    def infer(self, call: Call) -> None:
        """Handle a ModelInfer call: put its rows into a batch.

        The short way, for a kind of request that has a plan, takes about 2 us for one small input.

        Raises:
            GrpcError: the request cannot be served.
        """
        if self._get_table() is not self._table:
            self._forget_plans()
        buffer = call.buffer
        scanned = scan(buffer, call.start, call.end)
        if scanned is None:
            self._infer_the_long_way(call, b"")
            return
        key, id_field, spans = scanned
        plan = self._plans.get(key)
        if plan is None or len(spans) != plan.span_count:
            self._infer_the_long_way(call, key)
            return
        if plan.packed is None:
            self._gather(call, plan, id_field, spans)
            return
        if plan.single_size != 0:
            if spans[1] - spans[0] != plan.single_size:
                self._infer_the_long_way(call, b"")
                return
        elif plan.order is not None or not _fit(spans, plan.sizes):
            self._pack_in_order(call, plan, id_field, spans)
            return
        try:
            plan.submitter.add_packed(
                plan.packed, plan.rows, (call, plan, id_field, self._worker.now_ns), buffer, spans
            )
        except RequestError as error:
            raise _as_refusal(error, id_field) from None

    # --- requests, the long way --------------------------------------------------------------------------------------

    def _forget_plans(self) -> None:
        """The model table was replaced, and plans die with it."""
        self._table = self._get_table()
        self._plans.clear()
        served = set(self._table.served())
        self._submitters = {version: way for version, way in self._submitters.items() if version in served}

    def _pack_in_order(self, call: Call, plan: Plan, id_field: bytes, spans: list[int]) -> None:
        """Inputs sent in another order than the model's, or of the wrong size, which the long way finds words for."""
        sources = plan.request.sources
        ordered = [bound for source in sources if source is not None for bound in spans[2 * source : 2 * source + 2]]
        if not _fit(ordered, plan.sizes):
            self._infer_the_long_way(call, b"")
            return
        assert plan.packed is not None
        with _refusals_as_statuses(id_field):
            plan.submitter.add_packed(
                plan.packed, plan.rows, (call, plan, id_field, self._worker.now_ns), call.buffer, ordered
            )

    def _infer_the_long_way(self, call: Call, key: bytes) -> None:
        """Parse, validate, and remember the plan under ``key`` where there is one and the request fits it."""
        request = parse(ModelInferRequest, call.message)
        with _request_errors_as_statuses():
            version = self._table.find(request.model_name, request.model_version)
            raws = request.raw_input_contents
            validated = validate(request, [len(raw) for raw in raws], version.signature, version.model)
            plan = Plan(version, validated, self._submitter(version), version.counters.workers[self._number])
            if key and None not in validated.sources and len(key) <= MAX_KEY_BYTES:
                if len(self._plans) >= MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = plan
            id_field = ModelInferRequest(id=request.id).SerializeToString()
            self._submit(call, plan, id_field, self._contents(request, validated, version), request.id)

    def _submitter(self, version: ServedVersion) -> Submitter:
        submitter = self._submitters.get(version)
        if submitter is None:
            finish = partial(self._finish_soon, version)
            submitter = Submitter(version.supertensor, self._number, finish, self._worker.at_round_end)
            self._submitters[version] = submitter
        return submitter

    def _contents(self, request: ModelInferRequest, validated: ValidatedRequest, version: ServedVersion) -> list[bytes]:
        """The bytes of each input, by position in the lane; typed contents as the raw ones they stand for."""
        tensors = {tensor.name: tensor for tensor in request.inputs}
        contents: list[bytes] = []
        for index, source, size in zip(validated.inputs, validated.sources, validated.sizes, strict=True):
            spec = version.signature.inputs[index]
            if source is not None:
                contents.append(request.raw_input_contents[source])
                continue
            raw = typed_contents_to_raw(
                tensors[spec.name].contents, spec.datatype, tensor=spec.name, model=version.model
            )
            if size is not None and (len(raw) != size or (validated.rows == 0 and raw)):
                raise size_mismatch(request.id, spec.name, version.model, size, len(raw))
            contents.append(raw)
        return contents

    def _submit(self, call: Call, plan: Plan, id_field: bytes, contents: list[bytes], identifier: str) -> None:
        ticket: Ticket = (call, plan, id_field, self._worker.now_ns)
        if isinstance(plan.lane, PackedLane) and plan.rows:
            spans: list[int] = []
            at = 0
            for content in contents:
                spans += (at, at + len(content))
                at += len(content)
            buffer = contents[0] if len(contents) == 1 else b"".join(contents)
            with _refusals_as_statuses(id_field):
                plan.submitter.add_packed(plan.lane, plan.rows, ticket, buffer, spans)
        else:
            arrays = _arrays(plan, contents, identifier)
            with _refusals_as_statuses(id_field):
                plan.submitter.add_gathered(plan.gathered, plan.rows, ticket, arrays)

    def _gather(self, call: Call, plan: Plan, id_field: bytes, spans: list[int]) -> None:
        """A kind of request that is known, and whose inputs are arrays."""
        buffer = call.buffer
        sources = plan.request.sources
        contents = [buffer[spans[2 * at] : spans[2 * at + 1]] for at in sources if at is not None]
        for content, size in zip(contents, plan.sizes, strict=True):
            if size is not None and size != len(content):
                self._infer_the_long_way(call, b"")
                return
        with _request_errors_as_statuses():
            self._submit(call, plan, id_field, contents, _identifier(id_field))

    # --- responses ---------------------------------------------------------------------------------------------------

    def _finish_soon(self, version: ServedVersion, result: BatchResult) -> None:
        """A batch has run; called by its executor."""
        self._worker.call_soon(partial(self._finish, version, result))

    def _finish(self, version: ServedVersion, result: BatchResult) -> None:
        """Answer every request of this worker that waited for a batch: 1.5 us each."""
        outputs = result.outputs
        if outputs is None:
            self._fail(version, result)
            return
        answered = arrivals = rows_answered = 0
        data = outputs.data
        row_bytes = outputs.row_bytes
        row_shapes = outputs.row_shapes
        for (call, plan, id_field, arrival), first, rows, part in result.waiters:
            if not call.open:
                self._count_cancelled(version, arrival, part)
                continue
            if part is not None:
                if not self._join((call, plan, id_field, arrival), outputs, first, rows, part):
                    continue
                rows = plan.rows
            else:
                template = plan.template if plan.shapes is row_shapes else plan.template_for(outputs)
                if template is None:
                    if not self._write((call, plan, id_field, arrival), outputs, first, rows):
                        continue
                elif template.single >= 0:
                    start = first * row_bytes[template.single]
                    content = data[template.single][start : start + template.single_size]
                    call.connection.reply(
                        call, (template.before, id_field, template.after, content), template.length + len(id_field)
                    )
                else:
                    parts: list[Any] = [template.before, id_field, template.after]
                    for output in template.outputs:
                        start = first * row_bytes[output.index]
                        parts += (output.head, data[output.index][start : start + output.size])
                    call.connection.reply(call, parts, template.length + len(id_field))
            answered += 1
            rows_answered += rows
            arrivals += arrival
        if answered:
            self._count(version, result, answered, rows_answered, arrivals)

    def _count(self, version: ServedVersion, result: BatchResult, answered: int, rows: int, arrivals: int) -> None:
        """Add a batch's requests to the counters; each is charged the whole batch's time, as Triton does."""
        counters = version.counters.workers[self._number]
        timing = result.timing
        counters.success += answered
        counters.success_ns += answered * time.monotonic_ns() - arrivals
        counters.rows += rows
        counters.queue_ns += answered * timing.taken_ns - arrivals
        counters.input_ns += answered * (timing.started_ns - timing.taken_ns)
        counters.infer_ns += answered * (timing.ended_ns - timing.started_ns)
        counters.output_ns += answered * (timing.done_ns - timing.ended_ns)
        counters.last_ms = time.time_ns() // 1_000_000

    def _fail(self, version: ServedVersion, result: BatchResult) -> None:
        assert result.error is not None
        for (call, plan, _, arrival), _, _, part in result.waiters:
            if not call.open:
                self._count_cancelled(version, arrival, part)
                continue
            if part is not None:
                part[0].error = result.error
            _fail_one(call, plan, arrival, result.error)

    def _count_cancelled(self, version: ServedVersion, arrival: int, part: tuple[Split, int] | None) -> None:
        """A caller left before its rows had run; one whose rows were split counts once, and not after an error."""
        if part is not None:
            split = part[0]
            split.left -= 1
            if split.left or split.error is not None:
                return
        counters = version.counters.workers[self._number]
        counters.cancel += 1
        counters.fail_ns += time.monotonic_ns() - arrival

    def _join(self, ticket: Ticket, outputs: Outputs, first: int, rows: int, part: tuple[Split, int]) -> bool:
        """One part of a split request has run; whether it was the last, and the response is written."""
        split, index = part
        split.parts[index] = (outputs, first, rows)
        split.left -= 1
        if split.left:
            return False
        parts = [part_of for part_of in split.parts if part_of is not None]
        plan = ticket[1]
        row_shapes = parts[0][0].row_shapes
        if any(part_outputs.row_shapes != row_shapes for part_outputs, _, _ in parts):
            error = ExecutionFailed(
                f"the rows of model '{plan.version.model}' have shapes that depend on their batch, so that a request "
                f"of {plan.rows} rows, which took {len(parts)} batches, has no one shape; send fewer rows at once"
            )
            _fail_one(ticket[0], plan, ticket[3], error)
            return False
        batched = plan.version.signature.batched
        contents = [
            [_rows_of(part_outputs, output, at, count, batched) for part_outputs, at, count in parts]
            for output in plan.request.outputs
        ]
        return self._write_contents(ticket, contents, row_shapes)

    def _write(self, ticket: Ticket, outputs: Outputs, first: int, rows: int) -> bool:
        """Answer with outputs that no template fits: BYTES, and classes. Returns whether that was possible."""
        plan = ticket[1]
        batched = plan.version.signature.batched
        contents = [[_rows_of(outputs, index, first, rows, batched)] for index in plan.request.outputs]
        return self._write_contents(ticket, contents, outputs.row_shapes)

    def _write_contents(
        self, ticket: Ticket, contents: list[list[Any]], row_shapes: tuple[tuple[int, ...], ...]
    ) -> bool:
        call, plan, id_field, arrival = ticket
        tensors: list[WireTensor] = []
        raws: list[bytes | memoryview] = []
        try:
            for index, pieces in zip(plan.request.outputs, contents, strict=True):
                tensor = plan.wire_tensor(index, row_shapes[index], plan.rows)
                tensor, raw = _wire_output(plan, index, tensor, pieces)
                tensors.append(tensor)
                raws.append(raw)
            version = plan.version
            pieces_out = write_response(version.model, str(version.number), id_field, tensors, raws)
            length = sum(map(len, pieces_out))
            if length > MAX_RESPONSE_BYTES:
                raise InvalidRequest(
                    f"Response has byte size {length} which exceeds gRPC's byte size limit {MAX_RESPONSE_BYTES}."
                )
        except RequestError as error:
            _fail_one(call, plan, arrival, error)
            return False
        except Exception:
            # Those who share the batch wait for their answers.
            logger.exception("writing a response of model '%s' failed", plan.version.model)
            _fail_one(call, plan, arrival, ExecutionFailed("internal error"))
            return False
        call.reply_parts(pieces_out, length)
        return True


def _fail_one(call: Call, plan: Plan, arrival: int, error: RequestError) -> None:
    call.fail(STATUSES[type(error)], str(error))
    plan.counters.fail += 1
    plan.counters.fail_ns += time.monotonic_ns() - arrival


def _fit(spans: list[int], sizes: tuple[int | None, ...]) -> bool:
    """Whether each span has its size."""
    at = 0
    for size in sizes:
        if spans[at + 1] - spans[at] != size:
            return False
        at += 2
    return True


@contextmanager
def _request_errors_as_statuses() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise as_grpc_error(error) from None


@contextmanager
def _refusals_as_statuses(id_field: bytes) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise _as_refusal(error, id_field) from None


def _as_refusal(error: RequestError, id_field: bytes) -> GrpcError:
    """What a SuperTensor, which knows no ids, refuses. Triton names the request but where its queue is full."""
    prefix = "" if isinstance(error, Overloaded) else request_prefix(_identifier(id_field))
    return GrpcError(STATUSES[type(error)], prefix + str(error))


def _identifier(id_field: bytes) -> str:
    return ModelInferRequest.FromString(id_field).id


def _arrays(plan: Plan, contents: list[bytes], identifier: str) -> list[npt.NDArray[Any]]:
    """Each input as an array of its whole shape, by position in the lane.

    Raises:
        InvalidRequest: BYTES that do not fit their shape, or are not UTF-8.
    """
    signature = plan.version.signature
    arrays = []
    for index, row_shape, content in zip(plan.request.inputs, plan.request.shapes, contents, strict=True):
        shape = (plan.rows, *row_shape) if signature.batched else row_shape
        arrays.append(_array(signature.inputs[index], shape, content, plan.version.model, identifier))
    return arrays


def _array(spec: TensorSpec, shape: tuple[int, ...], content: Buffer, model: str, identifier: str) -> npt.NDArray[Any]:
    if spec.datatype.size:
        # Copied, because the received buffer is neither aligned nor ours to keep.
        return np.frombuffer(content, spec.datatype.numpy).reshape(shape).copy()
    try:
        elements = decode_bytes_tensor(bytes(content), prod(shape), tensor=spec.name, model=model)
        return to_ort_strings(elements, tensor=spec.name, model=model).reshape(shape)
    except RequestError as error:
        raise type(error)(request_prefix(identifier) + str(error)) from None


def _rows_of(outputs: Outputs, index: int, first: int, rows: int, batched: bool) -> Any:
    """Some rows of one output: bytes or a view of them, or an array of str objects for BYTES."""
    data = outputs.data[index]
    size = outputs.row_bytes[index]
    if isinstance(data, np.ndarray):
        return data[first : first + rows] if batched else data
    return data[first * size : (first + rows) * size]


def _wire_output(
    plan: Plan, index: int, tensor: WireTensor, pieces: list[Any]
) -> tuple[WireTensor, bytes | memoryview]:
    """One output as it is sent: joined, encoded if it is BYTES, or turned into classes."""
    spec = plan.version.signature.outputs[index]
    count = plan.request.classes.get(index)
    if not spec.datatype.size:
        return tensor, b"".join(encode_bytes_tensor(piece) for piece in pieces)
    raw: bytes | memoryview = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if count is None:
        return tensor, raw
    batched = plan.version.signature.batched
    # Not -1 for the number of values: where there are no rows, NumPy cannot tell.
    shape = (plan.rows, prod(tensor.shape[1:])) if batched else (1, prod(tensor.shape))
    values = np.frombuffer(raw, spec.datatype.numpy).reshape(shape)
    classes = classify(values, count)
    return (
        WireTensor(tensor.name, "BYTES", classes.shape if batched else classes.shape[1:]),
        encode_bytes_tensor(classes),
    )
