"""The table of all RPCs, from path to handler. A handler is a thin adapter around a function of the data plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from toutates.access.pages import WebPages
from toutates.access.worker_gate import WorkerGate
from toutates.api.audit import audited, audited_later, author_of
from toutates.api.control_queue import ControlQueue
from toutates.api.dataplane import shared_memory
from toutates.api.dataplane.plane import DataPlane
from toutates.api.grpc.access import Limited, awaiting, guarded, limited
from toutates.api.grpc.guards import closed_to_pages, restricted
from toutates.api.grpc.health import CHECK, WATCH, Health
from toutates.api.grpc.main_thread import on_main_thread
from toutates.api.grpc.on_demand import waiting_for_model
from toutates.api.grpc.reflection import reflection_methods
from toutates.api.grpc.shared_answers import shared_answers
from toutates.api.grpc.unary import beside, unary
from toutates.api.restrictions import RestrictedProtocol
from toutates.h2grpc import Call, Method, UnaryHandler, method_table
from toutates.infer.parking import Parking
from toutates.infer.regions import Regions
from toutates.net import Worker
from toutates.protocol import grpc_service_pb2 as pb

__all__ = ["build_methods"]

Request = TypeVar("Request", bound=Message)

#: Makes a handler of a request's message class and an async function of the data plane.
Adapter = Callable[..., UnaryHandler]

SERVICE: Final = "/inference.GRPCInferenceService/"
#: RPCs that may need a model that is not loaded yet.
_OF_ONE_MODEL: Final = ("ModelReady", "ModelMetadata", "ModelConfig")


def build_methods(
    worker: Worker,
    plane: DataPlane,
    queue: ControlQueue,
    inference: Sequence[Method],
    restrictions: Sequence[RestrictedProtocol] = (),
    *,
    reflection: bool = True,
    gate: WorkerGate | None = None,
    parking: Parking | None = None,
    web: WebPages | None = None,
) -> Mapping[bytes, Method]:
    """All methods as one worker serves them, by path.

    Args:
        worker: the worker.
        plane: the worker's data plane; it answers every RPC but inference.
        queue: brings calls to the main thread.
        inference: the methods of ModelInfer and ModelStreamInfer.
        restrictions: RPCs that only callers with a secret may use.
        reflection: whether server reflection is offered.
        gate: knows callers; None where everybody is let in.
        parking: where calls wait for models that are loaded on demand; None where none are.
        web: which pages of browsers may change the server; None for those of its own machine alone.
    """
    kept = partial(shared_answers, worker=worker, get_table=plane.get_table)
    awaited = partial(on_main_thread, queue, worker)
    loads = partial(awaited, refuse=plane.refuse_unless_loads_on_request)

    changes = partial(_changes, plane, worker, gate)
    handlers: dict[str, UnaryHandler] = {
        "ServerLive": unary(pb.ServerLiveRequest, plane.server_live),
        "ServerReady": unary(pb.ServerReadyRequest, plane.server_ready),
        "ServerMetadata": kept(pb.ServerMetadataRequest, plane.server_metadata, _nothing),
        "ModelReady": unary(pb.ModelReadyRequest, plane.model_ready),
        "ModelMetadata": kept(pb.ModelMetadataRequest, plane.model_metadata, _name_and_version),
        "ModelConfig": kept(pb.ModelConfigRequest, plane.model_config, _name_and_version),
        "ModelStatistics": (
            awaited(pb.ModelStatisticsRequest, plane.statistics_of_all)
            if plane.asks_others
            else _unless_many(
                plane,
                kept(pb.ModelStatisticsRequest, plane.model_statistics, _name_and_version, versions_of=_versions_of),
                awaited(pb.ModelStatisticsRequest, plane.statistics_beside),
                _names_a_model,
            )
        ),
        "RepositoryIndex": (
            awaited(pb.RepositoryIndexRequest, plane.repository_index_on_request)
            if plane.loads_on_request or plane.asks_others
            else _unless_many(
                plane,
                kept(pb.RepositoryIndexRequest, plane.repository_index, _repository_and_ready),
                awaited(pb.RepositoryIndexRequest, plane.index_beside),
            )
        ),
        "RepositoryModelLoad": changes(loads, pb.RepositoryModelLoadRequest, later=plane.load, large=True),
        "RepositoryModelUnload": changes(loads, pb.RepositoryModelUnloadRequest, later=plane.unload),
        "LogSettings": (
            changes(awaited, pb.LogSettingsRequest, later=plane.log_settings_of_all)
            if plane.asks_others
            else changes(unary, pb.LogSettingsRequest, now=plane.log_settings)
        ),
        "TraceSetting": (
            changes(awaited, pb.TraceSettingRequest, later=plane.trace_setting_of_all)
            if plane.asks_others
            else changes(unary, pb.TraceSettingRequest, now=plane.trace_setting)
        ),
        **_of_shared_memory(plane.regions, worker, gate),
    }
    for name in _OF_ONE_MODEL:
        handlers[name] = waiting_for_model(handlers[name], parking, worker)
    methods = [
        *inference,
        *(Method(SERVICE + name, unary=handler) for name, handler in handlers.items()),
        *(reflection_methods(plane.readiness, worker.call_soon) if reflection else ()),
    ]
    services = {path.split("/")[1] for path in (CHECK, *(method.path for method in methods))}
    health = Health(plane, worker.call_soon, services)
    methods += health.methods
    with_secrets = closed_to_pages(restricted(methods, restrictions), web or WebPages())
    if gate is None:
        return method_table(with_secrets)
    for_limited = {**_for_limited(plane, awaited, parking, worker), CHECK: health.check, WATCH: health.watch}
    return method_table(guarded(method, gate, for_limited) for method in with_secrets)


def _of_shared_memory(regions: Regions, worker: Worker, gate: WorkerGate | None) -> dict[str, UnaryHandler]:
    """The handlers of the RPCs for shared memory, by the RPC's name.

    Args:
        regions: of the process.
        worker: has the thread beside it that opens and closes what belongs to clients.
        gate: of the worker. Where callers are known, each has regions of its own.
    """

    def made(adapter: Adapter, request_type: type[Request], answer: Callable[[Regions, Request], Any]) -> UnaryHandler:
        if gate is None:
            return adapter(request_type, partial(answer, regions))

        def handle(call: Call) -> None:
            caller = gate.caller
            adapter(request_type, lambda request: answer(regions, shared_memory.of_caller(caller, request)))(call)

        return handle

    tells = partial(made, unary)
    changes = partial(made, partial(beside, worker.objects) if regions.extensions else unary)
    return {
        "SystemSharedMemoryStatus": tells(pb.SystemSharedMemoryStatusRequest, shared_memory.system_status),
        "SystemSharedMemoryRegister": changes(pb.SystemSharedMemoryRegisterRequest, shared_memory.register_system),
        "SystemSharedMemoryUnregister": changes(
            pb.SystemSharedMemoryUnregisterRequest, shared_memory.unregister_system
        ),
        "CudaSharedMemoryStatus": tells(pb.CudaSharedMemoryStatusRequest, shared_memory.cuda_status),
        "CudaSharedMemoryRegister": changes(pb.CudaSharedMemoryRegisterRequest, shared_memory.register_cuda),
        "CudaSharedMemoryUnregister": changes(pb.CudaSharedMemoryUnregisterRequest, shared_memory.unregister_cuda),
    }


def _names_a_model(message: bytes) -> bool:
    """Whether a ModelStatisticsRequest begins with a name: its first field, which messages have first."""
    return message[:1] == b"\n" and message[1:2] != b"\0"


def _unless_many(
    plane: DataPlane,
    at_once: UnaryHandler,
    later: UnaryHandler,
    about_one: Callable[[bytes], bool] = lambda message: False,
) -> UnaryHandler:
    """``at_once``, but where there are very many models ``later``, for requests that are not about one of them."""

    def handle(call: Call) -> None:
        (later if plane.has_many and not about_one(call.message) else at_once)(call)

    return handle


def _changes(
    plane: DataPlane,
    worker: Worker,
    gate: WorkerGate | None,
    adapter: Adapter,
    request_type: type[Message],
    *,
    now: Callable[[Any], Message] | None = None,
    later: Callable[[Any], Awaitable[Message]] | None = None,
    **options: bool,
) -> UnaryHandler:
    """A handler of requests that change the server, each of which leaves a line in the log.

    Args:
        plane: has the table of models.
        worker: whose handler it is.
        gate: of the worker.
        adapter: makes handlers.
        request_type: the request's message class.
        now: of the data plane, or
        later: an async one.
        options: for the adapter.
    """

    def handle(call: Call) -> None:
        author = author_of(gate, worker.peer(call), "gRPC")
        caller = None if gate is None or gate.caller is None or not gate.caller.models else gate.caller
        answer: Any
        if later is not None:
            answer = audited_later(author, later if caller is None else awaiting(plane, caller, later))
        else:
            assert now is not None
            answer = audited(author, now if caller is None else limited(plane, caller, now))
        adapter(request_type, answer, **options)(call)

    return handle


def _for_limited(plane: DataPlane, awaited: Adapter, parking: Parking | None, worker: Worker) -> Mapping[str, Limited]:
    """By path, what answers callers who may use some models only: their answers are shared with nobody."""

    def at_once(request_type: type[Message], answer: Callable[[Any], Message]) -> Limited:
        return lambda caller: waiting_for_model(unary(request_type, limited(plane, caller, answer)), parking, worker)

    def later(request_type: type[Message], answer: Callable[[Any], Awaitable[Message]]) -> Limited:
        return lambda caller: awaited(request_type, awaiting(plane, caller, answer))

    def unless_many(
        one: Limited, other: Limited, about_one: Callable[[bytes], bool] = lambda message: False
    ) -> Limited:
        return lambda caller: _unless_many(plane, one(caller), other(caller), about_one)

    asks_others = plane.asks_others
    by_name: dict[str, Limited] = {
        "ModelReady": at_once(pb.ModelReadyRequest, plane.model_ready),
        "ModelMetadata": at_once(pb.ModelMetadataRequest, plane.model_metadata),
        "ModelConfig": at_once(pb.ModelConfigRequest, plane.model_config),
        "ModelStatistics": (
            later(pb.ModelStatisticsRequest, plane.statistics_of_all)
            if asks_others
            else unless_many(
                at_once(pb.ModelStatisticsRequest, plane.model_statistics),
                later(pb.ModelStatisticsRequest, plane.statistics_beside),
                _names_a_model,
            )
        ),
        "RepositoryIndex": (
            later(pb.RepositoryIndexRequest, plane.repository_index_on_request)
            if plane.loads_on_request or asks_others
            else unless_many(
                at_once(pb.RepositoryIndexRequest, plane.repository_index),
                later(pb.RepositoryIndexRequest, plane.index_beside),
            )
        ),
    }
    return {SERVICE + name: one for name, one in by_name.items()}


# What a shared answer depends on, beside the model table.


def _nothing(request: pb.ServerMetadataRequest) -> Hashable:
    return None


def _name_and_version(
    request: pb.ModelMetadataRequest | pb.ModelConfigRequest | pb.ModelStatisticsRequest,
) -> Hashable:
    return request.name, request.version


def _versions_of(response: pb.ModelStatisticsResponse) -> int:
    return len(response.model_stats)


def _repository_and_ready(request: pb.RepositoryIndexRequest) -> Hashable:
    return request.repository_name, request.ready
