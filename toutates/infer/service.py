"""ModelInfer: from a request's bytes to rows in a batch. What happens once the batch has run is in ``answers``.

Each worker has an ``InferService`` of its own. Nothing in it is shared but the model table and what is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from toutates.engine.counters import WorkerCounters
from toutates.engine.on_device import DeviceLane, DevicePort, DeviceRows
from toutates.engine.servable import Buffer, Port, Way
from toutates.infer.answers import Answers, RequestContext, SequenceContext
from toutates.infer.call import Call, Handler, Transport
from toutates.infer.counters import InferCounters
from toutates.infer.finding import find_target, find_version
from toutates.infer.inflight import Inflight
from toutates.infer.observing import Observer, Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.parking import Parking
from toutates.infer.plan import Plan
from toutates.infer.plan_cache import PlanCache
from toutates.infer.ports import Ports
from toutates.infer.reading import (
    MAX_ID_BYTES,
    arrays_of,
    contents_of,
    id_too_long,
    in_one_buffer,
    place_of,
    read_request,
    request_id,
)
from toutates.infer.regions import Place, Regions
from toutates.infer.scanning import Layout, scan
from toutates.infer.sequenced import SequenceLayout, sequence_layout
from toutates.infer.shared_outputs import SharedOutputs
from toutates.infer.shared_path import SharedPath
from toutates.infer.shared_tensors import SharedInputs, SharedTensors
from toutates.infer.structure import check_structure
from toutates.infer.traffic.copies import Copies
from toutates.infer.traffic.divided import Divider
from toutates.infer.traffic.dividing import AskedFor, TrafficPlans
from toutates.infer.validation import ValidatedRequest, validate
from toutates.infer.waiting import WaitingRequests
from toutates.models.config.queues import acts_on
from toutates.models.table import ModelTable, ServedVersion
from toutates.models.traffic.rules import Target
from toutates.net import Worker
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.names import request_prefix
from toutates.protocol.sequence_parameters import Said, said_in
from toutates.protocol.typed_contents import LARGE_MESSAGE_BYTES
from toutates.protocol.wire_format import read_varint
from toutates.system.errors import (
    ExecutionFailed,
    InvalidSequence,
    NotLoaded,
    Overloaded,
    OwnRequestsFirst,
    RequestError,
    UnknownModel,
    Unsupported,
    WouldBeLate,
    anew,
)

__all__ = ["InferService"]

#: Longest ``id`` field of a request, bytes: the ``id`` with its tag and length.
MAX_ID_FIELD_BYTES: Final = MAX_ID_BYTES + 4
#: No round begins at this time.
_NEVER_LOOKED: Final = -1


class InferService:
    """Serves the ModelInfer requests of one worker: finds a request's plan, and copies its rows into a batch.

    Args:
        worker: on whose thread all of this runs.
        transport: by which the requests came.
        get_table: returns the model table as it is now.
        inflight: bounds the requests that wait for their answer; None for no bound.
        notices: logs parameters that have no effect; None for one of this worker's own.
        regions: of shared memory, which clients have registered; None for none.
        copies: takes copies of requests for versions in the shadow of others; None for nobody.
        parking: where requests wait for models that are loaded on demand; None where none are.

    Attributes:
        counters: counts requests before it is known which version they are for.
        divider: of this worker's requests that are divided between versions.
        observer: of this worker's requests.
        worker: as given.
    """

    def __init__(
        self,
        worker: Worker,
        transport: Transport,
        get_table: Callable[[], ModelTable],
        inflight: Inflight | None = None,
        notices: ParameterNotices | None = None,
        regions: Regions | None = None,
        copies: Copies | None = None,
        parking: Parking | None = None,
    ) -> None:
        self.counters = InferCounters()
        self.divider = Divider(self._identity, copies)
        self._waiting = None if parking is None else WaitingRequests(parking, transport, self)
        self.observer = Observer(transport)
        self.worker = worker
        self._transport = transport
        self._get_table = get_table
        self._table = get_table()
        #: when the round began in which the table was last looked at: looking at it for every request would have all
        #: cores write its reference count (``toutates.h2grpc.wire``)
        self._looked_ns = worker.now_ns
        self._inflight = inflight
        self._notices = notices or ParameterNotices()
        self._cache = PlanCache()
        self._plans = self._cache.recent
        self._latest = self._cache.latest
        self._regions = regions or Regions()
        self._shared_outputs = SharedOutputs(worker)
        self._ports = Ports(
            worker,
            transport,
            inflight,
            self._regions,
            self._shared_outputs,
            copies,
            self._make_answers,
            self._may_have_left,
            self._unread_bytes,
            self._whose,
        )
        self._traffic = TrafficPlans(self.divider, self._find_target, self._ports.copied)
        self._shared_path = SharedPath(
            worker,
            self._add_shared,
            self._add_on_device,
            self._count_refusal,
            self._refused_by_port,
            self._shared_outputs,
        )

    @property
    def handler(self) -> Handler:
        """Handles a request: ``infer``, within the bound on requests in flight where there is one."""
        return self._within_limit(self._waiting_for_model(self.infer))

    def observing_handler(self, chosen: Sampling) -> Handler:
        """A handler like ``handler`` that observes every request for the sampling ``chosen``."""

        def infer_observed(call: Call) -> None:
            self.infer_observed(call, chosen)

        return self._within_limit(self._waiting_for_model(infer_observed), chosen)

    def infer(self, call: Call) -> None:
        """Put a request's rows into a batch.

        A request like the last one of its length is found by its layout, which takes 0.9 us for one small input. Any
        other that has a plan is found by ``scan``, in 1.5 us.

        Raises:
            RequestError: the request cannot be served.
        """
        now_ns = self.worker.now_ns
        if now_ns is not self._looked_ns and self._look_around(call, now_ns):
            return
        buffer = call.buffer
        start = call.start
        end = call.end
        latest = self._latest.get(end - start)
        if latest is not None and buffer.startswith(latest[0].head, start):
            layout, plan, writer = latest
            if layout.single:
                self._pack(call, plan, writer, b"", buffer, (start + len(layout.head), end))
                return
            read = layout.read(buffer, start)
            if read is not None:
                if writer is not None:
                    self._pack(call, plan, writer, read[0], buffer, read[1])
                else:
                    self._submit(call, plan, read[0], (), "")
                return
        self._infer_by_scan(call, buffer, start, end)

    def _look_around(self, call: Call, now_ns: int) -> bool:
        """Do what is due once per round, with the round's first request; return whether that handled the request."""
        self._looked_ns = now_ns
        if self._get_table() is not self._table:
            self._forget_plans()
        observe = self.observer.due and call.context is None
        try:
            if observe:
                self.infer_observed(call)
        finally:
            if self.observer.due:
                self._looked_ns = _NEVER_LOOKED  # the next request is due as well
        return observe

    def infer_observed(self, call: Call, chosen: Sampling | None = None) -> None:
        """Handle a request like ``infer``, and observe it.

        Args:
            call: the request.
            chosen: a sampling that wants this very request; None for those that are due.

        Raises:
            RequestError: the request cannot be served.
        """
        observation = self.observer.begin(call, self.worker.now_ns, chosen)
        try:
            self.infer(call)
        except NotLoaded:
            raise  # it goes on later
        except OwnRequestsFirst:
            self.observer.withdraw(call)
            raise
        except RequestError as error:
            self.observer.refused(call, error)
            raise
        except BaseException:
            self.observer.refused(call, ExecutionFailed("internal error"))
            raise
        if call.context is observation:  # else its batch was full, and this worker has run it already
            observation.copied_ns = time.monotonic_ns()

    # --- requests whose model is loaded first: see ``waiting.LateHandling`` -------------------------------------------

    def _waiting_for_model(self, infer: Handler) -> Handler:
        """``infer``, with requests that wait where their model is not in memory, if models are loaded on demand."""
        return infer if self._waiting is None else self._waiting.wait_for(infer)

    def message_of(self, call: Any) -> bytes:
        """The bytes of a request, to be kept."""
        return bytes(memoryview(call.buffer)[call.start : call.end])

    def put_back(self, call: Any, message: bytes) -> None:
        """Give a request its bytes back."""
        call.buffer, call.start, call.end = message, 0, len(message)

    def for_its_caller(self, again: Callable[[], None]) -> Callable[[], None]:
        """``again``, on behalf of the caller whose request is being handled now: here nobody asks who that is."""
        return again

    def note_refusal(self, call: Call, error: RequestError) -> None:
        """Count a request that may not wait, and note the error where the request is observed."""
        self._count_refusal(error, None)
        if call.context is not None:
            self.observer.refused(call, error)

    def give_up(self, call: Call, error: RequestError, *, has_left: bool) -> None:
        """Count and refuse a request that has waited in vain."""
        if has_left:
            self.observer.count(1)
        else:
            self._count_refusal(error, None)
        self.refuse_late(call, error, is_told=not has_left)

    def refuse_late(self, call: Call, error: RequestError, *, is_told: bool = True) -> None:
        """Refuse a request whose handler has returned, and which is counted already."""
        if self._inflight is not None:
            self._inflight.count -= 1
        if call.context is not None:
            self.observer.refused(call, error)
        if is_told:
            self._tell(call, error)

    def _tell(self, call: Call, error: RequestError) -> None:
        """Answer a request with an error."""
        self._transport.fail(call, error)

    # --- the bound on requests in flight -----------------------------------------------------------------------------

    def _within_limit(self, infer: Handler, chosen: Sampling | None = None) -> Handler:
        """``infer``, refusing requests while as many are in flight as may be; the check takes 0.06 us.

        Args:
            infer: handles a call.
            chosen: a sampling that wants refused requests too.
        """
        inflight = self._inflight
        if inflight is None:
            return infer

        def infer_within_limit(call: Call) -> None:
            if inflight.count >= inflight.most:
                self._refuse_above_limit(call, inflight.refusal(), chosen)
            inflight.count += 1
            try:
                infer(call)
            except BaseException:
                inflight.count -= 1
                raise

        return infer_within_limit

    def _infer_by_scan(self, call: Call, buffer: bytes, start: int, end: int) -> None:
        """Handle a request that is unlike the last one of its length, or belongs to a sequence."""
        of_sequence = self._latest.get(start - end)
        if of_sequence is not None:
            known, plan, writer = of_sequence
            read = known.read(buffer, start)
            if read is not None:
                self._pack_said(call, plan, writer, read[0], buffer, read[1], read[2])
                return
        if end - start > LARGE_MESSAGE_BYTES:
            try:
                check_structure(buffer, start, end)
            except RequestError as error:
                self._count_refusal(error, None)
                raise
        said: Said | None = None
        layout: Layout | SequenceLayout | None = None
        scanned = scan(buffer, start, end)
        if scanned is not None:
            key, id_field, spans = scanned
        else:
            layout = sequence_layout(buffer, start, end)
            found = layout.read(buffer, start) if layout is not None else None
            if layout is None or found is None:
                self._infer_by_parsing(call, b"")
                return
            key = layout.key
            id_field, spans, said = found
        if len(id_field) > MAX_ID_FIELD_BYTES:
            refusal = id_too_long(read_varint(id_field, 1)[0])  # behind its tag
            self._count_refusal(refusal, None)
            raise anew(refusal)
        plan = self._plans.get(key) or self._cache.recall(key)
        if plan is None or len(spans) != plan.span_count:
            self._infer_by_parsing(call, key)
            return
        if plan.packed is None:
            if plan.all_shared and said is None:
                layout = plan.layout_of(key, buffer, start, end)
                if layout is not None:
                    self._cache.remember_layout(end - start, layout, plan, None)
            self._gather(call, plan, id_field, spans, said)
            return
        if not plan.in_order or not _fit(spans, plan.sizes):
            self._pack_in_order(call, plan, id_field, spans, said)
            return
        if said is not None:
            self._cache.remember_layout(start - end, layout, plan, plan.packed)
            self._pack_said(call, plan, plan.packed, id_field, buffer, spans, said)
            return
        layout = plan.layout_of(key, buffer, start, end)
        if layout is not None:
            self._cache.remember_layout(end - start, layout, plan, plan.packed)
        self._pack(call, plan, plan.packed, id_field, buffer, spans)

    def _pack(self, call: Call, plan: Plan, writer: Way, id_field: bytes, buffer: Buffer, spans: Sequence[int]) -> None:
        """Copy rows that fit their plan into a batch."""
        if call.context is not None:
            call.context.found(plan, id_field)
        try:
            plan.port.add_packed(writer, plan.rows, (call, plan, id_field, self.worker.now_ns), buffer, spans)
        except RequestError as error:
            raise self._refused_by_port(error, plan.version, id_field, call) from None

    def _pack_said(
        self,
        call: Call,
        plan: Plan,
        writer: Way,
        id_field: bytes,
        buffer: Buffer,
        spans: Sequence[int],
        said: Said | None,
    ) -> None:
        """The same for a request that may say something of a sequence."""
        if said is None:
            self._pack(call, plan, writer, id_field, buffer, spans)
            return
        self._keep_in_order(call, said)
        if call.context is not None:
            call.context.found(plan, id_field)
        context = SequenceContext.of((call, plan, id_field, self.worker.now_ns), said)
        try:
            plan.port.add_packed(writer, plan.rows, context, buffer, spans)
        except RequestError as error:
            raise self._refused_by_port(error, plan.version, id_field) from None

    # --- requests that take longer -----------------------------------------------------------------------------------

    def _pack_in_order(self, call: Call, plan: Plan, id_field: bytes, spans: list[int], said: Said | None) -> None:
        """Handle inputs in another order than the model's. Parsing finds the words for those of the wrong size."""
        sources = plan.request.sources
        ordered = [bound for at in sources if isinstance(at, int) for bound in spans[2 * at : 2 * at + 2]]
        if not _fit(ordered, plan.sizes):
            self._infer_by_parsing(call, b"")
            return
        assert plan.packed is not None
        self._pack_said(call, plan, plan.packed, id_field, call.buffer, ordered, said)

    def _gather(self, call: Call, plan: Plan, id_field: bytes, spans: list[int], said: Said | None) -> None:
        """Handle a request whose plan is known, and whose inputs are arrays or in shared memory."""
        whole = memoryview(call.buffer)
        contents = [whole[spans[2 * at] : spans[2 * at + 1]] for at in plan.request.sources if isinstance(at, int)]
        for content, size in zip(contents, plan.sizes, strict=True):
            if size is not None and size != len(content):
                self._infer_by_parsing(call, b"")
                return
        identifier = request_id(id_field) if plan.writer is None else ""  # for errors of arrays alone
        self._submit(call, plan, id_field, contents, identifier, said)

    def _infer_by_parsing(self, call: Call, key: bytes) -> None:
        """Parse and validate a request, and remember its plan under ``key``, if that is not empty.

        A request with more raw contents than inputs leaves no plan: the key says nothing of raw contents, so that its
        plan would take the place of the plan for requests without the additional ones.
        """
        self.counters.parsed += 1
        version: ServedVersion | None = None
        try:
            read = read_request(call.buffer, call.start, call.end)
            request = read.message
            version = self._find(request.model_name, request.model_version)
            self._admit(call, version)
            raw_sizes = [len(raw) for raw in read.raws]
            validated = validate(request, raw_sizes, version.signature, version.model, self._check_place)
            asked = self._table.spelling(request.model_name), request.model_version
            self._note_parameters(version, request, asked)
            # Before the plan, which makes a lane for its shapes: typed contents are not counted by ``validate``.
            contents = contents_of(read, validated, version)
            shared = self._shared(version, validated)
            plan = Plan(version, validated, self._port(version, shared), shared)
            if self._table.traffic:

                def make(other: ServedVersion) -> Plan:
                    fitting = validate(request, raw_sizes, other.signature, other.model, self._check_place)
                    others_shared = self._shared(other, fitting)
                    return Plan(other, fitting, self._port(other, others_shared), others_shared)

                id_field = ModelInferRequest(id=request.id).SerializeToString()
                wanted = AskedFor(*asked, request.parameters, id_field)
                plan, lasts = self._traffic.plan_for(wanted, self._table.traffic, plan, make)
                key = key if lasts else b""
        except RequestError as error:
            self._count_refusal(error, version)
            raise
        raws = [source for source in validated.sources if isinstance(source, int)]
        if key and None not in validated.sources and len(read.raws) == len(raws):
            self._cache.remember(key, plan)
        id_field = ModelInferRequest(id=request.id).SerializeToString()
        self._submit(call, plan, id_field, contents, request.id, said_in(request.parameters))

    def _find(self, model: str, version: str) -> ServedVersion:
        """The version that a request names; "" for the newest.

        Raises:
            NotLoaded: it has to be loaded, or requests that have waited for that come first.
            RequestError: there is none, or it cannot answer now.
        """
        return find_version(self._table, self._waiting, model, version)

    def _find_target(self, name: str, target: Target) -> ServedVersion:
        """The version that a name stands for; errors as of ``_find``."""
        return find_target(self._table, self._waiting, name, target)

    def _identity(self, id_field: bytes) -> bytes:
        """The bytes of a request's id, from its field: a tag of one byte, the length in one or two, and the id."""
        return id_field[2:] if id_field[1:2] < b"\x80" else id_field[3:]

    def _note_parameters(self, version: ServedVersion, request: ModelInferRequest, asked: tuple[str, str]) -> None:
        """Have parameters logged that have no effect."""
        if not request.parameters or version.reads_parameters:
            return
        effective = acts_on(version.config, has_target=version.has_target)
        route = None if asked[1] else self._table.traffic.routes.get(asked[0])
        if route is not None and route.parameter:
            effective |= {route.parameter}
        self._notices.note(version.model, request.parameters, effective)

    def _admit(self, call: Call, version: ServedVersion) -> None:
        """Look at the version that a request is for, before the request is checked.

        Raises:
            Unsupported: it may answer any number of times.
        """
        if version.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")

    def _submit(
        self,
        call: Call,
        plan: Plan,
        id_field: bytes,
        contents: Sequence[Buffer],
        identifier: str,
        said: Said | None = None,
    ) -> None:
        """Put rows into a batch, given as the bytes of each input by its position in the lane.

        Those of inputs in shared memory are left out.
        """
        if plan.shared is not None:
            self._shared_path.submit(call, plan, plan.shared, id_field, contents, identifier, said)
            return
        if plan.writer is not None:
            self._pack_said(call, plan, plan.writer, id_field, *in_one_buffer(contents), said)
            return
        if plan.packed is not None and said is None and (place := place_of(contents[0])) is not None:
            self._pack(call, plan, plan.packed, id_field, *place)  # BYTES that it takes long to copy
            return
        self._add_arrays(call, plan, id_field, contents, identifier, said)

    def _add_arrays(
        self,
        call: Call,
        plan: Plan,
        id_field: bytes,
        contents: Sequence[Buffer],
        identifier: str,
        said: Said | None,
    ) -> None:
        """The same for all inputs of a plan that takes arrays."""
        if said is not None:
            self._keep_in_order(call, said)
        if call.context is not None:
            call.context.found(plan, id_field)
        try:
            arrays = arrays_of(plan, contents, identifier)
        except RequestError as error:
            self._count_refusal(error, plan.version)
            raise
        context = call, plan, id_field, self.worker.now_ns
        if said is not None:
            context = SequenceContext.of(context, said)
        try:
            plan.port.add_gathered(plan.way, plan.rows, context, arrays, sum(map(len, contents)))
        except RequestError as error:
            raise self._refused_by_port(error, plan.version, id_field, None if said else call) from None

    def _keep_in_order(self, call: Call, said: Said) -> None:
        """See that a request of a sequence does not overtake another one whose inputs are being read.

        Raises:
            OwnRequestsFirst: it would.
        """
        path = self._shared_path
        if said[0] in path.sequences and not path.goes_on and self._has_its_share(call, 1):
            raise OwnRequestsFirst("the sequence's requests before this one are being read")

    # --- shared memory -----------------------------------------------------------------------------------------------

    def _check_place(self, place: Place) -> None:
        """See ``Regions.check``."""
        self._regions.check(place)

    def _shared(self, version: ServedVersion, validated: ValidatedRequest) -> SharedTensors | None:
        """The tensors of a kind of requests that are in shared memory; None for none."""
        if not validated.places and not any(isinstance(source, Place) for source in validated.sources):
            return None
        return SharedTensors(self._regions, version, validated, self._shared_outputs.room)

    def _add_shared(
        self, call: Call, plan: Plan, id_field: bytes, inputs: SharedInputs, identifier: str, said: Said | None
    ) -> None:
        """Put rows into a batch whose inputs were read from shared memory."""
        if plan.writer is None:
            self._add_arrays(call, plan, id_field, inputs.contents(), identifier, said)
        elif said is None:
            self._pack(call, plan, plan.writer, id_field, inputs.buffer, inputs.spans)
        else:
            self._pack_said(call, plan, plan.writer, id_field, inputs.buffer, inputs.spans, said)

    def _add_on_device(self, call: Call, plan: Plan, id_field: bytes, way: DeviceLane, rows: DeviceRows) -> None:
        """Have rows run where a GPU has them."""
        if call.context is not None:
            call.context.found(plan, id_field)
        port = plan.port
        assert isinstance(port, DevicePort)
        try:
            port.add_on_device(way, (call, plan, id_field, self.worker.now_ns), rows)
        except RequestError as error:
            raise self._refused_by_port(error, plan.version, id_field, call) from None

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refused_by_port(
        self, error: RequestError, version: ServedVersion, id_field: bytes, call: Any = None
    ) -> RequestError:
        """The error of a port, which knows no ids, with the request's id where Triton's text has one.

        Args:
            error: the port's.
            version: which the request is for.
            id_field: the request's.
            call: the request, if it may wait for others of its connection. One of a sequence may not: the end of its
                sequence may be behind it, and what it waits for behind that.
        """
        late = self._waiting is not None and self._waiting.goes_on
        share = error.share if type(error) is Overloaded and call is not None and not late else 0
        if share and self._has_its_share(call, share):
            return OwnRequestsFirst(str(error))
        self._count_refusal(error, version)
        if isinstance(error, WouldBeLate) or type(error) in (Overloaded, InvalidSequence):
            return error
        named = type(error)(request_prefix(self._transport.request_id(id_field)) + str(error))
        named.retry_after_s = error.retry_after_s
        return named

    def _has_its_share(self, call: Any, share: int) -> bool:
        """Whether a request can wait, and others of its connection are under way, ``share`` of them at least."""
        return False

    def _refuse_above_limit(self, call: Call, refusal: RequestError, chosen: Sampling | None) -> NoReturn:
        """Refuse a request that nobody has looked at."""
        self.counters.overloaded += 1
        observer = self.observer
        if observer.due or chosen is not None:
            observer.begin(call, self.worker.now_ns, chosen)
            observer.refused(call, refusal)
        observer.count(1)
        raise anew(refusal)

    def _count_refusal(self, error: RequestError, version: ServedVersion | None) -> None:
        """Count a request that was refused.

        Args:
            error: why.
            version: which it was for; None where that is not known.
        """
        if isinstance(error, NotLoaded) and self._waiting is not None:
            return  # it goes on later
        self.observer.count(1)
        if version is None:
            if isinstance(error, UnknownModel):
                self.counters.unknown += 1
            else:
                self.counters.invalid += 1
        elif isinstance(error, Overloaded):
            self._port(version).counters.overloaded += 1
        elif isinstance(error, WouldBeLate):
            self._port(version).counters.late += 1
        else:
            self._port(version).counters.refused += 1

    # --- ports -------------------------------------------------------------------------------------------------------

    def _port(self, version: ServedVersion, shared: SharedTensors | None = None) -> Port:
        """This worker's port to a version of the table; the one for requests with ``shared`` tensors, or for others."""
        return self._ports.ordinary(version) if shared is None else self._ports.shared(version, shared)

    def _may_have_left(self, context: RequestContext) -> bool:
        """See ``Consumer``."""
        return False

    def _unread_bytes(self, context: RequestContext) -> int:
        """See ``Consumer``."""
        return 0

    def _whose(self, context: RequestContext) -> str:
        """See ``Consumer.caller``: the connection that it came by."""
        return self._transport.peer(context[0])

    def _make_answers(self, counters: WorkerCounters, version: ServedVersion) -> Answers:
        """What answers the requests of one port, which is to ``version``."""
        return Answers(counters, self.observer, self._transport)

    def let_go(self) -> None:
        """Look at the model table now, rather than with the next request.

        After that, only batches under way hold versions that are not in the table any more, and none of these batches
        waits for a commit of this worker.
        """
        if self._get_table() is not self._table:
            self._forget_plans()

    def _forget_plans(self) -> None:
        """Forget plans, and the ports to versions that are no longer in the model table, which was replaced.

        Where models come and go all the time, those that stay keep their plans.
        """
        before, table = self._table, self._get_table()
        self._table = table
        if table.changes is before.changes:
            return
        changed = table.changes.since(before.changes)
        if changed is None:
            self._cache.clear()
        else:
            self._cache.forget(changed)
        self._ports.forget(changed, table)


def _fit(spans: list[int], sizes: tuple[int | None, ...]) -> bool:
    """Whether each span has its size; BYTES have any."""
    at = 0
    for size in sizes:
        if size is not None and spans[at + 1] - spans[at] != size:
            return False
        at += 2
    return True
