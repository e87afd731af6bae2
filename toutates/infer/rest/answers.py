"""Answering inferences over REST: from a batch's outputs to JSON and binary data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from toutates.engine.counters import WorkerCounters
from toutates.engine.result import Outputs, Parameters
from toutates.infer.answers import Answers, RequestContext, wire_output
from toutates.infer.call import Transport
from toutates.infer.decoupled import DecoupledAnswers, tensors_of
from toutates.infer.observing import Observer
from toutates.infer.rest.body import body_response
from toutates.infer.rest.call import Asks, RestCall, request_id
from toutates.infer.rest.plan import LARGE_CONTENTS, RestPlan
from toutates.net.side_thread import SideThread, outcome_of
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.generate import write_generate_response
from toutates.protocol.rest.response import InferResponse
from toutates.protocol.strings import rest
from toutates.system.errors import CallerLeft, InvalidRequest, Overloaded, RequestError

__all__ = ["GenerateResponses", "RestAnswers"]

_NOT_ONE: Final = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)

Buffer = bytes | memoryview


class RestAnswers(Answers):
    """Answers the requests of one worker to one model version.

    Args:
        counters, observer, transport: see ``Answers``.
        side: writes large JSON.
    """

    def __init__(self, counters: WorkerCounters, observer: Observer, transport: Transport, side: SideThread) -> None:
        super().__init__(counters, observer, transport)
        self._side = side

    def _write(self, context: RequestContext, outputs: Outputs, first: int, rows: int) -> bool:
        """Answer a request whose rows were all in one batch."""
        call: Any = context[0]
        plan: Any = context[1]
        if not plan.quick or plan.response_shapes != outputs.row_shapes:
            return self._write_any(context, outputs, first, rows)
        data, row_bytes = outputs.data, outputs.row_bytes
        contents: list[Any] = []
        for index in plan.request.outputs:
            size = row_bytes[index]
            contents.append(data[index][first * size : (first + rows) * size])
        call.answer(plan.response.write(context[2], contents))
        return True

    def _write_contents(
        self,
        context: RequestContext,
        indices: Sequence[int],
        contents: list[list[Any]],
        outputs: Outputs,
        parameters: Parameters | None,
    ) -> bool:
        call: Any = context[0]
        plan: Any = context[1]
        try:
            write, raws, size = self._writing(plan, context[2], indices, contents, outputs, parameters)
            if size > LARGE_CONTENTS:
                # Copied: two threads must not take views of one buffer (``Outputs.with_views``).
                self._write_aside(context, partial(write, [bytes(raw) for raw in raws]), size)
            else:
                call.answer(call.coded(write(raws, None)))
        except RequestError as error:
            self._fail_one(context, error)
            return False
        return True

    def _writing(
        self,
        plan: RestPlan,
        identifier: bytes,
        indices: Sequence[int],
        contents: list[list[Any]],
        outputs: Outputs,
        parameters: Parameters | None,
    ) -> tuple[Callable[[list[Buffer], Any], InferResponse], list[Buffer], int]:
        """What writes a response, the contents that it is to be given, and how many bytes of them are more than copied.

        What writes it takes a pause, too, or None.
        """
        raws: list[Buffer]
        if plan.shared is not None:
            contents = plan.shared.sent(indices, contents)
        row_shapes, regular = outputs.row_shapes, outputs.is_regular
        response = plan.response
        if response is not None and regular and plan.response_shapes == row_shapes and not parameters:
            raws = [pieces[0] if len(pieces) == 1 else b"".join(pieces) for pieces in contents]
        else:
            tensors: list[WireTensor] = []
            raws = []
            sizes: list[int | None] = []
            for index, pieces in zip(indices, contents, strict=True):
                tensor, raw = wire_output(plan, index, plan.tensor_of(outputs, index, plan.rows), pieces)
                tensors.append(tensor)
                raws.append(raw)
                sizes.append(len(raw) if BY_NAME[tensor.datatype].size and not plan.request.classes else None)
            if plan.tensors is not None:
                return partial(body_response, plan.tensors, tensors), raws, 0
            if plan.outputs is None:
                return partial(_write_flat, plan, identifier, tensors, parameters), raws, sum(map(len, raws))
            if not regular:
                response = plan.response_of(indices, tensors, sizes, parameters)
            else:
                response = plan.response_for(tensors, sizes, row_shapes, parameters)
            if plan.request.classes:
                plan.response = None  # values have to become classes each time
        size = sum(map(len, raws)) if plan.coded else sum([len(raws[index]) for index in response.texts])
        return partial(response.write, identifier), raws, size

    def _write_aside(self, context: RequestContext, write: Callable[[Any], InferResponse], size: int) -> None:
        """Write a response, of contents of so many bytes, in the other thread; then send it."""
        call: Any = context[0]

        def work() -> InferResponse:
            if not call.open:
                raise CallerLeft("the client has left")
            response: InferResponse = call.coded(write(rest))
            return response

        def job() -> Callable[[], None]:
            outcome = outcome_of(work, f"writing a response of model '{context[1].version.model}'")
            return partial(self._finish_late, call, size, outcome)

        call.hold(size)
        try:
            self._side.put(call.connection, job)
        except RuntimeError:
            call.hold(-size)
            raise Overloaded("the server has no thread for this answer") from None

    def _finish_late(self, call: RestCall, size: int, outcome: InferResponse | RequestError) -> None:
        """Answer a request whose batch is over long since."""
        observed: Any = call
        call.hold(-size)
        try:
            if isinstance(outcome, RequestError):
                if call.context is not None:
                    call.context.ended_with(outcome)
                self._transport.fail(call, outcome)
            else:
                call.answer(outcome)
            self._observer.answered_late(observed)
        except Exception as error:
            self._transport.end_connection(call, error)


class GenerateResponses(DecoupledAnswers):
    """Answers requests of the generate extension to a decoupled version: ``generate`` takes one response, and
    ``generate_stream`` all of them, each as an event.

    Args:
        counters, observer, transport: see ``Answers``.
    """

    def __init__(self, counters: WorkerCounters, observer: Observer, transport: Transport) -> None:
        super().__init__(counters, observer, transport)
        #: of requests that have had a response: their responses so far, and the only one of ``generate``
        self._had: dict[Any, tuple[int, bytes]] = {}

    def _respond(self, context: RequestContext, outputs: Outputs, rows: int, *, more: bool) -> None:
        call: Any = context[0]
        plan = context[1]
        tensors, raws = tensors_of(plan, outputs, rows)
        size = sum(map(len, raws))
        if size > LARGE_CONTENTS:
            raise InvalidRequest(
                f"the response has {size} bytes of outputs, and {LARGE_CONTENTS} is the most of each response here; "
                "use ModelStreamInfer"
            )
        version, parameters = plan.version, plan.parameters_with(outputs.parameters)
        document = write_generate_response(
            version.model, str(version.number), request_id(context[2]), tensors, raws, parameters
        )
        if call.head.purpose.asks is Asks.STREAM:
            count = self._had.get(call, (0, b""))[0]
            call.send_event(document, is_first=not count)
            self._had[call] = count + 1, b""
        else:
            count, _ = self._had.get(call, (0, b""))
            self._had[call] = count + 1, document
        if not more:
            self._end(context)

    def _respond_error(self, context: RequestContext, error: RequestError, *, more: bool) -> None:
        call: Any = context[0]
        if call.head.purpose.asks is not Asks.STREAM:
            self._had.pop(call, None)
            self._transport.fail(call, error)
            return
        count = self._had.get(call, (0, b""))[0]
        call.send_error_event(error, is_first=not count)
        self._had[call] = count + 1, b""
        if not more:
            self._end(context)

    def _end(self, context: RequestContext) -> None:
        call: Any = context[0]
        count, document = self._had.pop(call, (0, b""))
        if call.head.purpose.asks is Asks.STREAM:
            call.end_events(is_first=not count)
        elif count == 1:
            call.reply_document(document)
        else:
            call.reply_document(_NOT_ONE)

    def _forget(self, context: RequestContext) -> None:
        self._had.pop(context[0], None)


def _write_flat(
    plan: RestPlan,
    identifier: bytes,
    tensors: list[WireTensor],
    parameters: Parameters | None,
    raws: list[Buffer],
    pause: Any,
) -> InferResponse:
    """An answer of the generate extension."""
    version = plan.version
    number = str(version.number)
    given = plan.parameters_with(parameters)
    body = write_generate_response(version.model, number, request_id(identifier), tensors, raws, given)
    return InferResponse(b"", [body], len(body))
