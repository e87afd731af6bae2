"""The parent of several processes: starts, watches and ends them, and speaks for all of them.

Start: the ports are reserved by sockets that do not listen. The first process loads the models; what is wrong with them
is so told once, and what is on S3 is downloaded once. Then the others load theirs, all at once. When all have them, all
serve; until then those that load answer REST with 503, if the ports are the server's alone.

A process that dies is started again, at first at once, then after a pause that doubles. Meanwhile the kernel gives new
connections to the others, since the sockets of the dead one are gone. It listens again when it has done what the others
were told since the start.

Stop: every process drains as a server of one process does. One that has not ended well after the grace is killed.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from toutates.api.dataplane.everywhere import Order, Outcome
from toutates.api.dataplane.log_settings import log_settings
from toutates.api.dataplane.plane import ServerIdentity
from toutates.net.listening import bind
from toutates.observe.metrics.exposition import Exposition
from toutates.observe.metrics.texts import MetricsTexts
from toutates.observe.processes.replica import Replica
from toutates.observe.view import ProcessState, ServerView
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.parsing import parse
from toutates.server.access import Access
from toutates.server.certificates import ServerCertificate
from toutates.server.listeners import OR_OFF, check_ports
from toutates.server.monitoring import Monitoring
from toutates.server.options import EXIT_FAILURE, EXIT_OK, Options
from toutates.server.processes import messages
from toutates.server.processes.channel import NoAnswer
from toutates.server.processes.orders import Orders, Worker
from toutates.server.processes.process import Process
from toutates.server.processes.sharing import count_of, shared_options
from toutates.server.replaced_files import reload_now
from toutates.server.running import run_logged
from toutates.system.address import Address
from toutates.system.early_signals import held_signals
from toutates.system.errors import ConfigurationError, RequestError
from toutates.system.interpreter import describe_interpreter
from toutates.system.logs.setup import STANDARD_ERROR, Logs, start_logs
from toutates.system.placement import Placement
from toutates.system.version import package_version

__all__ = ["Parent", "run_parent"]

logger = logging.getLogger(__name__)

#: Pauses before a process is started again: none, then these, doubled each time. One that has lived for LONG_S begins
#: anew. Seconds.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
LONG_S: Final = 60.0
#: How long after the grace, and after a second signal, processes may take to end.
LATE_S: Final = 10.0


def run_parent(options: Options) -> int:
    """Serve with several processes until a signal; returns the exit code.

    Raises:
        ConfigurationError: the options or the repository cannot be used.
    """
    with start_logs(options.log_level, options.log_format) as logs:
        return run_logged(lambda: Parent(options, logs).run)


class Parent:
    """Runs the processes, once.

    Args:
        options: of the server.
        logs: of this process.
    """

    def __init__(self, options: Options, logs: Logs) -> None:
        self._options = options
        self._logs = logs
        self._access = Access(options, lambda: self._certificate.names)
        self._certificate = ServerCertificate(options.tls if options.metrics_tls else None, 0)
        self._replaced_files = [*self._access.files, *self._certificate.files]
        self._identity = ServerIdentity(options.server_id, package_version())
        self._started_s = time.time()
        self._replica = Replica(count_of(options))
        self._orders = Orders(self._workers)
        self._processes: list[Process] = []
        self._stopping = trio.Event()
        self._stopping_now = trio.Event()
        #: when the processes drain, once they have to stop
        self._live_until_s = math.inf
        #: once all of them serve for the first time, or the start has failed
        self._has_begun = trio.Event()
        self._first_loaded = trio.Event()
        self._known: tuple[str, ...] = ()
        #: set, and replaced, with each change of a process
        self._change = trio.Event()
        self._announced = False
        self._told = ""
        self._worst = EXIT_OK
        self._failure: ConfigurationError | None = None
        self._texts: MetricsTexts | None = None
        self._nursery: trio.Nursery
        self._monitoring: Monitoring
        #: keep other servers from the ports until the processes listen there
        self._claims: ExitStack

    async def run(self) -> int:
        """Serve until a signal; returns the exit code, the worst of all processes.

        Raises:
            ConfigurationError: settings, an address or the models cannot be used.
        """
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        with ExitStack() as sockets, trio.open_signal_receiver(*handled) as signals:
            self._claims = sockets.enter_context(ExitStack())
            grpc, http = self._reserve(sockets)
            parts = shared_options(self._options, grpc, http)
            monitoring = None
            if self._options.metrics_addr is not None:
                [monitoring] = bind(self._options.metrics_addr, "--metrics-addr", otherwise=OR_OFF, claims=self._claims)
                sockets.enter_context(closing(monitoring))
            self._processes = [
                Process(
                    number,
                    part,
                    on_change=self._changed,
                    on_report=self._replica.update,
                    carry=self._carry,
                    metrics=self._metrics,
                    on_answer_again=partial(self._repeat, number),
                    stderr=STANDARD_ERROR if self._logs.output is None else self._logs.output.fd,
                    owns_ports="http" not in self._options.shared_ports,
                )
                for number, part in enumerate(parts)
            ]
            self._monitoring = Monitoring(self._view(), self._logs)
            watched = self._monitoring.serving(
                monitoring,
                Placement(),
                debug_for_all=self._options.debug_endpoints,
                pages=self._access.pages,
                more_warnings=lambda: self._replica.warnings,
                gate=self._access.gate,
                tls=lambda: self._certificate.for_monitoring,
            )
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._handle_signals, signals)
                nursery.start_soon(self._kill_late)
                for files in self._replaced_files:
                    nursery.start_soon(files.watch)
                async with watched, trio.open_nursery() as processes:
                    processes.start_soon(self._begin, grpc, http)
                    for process in self._processes:
                        processes.start_soon(self._keep, process)
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._worst

    def _reserve(self, sockets: ExitStack) -> tuple[Address, Address | None]:
        """Bind sockets that do not listen, so that the ports stay ours whichever processes there are."""
        options = self._options
        check_ports(options)
        found: list[Address | None] = []
        for name, address, flag, otherwise in (
            ("grpc", options.grpc_addr, "--grpc-addr", ""),
            ("http", options.http_addr, "--http-addr", OR_OFF),
        ):
            if address is None:
                found.append(None)
                continue
            # Two, since one that is bound for several refuses a port that another server has.
            shared = name in options.shared_ports
            for one in bind(address, flag, sockets=2, shared=shared, otherwise=otherwise, claims=self._claims):
                sockets.enter_context(closing(one))
            found.append(replace(address, port=one.getsockname()[1]))
        grpc, http = found
        assert grpc is not None
        return grpc, http

    # --- the life of the processes -----------------------------------------------------------------------------------

    async def _keep(self, process: Process) -> None:
        """Run a process, and run it again whenever it has died."""
        pause_s = 0.0
        while True:
            began_s = trio.current_time()
            code = await process.run(partial(self._may_start, process), partial(self._join, process))
            self._replica.forget(process.number)
            if self._stopping.is_set():
                self._worst = max(self._worst, _exit_code(code))
                return
            if not self._has_begun.is_set():
                self._fail(process, code)
                return
            if trio.current_time() - began_s >= LONG_S:
                pause_s = 0.0
            logger.error(
                "process %d %s; it is started again%s, and the others serve meanwhile",
                process.number,
                _ended(process, code),
                f" in {pause_s:.0f} s" if pause_s else "",
            )
            process.begin()
            self._changed()
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            if self._options.model_control_mode == "explicit":
                # It loads what the others have been told to load, see ``_begin``.
                process.options = replace(process.options, load_models=(), load_model=())

    async def _may_start(self, process: Process) -> tuple[str, ...] | None:
        """Wait until a process may load its models; returns what the log has been told of them."""
        first = self._processes[0]
        if process is first and not self._has_begun.is_set():
            return None
        await self._first_loaded.wait()
        return self._known

    async def _begin(self, grpc: Address, http: Address | None) -> None:
        """See all of them through their first start."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            first = self._processes[0]
            await first.loaded.wait()
            self._known = tuple(first.loaded_what.warnings)
            self._first_loaded.set()
            if self._options.model_control_mode == "explicit":
                for name in first.loaded_what.models:
                    request = pb.RepositoryModelLoadRequest(model_name=name).SerializeToString()
                    self._orders.remember(Order("RepositoryModelLoad", request, changes=True, about=f"model {name}"))
            for process in self._processes:
                await process.loaded.wait()
            for process in self._processes:
                process.joined = True
                process.tell(messages.SERVE, self._told.encode())
            while not all(process.serves for process in self._processes):
                await self._change.wait()
            self._has_begun.set()
            self._claims.close()
            self._announce(grpc, http)
            if self._options.model_control_mode == "poll":
                self._nursery.start_soon(self._poll)
            nursery.cancel_scope.cancel()

    async def _join(self, process: Process) -> None:
        """See a process through its start after the others have begun."""
        if not process.restarts:
            return  # see ``_begin``
        await process.loaded.wait()

        def joined() -> None:
            process.joined = True

        for about, one in await self._orders.catch_up(process.work, joined):
            self._note_lack(process, about, one)
        process.tell(messages.SERVE, self._told.encode())

    def _repeat(self, number: int) -> None:
        """A process answers that was silent: have it do what it may have missed."""

        async def repeat() -> None:
            process = self._processes[number]
            for about, one in await self._orders.catch_up(process.work, lambda: None):
                self._note_lack(process, about, one)

        if self._processes[number].lacks:
            self._nursery.start_soon(repeat)

    def _note_lack(self, process: Process, about: str, outcome: Outcome) -> None:
        text = f"it has not done what others have: {outcome.text.rstrip()}"
        logger.error("process %d: %s", process.number, text)
        if about.startswith("model "):
            process.lacks[about] = text
            self._changed()

    def _fail(self, process: Process, code: int) -> None:
        """A process has ended before all served: so does the server."""
        if process.failed is not None and process.failed.is_configuration:
            self._failure = self._failure or ConfigurationError(process.failed.text)
        elif not (self._options.exit_on_error and code == EXIT_FAILURE):  # which the process has told itself
            logger.critical(
                "process %d %s before it served, and so ends the server", process.number, _ended(process, code)
            )
        self._worst = max(self._worst, _exit_code(code) or EXIT_FAILURE)
        self._stop(at_once=True)

    async def _poll(self) -> None:
        while not self._stopping.is_set():
            await trio.sleep(self._options.repository_poll_s)
            for process in self._processes:
                if process.joined:
                    process.tell(messages.POLL)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _handle_signals(self, signals: AsyncIterator[int]) -> None:
        for number in held_signals():
            self._handle_signal(number)
        async for number in signals:
            self._handle_signal(number)

    def _handle_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            is_second = self._stopping.is_set()
            logger.info("%s: %s", signal.Signals(number).name, "stopping now" if is_second else "stopping")
            self._stop(at_once=is_second)
            return
        if number == signal.SIGUSR1:
            self._logs.control.toggle_debug()
        elif number == signal.SIGUSR2:
            self._nursery.start_soon(self._monitoring.log_dump)
        elif number == signal.SIGHUP:
            reload_now(self._replaced_files)
        for process in self._processes:
            process.pass_on(number)

    def _stop(self, *, at_once: bool) -> None:
        if not self._stopping.is_set():
            self._live_until_s = time.monotonic() + self._options.shutdown_delay_s
        self._stopping.set()
        if at_once:
            self._live_until_s = 0.0
            self._stopping_now.set()
        self._monitoring.leave()
        for process in self._processes:
            process.stop(at_once=at_once)
        self._changed()

    async def _kill_late(self) -> None:
        """End what does not end by itself."""
        await self._stopping.wait()
        with trio.move_on_after(self._options.shutdown_delay_s + self._options.shutdown_grace_s):
            await self._stopping_now.wait()
        await trio.sleep(LATE_S)
        for process in self._processes:
            if process.pid is not None:
                logger.error("process %d (pid %d) does not end, and is killed", process.number, process.pid)
                process.kill()

    # --- one for all -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Something that readiness depends on has changed: tell the log and every process."""
        self._change.set()
        self._change = trio.Event()
        reason = self._models_reason()
        if reason == self._told:
            return
        if self._announced and not self._stopping.is_set():
            if not self._told:
                logger.warning("the server is not ready any more: %s", reason)
            elif not reason:
                logger.info("the server is ready")
        self._told = reason
        for process in self._processes:
            process.tell(messages.READY, reason.encode())

    def _models_reason(self) -> str:
        """Why the processes keep the server from being ready; "" if they do not."""
        reasons = [process.reason for process in self._processes]
        if not any(process.serves for process in self._processes):
            return "the server is starting"
        if not self._options.strict_readiness:
            return ""
        if reasons[0] and len(set(reasons)) == 1:
            return reasons[0]
        return next((f"process {number}: {reason}" for number, reason in enumerate(reasons) if reason), "")

    def _reason(self) -> str:
        return "the server is shutting down" if self._stopping.is_set() else self._models_reason()

    def _view(self) -> ServerView:
        replica = self._replica
        return ServerView(
            identity=self._identity,
            started_s=self._started_s,
            workers=replica.workers,
            infer=replica.infer,
            get_table=lambda: replica.table,
            repositories=replica.repositories,
            loading=replica.loading,
            dropped_log_lines=lambda: self._logs.lost + replica.dropped_log_lines,
            traces=lambda: replica.traces,
            is_live=lambda: time.monotonic() < self._live_until_s,
            unready_reason=self._reason,
            processes=self._states,
            response_cache=lambda: replica.response_cache,
            traffic=lambda: replica.traffic,
            metrics_models=self._options.metrics_models,
            demand=lambda: replica.demand,
        )

    def _states(self) -> Sequence[ProcessState]:
        return [
            ProcessState("parent", os.getpid(), serves=True),
            *(
                ProcessState(str(one.number), one.pid, one.serves and not one.silent, one.restarts)
                for one in self._processes
            ),
        ]

    async def _carry(self, order: Order) -> list[Outcome]:
        """Have an order carried out, to its end, also if the process dies that has asked for it."""
        outcomes: list[list[Outcome]] = []
        done = trio.Event()

        async def carry_out() -> None:
            outcomes.append(await self._carry_out(order))
            done.set()

        self._nursery.start_soon(carry_out)
        await done.wait()
        if not outcomes[0]:
            raise NoAnswer("no process serves")
        return outcomes[0]

    async def _carry_out(self, order: Order) -> list[Outcome]:
        outcomes = await self._orders.carry(order)
        if order.changes and not all(one.error for one in outcomes):
            for one in outcomes:
                if one.error:
                    self._note_lack(self._processes[one.process], order.about, one)
        if order.call == "LogSettings" and order.changes and not all(one.error for one in outcomes):
            try:
                log_settings(self._logs.control, parse(pb.LogSettingsRequest, order.request))
            except RequestError as error:
                logger.warning("the parent's log cannot follow: %s", error)
        return outcomes

    def _workers(self) -> Iterable[Worker]:
        return [process.work for process in self._processes if process.joined]

    async def _metrics(self, accept: str) -> bytes:
        if self._texts is None:
            # A second one beside that of the HTTP side, which has a thread of its own.
            metrics = Exposition(self._view())
            self._nursery.start_soon(metrics.run)
            self._texts = MetricsTexts(metrics)
        content_type, text = await self._texts.get(accept)
        return content_type.encode() + b"\n" + text

    def _announce(self, grpc: Address, http: Address | None) -> None:
        self._announced = True
        workers = sum(one.options.processing_cores or 1 for one in self._processes)
        logger.info(
            "%s: toutates %s on %s: serving gRPC on %s:%d%s with %d processes and %d workers, %s",
            self._identity.name,
            self._identity.version,
            describe_interpreter(),
            grpc.host,
            grpc.port,
            "" if http is None else f", HTTP on {http.host}:{http.port}",
            len(self._processes),
            workers,
            f"NOT ready: {self._told}" if self._told else "ready",
            extra={"port": grpc.port, "processes": len(self._processes), "workers": workers},
        )


def _exit_code(code: int) -> int:
    """A process's exit code as one of the server's: a signal is a failure."""
    return EXIT_FAILURE if code < 0 else code


def _ended(process: Process, code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    said = f": {process.failed.text}" if process.failed is not None else ""
    return f"has ended with exit code {code}{said}"
