"""The composition root: builds every part, owns the threads, and ends them in order.

    main thread    Trio: signals, the model manager, and the nurseries that own everything below; placed as "manager"
    executors      threads of the manager, one per session
    workers        threads of the server, each with a Trio run and an epoll of its own

Start: bind (so that a port in use fails at once), open the HTTP side, look through the repositories, load every model,
listen, serve. The gRPC port opens only after the initial load, as with Triton: until then a client is refused, not told
"not ready".

Meanwhile SIGHUP has the TLS certificate read again, for connections to come; SIGUSR1 has everything logged, or no
longer; and SIGUSR2 logs what the server is at. The HTTP side (``monitoring``) is there from before anybody is asked
for models until the last worker has ended, to tell of both.

Stop, on SIGTERM or SIGINT: the workers stop accepting, say goodbye, and answer what is under way, within the grace;
then the executors end. A second signal ends the grace.
"""

from __future__ import annotations

import gc
import logging
import math
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

import onnxruntime
import trio

from toutates.api.dataplane.plane import DataPlane, ServerIdentity
from toutates.api.dataplane.readiness import Readiness
from toutates.api.grpc.control_queue import ControlQueue
from toutates.api.grpc.methods import build_methods
from toutates.api.grpc.statuses import STATUSES
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.providers import choose_providers
from toutates.backends.onnx.session import SessionOptions
from toutates.infer.inflight import FLAG as INFLIGHT_FLAG
from toutates.infer.inflight import Inflight, share
from toutates.infer.observing import Sampling
from toutates.infer.parameter_notices import ParameterNotices
from toutates.infer.service import InferService
from toutates.infer.tracing.opening import open_exporter
from toutates.infer.tracing.settings import TraceSettings
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.manager import LoadOptions, ModelManager
from toutates.net import Worker
from toutates.net.listening import bind
from toutates.observe.debug.debug_dump import dump, this_run
from toutates.observe.status.view import ServerView
from toutates.repositories.control.fetching import fetch_all
from toutates.repositories.control.first_look import FirstLook, look_first
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.passed_over import PassedOver
from toutates.repositories.control.waiting import Waiting
from toutates.repositories.interface import Repository
from toutates.repositories.opening import open_repositories
from toutates.server.certificates import ServerTls, load_server_tls
from toutates.server.options import EXIT_FAILURE, EXIT_OK, Options
from toutates.server.startup_table import placement_records, placement_table, startup_records, startup_table
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError, ToutatesError
from toutates.system.interpreter import describe_interpreter, gil_enabled, gil_problem
from toutates.system.logs.setup import Logs, start_logs
from toutates.system.memory import available_memory
from toutates.system.placement import Placement, default_processing_cores, doubts, place, running_on
from toutates.system.topology import allowed_cpus, read_topology
from toutates.system.version import package_version

__all__ = ["Server", "run"]

logger = logging.getLogger(__name__)

BACKLOG = 4_096


def run(options: Options) -> int:
    """Serve until a signal; returns the process's exit code.

    Raises:
        ConfigurationError: the options or the repository cannot be used.
    """
    with start_logs(options.log_level, options.log_format, with_access_log=options.access_log_rate > 0) as logs:
        try:
            return trio.run(Server(options, logs).run)
        except BaseExceptionGroup as group:
            configuration, rest = group.split(ConfigurationError)
            if rest is None and configuration is not None:
                raise _first(configuration) from None
            _log_failure(group)
        except ConfigurationError:
            raise
        except Exception as error:
            _log_failure(error)
    return EXIT_FAILURE


def _log_failure(error: BaseException) -> None:
    """A bug of ours: with its traceback, like every other line, and not in Python's own form."""
    if not isinstance(error, Exception):  # of KeyboardInterrupt, among others
        raise error
    logger.critical("the server failed, and ends", exc_info=error)


def _first(group: BaseExceptionGroup[ConfigurationError]) -> ConfigurationError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigurationError)
    return error


