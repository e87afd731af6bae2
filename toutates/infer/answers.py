"""Answering ModelInfer: from a batch's outputs to responses."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from toutates.engine.counters import WorkerCounters
from toutates.engine.result import BatchResult, Outputs, Parameters, Split, indivisible, parameters_of
from toutates.infer.call import Call, Transport
from toutates.infer.observing import Observer
from toutates.infer.plan import Plan
from toutates.infer.validation import UNCLASSIFIABLE
from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.infer_response import WireTensor, classify, write_response
from toutates.protocol.sequence_parameters import Said
from toutates.system.errors import ExecutionFailed, InvalidRequest, QueueTimeout, RequestError, TooLate

__all__ = ["Answers", "RequestContext", "SequenceContext", "is_wanted", "wire_output"]

logger = logging.getLogger(__name__)

#: What comes back with a request's rows: its call, its plan, its id field as it goes into the response, and when it
#: arrived, monotonic nanoseconds.
RequestContext = tuple[Call, Plan, bytes, int]


class SequenceContext(tuple[Call, Plan, bytes, int]):
    """The context of a request that belongs to a sequence.

    Attributes:
        said: what it says of that.
    """

    said: Said

    @classmethod
    def of(cls, context: RequestContext, said: Said) -> SequenceContext:
        """A context that says more than ``context``."""
        call, plan, id_field, arrival = context
        made = cls((call, plan.of_sequence(said), id_field, arrival))
        made.said = said
        return made


_INTERNAL_ERROR: Final = ExecutionFailed("internal error")
#: gRPC's own limit for a message.
MAX_RESPONSE_BYTES: Final = 2**31 - 1


def is_wanted(context: Any, by_ns: int) -> bool:
    """Whether the caller of a request waits still, and will until ``by_ns``, monotonic nanoseconds."""
    call: Call = context[0]
    return call.open and call.deadline_ns > by_ns


class Answers:
    """Answers the requests of one worker to one model version. Used by that worker's thread only.

    Args:
        counters: counts the requests of that worker to that version.
        observer: observes the requests of that worker.
        transport: by which the requests came.
    """

    def __init__(
        self,
        counters: WorkerCounters,
        observer: Observer,
        transport: Transport,
    ) -> None:
        self._counters = counters
        self._observer = observer
        self._transport = transport

    def finish(self, result: BatchResult) -> None:
        """Answer the requests of a batch that has run; each takes 0.6 us, framing included."""
        pending = result.pending
        observer = self._observer
        if observer.under_way:
            observed = observer.among(pending)
            self._finish(result)
            observer.are_over(observed, result.timing, sum([rows for _, _, rows, _ in pending]))
        else:
            self._finish(result)
        observer.count(len(pending))

    def _finish(self, result: BatchResult) -> None:
        #: of answered requests: arrival, rows of one, and how many. Requests of one round mostly have the same of both.
        groups: list[tuple[int, int, int]] = []
        group_arrival = group_rows = group_size = 0
        outputs = result.outputs
        if outputs is None:
            self._fail(result)
            return
        if outputs.parameters is not None or outputs.forms is not None or outputs.missing:
            self._finish_without_template(result, outputs)
            return
        data = outputs.data
        row_bytes = outputs.row_bytes
        row_shapes = outputs.row_shapes
        fixed = outputs.fixed
        pending = iter(result.pending)
        while True:
            try:
                for (call, plan, id_field, arrival), first, rows, part in pending:
                    if not call.open:
                        self._count_cancelled(arrival, part)
                        continue
                    if part is not None:
                        if not self._join((call, plan, id_field, arrival), outputs, first, rows, part):
                            continue
                        rows = plan.rows
                    else:
                        template = plan.fixed_template
                        if template is None or not fixed:
                            template = plan.template if plan.shapes == row_shapes else plan.template_for(outputs)
                        if template is None:
                            if not self._write((call, plan, id_field, arrival), outputs, first, rows):
                                continue
                        elif template.single >= 0:
                            start = first * row_bytes[template.single]
                            content = data[template.single][start : start + template.single_size]
                            call.responder.reply(
                                call,
                                (template.before, id_field, template.after, content),
                                template.length + len(id_field),
                            )
                        else:
                            parts: list[Any] = [template.before, id_field, template.after]
                            for output in template.outputs:
                                start = first * row_bytes[output.index]
                                parts += (output.head, data[output.index][start : start + output.size])
                            call.responder.reply(call, parts, template.length + len(id_field))
                    if arrival is not group_arrival or rows != group_rows:
                        if group_size:
                            groups.append((group_arrival, group_rows, group_size))
                        group_arrival, group_rows, group_size = arrival, rows, 0
                    group_size += 1
                break
            except Exception as error:
                self._answering_failed((call, plan, id_field, arrival), part, error)  # and the next one is answered
        if group_size:
            groups.append((group_arrival, group_rows, group_size))
            self._counters.count_answered(groups, result.timing, time.monotonic_ns(), time.time_ns() // 1_000_000)

    def _finish_without_template(self, result: BatchResult, outputs: Outputs) -> None:
        """Answer requests with a response that no template fits: it has parameters, or other outputs than declared."""
        for context, first, rows, part in result.pending:
            call, plan, _, arrival = context
            try:
                if not call.open:
                    self._count_cancelled(arrival, part)
                elif (
                    self._write_any(context, outputs, first, rows)
                    if part is None
                    else self._join(context, outputs, first, rows, part)
                ):
                    answered = [(arrival, plan.rows, 1)]
                    now_ns = time.monotonic_ns()
                    self._counters.count_answered(answered, result.timing, now_ns, time.time_ns() // 1_000_000)
            except Exception as error:
                self._answering_failed(context, part, error)

    def _fail(self, result: BatchResult) -> None:
        assert result.error is not None
        pending = iter(result.pending)
        while True:
            try:
                for context, _, _, part in pending:
                    if not context[0].open:
                        self._count_cancelled(context[3], part)
                        continue
                    if part is not None:
                        part[0].error = result.error
                        part[0].left -= 1
                    self._fail_one(context, result.error)
                break
            except Exception as error:
                self._answering_failed(context, part, error)

    def _answering_failed(self, context: RequestContext, part: tuple[Split, int] | None, error: Exception) -> None:
        """Fail the call that met an error of our own, or end its connection. Others of its batch are still answered."""
        logger.error("answering a call failed", exc_info=error)
        call = context[0]
        if call.open:
            try:
                if part is not None:
                    part[0].error = _INTERNAL_ERROR
                self._fail_one(context, _INTERNAL_ERROR)
                return
            except Exception as another:
                self._transport.end_connection(call, another)
                return
        # A part of the answer may be written. The peer could not read anything that follows it.
        self._transport.end_connection(call, error)

    def _fail_one(self, context: RequestContext, error: RequestError) -> None:
        self._tell(context, error)
        self._count_failed(context, error)

    def _count_failed(self, context: RequestContext, error: RequestError) -> None:
        call, _, _, arrival = context
        counters = self._counters
        counters.fail += 1
        counters.fail_ns += time.monotonic_ns() - arrival
        if isinstance(error, TooLate | QueueTimeout):
            counters.rejected += 1
        elif isinstance(error, ExecutionFailed):
            counters.broken += 1
        else:
            counters.other += 1
        if call.context is not None:
            call.context.ended_with(error)

    def _tell(self, context: RequestContext, error: RequestError) -> None:
        """Answer a request with an error."""
        self._transport.fail(context[0], error)

    def _count_cancelled(self, arrival: int, part: tuple[Split, int] | None) -> None:
        """Count a request whose caller left before its rows had run; a split one once, and not after an error."""
        if part is not None:
            split = part[0]
            split.left -= 1
            if split.left or split.error is not None:
                return
        self._counters.cancel += 1
        self._counters.fail_ns += time.monotonic_ns() - arrival

    def _join(self, context: RequestContext, outputs: Outputs, first: int, rows: int, part: tuple[Split, int]) -> bool:
        """Keep one part of a split request; with the last one, answer. Returns whether the request was answered."""
        split, index = part
        split.parts[index] = (outputs, first, rows)
        split.left -= 1
        if split.left:
            return False
        parts = [part_of for part_of in split.parts if part_of is not None]
        plan = context[1]
        whole = parts[0][0]
        if not all(part_outputs.is_regular for part_outputs, _, _ in parts):
            self._fail_one(context, indivisible(plan.version.model, plan.rows, len(parts)))
            return False
        if any(part_outputs.row_shapes != whole.row_shapes for part_outputs, _, _ in parts):
            error = ExecutionFailed(
                f"the rows of model '{plan.version.model}' have shapes that depend on their batch, so that a request "
                f"of {plan.rows} rows, which took {len(parts)} batches, has no one shape; send fewer rows at once"
            )
            self._fail_one(context, error)
            return False
        batched = plan.version.signature.batched
        contents = [
            [part_outputs.rows(output, at, count, batched=batched) for part_outputs, at, count in parts]
            for output in plan.request.outputs
        ]
        return self._write_contents(context, plan.request.outputs, contents, whole, parameters_of(parts))

    def _write_any(self, context: RequestContext, outputs: Outputs, first: int, rows: int) -> bool:
        """Answer with outputs that no template fits: BYTES, classes, what has parameters, or is not as declared.

        Returns:
            Whether the request was answered.
        """
        plan = context[1]
        batched = plan.version.signature.batched
        indices = plan.outputs_in(outputs)
        contents = [[outputs.rows(index, first, rows, batched=batched)] for index in indices]
        return self._write_contents(context, indices, contents, outputs, outputs.parameters)

    #: Answers with regular outputs that no template of gRPC fits. REST has its own; not a method that calls the other,
    #: because it is run for each such answer.
    _write = _write_any

    def _write_contents(
        self,
        context: RequestContext,
        indices: Sequence[int],
        contents: list[list[Any]],
        outputs: Outputs,
        parameters: Parameters | None,
    ) -> bool:
        """Answer with the pieces of each of the outputs ``indices``; their descriptions are those of ``outputs``."""
        call, plan, id_field, _ = context
        tensors: list[WireTensor] = []
        raws: list[bytes | memoryview] = []
        try:
            if plan.shared is not None:
                contents = plan.shared.sent(indices, contents)
            for index, pieces in zip(indices, contents, strict=True):
                tensor, raw = wire_output(plan, index, plan.tensor_of(outputs, index, plan.rows), pieces)
                tensors.append(tensor)
                raws.append(raw)
            version = plan.version
            given = plan.parameters_with(parameters)
            pieces_out = write_response(version.model, str(version.number), id_field, tensors, raws, given)
            length = sum(map(len, pieces_out))
            if length > MAX_RESPONSE_BYTES:
                raise InvalidRequest(
                    f"Response has byte size {length} which exceeds gRPC's byte size limit {MAX_RESPONSE_BYTES}."
                )
        except RequestError as error:
            self._fail_one(context, error)
            return False
        except Exception:
            # Other requests of the batch still wait for their answers.
            self._fail_one(context, _INTERNAL_ERROR)
            fields = {"model": plan.version.model, "request_id": self._transport.request_id(id_field)}
            logger.exception("writing a response of model '%s' failed", plan.version.model, extra=fields)
            return False
        call.responder.reply(call, pieces_out, length)
        return True


def wire_output(plan: Plan, index: int, tensor: WireTensor, pieces: list[Any]) -> tuple[WireTensor, bytes | memoryview]:
    """Join the pieces of one output, and turn them into classes where the request asks for these.

    Raises:
        InvalidRequest: there are too many values to be classified, or they have no order.
    """
    count = plan.request.classes.get(index)
    raw: bytes | memoryview = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if count is None:
        return tensor, raw
    if tensor.datatype in UNCLASSIFIABLE:  # what the model declares is not
        raise InvalidRequest(f"class result not available for output due to unsupported type '{tensor.datatype}'")
    batched = plan.version.signature.batched and len(tensor.shape) > 0
    # Not -1 for the number of values: where there are no rows, NumPy cannot tell.
    shape = (tensor.shape[0], prod(tensor.shape[1:])) if batched else (1, prod(tensor.shape))
    values = np.frombuffer(raw, BY_NAME[tensor.datatype].numpy).reshape(shape)
    classes = classify(values, count, plan.version.labels.get(index))
    return (
        WireTensor(tensor.name, "BYTES", classes.shape if batched else classes.shape[1:]),
        encode_bytes_tensor(classes),
    )
