"""What a worker serves. A further protocol is served by handlers of the same data plane and the same inference."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc.control_queue import ControlQueue
from toutates.api.grpc.methods import build_methods
from toutates.api.grpc.statuses import STATUSES
from toutates.infer.inflight import Inflight, share
from toutates.infer.observing import Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.service import InferService
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.manager import ModelManager
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.repositories.control.model_control import ModelControl
from toutates.server.options import Options
from toutates.server.tracing import Tracing
from toutates.system.logs.setup import Logs

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


class Services:
    """Gives workers what they serve.

    Args:
        options: of the server.
        identity: for ServerMetadata.
        workers: how many there will be.
        manager: has the table of models.
        control: loads and unloads models.
        queue: brings calls of workers to the main thread.
        logs: of the process.
        tracing: of the server.
    """

    def __init__(
        self,
        options: Options,
        identity: ServerIdentity,
        workers: int,
        manager: ModelManager,
        control: ModelControl,
        queue: ControlQueue,
        logs: Logs,
        tracing: Tracing,
    ) -> None:
        self._options = options
        self._identity = identity
        self._workers = workers
        self._manager = manager
        self._control = control
        self._queue = queue
        self._logs = logs
        self._tracing = tracing
        self._parameter_notices = ParameterNotices()

    def attach(self, worker: Worker, number: int, *, ready: bool) -> WorkerServices:
        """Have a worker, which does not run yet, serve everything.

        Args:
            worker: it.
            number: which of the workers it is.
            ready: whether the server is ready now.
        """
        options, tracing = self._options, self._tracing

        def get_table() -> ModelTable:
            return self._manager.table

        readiness = Readiness(serving=ready)
        infer = InferService(worker, get_table, STATUSES, self._inflight(number), self._parameter_notices)
        if self._logs.access is not None:
            infer.observer.sample(Sampling(self._logs.access.sink()), round(1 / options.access_log_rate))
        plane = DataPlane(self._identity, get_table, readiness, self._control, self._logs.control, tracing.settings)
        infer_method = WorkerTraces(worker, tracing.settings, tracing.put).method(infer)
        worker.methods = build_methods(worker, plane, self._queue, infer_method, options.restricted_protocols)
        return WorkerServices(infer, readiness)

    def _inflight(self, number: int) -> Inflight | None:
        total = self._options.max_inflight_requests
        return None if total is None else Inflight(share(total, self._workers, number), total)