def _plan(options: Options) -> Placement:
    """Where the server's threads will run.

    Raises:
        ConfigurationError: there are too few CPUs to pin them.
    """
    topology = read_topology(options.cpu_pinning or allowed_cpus())
    pinned = options.cpu_pinning is not None
    executors, intra_threads = options.executor_cpus, options.ort_intra_threads
    workers = options.processing_cores
    if workers is None:
        workers = default_processing_cores(
            len(topology.cpus), executor_cpus=executors, intra_threads=intra_threads, pinned=pinned, gil=gil_enabled()
        )
    return place(
        topology, executor_cpus=executors, processing_cores=workers, intra_threads=intra_threads, pinned=pinned
    )


def _check_inflight(requests: int | None, workers: int) -> None:
    """Every worker has a share of the requests.

    Raises:
        ConfigurationError: there are too few.
    """
    if requests is not None and requests < workers:
        raise ConfigurationError(
            f"is split over {workers} workers, each of which needs one request at least",
            key=INFLIGHT_FLAG,
            value=requests,
            remedy=f"raise it to {workers} or more, or lower --processing-cores",
        )


class Server:
    """One server, run once.

    Args:
        options: its settings.
        logs: of the process; None where somebody else takes care of the log.

    Raises:
        ConfigurationError: by the constructor: an execution provider or a TLS file cannot be used, threads cannot be
            pinned, OpenTelemetry is missing, or there are more workers than requests may be in flight.
    """

    def __init__(self, options: Options, logs: Logs | None = None) -> None:
        self._options = options
        self._logs = logs or Logs.without_output(options.log_level)
        self._placement = _plan(options)
        self._logs.place(self._placement.manager)
        _check_inflight(options.max_inflight_requests, self._placement.processing_cores)
        self._providers = choose_providers(
            options.execution_providers, options.tensorrt, onnxruntime.get_available_providers()
        )
        self._tls = self._load_tls()
        self._exporter, unavailable = open_exporter(options.tracing, package_version())
        for warning in options.tracing.warnings:
            logger.warning("%s", warning)
        self._trace_settings = TraceSettings(options.tracing.defaults, unavailable)
        if self._tls is not None:
            self._announce_tls(self._tls)
        self._stopping = trio.Event()
        self._stop_now = trio.Event()
        self._failed = False
        self._cut_off_calls = 0
        self._gil_problem = ""
        #: why the server is not ready, as the log has it
        self._unready_said = ""
        self._workers: list[Worker] = []
        self._infer: list[InferService] = []
        self._parameter_notices = ParameterNotices()
        self._readiness: list[Readiness] = []
        #: what those who watch the server may see of it, once its models are being loaded
        self.view: ServerView | None = None
        self._started_s = time.time()
        self._identity = ServerIdentity(options.server_id, package_version())
        #: the addresses that were bound, once they are; they tell the ports where 0 was asked for
        self.address: tuple[str, int] | None = None
        self.http_address: tuple[str, int] | None = None
        self._http_listener: list[socket.socket] = []
        self._dumping = False
        self._passed_over = PassedOver()
        #: once they are opened
        self._repositories: list[Repository] = []
        #: what the start is waiting for
        self.waiting = Waiting()
        self._get_repositories_reason: Callable[[], str] = str

    def stop(self) -> None:
        """Begin the shutdown; the second call ends its grace. On the main thread."""
        (self._stop_now if self._stopping.is_set() else self._stopping).set()

    def reload_tls(self) -> None:
        """Read the TLS files again, for connections to come; what cannot be used changes nothing."""
        try:
            tls = self._load_tls()
        except ConfigurationError as error:
            logger.error("%s; until then the certificate loaded before stays in use", error)
            return
        if tls is not None:
            self._tls = tls
            for number, worker in enumerate(self._workers):
                worker.call_soon(partial(worker.use_tls, tls.contexts[number]))
            self._announce_tls(tls)

    def _load_tls(self) -> ServerTls | None:
        files = self._options.tls
        return None if files is None else load_server_tls(files, self._placement.processing_cores)

    def _announce_tls(self, tls: ServerTls) -> None:
        files = self._options.tls
        assert files is not None
        validity = f"valid until {tls.valid_until}" if tls.valid_until else "which is not valid"
        clients = "clients need one too" if files.client_ca is not None else "clients need none"
        logger.info("TLS with the certificate %s, %s; %s", files.cert, validity, clients)
        if tls.warning:
            logger.warning("%s", tls.warning)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> int:
        """Serve until ``stop`` or a signal.

        Returns:
            The exit code: EXIT_OK, or EXIT_FAILURE if a worker failed or calls were cut off at the grace's end.
        """
        with running_on(self._placement.manager, afterwards=allowed_cpus()):
            return await self._run(task_status)

    async def _run(self, task_status: trio.TaskStatus[None]) -> int:
        for doubt in doubts(self._placement, gil=gil_enabled()):
            logger.warning("%s", doubt)
        self._warn_of_gil()
        listeners = self._bind()
        try:
            self._bind_http()
            heeded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
            with trio.open_signal_receiver(*heeded) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._heed, signals, nursery)
                    async with self._exporting_traces():
                        await self._serve(listeners, task_status)
                    nursery.cancel_scope.cancel()
        finally:
            for listener in (*listeners, *self._http_listener):
                listener.close()
            for repository in self._repositories:
                repository.stop()
        return EXIT_FAILURE if self._failed or self._cut_off_calls else EXIT_OK

    def _exporting_traces(self) -> AbstractAsyncContextManager[None]:
        """Whatever is traced within the block gets to the collector, as far as that lets it."""
        if self._exporter is None:
            return nullcontext()
        setting = self._trace_settings.get()
        if setting.levels:
            logger.info("traces of one in %d requests go to %s", setting.rate, self._options.tracing.endpoint)
        return self._exporter.running(partial(running_on, self._placement.manager, self._placement.anywhere))

    async def _heed(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for number in signals:
            if number == signal.SIGUSR2:
                nursery.start_soon(self._log_dump)
                continue
            if number == signal.SIGHUP:
                what = "there is nothing to reload without --tls-cert" if self._tls is None else "reloading TLS"
                logger.info("SIGHUP: %s", what)
                self.reload_tls()
                continue
            if number == signal.SIGUSR1:
                self._logs.control.toggle_debug()
                continue
            how = "stopping now" if self._stopping.is_set() else "stopping"
            logger.info("%s: %s", signal.Signals(number).name, how)
            self.stop()

    async def _serve(self, listeners: list[socket.socket], task_status: trio.TaskStatus[None]) -> None:
        options = self._options
        async with trio.open_nursery() as executors:
            sessions = SessionOptions(
                self._providers, options.custom_op_libraries, options.ort_intra_threads, options.ort_inter_threads
            )
            load_options = LoadOptions(
                kinds=[OnnxKind(sessions, self._placement)],
                placement=self._placement,
                parallel_loads=options.parallel_loads,
            )
            manager = ModelManager(
                load_options,
                executors,
                lambda: self._show_readiness(manager),
                self._settle,
                may_be_empty=options.model_control_mode == "explicit",
                # Whoever may not list the models shall not be told their names.
                suggests_names=not any("model-repository" in one.protocols for one in options.restricted_protocols),
            )
            control = ModelControl(
                self._repositories,
                manager,
                options.model_control_mode,
                only=options.load_models,
                poll_s=options.repository_poll_s,
                cpus=self._placement.anywhere,
                passed_over=self._passed_over,
                on_change=lambda: self._show_readiness(manager),
            )
            self._get_repositories_reason = lambda: control.unready_reason
            self.view = self._view(manager)
            try:
                async with self._watched():
                    if await self._load(manager, control):
                        async with trio.open_nursery() as changes:
                            queue = await changes.start(self._change_models, control)
                            await self._run_workers(manager, control, queue, listeners, task_status)
                            changes.cancel_scope.cancel()
            finally:
                manager.stop()

    async def _change_models(self, control: ModelControl, task_status: trio.TaskStatus[ControlQueue]) -> None:
        """Whatever changes models while they are served, until the server stops."""
        async with trio.open_nursery() as nursery:
            queue = ControlQueue(nursery)
            nursery.start_soon(control.poll_for_ever)
            task_status.started(queue)
            await self._stopping.wait()
            control.stop()
            queue.close()

    # --- start -------------------------------------------------------------------------------------------------------

    def _bind(self) -> list[socket.socket]:
        """One socket per worker, sharing the port."""
        listeners = bind(self._options.grpc_addr, "--grpc-addr", sockets=self._placement.processing_cores)
        self.address = listeners[0].getsockname()[:2]
        return listeners

    def _bind_http(self) -> None:
        address = self._options.metrics_addr
        if address is not None:
            self._http_listener = bind(address, "--metrics-addr", otherwise=", or write 'off' to do without")
            self.http_address = self._http_listener[0].getsockname()[:2]

    def _watched(self) -> AbstractAsyncContextManager[None]:
        """The HTTP side, for as long as the block lasts."""
        if not self._http_listener:
            return nullcontext()
        from toutates.observe.http.http_thread import serving_http
        from toutates.observe.http.site import Site
        from toutates.observe.metrics.exposition import Exposition
        from toutates.observe.status.app import make_site

        assert self.view is not None
        assert self.http_address is not None
        host, port = self.http_address
        page = f"http://{Address('localhost' if host in ('0.0.0.0', '::') else host, port)}/"
        logger.info("status page on %s, metrics on %smetrics", page, page)
        view, runs = self.view, [this_run("main")]

        def make() -> Site:
            exposition = Exposition(view)
            return make_site(
                view,
                exposition,
                self._logs.recent.latest,
                runs,
                beside=[exposition.run],
                debug_for_all=self._options.debug_endpoints,
            )

        return serving_http(self._http_listener[0], make, self._placement)

    async def _log_dump(self) -> None:
        """What the server is at, to the log; one at a time."""
        if self.view is not None and not self._dumping:
            self._dumping = True
            try:
                self._logs.write("monitoring", "SIGUSR2: " + await dump(self.view, [this_run("main")]))
            finally:
                self._dumping = False

    async def _look(self) -> FirstLook:
        """Find out which models there are. Takes as long as a repository takes to answer.

        Raises:
            ConfigurationError: see ``open_repositories`` and ``look_first``.
        """
        options = self._options
        self.waiting.begin([str(one) for one in options.model_repositories])
        # For boto3, which may look for credentials in the network, and a cache that others use.
        open_them = partial(
            open_repositories,
            options.model_repositories,
            cache_root=options.model_cache_dir,
            cache_size=options.model_cache_size,
        )
        async with self.waiting.logged():
            self._repositories += await trio.to_thread.run_sync(open_them, abandon_on_cancel=True)
            return await look_first(
                self._repositories,
                options.load_models,
                dict.fromkeys(options.load_model, "--load-model"),
                all_must_answer=options.exit_on_error,
                waiting=self.waiting,
                passed_over=self._passed_over,
                cpus=self._placement.anywhere,
            )

    async def _load(self, manager: ModelManager, control: ModelControl) -> bool:
        """Find and load the models, unless a signal comes first; returns whether to go on."""
        started = time.monotonic()
        async with trio.open_nursery() as nursery:

            async def cancel_when_stopping() -> None:
                await self._stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_when_stopping)
            seen = await self._look()
            folders = await fetch_all(seen.found, self._placement.anywhere)
            await manager.load_all(folders, _log_progress)
            control.begin(seen.found, folders, seen.late)
            nursery.cancel_scope.cancel()
        if self._stopping.is_set():
            return False
        if not manager.table.models and self._options.load_models is None and not control.late:
            assert self.view is not None
            await self._warn_of_no_models(self.view.repositories, may_be_empty=manager.table.may_be_empty)
        providers = [name for name, _ in self._providers]
        seconds = time.monotonic() - started
        shown = (manager.table, providers, seconds, control.unready_reason)
        self._logs.show(startup_table(*shown), startup_records(*shown))
        self._logs.show(
            placement_table(self._placement, manager.table),
            placement_records(self._placement, manager.table),
        )
        self._warn_of_gil()  # again, for what was imported while models were loaded
        # Of what ONNX Runtime does apart from any session, only the loading of providers is worth a line; allocations
        # that fail come back as errors to those who asked for them.
        onnxruntime.set_default_logger_severity(4)
        if self._options.exit_on_error and manager.table.failed:
            logger.critical("a model cannot be served, see above; the server ends, as --exit-on-error says")
            self._failed = True
            return False
        return True

    async def _warn_of_no_models(self, repositories: Sequence[Repository], *, may_be_empty: bool) -> None:
        until = "" if may_be_empty else "; the server is not ready until it has one"
        for repository in repositories:
            try:
                advice = await trio.to_thread.run_sync(repository.advice, abandon_on_cancel=True)
            except ToutatesError:
                advice = ""  # it was listed a moment ago, and what is wrong now is told elsewhere
            advice = f": {advice}" if advice else ""
            logger.warning("the model repository %s has no models%s%s", repository.name, until, advice)

    def _warn_of_gil(self) -> None:
        problem = gil_problem()
        if problem and problem != self._gil_problem:
            self._gil_problem = problem
            logger.warning("%s", problem)

    # --- serve and stop ----------------------------------------------------------------------------------------------

    async def _run_workers(
        self,
        manager: ModelManager,
        control: ModelControl,
        queue: ControlQueue,
        listeners: list[socket.socket],
        task_status: trio.TaskStatus[None],
    ) -> None:
        for number in range(len(listeners)):
            self._add_worker(manager, control, queue, number)
        # What is there stays, by far the most of it: keep the collector from walking it again and again. Versions that
        # are unloaded later are freed without it (``SuperTensor.free``).
        gc.collect()
        gc.freeze()
        limiter = trio.CapacityLimiter(math.inf)
        async with trio.open_nursery() as watching:
            watching.start_soon(self._end_grace_early)
            async with trio.open_nursery() as nursery:
                for number, (worker, listener) in enumerate(zip(self._workers, listeners, strict=True)):
                    listener.listen(BACKLOG)
                    cpus = self._placement.workers[number : number + 1]
                    nursery.start_soon(self._run_worker, worker, listener, cpus, limiter)
                self._announce(manager)
                task_status.started()
                await self._stopping.wait()
                self._drain(self._options.shutdown_grace_s)
            watching.cancel_scope.cancel()

    def _announce(self, manager: ModelManager) -> None:
        assert self.address is not None
        self._unready_said = reason = self._unready_reason(manager)
        logger.info(
            "%s: toutates %s on %s: serving gRPC on %s:%d with %d worker%s, %s",
            self._options.server_id,
            package_version(),
            describe_interpreter(),
            *self.address,
            len(self._workers),
            "" if len(self._workers) == 1 else "s",
            f"NOT ready: {reason}" if reason else "ready",
            extra={"port": self.address[1], "workers": len(self._workers)},
        )

    def _add_worker(self, manager: ModelManager, control: ModelControl, queue: ControlQueue, number: int) -> None:
        options = self._options
        buffer_bytes = options.max_buffered_bytes or available_memory() // 2
        worker = Worker(
            f"worker-{number}",
            options.limits,
            max_connections=max(1, options.max_concurrent_connections // self._placement.processing_cores),
            buffer_bytes=max(1, buffer_bytes // self._placement.processing_cores),
            response_encoding=options.grpc_compression,
        )
        readiness = Readiness(serving=self._is_ready(manager))
        traces = WorkerTraces(worker, self._trace_settings, None if self._exporter is None else self._exporter.put)
        infer = InferService(worker, lambda: manager.table, STATUSES, self._inflight(number), self._parameter_notices)
        if self._logs.access is not None:
            infer.observer.sample(Sampling(self._logs.access.sink()), round(1 / options.access_log_rate))
        worker.tls = None if self._tls is None else self._tls.contexts[number]
        plane = DataPlane(
            self._identity, lambda: manager.table, readiness, control, self._logs.control, self._trace_settings
        )
        worker.methods = build_methods(worker, plane, queue, traces.method(infer), options.restricted_protocols)
        self._workers.append(worker)
        self._infer.append(infer)
        self._readiness.append(readiness)

    def _inflight(self, number: int) -> Inflight | None:
        total = self._options.max_inflight_requests
        if total is None:
            return None
        return Inflight(share(total, self._placement.processing_cores, number), total)

    async def _run_worker(
        self, worker: Worker, listener: socket.socket, cpus: tuple[int, ...], limiter: trio.CapacityLimiter
    ) -> None:
        """One worker's thread. If it fails, the server ends: it must not limp on with half its connections."""

        def run() -> int | BaseException:
            try:
                with running_on(cpus, self._placement.anywhere):
                    return trio.run(worker.run, listener)
            except BaseException as error:  # of any kind: none may pass for this thread's cancellation
                return error

        try:
            outcome = await trio.to_thread.run_sync(run, limiter=limiter, thread_name=worker.name)
        except RuntimeError as error:  # the system has no thread left for us
            outcome = error
        if isinstance(outcome, BaseException):
            logger.critical("%s failed; the server stops", worker.name, exc_info=outcome)
            self._failed = True
            self._stopping.set()
        else:
            # Not in one step: `+= await` would read the sum before waiting, and lose what others add meanwhile.
            self._cut_off_calls += outcome

    def _count_traces(self) -> tuple[int, int]:
        if self._exporter is None:
            return 0, 0
        statistics = self._exporter.statistics()
        return statistics.sent, statistics.dropped + statistics.failed

    def _view(self, manager: ModelManager) -> ServerView:
        return ServerView(
            identity=self._identity,
            started_s=self._started_s,
            workers=self._workers,
            infer=self._infer,
            get_table=lambda: manager.table,
            repositories=self._repositories,
            loading=manager.counters,
            dropped_log_lines=lambda: self._logs.lost + sum(worker.log_lines_dropped for worker in self._workers),
            traces=self._count_traces,
            is_live=lambda: not self._stopping.is_set(),
            unready_reason=lambda: (
                "the server is shutting down"
                if self._stopping.is_set()
                else str(self.waiting) or self._unready_reason(manager)
            ),
        )

    def _is_ready(self, manager: ModelManager) -> bool:
        return not self._unready_reason(manager)

    def _unready_reason(self, manager: ModelManager) -> str:
        """Why the models and their repositories keep the server from being ready; "" if they do not."""
        if not self._options.strict_readiness:
            return ""
        return self._get_repositories_reason() or manager.table.unready_reason

    async def _settle(self) -> None:
        """Wait until every worker has let go of what the table of models no longer has."""
        token = trio.lowlevel.current_trio_token()
        left = [trio.Event() for _ in self._workers]
        for worker, infer, event in zip(self._workers, self._infer, left, strict=True):
            worker.call_soon(partial(infer.let_go, partial(token.run_sync_soon, event.set)))
        for event in left:
            await event.wait()

    def _show_readiness(self, manager: ModelManager) -> None:
        """The table of models has changed."""
        reason = self._unready_reason(manager)
        if bool(reason) is not bool(self._unready_said):
            if reason:
                logger.warning("the server is not ready any more: %s", reason)
            else:
                logger.info("the server is ready")
        self._unready_said = reason
        serving = not reason
        for worker, readiness in zip(self._workers, self._readiness, strict=True):
            worker.call_soon(partial(readiness.update, serving=serving))

    def _drain(self, grace_s: float) -> None:
        for worker, readiness in zip(self._workers, self._readiness, strict=True):
            worker.call_soon(readiness.begin_exit)
            worker.call_soon(partial(worker.drain, grace_s))

    async def _end_grace_early(self) -> None:
        """On a second ``stop``, and on cancellation, which threads do not heed."""
        try:
            await self._stop_now.wait()
        finally:
            self._drain(0)


def _log_progress(loaded: int, total: int, name: str) -> None:
    """A line for each version that was loaded; one that was not has its own."""
    if name:
        logger.info("loaded %d of %d: %s", loaded, total, name)
