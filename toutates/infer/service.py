"""ModelInfer: from a request's bytes to rows in a batch. What happens once the batch has run is in ``answers``.

One ``InferService`` belongs to one worker; nothing in it is shared but the model table and what is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from toutates.engine.counters import WorkerCounters
from toutates.engine.lane import Piece
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer, Port, Way
from toutates.h2grpc import Buffer, Call, GrpcError, Status, UnaryHandler
from toutates.infer.answers import Answers, Ticket, is_wanted
from toutates.infer.counters import InferCounters
from toutates.infer.inflight import Inflight
from toutates.infer.observing import Observer, Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.plan import Plan
from toutates.infer.plan_cache import PlanCache
from toutates.infer.scanning import scan
from toutates.infer.structure import check_structure
from toutates.infer.validation import ValidatedRequest, request_prefix, size_mismatch, validate
from toutates.models.table import ModelTable, ServedVersion
from toutates.net import Worker
from toutates.protocol.datatypes import typed_contents_to_raw
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.parsing import parse
from toutates.protocol.signature import TensorSpec
from toutates.protocol.strings import StringRows
from toutates.protocol.typed_contents import LARGE_MESSAGE_BYTES, CutRequest, TypedReader, cut_contents
from toutates.system.errors import InvalidRequest, MalformedMessage, Overloaded, RequestError, UnknownModel

__all__ = ["InferService"]

#: Longest ``id`` of a request, bytes: it is kept while the request waits, in memory that no limit counts.
MAX_ID_BYTES: Final = 65_536
#: The same with its tag and length.
MAX_ID_FIELD_BYTES: Final = MAX_ID_BYTES + 4
#: No round's time.
_NEVER_LOOKED: Final = -1


class InferService:
    """See the module.

    Args:
        worker: whose calls these are.
        get_table: the model table as it is now.
        statuses: what each kind of RequestError means to callers.
        inflight: counts the requests that wait; None where there is no limit.
        notices: says which parameters have no effect; None for one of this worker's own.

    Attributes:
        counters: see InferCounters.
        observer: of this worker's requests.
    """

    def __init__(
        self,
        worker: Worker,
        get_table: Callable[[], ModelTable],
        statuses: Mapping[type[RequestError], Status],
        inflight: Inflight | None = None,
        notices: ParameterNotices | None = None,
    ) -> None:
        self.counters = InferCounters()
        self.observer = Observer()
        self._worker = worker
        self._get_table = get_table
        self._statuses = statuses
        self._table = get_table()
        #: the round in which the table was last looked at; see ``toutates.h2grpc.wire`` for why not for every request
        self._looked_ns = worker.now_ns
        self._inflight = inflight
        self._notices = notices or ParameterNotices()
        self._cache = PlanCache()
        self._plans = self._cache.recent
        self._latest = self._cache.latest
        self._ports: dict[ServedVersion, Port] = {}

    @property
    def handler(self) -> UnaryHandler:
        """``infer``, within the limit where there is one."""
        return self._within_limit(self.infer)

    def observing_handler(self, chosen: Sampling) -> UnaryHandler:
        """The same for requests that ``chosen`` wants, all of them."""

        def infer_observed(call: Call) -> None:
            self.infer_observed(call, chosen)

        return self._within_limit(infer_observed, chosen)

    def infer(self, call: Call) -> None:
        """Handle a ModelInfer call: put its rows into a batch.

        The short way, for a request like the last one of its length, takes 0.9 us for one small input; the way by
        ``scan``, for any kind of request that has a plan, 1.5.

        Raises:
            GrpcError: the request cannot be served.
        """
        now_ns = self._worker.now_ns
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
                self._pack(call, plan, writer, read[0], buffer, read[1])
                return
        self._infer_by_scan(call, buffer, start, end)

    def _look_around(self, call: Call, now_ns: int) -> bool:
        """What is done once in a round, with the first of its requests: returns whether that was handled."""
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
        """``infer``, with a close look at the request.

        Args:
            call: the request's.
            chosen: a sampling that wants this very request; otherwise those for whom one is due get it.

        Raises:
            GrpcError: as ``infer``.
        """
        observation = self.observer.begin(call, self._worker.now_ns, self._worker.peer(call), chosen)
        try:
            self.infer(call)
        except GrpcError as error:
            self.observer.refused(call, error.status, error.text)
            raise
        except BaseException:
            self.observer.refused(call, Status.INTERNAL, "internal error")
            raise
        if call.context is observation:  # else its batch was full, and this worker has run it already
            observation.copied_ns = time.monotonic_ns()

    def _within_limit(self, infer: UnaryHandler, chosen: Sampling | None = None) -> UnaryHandler:
        """``infer``, unless so many requests wait already that ``inflight`` refuses one more; 0.06 us.

        Args:
            infer: handles a call.
            chosen: a sampling that wants those that are refused, too.
        """
        inflight = self._inflight
        if inflight is None:
            return infer

        def infer_within_limit(call: Call) -> None:
            if inflight.count >= inflight.most:
                raise self._refuse_above_limit(call, inflight.refusal, chosen)
            inflight.count += 1
            try:
                infer(call)
            except BaseException:
                inflight.count -= 1
                raise

        return infer_within_limit

    def _infer_by_scan(self, call: Call, buffer: bytes, start: int, end: int) -> None:
        """The way of a request that is unlike the last one of its length."""
        if end - start > LARGE_MESSAGE_BYTES:
            with self._request_errors_as_statuses():
                check_structure(buffer, start, end)
        scanned = scan(buffer, start, end)
        if scanned is None:
            self._infer_the_long_way(call, b"")
            return
        key, id_field, spans = scanned
        if len(id_field) > MAX_ID_FIELD_BYTES:
            with self._request_errors_as_statuses():
                raise id_too_long(len(_identifier(id_field).encode()))
        plan = self._plans.get(key) or self._cache.recall(key)
        if plan is None or len(spans) != plan.span_count:
            self._infer_the_long_way(call, key)
            return
        if plan.packed is None:
            self._gather(call, plan, id_field, spans)
            return
        if not plan.in_order or not _fit(spans, plan.sizes):
            self._pack_in_order(call, plan, id_field, spans)
            return
        layout = plan.layout_of(key, buffer, start, end)
        if layout is not None:
            self._cache.remember_layout(end - start, layout, plan, plan.packed)
        self._pack(call, plan, plan.packed, id_field, buffer, spans)

    def _pack(self, call: Call, plan: Plan, writer: Way, id_field: bytes, buffer: bytes, spans: Sequence[int]) -> None:
        """Put rows that fit their plan into a batch."""
        if call.context is not None:
            call.context.found(plan, id_field)
        try:
            plan.port.add_packed(writer, plan.rows, (call, plan, id_field, self._worker.now_ns), buffer, spans)
        except RequestError as error:
            raise self._refusal(error, plan.version, id_field) from None

    # --- requests, the long way --------------------------------------------------------------------------------------

    def let_go(self, done: Callable[[], object]) -> None:
        """Look at the model table now, rather than with the next request, and call ``done``.

        Then nothing of this worker refers to versions that are not in the table, but batches under way; and none of
        these waits for this worker's commit.
        """
        if self._get_table() is not self._table:
            self._forget_plans()
        done()

    def _forget_plans(self) -> None:
        """The model table was replaced, and plans die with it."""
        self._table = self._get_table()
        self._cache.clear()
        served = set(self._table.served())
        ports, self._ports = self._ports, {}
        for version, port in ports.items():
            if version in served:
                self._ports[version] = port
            else:
                port.commit()  # what this round has brought so far

    def _pack_in_order(self, call: Call, plan: Plan, id_field: bytes, spans: list[int]) -> None:
        """Inputs sent in another order than the model's, or of the wrong size, which the long way finds words for."""
        sources = plan.request.sources
        ordered = [bound for source in sources if source is not None for bound in spans[2 * source : 2 * source + 2]]
        if not _fit(ordered, plan.sizes):
            self._infer_the_long_way(call, b"")
            return
        assert plan.packed is not None
        self._pack(call, plan, plan.packed, id_field, call.buffer, ordered)

    def _infer_the_long_way(self, call: Call, key: bytes) -> None:
        """Parse, validate, and remember the plan under ``key`` where there is one and the request fits it.

        One with more raw contents than inputs does not: the key says nothing of them, and whoever adds one would take
        the plan from all who send the same without.
        """
        self.counters.parsed += 1
        cut: CutRequest | None = None
        try:
            if call.end - call.start > LARGE_MESSAGE_BYTES:
                cut = cut_contents(memoryview(call.buffer)[call.start : call.end])
                if cut is None:
                    raise MalformedMessage("the message is not a ModelInferRequest: it is malformed")
            request = parse(ModelInferRequest, call.message if cut is None else cut.rest)
            if len(request.id) > MAX_ID_BYTES:
                raise id_too_long(len(request.id.encode()))
        except RequestError as error:
            self.counters.invalid += 1
            raise self._grpc_error(error) from None
        with self._request_errors_as_statuses():
            version = self._table.find(request.model_name, request.model_version)
        with self._request_errors_as_statuses(version):
            raws: Sequence[Buffer] = request.raw_input_contents if cut is None else cut.raws
            validated = validate(request, [len(raw) for raw in raws], version.signature, version.model)
            if request.parameters:
                self._notices.note(version.model, request.parameters)
            # Before the plan, which makes a lane for its shapes: typed contents are not counted by ``validate``.
            contents = self._contents(request, cut, validated, version)
            plan = Plan(version, validated, self._port(version))
            if key and None not in validated.sources and len(raws) == len(validated.sources):
                self._cache.remember(key, plan)
            id_field = ModelInferRequest(id=request.id).SerializeToString()
            self._submit(call, plan, id_field, contents, request.id)

    def _port(self, version: ServedVersion) -> Port:
        """This worker's way into a version of the table."""
        port = self._ports.get(version)
        if port is None:
            counters = WorkerCounters()
            finish: Callable[[BatchResult], None] = Answers(
                counters, self.observer, self._worker.connection_failed, self._statuses
            ).finish
            if self._inflight is not None:
                finish = self._inflight.leaving(finish)
            finish_soon = partial(self._finish_soon, finish)
            port = version.servable.port(Consumer(finish_soon, finish, self._worker.at_round_end, is_wanted, counters))
            self._ports[version] = port
        return port

    def _finish_soon(self, finish: Callable[[BatchResult], None], result: BatchResult) -> None:
        """A batch has run; called by its executor."""
        self._worker.call_soon(partial(finish, result))

    def _contents(
        self, request: ModelInferRequest, cut: CutRequest | None, validated: ValidatedRequest, version: ServedVersion
    ) -> list[Buffer]:
        """The bytes of each input, by position in the lane; typed contents as the raw ones they stand for."""
        positions = {tensor.name: at for at, tensor in enumerate(request.inputs)}
        reader = TypedReader(version.model)
        contents: list[Buffer] = []
        for index, source, size in zip(validated.inputs, validated.sources, validated.sizes, strict=True):
            spec = version.signature.inputs[index]
            if source is not None:
                contents.append(request.raw_input_contents[source] if cut is None else cut.raws[source])
                continue
            at = positions[spec.name]
            raw: Buffer
            if cut is not None:
                raw = reader.read(cut.typed[at], spec.datatype, spec.name)
            else:
                raw = typed_contents_to_raw(
                    request.inputs[at].contents, spec.datatype, tensor=spec.name, model=version.model
                )
            if size is not None and (len(raw) != size or (validated.rows == 0 and raw)):
                raise size_mismatch(request.id, spec.name, version.model, size, len(raw))
            contents.append(raw)
        return contents

    def _submit(self, call: Call, plan: Plan, id_field: bytes, contents: Sequence[Buffer], identifier: str) -> None:
        if call.context is not None:
            call.context.found(plan, id_field)
        ticket: Ticket = (call, plan, id_field, self._worker.now_ns)
        if plan.writer is not None and plan.rows:
            spans: list[int] = []
            at = 0
            for content in contents:
                spans += (at, at + len(content))
                at += len(content)
            buffer = contents[0] if len(contents) == 1 else b"".join(contents)
            with self._refusals_as_statuses(plan, id_field):
                plan.port.add_packed(plan.writer, plan.rows, ticket, buffer, spans)
        else:
            arrays = _arrays(plan, contents, identifier)
            with self._refusals_as_statuses(plan, id_field):
                plan.port.add_gathered(plan.way, plan.rows, ticket, arrays, sum(map(len, contents)))

    def _gather(self, call: Call, plan: Plan, id_field: bytes, spans: list[int]) -> None:
        """A kind of request that is known, and whose inputs are arrays."""
        buffer = call.buffer
        sources = plan.request.sources
        whole = memoryview(buffer)
        contents = [whole[spans[2 * at] : spans[2 * at + 1]] for at in sources if at is not None]
        for content, size in zip(contents, plan.sizes, strict=True):
            if size is not None and size != len(content):
                self._infer_the_long_way(call, b"")
                return
        with self._request_errors_as_statuses(plan.version):
            self._submit(call, plan, id_field, contents, _identifier(id_field))

    # --- refusals ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _request_errors_as_statuses(self, version: ServedVersion | None = None) -> Iterator[None]:
        """Of a request to ``version``, once that is known."""
        try:
            yield
        except RequestError as error:
            self._count_refusal(error, version)
            raise self._grpc_error(error) from None

    @contextmanager
    def _refusals_as_statuses(self, plan: Plan, id_field: bytes) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            raise self._refusal(error, plan.version, id_field) from None

    def _refusal(self, error: RequestError, version: ServedVersion, id_field: bytes) -> GrpcError:
        """What a port, which knows no ids, refuses. Triton names the request but where its queue is full."""
        self._count_refusal(error, version)
        prefix = "" if type(error) is Overloaded else request_prefix(_identifier(id_field))
        return self._grpc_error(error, prefix)

    def _grpc_error(self, error: RequestError, prefix: str = "") -> GrpcError:
        return GrpcError(self._statuses[type(error)], prefix + str(error))

    def _refuse_above_limit(self, call: Call, refusal: RequestError, chosen: Sampling | None) -> GrpcError:
        """Of a request that nobody has looked at."""
        self.counters.overloaded += 1
        error = self._grpc_error(refusal)
        observer = self.observer
        if observer.due or chosen is not None:
            observer.begin(call, self._worker.now_ns, self._worker.peer(call), chosen)
            observer.refused(call, error.status, error.text)
        observer.count(1)
        return error

    def _count_refusal(self, error: RequestError, version: ServedVersion | None) -> None:
        self.observer.count(1)
        if version is None:
            if isinstance(error, UnknownModel):
                self.counters.unknown += 1
            else:
                self.counters.invalid += 1
        elif isinstance(error, Overloaded):
            self._port(version).counters.overloaded += 1
        else:
            self._port(version).counters.refused += 1


