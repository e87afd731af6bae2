"""Inference over REST: from a request's body to rows in a batch. What happens after its run is in ``answers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from toutates.engine.counters import WorkerCounters
from toutates.engine.open_request import unread_of
from toutates.engine.servable import Buffer
from toutates.infer.answers import Answers, RequestContext
from toutates.infer.call import Transport
from toutates.infer.inflight import Inflight
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.parking import Parking
from toutates.infer.reading import MAX_ID_BYTES, id_too_long
from toutates.infer.regions import Regions
from toutates.infer.rest.answers import GenerateResponses, RestAnswers
from toutates.infer.rest.body import body_message
from toutates.infer.rest.call import Asked, Asks, BodyTensors, RestCall, start_of
from toutates.infer.rest.plan import RestPlan
from toutates.infer.service import InferService
from toutates.infer.traffic.copies import Copies
from toutates.infer.traffic.dividing import AskedFor
from toutates.infer.validation import validate
from toutates.models.table import ModelTable, ServedVersion
from toutates.net import Worker
from toutates.net.side_thread import SideThread, outcome_of
from toutates.protocol.datatypes import join_strings
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.rest.cutting import Cut, cut, moved
from toutates.protocol.rest.generate import read_generate_request
from toutates.protocol.rest.lengths import RAW, json_length
from toutates.protocol.rest.raw_request import RAW_OUTPUTS, read_raw_request
from toutates.protocol.rest.request import LARGE_JSON_BYTES, Form, InferRequest, OutputForms, read_request
from toutates.protocol.sequence_parameters import Said, said_in
from toutates.protocol.signature import Signature
from toutates.protocol.strings import rest
from toutates.system.errors import CallerLeft, ExecutionFailed, NotLoaded, Overloaded, RequestError, Unsupported, anew

__all__ = ["RestInferService"]


class RestInferService(InferService):
    """Serves the inferences over REST of one worker. Its ports and plans are its own.

    Args:
        worker, transport, get_table, inflight, notices, regions, copies, parking: see ``InferService``.
        side: reads and writes large JSON.
    """

    def __init__(
        self,
        worker: Worker,
        transport: Transport,
        get_table: Callable[[], ModelTable],
        side: SideThread,
        inflight: Inflight | None = None,
        notices: ParameterNotices | None = None,
        regions: Regions | None = None,
        copies: Copies | None = None,
        parking: Parking | None = None,
    ) -> None:
        super().__init__(worker, transport, get_table, inflight, notices, regions, copies, parking)
        self._side = side
        self._layouts = self._cache.latest

    def infer(self, call: Any) -> None:
        """Put a request's rows into a batch.

        The JSON of a request without its id and the arrays of its tensors is the key to a plan. With binary data that
        is all of the JSON, and tensors are copied from the body as it was received. Without an id not even the key is
        needed where the last request had the same bytes in the same places: the last one of its length with binary
        data, and the last one for its model with an array of numbers.

        Raises:
            RequestError: the request cannot be served.
        """
        now_ns = self.worker.now_ns
        if now_ns is not self._looked_ns and self._look_around(call, now_ns):
            return
        asked: Asked = call.head.purpose
        body = call.body
        latest = self._layouts.get(len(body) if asked.json_field is not None else asked.key)
        if latest is not None and body.startswith(latest[0].head):
            layout, plan, writer = latest
            if layout.reader is None:
                if asked.json_size == len(layout.head) and asked.key == layout.key:
                    spans = layout.spans if body.__class__ is bytes else layout.spans_from(start_of(body))
                    self._pack(call, plan, writer, b"", body, spans)
                    return
            elif len(body) <= LARGE_JSON_BYTES and (content := layout.read(body)) is not None:
                self._pack(call, plan, writer, b"", content, layout.spans)
                return
        self._infer_by_cutting(call, asked, body)

    def _infer_by_cutting(self, call: Any, asked: Asked, body: bytes) -> None:
        """Handle a request that is unlike the last ones."""
        if asked.asks is not Asks.INFER:
            if asked.tensors is not None:
                self._infer_body(call, asked, asked.tensors, body)
            else:
                self._generate(call, asked)
            return
        json_end = asked.json_size
        if not 0 < json_end <= len(body):
            try:
                json_end = json_length(asked.json_field, len(body))
            except RequestError as error:
                self._count_refusal(error, None)
                raise
        if json_end > LARGE_JSON_BYTES:
            self._read_aside(call, asked, partial(_read_large, memoryview(body), json_end, asked), len(body))
            return
        if json_end == RAW:
            self._infer_raw(call, asked, body)
            return
        start = start_of(body)
        if body.__class__ is bytes:
            found = cut(body, 0, json_end)
        else:
            # It came in pieces, or is in memory of its own. Only its JSON is copied, because keys are bytes.
            found = cut(bytes(memoryview(body)[start : start + json_end]), 0, json_end)
            if found is not None and start:
                found = moved(found, start)
        if found is not None:
            key = asked.key + found[0]
            plan: Any = self._plans.get(key) or self._cache.recall(key)
            if plan is not None and self._infer_by_form(call, asked, plan, found, body, start + json_end):
                return
        self._infer_by_reading(call, asked, body, start + json_end, found)

    # --- requests of a known kind ------------------------------------------------------------------------------------

    def _infer_by_form(self, call: Any, asked: Asked, plan: RestPlan, found: Cut, body: bytes, json_end: int) -> bool:
        """Handle a request of a plan; returns False if it is not quite of its form."""
        form = plan.form
        assert form is not None
        if found[2] - found[1] > MAX_ID_BYTES:
            return False
        start = start_of(body)
        read = form.read(found, body, json_end, start + len(body))
        if read is None:
            return False
        identifier = bytes(form.identifier_of(found, body))
        buffer, spans = read
        if plan.packed is None:
            self._gather_spans(call, plan, identifier, buffer, spans, found[4])
            return True
        if plan.in_order:
            layout = form.layout(asked.key, found, body, json_end, start)
            if layout is not None and (layout.reader is None) is (asked.json_field is not None):
                self._cache.remember_layout(layout.key if layout.reader else len(body), layout, plan, plan.packed)
        else:
            spans = _ordered(plan, spans)
        if found[4] is None:
            self._pack(call, plan, plan.packed, identifier, buffer, spans)
        else:
            self._pack_said(call, plan, plan.packed, identifier, buffer, spans, found[4])
        return True

    def _gather_spans(
        self, call: Any, plan: RestPlan, identifier: bytes, buffer: bytes, spans: Sequence[int], said: Said | None
    ) -> None:
        """Handle a request whose inputs are arrays or in shared memory."""
        whole = memoryview(buffer)
        ordered = _ordered(plan, spans)
        contents = [whole[ordered[at] : ordered[at + 1]] for at in range(0, len(ordered), 2)]
        self._submit(call, plan, identifier, contents, self._transport.request_id(identifier), said)

    # --- requests that take longer -----------------------------------------------------------------------------------

    def _infer_by_reading(self, call: RestCall, asked: Asked, body: bytes, json_end: int, found: Cut | None) -> None:
        """Read and validate a request, and remember its plan."""
        self.counters.parsed += 1
        version: ServedVersion | None = None
        try:
            version = self._find(asked.target.model, asked.target.version)
            start = start_of(body)
            request = read_request(body, start, json_end, start + len(body), asked.target, found)
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        self._infer_read(call, asked, version, request)

    def _infer_read(
        self, call: RestCall, asked: Asked, version: ServedVersion, request: InferRequest | _FlatRequest
    ) -> None:
        message = request.message
        if isinstance(request, _FlatRequest):
            self._infer_message(call, version, message, request.contents, request.identifier, None)
            return
        form = request.form
        key = b"" if request.key is None else asked.key + request.key
        self._infer_message(call, version, message, request.contents, request.identifier, form.outputs, form, key)

    def _infer_raw(self, call: RestCall, asked: Asked, body: bytes | bytearray) -> None:
        """Handle a body that is the only input."""
        version: ServedVersion | None = None
        try:
            version = self._find(asked.target.model, asked.target.version)
            message, content = read_raw_request(_whole(body), asked.target, version.signature)
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        self._infer_message(call, version, message, [content], b"", RAW_OUTPUTS)

    def _infer_body(self, call: Any, asked: Asked, tensors: BodyTensors, body: bytes | bytearray) -> None:
        """Handle a body that is one BYTES element of a model, whatever it holds."""
        plan: Any = self._plans.get(asked.key) or self._cache.recall(asked.key)
        given = {tensors.body: join_strings([memoryview(body)]), tensors.head: join_strings([tensors.head_content])}
        if plan is not None:
            inputs = plan.version.signature.inputs
            self._submit(call, plan, b"", [given[inputs[index].name] for index in plan.request.inputs], "")
            return
        self.counters.parsed += 1
        version: ServedVersion | None = None
        try:
            version = self._find(asked.target.model, asked.target.version)
            message = body_message(asked.target, tensors, version.signature)
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        contents = [given[tensor.name] for tensor in message.inputs]
        self._infer_message(call, version, message, contents, b"", None, None, asked.key)

    def _generate(self, call: RestCall, asked: Asked) -> None:
        """Handle a request of the generate extension."""
        body = bytes(call.body)
        version: ServedVersion | None = None
        try:
            version = self._find(asked.target.model, asked.target.version)
            if len(body) > LARGE_JSON_BYTES:
                self._read_aside(call, asked, partial(_read_flat, body, asked, version.signature), len(body))
                return
            request = _read_flat(body, asked, version.signature)
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        self._infer_read(call, asked, version, request)

    def _infer_message(
        self,
        call: Any,
        version: ServedVersion,
        message: ModelInferRequest,
        given: Sequence[Buffer],
        identifier: bytes,
        outputs: OutputForms | None,
        form: Form | None = None,
        key: bytes = b"",
    ) -> None:
        """Validate a request that was read, and put its rows into a batch.

        Args:
            call: the request.
            version: that answers it.
            message: what it would be over gRPC, without raw contents.
            given: the bytes of each input.
            identifier: text of its id in JSON, without quotation marks.
            outputs: in which form each output is sent.
            form: of requests like it.
            key: what to remember the plan under; b"" for nothing.
        """
        try:
            if len(message.id.encode()) > MAX_ID_BYTES:
                raise id_too_long(len(message.id.encode()))
            if version.decoupled and (outputs is not None or call.head.purpose.tensors is not None):
                raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
            sizes = [len(content) for content in given]
            validated = validate(message, sizes, version.signature, version.model, self._check_place)
            asked: Asked = call.head.purpose
            name = self._table.spelling(asked.target.model), asked.target.version
            self._note_parameters(version, message, name)
            shared = self._shared(version, validated)
            port = self._port(version, shared)
            plan = RestPlan(
                version, validated, port, outputs, form, shared, coded=asked.is_coded, tensors=asked.tensors
            )
            if self._table.traffic:

                def make(other: ServedVersion) -> RestPlan:
                    fitting = validate(message, sizes, other.signature, other.model, self._check_place)
                    others = self._shared(other, fitting)
                    way = self._port(other, others)
                    return RestPlan(
                        other, fitting, way, outputs, form, others, coded=asked.is_coded, tensors=asked.tensors
                    )

                wanted = AskedFor(*name, message.parameters, identifier)
                plan, lasts = self._traffic.plan_for(wanted, self._table.traffic, plan, make)
                key = key if lasts else b""
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        if key:
            self._cache.remember(key, plan)
        contents = [given[source] for source in validated.sources if isinstance(source, int)]
        self._submit(call, plan, identifier, contents, message.id, said_in(message.parameters))

    # --- large JSON --------------------------------------------------------------------------------------------------

    def _read_aside(self, call: Any, asked: Asked, read: Callable[[], InferRequest | _FlatRequest], size: int) -> None:
        """Read a request in another thread, which takes milliseconds, and go on with it then.

        Args:
            call: the request.
            asked: what its head says.
            read: reads it.
            size: bytes that this keeps.

        Raises:
            RequestError: there is no such model, or no thread.
        """
        try:
            self._find(asked.target.model, asked.target.version)
        except RequestError as error:
            self._count_refusal(error, None)
            raise

        def work() -> InferRequest | _FlatRequest:
            if not call.open:
                raise CallerLeft("the client has left")
            return read()

        def job() -> Callable[[], None]:
            outcome = outcome_of(work, f"reading a request for model '{asked.target.model}'")
            return partial(self._go_on_with, call, asked, size, outcome)

        call.hold(size)
        try:
            self._side.put(call.connection, job)
        except RuntimeError:
            call.hold(-size)
            raise Overloaded("the server has no thread for this request") from None

    def _go_on_with(
        self,
        call: Any,
        asked: Asked,
        size: int,
        outcome: InferRequest | _FlatRequest | RequestError,
        *,
        is_held: bool = True,
    ) -> None:
        """Handle a request that another thread has read.

        Args:
            call: the request.
            asked: what its head says.
            size: bytes that are kept of it.
            outcome: of the reading.
            is_held: whether these bytes are counted for the call.
        """
        if is_held:
            call.hold(-size)
        try:
            if self._get_table() is not self._table:
                self._forget_plans()
            if isinstance(outcome, RequestError):
                self._count_refusal(outcome, None)
                raise anew(outcome)
            self.counters.parsed += 1
            version = self._find(asked.target.model, asked.target.version)
            self._infer_read(call, asked, version, outcome)
        except NotLoaded as missing:  # it has left since the request came
            assert self._waiting is not None
            try:
                again = partial(self._go_on_with, call, asked, size, outcome, is_held=False)
                self._waiting.wait(missing.model, call, b"", again, size)
            except RequestError as error:
                self.refuse_late(call, error)
        except RequestError as error:
            self.refuse_late(call, error)
        except Exception as error:
            self.refuse_late(call, ExecutionFailed("internal error"))
            self._transport.end_connection(call, error)

    def message_of(self, call: Any) -> bytes:
        """See ``InferService``: the memory of a large body is used again."""
        return bytes(_whole(call.body))

    def put_back(self, call: Any, message: bytes) -> None:
        """See ``InferService``."""
        call.body = message

    def _has_its_share(self, call: Any, share: int) -> bool:
        """See ``InferService``; those before it on a connection of HTTP/1.1. A late one has no body any more."""
        waits = bool(call.body) or self._shared_path.goes_on
        return waits and call.connection.before(call) - call.connection.waiting >= share

    def _identity(self, id_field: bytes) -> bytes:
        """See ``InferService``: here it is text of JSON."""
        return self._transport.request_id(id_field).encode() if b"\\" in id_field else id_field

    # --- parts -------------------------------------------------------------------------------------------------------

    def _may_have_left(self, context: RequestContext) -> bool:
        """See ``Consumer``: a peer of HTTP that sends no more may wait for the answer, or be gone."""
        call: Any = context[0]
        link = call.link
        return link is None or bool(link.peer_ended)

    def _unread_bytes(self, context: RequestContext) -> int:
        """See ``Consumer``: what waits for the peer."""
        call: Any = context[0]
        return unread_of(int(call.unread_bytes), self.worker.budget.room)

    def _make_answers(self, counters: WorkerCounters, version: ServedVersion) -> Answers:
        if version.decoupled:
            return GenerateResponses(counters, self.observer, self._transport)
        return RestAnswers(counters, self.observer, self._transport, self._side)


@dataclass(slots=True)
class _FlatRequest:
    """A request of the generate extension that was read; attributes as of ``InferRequest``."""

    message: ModelInferRequest
    contents: list[bytes]
    identifier: bytes


def _read_flat(body: bytes, asked: Asked, signature: Signature) -> _FlatRequest:
    message, contents = read_generate_request(body, asked.target, signature)
    return _FlatRequest(message, contents, msgspec.json.encode(message.id)[1:-1])


def _read_large(view: memoryview, json_end: int, asked: Asked) -> InferRequest:
    # A body in memory of its own is not used again as long as there is a view of it. It may be a bytearray as well: a
    # copy of 64 MiB would keep all threads from the interpreter for 50 ms.
    body: Any = view.obj
    start = start_of(body)
    json_end += start
    found = cut(body, start, json_end, start + LARGE_JSON_BYTES)
    return read_request(body, start, json_end, start + len(body), asked.target, found, rest)


def _whole(body: bytes | bytearray) -> memoryview:
    start = start_of(body)
    return memoryview(body)[start : start + len(body)]


def _ordered(plan: RestPlan, spans: Sequence[int]) -> list[int]:
    """Spans in the order of the lane's inputs."""
    return [bound for at in plan.request.sources if isinstance(at, int) for bound in spans[2 * at : 2 * at + 2]]
