"""The table of all RPCs: what each path does, and which are still missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from toutates.api.dataplane.log_settings import log_settings
from toutates.api.dataplane.readiness import Readiness
from toutates.api.dataplane.repository_index import repository_index
from toutates.api.dataplane.statistics import model_statistics
from toutates.api.dataplane.trace_setting import trace_setting
from toutates.api.grpc.guards import restricted
from toutates.api.grpc.health import health_methods
from toutates.api.grpc.shared_answers import shared_answers
from toutates.api.repository_control import ControlDesk, control_handlers
from toutates.api.restrictions import RestrictedProtocol
from toutates.h2grpc import Call, GrpcError, Method, Status, UnaryHandler, method_table
from toutates.infer.service import InferService
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.infer.unary import unary
from toutates.models.config.describe import model_metadata
from toutates.models.table import ModelTable
from toutates.net import ServerStream, Worker
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import ModelNotReady, UnknownModel
from toutates.system.logs.control import LogControl

__all__ = ["EXTENSIONS", "NOT_OFFERED", "NOT_OFFERED_STREAMS", "ServerIdentity", "build_methods"]

SERVICE = "/inference.GRPCInferenceService/"

#: What ServerMetadata lists: Triton's names, and only what is true. Without ``statistics`` perf_analyzer reads none.
EXTENSIONS = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "trace",
)

#: RPCs of the protocol that are not offered, and what their callers are told.
NOT_OFFERED_STREAMS = {"ModelStreamInfer": "streaming inference is not offered yet; use ModelInfer"}
NOT_OFFERED = {
    "SystemSharedMemoryStatus": "shared memory is not offered yet; send tensors in the request",
    "SystemSharedMemoryRegister": "shared memory is not offered yet; send tensors in the request",
    "SystemSharedMemoryUnregister": "shared memory is not offered yet; send tensors in the request",
    "CudaSharedMemoryStatus": "CUDA shared memory is not offered yet; send tensors in the request",
    "CudaSharedMemoryRegister": "CUDA shared memory is not offered yet; send tensors in the request",
    "CudaSharedMemoryUnregister": "CUDA shared memory is not offered yet; send tensors in the request",
}


_OfVersion = pb.ModelMetadataRequest | pb.ModelConfigRequest | pb.ModelStatisticsRequest


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What ServerMetadata answers."""

    name: str
    version: str


def build_methods(
    worker: Worker,
    infer: InferService,
    get_table: Callable[[], ModelTable],
    readiness: Readiness,
    identity: ServerIdentity,
    *,
    desk: ControlDesk,
    log_control: LogControl,
    traces: WorkerTraces,
    restrictions: Sequence[RestrictedProtocol] = (),
) -> Mapping[bytes, Method]:
    """All RPCs as one worker serves them.

    Args:
        worker: whose handlers these are.
        infer: answers ModelInfer.
        get_table: the model table as it is now.
        readiness: the worker's view of the server's readiness.
        identity: for ServerMetadata.
        desk: where changes of models are asked for.
        log_control: what the log shows.
        traces: the worker's part in them.
        restrictions: what only callers with a secret may use.
    """

    def server_live(request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        _refuse_when_exiting(readiness)
        return pb.ServerLiveResponse(live=True)

    def server_ready(request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        _refuse_when_exiting(readiness)
        return pb.ServerReadyResponse(ready=readiness.serving)

    def server_metadata(request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=identity.name, version=identity.version, extensions=EXTENSIONS)

    def model_ready(request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=_is_ready(get_table(), request))

    def metadata(request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        version = get_table().find(request.name, request.version)
        ready = [served.number for served in get_table().models[request.name].served()]
        return model_metadata(request.name, [version.number] if request.version else ready, version.signature)

    def config(request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=get_table().find(request.name, request.version).config)

    def statistics(request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return model_statistics(get_table(), request)

    def index(request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        return repository_index(get_table(), request)

    def tracing(request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        return trace_setting(get_table(), traces.settings, request)

    def name_and_version(request: _OfVersion) -> Hashable:
        return request.name, request.version

    def index_of(request: pb.RepositoryIndexRequest) -> Hashable:
        return request.repository_name, request.ready

    def nothing(request: pb.ServerMetadataRequest) -> Hashable:
        return None

    kept = partial(shared_answers, worker=worker, get_table=get_table)
    offered: dict[str, UnaryHandler] = {
        "ServerLive": unary(pb.ServerLiveRequest, server_live),
        "ServerReady": unary(pb.ServerReadyRequest, server_ready),
        "ServerMetadata": kept(pb.ServerMetadataRequest, server_metadata, nothing),
        "ModelReady": unary(pb.ModelReadyRequest, model_ready),
        "ModelMetadata": kept(pb.ModelMetadataRequest, metadata, name_and_version),
        "ModelConfig": kept(pb.ModelConfigRequest, config, name_and_version),
        "ModelStatistics": kept(pb.ModelStatisticsRequest, statistics, name_and_version, changes=True),
        "RepositoryIndex": kept(pb.RepositoryIndexRequest, index, index_of),
        "LogSettings": unary(pb.LogSettingsRequest, partial(log_settings, log_control)),
        "TraceSetting": unary(pb.TraceSettingRequest, tracing),
    }
    offered |= control_handlers(worker, desk, get_table)
    methods = [
        traces.method(infer),
        *(Method(SERVICE + name, unary=handler) for name, handler in offered.items()),
        *(Method(SERVICE + name, unary=_not_offered(text)) for name, text in NOT_OFFERED.items()),
        *(_not_offered_stream(name, text) for name, text in NOT_OFFERED_STREAMS.items()),
        *health_methods(readiness, worker.call_soon),
    ]
    return method_table(restricted(methods, restrictions))


def _refuse_when_exiting(readiness: Readiness) -> None:
    if readiness.exiting:
        raise GrpcError(Status.UNAVAILABLE, "Server exiting")


def _is_ready(table: ModelTable, request: pb.ModelReadyRequest) -> bool:
    """Unknown models are not ready, for years an answer and not an error in Triton, which clients rely on."""
    try:
        table.find(request.name, request.version)
    except (UnknownModel, ModelNotReady):
        return False
    return True


def _not_offered(text: str) -> UnaryHandler:
    def handle(call: Call) -> None:
        raise GrpcError(Status.UNIMPLEMENTED, text)

    return handle


def _not_offered_stream(name: str, text: str) -> Method:
    """Refused by a guard, without a task: its caller may wait for an answer before it sends more, or ends its side."""
    error = GrpcError(Status.UNIMPLEMENTED, text)

    async def handle(stream: ServerStream) -> None:  # for callers who pass the guard of a restricted protocol
        raise error

    return Method(SERVICE + name, stream=handle, guard=lambda fields: error)
