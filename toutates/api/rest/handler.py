"""REST as one worker serves it: from a request's head to what answers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from toutates.access.callers import Caller
from toutates.access.worker_gate import Visit
from toutates.api.audit import Author, audited, audited_later, author_of
from toutates.api.control_queue import ControlQueue, read
from toutates.api.dataplane.plane import DataPlane
from toutates.api.dataplane.shared_memory import of_caller
from toutates.api.doors import Doors
from toutates.api.limited import check_names, only
from toutates.api.rest.answers import METHOD_NOT_ALLOWED, NOT_FOUND, Answer, allow_field, error_answer, refusal
from toutates.api.rest.calls import Purpose, RestHttpCall
from toutates.api.rest.cross_origin import CrossOrigin
from toutates.api.rest.endpoints import Route, find_route
from toutates.api.rest.on_demand import waiting_for_model
from toutates.api.rest.pipelined import Pipelined
from toutates.api.rest.slow_answers import SlowAnswers
from toutates.api.rest.v1 import answer_v1
from toutates.api.restrictions import RestrictedProtocol
from toutates.api.torchserve.predictions import Defaults, Predictions
from toutates.http1 import Head, Refused
from toutates.infer.parking import Parking
from toutates.infer.rest.call import Asked, Asks
from toutates.infer.rest.service import RestInferService
from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.net import Worker
from toutates.net.http1.call import HttpCall
from toutates.net.http1.service import fail_call
from toutates.net.side_thread import SideThread, outcome_of
from toutates.protocol.rest.lengths import HEADER_LENGTH, check_json_size
from toutates.protocol.rest.parameters import matching_fields
from toutates.protocol.rest.request import Target
from toutates.system.errors import Overloaded, OwnRequestsFirst, RequestError

__all__ = ["RestHandler", "RestSettings"]

#: Bytes of a body that is neither an inference nor a model: it has a name or two. So has one that is not looked at.
MAX_BODY: Final = 65_536

_ACCEPT_ENCODING: Final = b"accept-encoding: gzip, deflate\r\n"
_PLAIN: Final = re.compile(r"[1-9][0-9]{0,8}")
_LENGTH_FIELD: Final = HEADER_LENGTH.lower()
#: Endpoints by which a caller can change the server at once.
_CHANGING: Final = ("logging", "trace")
#: The groups of pages; that of others is ``metadata``, because they describe the server.
_PAGES: Final = {"/metrics": "metrics", "/health/live": "health", "/health/ready": "health"}
_ASKS: Final = {"infer": Asks.INFER, "generate": Asks.GENERATE, "generate_stream": Asks.STREAM}


@dataclass(frozen=True, slots=True)
class RestSettings:
    """What an operator can choose.

    Attributes:
        max_input_bytes: bytes of a request's JSON, of its only input where it has no JSON, and of one tensor of JSON.
        restrictions: groups of endpoints that only callers with a secret may use.
        forwarded: names of header fields that models get as parameters; None for none.
        cross_origin: origins whose pages may read answers, see ``CrossOrigin``; none for those of no other one.
        half_close: whether a client of HTTP/1.1 that ends its side of the connection is still answered.
    """

    max_input_bytes: int = 67_108_864
    restrictions: tuple[RestrictedProtocol, ...] = ()
    forwarded: re.Pattern[str] | None = None
    cross_origin: tuple[str, ...] = ()
    half_close: bool = False


class Api(Protocol):
    """An API beside REST."""

    def admit(self, head: Head) -> int | None:
        """Find out what a request is for; returns the bytes that its body may have, and None if it is not for this API.

        Raises:
            Refused: it gets no further.
        """
        ...


class RestHandler:
    """Answers the requests of one worker; a ``net.http1.service.Handler``.

    Args:
        worker: whose requests these are.
        plane: the worker's; it answers everything but inference.
        queue: brings calls to the main thread.
        infer: answers inferences.
        traces: of ``infer``. A caller whose ``traceparent`` says that it records the trace has its requests traced.
        settings: of REST.
        doors: what requests have to bring.
        pages: what else is served, by path, for GET and HEAD.
        side: the worker's thread for what takes long.
        torchserve: has TorchServe's inference API served too; None for not.
        text: has the APIs for text; None for none.
        parking: where requests wait for models that are loaded on demand; None where none are.

    Attributes:
        call_class: see ``Handler``.
    """

    def __init__(
        self,
        worker: Worker,
        plane: DataPlane,
        queue: ControlQueue,
        infer: RestInferService,
        traces: WorkerTraces,
        settings: RestSettings,
        doors: Doors,
        pages: Mapping[str, Callable[[RestHttpCall], None]],
        side: SideThread,
        torchserve: Defaults | None = None,
        text: Api | None = None,
        parking: Parking | None = None,
    ) -> None:
        self._worker = worker
        self._plane = plane
        self._queue = queue
        self._infer = infer.handler
        self._traces = traces
        self._infer_observed = infer.observing_handler(traces.sampling)
        self._settings = settings
        self._pages = pages
        self._slow = SlowAnswers(worker, side, plane.get_table)
        self._doors = doors
        self._text = text
        self._parking = parking
        self._pipelined = Pipelined(worker, self._handle_again)
        self._cross_origin = CrossOrigin(settings.cross_origin) if settings.cross_origin else None
        self.call_class: type[HttpCall] = RestHttpCall
        if self._cross_origin is not None:
            self.call_class = self._cross_origin.call_class
        self._predictions: Predictions | None = None
        if torchserve is not None:
            most = min(settings.max_input_bytes, worker.limits.max_message_size)
            self._predictions = Predictions(plane, self._handler_for, torchserve, doors, most)

    # --- for the service ---------------------------------------------------------------------------------------------

    def admit(self, head: Head) -> int:
        """Find out what a request is for; returns the bytes that its body may have.

        Raises:
            Refused: it gets no further.
        """
        doors = self._doors
        preflight = None if self._cross_origin is None else self._cross_origin.preflight(head)
        if preflight is not None:
            return _admit(head, lambda call: call.reply(*preflight))
        if head.path in self._pages:
            if head.served_as != "GET":
                return self._refuse_method(head, ("GET",))
            return _admit(
                head, doors.within(doors.visit(_PAGES.get(head.path, "metadata"), head), self._pages[head.path])
            )
        route = find_route(head.path)
        if route is None:
            elsewhere = answer_v1(head.served_as, head.path)
            if elsewhere is not None:
                return self._admit_answer(head, elsewhere)
            admitted = None if self._text is None else self._text.admit(head)
            if admitted is None and self._predictions is not None:
                admitted = self._predictions.admit(head)
            return self._admit_answer(head, NOT_FOUND) if admitted is None else admitted
        endpoint = route.endpoint
        try:
            if head.served_as == "POST" and "POST" in endpoint.methods and not endpoint.reads:
                doors.web.check_change(head.fields)
            doors.check_secret(endpoint.category, head.fields)
        except RequestError as error:
            return self._admit_answer(head, refusal(error))
        visit = doors.visit(endpoint.category, head, route.model)
        if head.served_as not in endpoint.methods:
            return self._refuse_method(head, endpoint.methods)
        if endpoint.name in _ASKS:
            return self._admit_inference(head, route, visit)
        if endpoint.name in ("load", "unload"):
            try:
                self._plane.refuse_unless_loads_on_request()
            except RequestError as error:
                return self._admit_answer(head, refusal(error))
            most = self._worker.limits.max_message_size
            return _admit(head, doors.within(visit, partial(self._ask, route)), most)
        ask: Callable[[RestHttpCall], None] = doors.within(visit, partial(self._ask, route))
        if route.model:
            # Around the doors: a request that has waited is its caller's still.
            ask = waiting_for_model(ask, self._parking, self._worker)
        return _admit(head, ask, MAX_BODY)

    def fail(self, call: RestHttpCall, error: RequestError) -> None:
        """Answer a request with an error; or have it wait, if it is only early."""
        if isinstance(error, OwnRequestsFirst):
            self._pipelined.keep(call)
        else:
            call.fail(error)

    def _handle_again(self, call: RestHttpCall) -> None:
        try:
            call.head.purpose.handle(call)
        except Exception as error:
            fail_call(self._worker, self, call, error)

    def write_refusal(self, refused: Refused) -> tuple[bytes, bytes]:
        """The fields and the body of the answer to a request that is refused before it is read."""
        answer = error_answer(refused.status, refused.text)
        return answer.fields, answer.body

    # --- by kind of request ------------------------------------------------------------------------------------------

    def _admit_answer(self, head: Head, answer: Answer, fields: bytes = b"") -> int:
        """Admit a request whose answer is known; its body is read, if that is short, so that the connection goes on.

        Args:
            head: of the request.
            answer: to it.
            fields: further header fields of the answer.

        Raises:
            Refused: the body is long.
        """
        if not 0 <= head.body_size <= MAX_BODY:
            raise Refused(answer.status, msgspec.json.decode(answer.body)["error"], fields)
        return _admit(head, lambda call: call.reply(answer.status, answer.fields + fields, answer.body), MAX_BODY)

    def _refuse_method(self, head: Head, methods: Collection[str]) -> int:
        """Admit a request whose path has other methods; see ``_admit_answer``."""
        return self._admit_answer(head, METHOD_NOT_ALLOWED, allow_field(methods))

    def _admit_inference(self, head: Head, route: Route, visit: Visit | None) -> int:
        asks = _ASKS[route.endpoint.name]
        settings, limits = self._settings, self._worker.limits
        forwarded: list[tuple[str, str]] = []
        if head.coding and (asks is not Asks.INFER or head.coding not in ("gzip", "deflate")):
            if asks is not Asks.INFER:
                raise Refused(400, "Unsupported content-encoding, only 'identity' is supported.")
            raise Refused(501, "Unsupported compression type", _ACCEPT_ENCODING)
        if settings.forwarded is not None and asks is Asks.INFER:
            fields = [(name, head.fields[name.lower()]) for name in head.names]
            forwarded = matching_fields(settings.forwarded, fields)
        most = settings.max_input_bytes
        target = Target(route.model, route.version, most, forwarded)
        is_coded = bool(head.answer_coding) and asks is Asks.INFER
        field = head.fields.get(_LENGTH_FIELD)
        if field is None:
            try:
                check_json_size(head.body_size, most)
            except RequestError as error:
                raise Refused(400, str(error)) from None
        head.purpose = Asked(
            handle=self._doors.within(visit, self._handler_for(head)),
            target=target,
            key=repr((route.model, route.version, forwarded, asks.name, is_coded)).encode(),
            json_field=field,
            json_size=int(field) if field is not None and _PLAIN.fullmatch(field) else 0,
            asks=asks,
            is_coded=is_coded,
        )
        # JSON is read from bytes, which takes many times as long anyway.
        head.in_memory = field is not None and asks is Asks.INFER
        # The first tensor, which a model may read where it lies.
        head.aligned_at = head.purpose.json_size
        if head.coding:
            return min(limits.max_decompressed_size, limits.max_message_size)
        return limits.max_message_size

    def _handler_for(self, head: Head) -> Callable[[Any], None]:
        """What answers an inference, traced where the caller asks for that."""
        if not self._traces.possible:
            return self._infer
        context = parse_traceparent(head.fields.get("traceparent", ""))
        if context is None or not context.sampled:
            return self._infer
        settings = self._traces.settings
        # What the head asks for is remembered with it; whether anything is traced can change.
        return lambda call: (self._infer_observed if settings.rules.on else self._infer)(call)

    def _ask(self, route: Route, call: RestHttpCall) -> None:
        """Answer a request that is no inference."""
        endpoint = route.endpoint
        endpoint.refuse(self._plane)
        body = None if call.head.served_as == "GET" else bytes(call.body)
        if endpoint.awaited is not None and endpoint.waits(self._plane):
            caller = None if self._doors.gate is None else self._doors.gate.caller
            work = partial(self._await, route, call, caller, self._author(call))
            self._queue.put(self._worker, body or b"", work, partial(self.fail, call))
            return
        assert endpoint.function is not None
        request = endpoint.read(route, body)
        if endpoint.category == "shared-memory" and self._doors.gate is not None:
            of_caller(self._doors.gate.caller, request)
        function: Callable[[Any], Any] = partial(endpoint.function, self._plane)
        if endpoint.name in _CHANGING:
            function = audited(self._author(call), function)
        answer = partial(function, request)
        caller = self._limited_caller(request)
        write = endpoint.write if caller is None else lambda message: endpoint.write(only(caller, message))
        if endpoint.grows and not route.model:
            key = endpoint.name, request.SerializeToString(), caller
            self._slow.answer(call, key, lambda: write(answer()))
        elif endpoint.blocks:
            self._answer_beside(call, endpoint.name, lambda: write(answer()))
        else:
            call.reply(*write(answer()))

    def _answer_beside(self, call: RestHttpCall, name: str, make: Callable[[], Answer]) -> None:
        def job() -> Callable[[], None]:
            outcome = outcome_of(make, f"answering '{name}'")
            return partial(call.reply, *(refusal(outcome) if isinstance(outcome, RequestError) else outcome))

        try:
            self._worker.objects.put(call.connection, job)
        except RuntimeError:
            raise Overloaded("the server has no thread for this request") from None

    def _limited_caller(self, request: Any) -> Caller | None:
        """Who sends a request about models, if only some are that caller's; else None.

        Raises:
            Forbidden: see ``check_names``.
        """
        gate = self._doors.gate
        if gate is None or gate.caller is None or not gate.caller.models or request is None:
            return None
        check_names(gate.caller, request, self._plane.get_table().traffic)
        return gate.caller

    def _author(self, call: RestHttpCall) -> Author:
        return author_of(self._doors.gate, self._worker.peer(call), "REST")

    async def _await(
        self, route: Route, call: RestHttpCall, caller: Caller | None, author: Author, body: bytes
    ) -> Callable[[], None]:
        """On the main thread: read a request, which may hold a whole model, and have it answered."""
        endpoint = route.endpoint
        assert endpoint.awaited is not None
        given = None if call.head.served_as == "GET" else body
        request = await read(len(body), endpoint.read, route, given)
        del body, given
        answer = audited_later(author, partial(endpoint.awaited, self._plane))
        if caller is not None and caller.models:
            check_names(caller, request, self._plane.get_table().traffic)
            response = only(caller, await answer(request))
        else:
            response = await answer(request)
        return partial(call.reply, *endpoint.write(response))


def _admit(head: Head, handle: Callable[[Any], None], most: int = MAX_BODY) -> int:
    head.purpose = Purpose(handle)
    return most
