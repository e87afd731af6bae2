"""The composition root: builds every part, and starts and ends them in order.

    main thread    Trio: signals, the model manager, and the nurseries that own everything below; placed as "manager"
    executors      threads of the manager, one per session
    workers        threads of ``Workers``, each with a Trio run and an epoll of its own
    http           the thread of ``Monitoring``

Start: bind (so that a port in use fails at once), open the HTTP side, run the workers, look through the repositories,
load every model, listen, serve. The gRPC port opens only after the initial load, as with Triton: until then a client is
refused, not told "not ready". REST is answered with 503 before, where the ports are this server's alone. The HTTP side
is there before, and until the last worker has ended, to tell of both.

While it serves, SIGHUP has the TLS certificate read again for connections to come, and keys and access rules; SIGUSR1
has everything logged, or ends that; and SIGUSR2 logs what the server is doing.

Stop, on SIGTERM or SIGINT: the server is not ready from then on, and serves for ``--shutdown-delay`` more, so that
load balancers notice; then the workers stop accepting, say goodbye, and answer what is under way, within the grace;
then the executors end. A second signal ends both. Loads of models that are under way may go on as long as calls; then
the processes that they wait for are killed. What does not end even so, ends with the process (``late_end``).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnxruntime
import trio

from toutates.api.control_queue import ControlQueue
from toutates.api.dataplane.everywhere import Everywhere
from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.api.dataplane.traffic import NOTE as TRAFFIC_NOTE
from toutates.api.dataplane.traffic import change_of
from toutates.api.restrictions import RestrictedProtocol, by_group
from toutates.api.torchserve.models import NOTE
from toutates.api.torchserve.predictions import Defaults
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.providers import choose_providers
from toutates.backends.python.starts import LoadsUnderWay
from toutates.infer.regions import Regions
from toutates.infer.traffic.copies import Copies
from toutates.infer.traffic.counting import traffic_counts
from toutates.models.caching import ResponseCache
from toutates.models.idle_cores import usable_cores
from toutates.models.kinds import Kind
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.turns import EXECUTION_COUNT, Arbiter, Resources
from toutates.observe.access_log import open_access_log
from toutates.observe.view import ServerView
from toutates.protocol import grpc_service_pb2 as pb
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.on_demand import OnDemand
from toutates.repositories.control.traffic import FILE_NAME, TrafficControl
from toutates.server.access import Access
from toutates.server.certificates import ServerCertificate
from toutates.server.client_lines import client_lines, client_records
from toutates.server.descriptors import warning_of_few
from toutates.server.kinds import kinds_of_models
from toutates.server.late_end import LATE_S, LateEnd
from toutates.server.listeners import Listeners, check_ports, open_listeners
from toutates.server.loading import FirstLoad
from toutates.server.model_requests import ModelRequests
from toutates.server.monitoring import Monitoring
from toutates.server.openapi import OpenApiPages
from toutates.server.options import DEFAULT_CONNECTIONS, EXIT_FAILURE, EXIT_OK, Options
from toutates.server.pages import Pages
from toutates.server.readiness import ServerReadiness
from toutates.server.replaced_files import reload_now
from toutates.server.running import run_logged
from toutates.server.services import Services
from toutates.server.shutdown import Shutdown
from toutates.server.thread_plan import plan_threads
from toutates.server.tracing import Tracing
from toutates.server.workers import Workers
from toutates.system.cuda import gpus_seen, load_cuda
from toutates.system.early_signals import held_signals
from toutates.system.errors import ConfigurationError
from toutates.system.garbage import keep_collections_short
from toutates.system.interpreter import describe_interpreter, gil_enabled, gil_problem
from toutates.system.logs.setup import Logs, start_logs
from toutates.system.placement import running_on, worker_warnings
from toutates.system.poison import current
from toutates.system.private_copies import PrivateCopies
from toutates.system.thread_pools import ThreadPool
from toutates.system.topology import allowed_cpus
from toutates.system.version import package_version

if TYPE_CHECKING:
    # A server of one process needs none of it.
    from toutates.server.processes.member import Member

__all__ = ["Server", "run"]

logger = logging.getLogger(__name__)

#: Loads CUDA, once.
_CUDA: Final = ThreadPool("cuda", 1)


def run(options: Options, *, ends_process: bool = False) -> int:
    """Serve until a signal; returns the process's exit code.

    Args:
        options: of the server.
        ends_process: whether the process has nothing else to do: it is ended where the server, or the interpreter
            after it, does not end by itself (``late_end``).

    Raises:
        ConfigurationError: the options or the repository cannot be used.
    """
    with start_logs(options.log_level, options.log_format) as logs:
        late_end = LateEnd(logs) if ends_process else None
        return run_logged(lambda: Server(options, logs, late_end=late_end).run)


class Server:
    """One server, run once.

    Args:
        options: its settings.
        logs: of the process; None where somebody else takes care of the log.
        member: the parent's side, where this is one of several processes.
        late_end: ends the process where the server does not end; None where that is for somebody else.
        kinds: of models that a program has of its own, which holds the server; they are asked before the product's.

    Attributes:
        shutdown: ends the server.
        manager: of the models, once they are being loaded.
        workers: its worker threads.
        address: host and port of the gRPC service, once it is bound; the real port where options ask for port 0.
        rest_address: host and port of REST, once it is bound; None where it has no port of its own.
        http_address: host and port of the HTTP side, once it is bound.
        management_address: host and port of TorchServe's management API, once it is bound.
        view: the server as metrics, status page and dumps see it, once its models are being loaded.

    Raises:
        ConfigurationError: by the constructor: an execution provider, a TLS file or the file of API keys cannot be
            used, threads cannot be pinned, OpenTelemetry is missing, or there are more workers than requests may be in
            flight.
    """

    def __init__(
        self,
        options: Options,
        logs: Logs | None = None,
        member: Member | None = None,
        late_end: LateEnd | None = None,
        kinds: Sequence[Kind] = (),
    ) -> None:
        self._options = options
        self._member = member
        self._late_end = late_end
        self._kinds = kinds
        self._loads_under_way = LoadsUnderWay()
        self._logs = logs or Logs.without_output(options.log_level)
        check_ports(options)
        self._placement = plan_threads(options)
        self._logs.place(self._placement.manager)
        self._providers = choose_providers(
            options.execution_providers, options.tensorrt, onnxruntime.get_available_providers()
        )
        self._certificate = ServerCertificate(
            options.tls, self._placement.processing_cores, lambda contexts: self.workers.use_tls(contexts)
        )
        self._access = Access(options, lambda: self._certificate.names)
        self._replaced_files = [*self._access.files, *self._certificate.files]
        self._traffic: TrafficControl | None = None
        self._tracing = Tracing(options.tracing)
        self._access_log = open_access_log(self._logs) if options.access_log_rate else None
        self._identity = ServerIdentity(options.server_id, package_version())
        self._started_s = time.time()
        self._gil_problem = ""
        self._model_requests = ModelRequests()
        size = options.response_cache_bytes
        self._response_cache = ResponseCache(size) if size else None
        rated = options.rate_limit == EXECUTION_COUNT
        # On one core two runs share it, where one cannot wait for the other.
        cores = usable_cores(self._placement)
        resources = Resources(options.rate_limit_resources) if rated else None
        self._arbiter = Arbiter(max(2, cores), resources, cores=cores)
        self.shutdown = Shutdown(options.shutdown_delay_s)
        self._serves = False
        self.workers = Workers(options, self._placement, self.shutdown)
        self._first_load = FirstLoad(
            options, self._placement, [name for name, _ in self._providers], self._logs, self.shutdown
        )
        self._monitoring: Monitoring
        self.manager: ModelManager
        #: set once there is something to see of the server
        self._watched = trio.Event()
        self._copies: Copies | None = None
        self.view: ServerView | None = None
        self.address: tuple[str, int] | None = None
        self.rest_address: tuple[str, int] | None = None
        self.http_address: tuple[str, int] | None = None
        self.management_address: tuple[str, int] | None = None
        self._torchserve_defaults = Defaults()

    def stop(self) -> None:
        """Begin the shutdown; the second call ends its grace. On the main thread."""
        self.shutdown.request()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> int:
        """Serve until ``stop`` or a signal.

        Returns:
            The exit code: EXIT_OK, or EXIT_FAILURE if a worker failed or calls were cut off at the grace's end.
        """
        with running_on(self._placement.manager, afterwards=allowed_cpus()):
            return await self._run(task_status)

    async def _run(self, task_status: trio.TaskStatus[None]) -> int:
        usable = usable_cores(self._placement)
        doubts = worker_warnings(self._placement, gil=gil_enabled(), usable=usable)
        connections = self._options.max_concurrent_connections
        # Of the processes of a server each has a part of them, whoever has said how many.
        said = self._member is None and connections != DEFAULT_CONNECTIONS
        few = warning_of_few(self._placement.processing_cores, connections if said else None)
        for warning in (*self._options.warnings, *doubts, *([few] if few else [])):
            logger.warning("%s", warning)
        self._warn_of_gil()
        poison = current()
        if poison is not None:
            poison.tell()
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        with open_listeners(self._options, self._placement.processing_cores) as listeners:
            self.address = listeners.grpc[0].getsockname()[:2]
            if listeners.http:
                self.rest_address = listeners.http[0].getsockname()[:2]
            if listeners.management is not None:
                self.management_address = listeners.management.getsockname()[:2]
            if listeners.monitoring is not None:
                self.http_address = listeners.monitoring.getsockname()[:2]
            try:
                with trio.open_signal_receiver(*handled) as signals:
                    async with trio.open_nursery() as nursery:
                        for number in held_signals():
                            self._handle_signal(nursery, number)
                        nursery.start_soon(self._handle_signals, signals, nursery)
                        for files in self._replaced_files:
                            nursery.start_soon(files.watch)
                        nursery.start_soon(self.shutdown.wait_delay, lambda: self._serves)
                        nursery.start_soon(self._end_late)
                        nursery.start_soon(self._access.learn_names)
                        if self._member is not None:
                            handle = partial(self._handle_signal, nursery)
                            await nursery.start(self._member.run, self.shutdown, handle)
                        async with self._tracing.exporting(self._placement):
                            await self._serve(listeners, task_status)
                        nursery.cancel_scope.cancel()
            finally:
                self._first_load.close()
                if self._late_end is not None:
                    self._late_end.put_off()
        return EXIT_FAILURE if self.shutdown.failed or self.workers.cut_off_calls else EXIT_OK

    async def _end_late(self) -> None:
        """End what keeps the server from ending when its grace is over, or when everything else has ended."""
        grace_s = self._options.shutdown_grace_s
        try:
            await self.shutdown.begun.wait()
            self._end_process_within(grace_s + LATE_S)
            with trio.move_on_after(grace_s):
                await self.shutdown.grace_ended.wait()
            self._end_process_within(LATE_S)
        finally:
            self._end_process_within(grace_s + LATE_S)  # also of a server that ends by a failure
            if loads := self._loads_under_way.end():
                self.shutdown.failed = True
                logger.error("loads of Python models that have not ended are cut off: %d", loads)

    def _end_process_within(self, seconds: float) -> None:
        if self._late_end is not None:
            self._late_end.within(seconds)

    async def _handle_signals(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for number in signals:
            self._handle_signal(nursery, number)

    def _handle_signal(self, nursery: trio.Nursery, number: int) -> None:
        if number == signal.SIGUSR2:
            nursery.start_soon(self._log_dump)
        elif number == signal.SIGHUP:
            reload_now(self._replaced_files)
            if self._traffic is not None:
                nursery.start_soon(self._traffic.look_now)
        elif number == signal.SIGUSR1:
            self._logs.control.toggle_debug()
        else:
            delay_s = self._options.shutdown_delay_s if self._serves else 0
            how = "stopping" if not delay_s else f"not ready from now on, and stopping in {delay_s:g} s"
            if self.shutdown.leaving.is_set():
                how = "stopping now"
            logger.info("%s: %s", signal.Signals(number).name, how)
            self.stop()

    async def _log_dump(self) -> None:
        await self._watched.wait()
        await self._monitoring.log_dump()

    async def _serve(self, listeners: Listeners, task_status: trio.TaskStatus[None]) -> None:
        """Load the models, and serve them until the shutdown has ended."""
        async with trio.open_nursery() as executors:
            # The manager and the control report changes to readiness, which reads both of them.
            def changed() -> None:
                readiness.changed()
                self.workers.show_models()

            self.manager = manager = self._make_manager(executors, changed)
            control = self._make_control(manager, lambda: readiness.changed())
            demand = self._make_demand(manager, control)
            readiness = ServerReadiness(
                self._options.strict_readiness,
                manager,
                control,
                self._first_load.waiting,
                self.shutdown,
                self.workers.show_readiness,
                *(() if self._member is None else (self._member.reason, self._member.tell_state)),
            )
            self.view = self._make_view(manager, readiness, demand)
            if self._member is not None:
                self._member.watch(self.view, readiness.changed)
            self._monitoring = Monitoring(self.view, self._logs)
            self._watched.set()
            watched = self._monitoring.serving(
                listeners.monitoring,
                self._placement,
                debug_for_all=self._options.debug_endpoints,
                pages=self._access.pages,
                gate=self._access.gate,
                tls=lambda: self._certificate.for_monitoring if self._options.metrics_tls else None,
            )
            try:
                async with watched, trio.open_nursery() as threads:
                    await threads.start(self.workers.run, self._certificate.contexts)
                    if self._answers_start:
                        await self.workers.answer_start(listeners)
                    if await self._first_load.run(manager, control, demand):
                        self._warn_of_gil()  # again, for what was imported while models were loaded
                        await self._serve_models(manager, control, demand, readiness, listeners, task_status)
                    threads.cancel_scope.cancel()
            finally:
                manager.stop()

    async def _serve_models(
        self,
        manager: ModelManager,
        control: ModelControl,
        demand: OnDemand | None,
        readiness: ServerReadiness,
        listeners: Listeners,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Serve what is loaded until the workers have drained."""
        assert self.view is not None
        async with trio.open_nursery() as changes:
            traffic = await self._begin_traffic(manager)
            if traffic is None:
                changes.cancel_scope.cancel()
                return
            queue, pages_queue = await changes.start(self._change_models, control)
            if demand is not None:
                changes.start_soon(self._load_on_demand, demand)
            member = self._member
            if member is not None and not await self._join(member, manager, control, demand, readiness, traffic):
                changes.cancel_scope.cancel()
                return
            everywhere = None if member is None else Everywhere(member.carry)
            changes.start_soon(traffic.watch)
            self._model_requests.open(changes, self._plane(manager, control, demand, everywhere))
            regions = await self._open_regions()
            self._copies = copies = Copies(lambda: manager.table, loader=demand)
            secrets = by_group(self._options.restricted_protocols, self._options.rest.restrictions)
            services = Services(
                options=self._options,
                identity=self._identity,
                workers=self._placement.processing_cores,
                manager=manager,
                control=control,
                queue=queue,
                log_control=self._logs.control,
                tracing=self._tracing,
                secrets=secrets,
                pages=self._make_pages(self.view, pages_queue, secrets),
                access_log=self._access_log,
                gate=self._access.gate,
                text_gate=self._access.text_gate,
                web=self._access.pages,
                regions=regions,
                copies=copies,
                traffic=traffic,
                everywhere=everywhere,
                loader=demand,
                torchserve_defaults=self._torchserve_defaults,
            )
            is_ready = not readiness.models_reason() and (member is None or not member.reason())
            self.workers.make(services, ready=is_ready)
            # Most of what is in memory now stays: the garbage collector need not visit it again. Versions that are
            # unloaded later are freed without the collector (``SuperTensor.free``). Garbage of the start was freed
            # before models were loaded; to look at all objects of ten thousand models now would take a second.
            await changes.start(keep_collections_short)
            await self.workers.serve(listeners)
            listeners.claims.close()
            unready_reason = readiness.begin()
            self._serves = True
            changes.start_soon(self._say_goodbye, readiness)
            self._tell_that_it_serves(manager, readiness, unready_reason)
            task_status.started()
            await self.workers.ended.wait()
            copies.close()
            regions.close()
            changes.cancel_scope.cancel()

    async def _open_regions(self) -> Regions:
        """The table of shared memory. CUDA is loaded in a thread, because that takes long."""
        allowed, gate = self._options.allow_client_shm, self._access.gate
        return Regions(
            allowed=allowed,
            cuda=await _CUDA.run(load_cuda) if allowed else None,
            gpus=not allowed and gpus_seen(),
            holders=None if gate is None else lambda: gate.era.region_holders,
        )

    def _make_pages(self, view: ServerView, queue: ControlQueue, secrets: Mapping[str, RestrictedProtocol]) -> Pages:
        """What the HTTP port serves beside the APIs."""
        known, most = self._access.gate is not None, self._options.rest.max_input_bytes
        openapi = OpenApiPages(view.get_table, secrets, most, queue, callers_are_known=known, web=self._access.pages)
        return Pages(view, queue, openapi, None if self._member is None else self._member.metrics)

    def _tell_that_it_serves(self, manager: ModelManager, readiness: ServerReadiness, unready_reason: str) -> None:
        """Tell the operator, or the parent, that the workers serve."""
        member = self._member
        if member is None:
            self._announce(unready_reason)
            self._show_client(manager)
            return
        self._show_client(manager)
        self._announce_management()
        member.tell_serving()
        readiness.changed()  # what the parent has said since the workers were made

    async def _begin_traffic(self, manager: ModelManager) -> TrafficControl | None:
        """Put the rules of aliases and traffic into force; None where the server is to end because they are wrong."""
        options = self._options
        local = [one / FILE_NAME for one in options.model_repositories if isinstance(one, Path)]
        traffic = TrafficControl(manager, local if options.traffic_file is None else [options.traffic_file])
        self._traffic = traffic
        await traffic.look()
        if traffic.problem and options.exit_on_error:
            logger.critical("aliases and traffic cannot be used, see above; the server ends, as --exit-on-error says")
            self.shutdown.failed = True
            return None
        return traffic

    async def _join(
        self,
        member: Member,
        manager: ModelManager,
        control: ModelControl,
        demand: OnDemand | None,
        readiness: ServerReadiness,
        traffic: TrafficControl,
    ) -> bool:
        """Be as the other processes are, and wait until all may serve; returns whether to go on."""
        plane = self._plane(manager, control, demand)
        calls = plane.local_calls(
            member.number,
            {
                NOTE: (pb.RepositoryModelLoadRequest, self._torchserve_defaults.note),
                TRAFFIC_NOTE: (pb.RepositoryModelLoadRequest, partial(change_of, traffic)),
            },
        )
        return await member.join(manager.table, readiness.models_reason(), calls, control)

    def _plane(
        self,
        manager: ModelManager,
        control: ModelControl,
        demand: OnDemand | None,
        everywhere: Everywhere | None = None,
    ) -> DataPlane:
        """A data plane of no worker, for calls that do not come from a client of this process."""
        return DataPlane(
            self._identity,
            lambda: manager.table,
            Readiness(serving=True),
            control,
            self._logs.control,
            self._tracing.settings,
            everywhere,
            loader=demand,
        )

    async def _load_on_demand(self, demand: OnDemand) -> None:
        """Load what requests need, until the shutdown begins: what waits then is refused."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(demand.run)
            await self.shutdown.begun.wait()
            nursery.cancel_scope.cancel()

    async def _change_models(
        self, control: ModelControl, task_status: trio.TaskStatus[tuple[ControlQueue, ControlQueue]]
    ) -> None:
        """Run what changes models while they are served, and what makes pages, until the shutdown begins."""
        async with trio.open_nursery() as nursery:
            # Two, because whoever asks for many pages must not have changes of models refused.
            queue, pages_queue = ControlQueue(nursery), ControlQueue(nursery, "requests for pages")
            if self._member is None or self._options.model_control_mode != "poll":
                nursery.start_soon(control.poll_for_ever)  # else the parent says when, to all at the same time
            task_status.started((queue, pages_queue))
            await self.shutdown.begun.wait()
            control.stop()
            queue.close()
            pages_queue.close()

    async def _say_goodbye(self, readiness: ServerReadiness) -> None:
        """Tell the workers, when the server has to stop, that it is not ready any more."""
        await self.shutdown.leaving.wait()
        readiness.changed()
        self.workers.announce_end()
        if self._monitoring is not None:
            self._monitoring.leave()

    def _announce_management(self) -> None:
        if self.management_address is not None:
            logger.info("the management API of TorchServe is on http://%s:%d/models", *self.management_address)

    def _announce(self, unready_reason: str) -> None:
        assert self.address is not None
        self._announce_management()
        workers = self._placement.processing_cores
        logger.info(
            "%s: toutates %s on %s: serving gRPC on %s:%d%s with %d worker%s, %s",
            self._identity.name,
            self._identity.version,
            describe_interpreter(),
            *self.address,
            "" if self.rest_address is None else ", HTTP on {}:{}".format(*self.rest_address),
            workers,
            "" if workers == 1 else "s",
            f"NOT ready: {unready_reason}" if unready_reason else "ready",
            extra={"port": self.address[1], "workers": workers},
        )

    def _show_client(self, manager: ModelManager) -> None:
        """Print how to ask for the first model, where the operator has named one by its path."""
        models = [model for model in manager.table.models.values() if model.served()]
        if not (self._options.shows_client and models):
            return
        assert self.address is not None
        addresses = (self.address, self.rest_address or self.address)
        what = (models[0].name, models[0].served()[-1].signature, *addresses)
        grpc_tls = self._options.tls is not None
        rest_tls = grpc_tls if self.rest_address is None else self._options.rest_tls
        self._logs.show(
            client_lines(*what, grpc_tls=grpc_tls, rest_tls=rest_tls),
            client_records(*what, grpc_tls=grpc_tls, rest_tls=rest_tls),
        )

    def _warn_of_gil(self) -> None:
        problem = gil_problem()
        if problem and problem != self._gil_problem:
            self._gil_problem = problem
            logger.warning("%s", problem)

    @property
    def _answers_start(self) -> bool:
        """Whether REST is answered during the start: its port is this server's alone, and nobody else serves there."""
        return "http" not in self._options.shared_ports if self._member is None else self._member.is_alone

    # --- parts that need each other ----------------------------------------------------------------------------------

    def _make_manager(self, executors: trio.Nursery, on_change: Callable[[], None]) -> ModelManager:
        options = self._options
        sessions = SessionOptions(
            self._providers, options.custom_op_libraries, options.ort_intra_threads, options.ort_inter_threads
        )
        own_kinds = kinds_of_models(
            sessions,
            self._placement,
            allow_pickle=options.allow_pickle,
            get_table=lambda: manager.table,
            loads=self._model_requests,
            under_way=self._loads_under_way,
            copies=self._private_copies(),
        )
        load_options = LoadOptions(
            kinds=[*self._kinds, *own_kinds],
            placement=self._placement,
            parallel_loads=options.parallel_loads,
            cache=self._response_cache,
            arbiter=self._arbiter,
            measured=options.model_control_mode == "on-demand",
            executor_threads=options.executor_threads or max(2, usable_cores(self._placement)),
            retries=options.load_retries,
        )
        manager = ModelManager(
            load_options,
            executors,
            on_change,
            self.workers.let_go,
            may_be_empty=options.model_control_mode in ("explicit", "on-demand"),
            # A request for a broken model shall not take the server from its load balancer.
            failures_count=options.model_control_mode != "on-demand",
            # Whoever may not list the models shall not be told their names.
            suggests_names="model-repository" not in by_group(options.restricted_protocols, options.rest.restrictions)
            and self._access.gate is None,
        )
        return manager

    def _private_copies(self) -> PrivateCopies | None:
        """What copies weights that are served; None where they are mapped from their own files."""
        if self._options.map_weights:
            return None
        from toutates.repositories.cache.model_cache import default_cache_root

        temporary = Path(os.environ.get("TMPDIR") or "/tmp", f"toutates-{os.geteuid()}")
        try:
            roots = [self._options.model_cache_dir or default_cache_root(), temporary]
        except ConfigurationError:  # no home directory; who downloads models is told so
            roots = [temporary]
        return PrivateCopies(*(root.absolute() / "serving" for root in roots), shared=self._member is not None)

    def _make_control(self, manager: ModelManager, on_change: Callable[[], None]) -> ModelControl:
        options = self._options
        return ModelControl(
            self._first_load.repositories,
            manager,
            options.model_control_mode,
            only=options.load_models,
            poll_s=options.repository_poll_s,
            cpus=self._placement.anywhere,
            passed_over=self._first_load.passed_over,
            on_change=on_change,
        )

    def _make_demand(self, manager: ModelManager, control: ModelControl) -> OnDemand | None:
        options = self._options
        if options.model_control_mode != "on-demand":
            return None
        return OnDemand(
            self._first_load.repositories,
            manager,
            control,
            budget=options.model_memory,
            min_stay_s=options.model_min_stay_s,
            parallel=options.parallel_loads,
            poll_s=options.repository_poll_s,
            cpus=self._placement.anywhere,
        )

    def _make_view(self, manager: ModelManager, readiness: ServerReadiness, demand: OnDemand | None) -> ServerView:
        workers, access, options = self.workers.all, self._access_log, self._options

        def dropped_log_lines() -> int:
            of_requests = 0 if access is None else access.left_out
            return self._logs.lost + of_requests + sum(worker.log_lines_dropped for worker in workers)

        return ServerView(
            identity=self._identity,
            started_s=self._started_s,
            workers=workers,
            infer=self.workers.infer,
            get_table=lambda: manager.table,
            repositories=self._first_load.repositories,
            loading=manager.counters,
            dropped_log_lines=dropped_log_lines,
            traces=self._tracing.counts,
            is_live=lambda: not self.shutdown.begun.is_set(),
            unready_reason=readiness.reason,
            response_cache=self._response_cache.statistics if self._response_cache is not None else lambda: None,
            metrics_models=options.metrics_models,
            traffic=lambda: traffic_counts(self.workers.infer, self._copies),
            demand=lambda: None if demand is None else demand.state(sum(one.waited for one in self.workers.parking)),
        )