def id_too_long(size: int) -> InvalidRequest:
    """The refusal of a request by the length of its ``id``."""
    return InvalidRequest(f"the request's id has {size} bytes, at most {MAX_ID_BYTES} are taken")


def _fit(spans: list[int], sizes: tuple[int | None, ...]) -> bool:
    """Whether each span has its size."""
    at = 0
    for size in sizes:
        if spans[at + 1] - spans[at] != size:
            return False
        at += 2
    return True


def _identifier(id_field: bytes) -> str:
    return ModelInferRequest.FromString(id_field).id


def _arrays(plan: Plan, contents: Sequence[Buffer], identifier: str) -> list[Piece]:
    """Each input as rows for its lane, by position.

    Raises:
        InvalidRequest: BYTES that do not fit their shape, and are so few that this is known now.
    """
    signature = plan.version.signature
    arrays = []
    # Of several wrong inputs Triton names the last.
    for index, row_shape, content in reversed(
        list(zip(plan.request.inputs, plan.request.shapes, contents, strict=True))
    ):
        shape = (plan.rows, *row_shape) if signature.batched else row_shape
        arrays.append(_array(signature.inputs[index], shape, content, plan.version.model, identifier))
    return arrays[::-1]


def _array(spec: TensorSpec, shape: tuple[int, ...], content: Buffer, model: str, identifier: str) -> Piece:
    if spec.datatype.size:
        # Copied, because the received buffer is neither aligned nor ours to keep.
        return np.frombuffer(content, spec.datatype.numpy).reshape(shape).copy()
    return StringRows.received(content, shape, tensor=spec.name, model=model, prefix=request_prefix(identifier))
