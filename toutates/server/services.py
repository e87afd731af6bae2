"""What a worker serves. The service of a further protocol is made here of the same data plane and inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from toutates.access.gate import Gate
from toutates.access.pages import WebPages
from toutates.access.worker_gate import WorkerGate
from toutates.api.control_queue import ControlQueue
from toutates.api.dataplane.everywhere import Everywhere
from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.api.doors import Doors
from toutates.api.grpc.forwarding import forwarding
from toutates.api.grpc.inference import GrpcTransport, model_infer
from toutates.api.grpc.methods import build_methods
from toutates.api.grpc.stream_infer import model_stream_infer
from toutates.api.rest.handler import RestHandler
from toutates.api.rest.inference import RestTransport
from toutates.api.restrictions import RestrictedProtocol
from toutates.api.text.handler import TextApis
from toutates.api.text.observing import TextObserver
from toutates.api.text.work import TextWork
from toutates.api.torchserve.downloads import Downloads
from toutates.api.torchserve.management import ManagementHandler
from toutates.api.torchserve.models import Models
from toutates.api.torchserve.predictions import Defaults
from toutates.h2grpc import GrpcError, NoMethods, Status
from toutates.infer.charging import ChargingInferService, ChargingRestInferService, ChargingStreamInferService
from toutates.infer.inflight import Inflight, share
from toutates.infer.observing import Observer, Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.parking import Parking
from toutates.infer.regions import Regions
from toutates.infer.rest.service import RestInferService
from toutates.infer.service import InferService
from toutates.infer.streaming import StreamInferService
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.infer.traffic.copies import Copies
from toutates.models.demand import Loader
from toutates.models.manager import ModelManager
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.net.connection import Service
from toutates.net.first_bytes import ByFirstBytes
from toutates.net.http1.service import Handler
from toutates.net.http2.plain import PlainHttp
from toutates.observe.access_log import AccessLog
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.traffic import TrafficControl
from toutates.server.options import Options
from toutates.server.pages import Pages
from toutates.server.starting import StartServices
from toutates.server.tracing import Tracing
from toutates.system.logs.control import LogControl

__all__ = ["Services", "WorkerServices"]

#: What gRPC's clients are told on a port in clear, where gRPC is encrypted. No status that has them try again.
_WITH_TLS_ALONE: Final = GrpcError(
    Status.UNIMPLEMENTED, "gRPC is served with TLS alone, on the port of --grpc-addr; this port speaks REST in clear"
)


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """What belongs to one worker beside its connections.

    Attributes:
        infer: inference, by each transport.
        grpc: serves the connections of gRPC's listener.
        take_over: has requests on the other ports answered, from now on; for the worker's thread.
        readiness: the worker's view of the server's readiness.
        parking: where its requests wait for models; None where none are loaded on demand.
    """

    infer: tuple[InferService, ...]
    grpc: Service
    take_over: Callable[[], None]
    readiness: Readiness
    parking: Parking | None = None


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
        secrets: by group, what REST's endpoints want of a request.
        pages: what else than REST is served over HTTP/1.1.
        access_log: takes a share of the requests; None for none.
        gate: knows callers; None where everybody is let in.
        text_gate: that of the APIs for text.
        web: which pages of browsers may change the server.
        everywhere: has calls carried out in all processes of the server; None where there is but one.
        regions: of shared memory, which clients have registered.
        copies: takes copies of requests for versions in the shadow of others.
        traffic: has the rules of aliases and traffic.
        loader: loads models on demand; None where none are.
        parameter_notices: says which parameters of requests have no effect.
        torchserve_defaults: which versions TorchServe's clients mean by none.
    """

    options: Options
    identity: ServerIdentity
    workers: int
    manager: ModelManager
    control: ModelControl
    queue: ControlQueue
    log_control: LogControl
    tracing: Tracing
    secrets: Mapping[str, RestrictedProtocol]
    pages: Pages
    access_log: AccessLog | None
    gate: Gate | None
    text_gate: Gate | None
    web: WebPages
    torchserve_defaults: Defaults
    regions: Regions
    copies: Copies
    traffic: TrafficControl
    everywhere: Everywhere | None = None
    loader: Loader | None = None
    parameter_notices: ParameterNotices = field(default_factory=ParameterNotices)

    def attach(self, worker: Worker, number: int, start: StartServices, *, ready: bool) -> WorkerServices:
        """Make what a worker serves. Called on the main thread; the worker runs.

        Args:
            worker: it.
            number: which of the workers it is.
            start: what it serves until then.
            ready: whether the server is ready now.
        """
        options, tracing = self.options, self.tracing

        def get_table() -> ModelTable:
            return self.manager.table

        parking = None if self.loader is None else Parking(worker, self.loader)
        readiness = Readiness(serving=ready)
        inflight = self._inflight(number)
        side = worker.side
        gate = None if self.gate is None else WorkerGate(self.gate, worker)
        doors = Doors(self.secrets, gate, self.web)
        text_doors = doors
        if self.text_gate is not self.gate:
            text_doors = Doors(self.secrets, None if self.text_gate is None else WorkerGate(self.text_gate, worker))
        inferences = infer, stream_infer, rest_infer = self._inferences(worker, inflight, gate, parking)
        observed = Observer(RestTransport(worker))
        text_traces = WorkerTraces(worker, observed, tracing.settings, tracing.put)
        text_observer = TextObserver(worker, rest_infer.counters, observed, text_traces)
        if self.access_log is not None:
            sink = self.access_log.sink()
            for observer in (*(one.observer for one in inferences), observed):
                observer.sample(Sampling(sink), round(1 / options.access_log_rate))
        plane = DataPlane(
            self.identity,
            get_table,
            readiness,
            self.control,
            self.log_control,
            tracing.settings,
            self.everywhere,
            self.regions,
            self.traffic,
            self.loader,
        )
        traces = [WorkerTraces(worker, one.observer, tracing.settings, tracing.put) for one in inferences]
        forward = forwarding(options.grpc_forwarded)
        inference = (
            model_infer(infer, traces[0], forward),
            model_stream_infer(stream_infer, worker, readiness, traces[1], forward),
        )
        methods = build_methods(
            worker,
            plane,
            self.queue,
            inference,
            options.restricted_protocols,
            reflection=options.grpc_reflection,
            gate=gate,
            web=self.web,
            parking=parking,
        )
        text = TextApis(
            plane,
            TextWork(worker, side, get_table, text_observer, inflight, parking),
            text_doors,
            replace(options.text, limits=self._text_limits),
            min(options.rest.max_input_bytes, options.limits.max_message_size),
            rest_infer.divider,
        )
        rest = RestHandler(
            worker,
            plane,
            self.queue,
            rest_infer,
            traces[2],
            options.rest,
            doors,
            self.pages.of(worker),
            side,
            None if options.torchserve is None else self.torchserve_defaults,
            text,
            parking,
        )
        plain = PlainHttp(worker, rest)
        grpc = start.grpc.beside(plain, methods)
        port = ByFirstBytes(grpc, start.http, grpc)
        if options.tls is not None and not options.rest_tls:
            grpc = grpc.beside(plain, NoMethods(_WITH_TLS_ALONE))
        management = self._management(worker, plane, doors) if number == 0 else None
        return WorkerServices(inferences, port, partial(start.give_way, grpc, rest, management), readiness, parking)

    def _inferences(
        self, worker: Worker, inflight: Inflight | None, gate: WorkerGate | None, parking: Parking | None
    ) -> tuple[InferService, StreamInferService, RestInferService]:
        """Inference by each transport: where callers are known, with what asks for them."""

        def get_table() -> ModelTable:
            return self.manager.table

        grpc, rest = GrpcTransport(worker), RestTransport(worker)
        shared = (inflight, self.parameter_notices, self.regions, self.copies, parking)
        if gate is None:
            return (
                InferService(worker, grpc, get_table, *shared),
                StreamInferService(worker, grpc, get_table, *shared),
                RestInferService(worker, rest, get_table, worker.side, *shared),
            )
        charging = (
            ChargingInferService(worker, grpc, get_table, *shared),
            ChargingStreamInferService(worker, grpc, get_table, *shared),
            ChargingRestInferService(worker, rest, get_table, worker.side, *shared),
        )
        for service in charging:
            service.gate = gate
        return charging

    @property
    def _text_limits(self) -> Mapping[str, Any]:
        """What /info of the APIs for text tells of the server."""
        identity = self.identity
        workers = {"tokenization_workers": self.workers, "version": identity.version, "sha": None, "docker_label": None}
        return MappingProxyType(workers)

    def _management(self, worker: Worker, plane: DataPlane, doors: Doors) -> Handler | None:
        """TorchServe's management API, where it has an address."""
        chosen = self.options.torchserve
        if chosen is None or chosen.management_addr is None:
            return None
        local = [one for one in self.options.model_repositories if isinstance(one, Path)]
        models = Models(
            plane,
            local[0] if local else None,
            Downloads(chosen.model_store, chosen.allowed_urls, self.options.download_min_rate),
            self.torchserve_defaults,
            self.queue.nursery.start_soon,
        )
        return ManagementHandler(worker, self.queue, models, doors)

    def _inflight(self, number: int) -> Inflight | None:
        total = self.options.max_inflight_requests
        return None if total is None else Inflight(share(total, self.workers, number), total)
