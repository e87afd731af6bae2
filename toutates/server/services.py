"""What a worker serves. The service of a further protocol is made here of the same data plane and inference."""

from __future__ import annotations

from dataclasses import dataclass, field

from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc.control_queue import ControlQueue
from toutates.api.grpc.inference import GrpcTransport, model_infer
from toutates.api.grpc.methods import build_methods
from toutates.api.grpc.statuses import STATUSES
from toutates.infer.inflight import Inflight, share
from toutates.infer.observing import Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.service import InferService
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.manager import ModelManager
from toutates.models.table import ModelTable
from toutates.net import GrpcService, Worker
from toutates.observe.access_log import AccessLog
from toutates.repositories.control.model_control import ModelControl
from toutates.server.options import Options
from toutates.server.tracing import Tracing
from toutates.system.logs.control import LogControl

__all__ = ["Services", "WorkerServices"]


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """What belongs to one worker beside its connections.

    Attributes:
        infer: inference.
        readiness: the worker's view of the server's readiness.
    """

    infer: InferService
    readiness: Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all workers serve.

    Attributes:
        options: of the server.
        identity: for ServerMetadata.
        workers: how many workers there will be.
        manager: has the table of models.
        control: loads and unloads models.
        queue: brings calls of workers to the main thread.
        log_control: what the log shows.
        tracing: of the server.
        access_log: takes a share of the requests; None for none.
        parameter_notices: says which parameters of requests have no effect.
    """

    options: Options
    identity: ServerIdentity
    workers: int
    manager: ModelManager
    control: ModelControl
    queue: ControlQueue
    log_control: LogControl
    tracing: Tracing
    access_log: AccessLog | None
    parameter_notices: ParameterNotices = field(default_factory=ParameterNotices)

    def attach(self, worker: Worker, number: int, *, ready: bool) -> WorkerServices:
        """Have a worker, which does not run yet, serve everything.

        Args:
            worker: it.
            number: which of the workers it is.
            ready: whether the server is ready now.
        """
        options, tracing = self.options, self.tracing

        def get_table() -> ModelTable:
            return self.manager.table

        readiness = Readiness(serving=ready)
        inflight = self._inflight(number)
        infer = InferService(worker, GrpcTransport(worker), get_table, inflight, self.parameter_notices)
        if self.access_log is not None:
            infer.observer.sample(Sampling(self.access_log.sink()), round(1 / options.access_log_rate))
        plane = DataPlane(self.identity, get_table, readiness, self.control, self.log_control, tracing.settings)
        infer_method = model_infer(infer, WorkerTraces(worker, infer.observer, tracing.settings, tracing.put))
        methods = build_methods(
            worker,
            plane,
            self.queue,
            infer_method,
            options.restricted_protocols,
            reflection=options.grpc_reflection,
        )
        worker.service = GrpcService(worker, methods, options.grpc_compression, STATUSES)
        return WorkerServices(infer, readiness)

    def _inflight(self, number: int) -> Inflight | None:
        total = self.options.max_inflight_requests
        return None if total is None else Inflight(share(total, self.workers, number), total)
