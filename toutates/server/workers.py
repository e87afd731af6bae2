"""The workers: their threads, from before the first to after the last call."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable, Sequence
from functools import partial

import trio

from toutates.backends.python.calls import ManyPending
from toutates.infer.parking import Parking
from toutates.infer.service import InferService
from toutates.net import Listening, Worker
from toutates.net.listening import listen as listen_on
from toutates.server.descriptors import most_descriptor
from toutates.server.listeners import Listeners
from toutates.server.options import Options
from toutates.server.services import Services, WorkerServices
from toutates.server.shutdown import Shutdown
from toutates.server.starting import StartServices
from toutates.system.memory import available_memory
from toutates.system.placement import Placement, running_on

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

BACKLOG = 4_096


class Workers:
    """Makes the workers, runs each in a thread of its own, and drains them. Used on the main thread.

    Args:
        options: of the server.
        placement: how many there are, and where they run.
        shutdown: when they drain, and when they cut off what is left; it is told when one fails.

    Attributes:
        all: the workers, by number; none before ``make``.
        infer: inference of each of them, by each transport.
        parking: where requests of each of them wait for models; none where none are loaded on demand.
        cut_off_calls: calls that had no answer when the grace ended.
        ended: set once every worker has drained.
    """

    def __init__(self, options: Options, placement: Placement, shutdown: Shutdown) -> None:
        self.all: list[Worker] = []
        self.infer: list[InferService] = []
        self.cut_off_calls = 0
        self.parking: list[Parking] = []
        self.ended = trio.Event()
        #: what those in ``all`` serve
        self._own: list[WorkerServices] = []
        #: those that run, with what they answer until they serve
        self._running: list[tuple[Worker, StartServices]] = []
        self._options = options
        self._placement = placement
        self._shutdown = shutdown

    async def run(
        self, tls: Sequence[ssl.SSLContext], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run the threads of all workers until the shutdown begins and every worker has drained.

        Args:
            tls: a context for each; none for plaintext.
            task_status: told when there are workers, that can listen.
        """
        self._make(tls)
        limiter = trio.CapacityLimiter(math.inf)
        try:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._end_grace_early)
                async with trio.open_nursery() as threads:
                    for number, (worker, _) in enumerate(self._running):
                        cpus = self._placement.workers[number : number + 1]
                        threads.start_soon(self._run_worker, worker, cpus, limiter)
                    task_status.started()
                    await self._shutdown.begun.wait()
                    self._drain(self._options.shutdown_grace_s)
                watching.cancel_scope.cancel()
        finally:
            self.ended.set()

    def _make(self, tls: Sequence[ssl.SSLContext]) -> None:
        options, count = self._options, self._placement.processing_cores
        buffer_bytes = options.max_buffered_bytes or available_memory() // 2
        for number in range(count):
            worker = Worker(
                f"worker-{number}",
                options.limits,
                max_connections=max(1, options.max_concurrent_connections // count),
                buffer_bytes=max(1, buffer_bytes // count),
                most_fd=most_descriptor(),
            )
            worker.tls = tls[number] if tls else None
            self._running.append((worker, StartServices(worker, options)))
        ManyPending.all_unread.share([worker.budget for worker, _ in self._running])

    async def answer_start(self, listeners: Listeners) -> None:
        """Listen on the ports of REST and TorchServe, and answer there that the server starts, until ``serve``."""
        await self._listen([self._others(number, listeners) for number in range(len(self._running))])

    def make(self, services: Services, *, ready: bool) -> None:
        """Make what the workers serve.

        Args:
            services: of all.
            ready: whether the server is ready now.
        """
        for number, (worker, start) in enumerate(self._running):
            own = services.attach(worker, number, start, ready=ready)
            self.all.append(worker)
            self.infer += own.infer
            self.parking += [] if own.parking is None else [own.parking]
            self._own.append(own)

    async def serve(self, listeners: Listeners) -> None:
        """Listen on all ports and serve; returns once all workers do, or the shutdown has begun."""
        wanted = [
            [Listening(listeners.grpc[number], own.grpc), *self._others(number, listeners)]
            for number, own in enumerate(self._own)
        ]
        await self._listen(wanted, [own.take_over for own in self._own])

    def _others(self, number: int, listeners: Listeners) -> list[Listening]:
        """The listeners of a worker beside that of gRPC."""
        _, start = self._running[number]
        encrypted = self._options.rest_tls
        found = [Listening(one, start.port, encrypted) for one in listeners.http[number : number + 1]]
        if number == 0 and listeners.management is not None:
            found.append(Listening(listeners.management, start.management, encrypted))
        return found

    async def _listen(self, wanted: Sequence[Sequence[Listening]], before: Sequence[Callable[[], None]] = ()) -> None:
        """Have each worker accept connections; returns once all do, or the shutdown has begun.

        Args:
            wanted: of each worker, where they come from.
            before: what each of them does first.
        """
        if self._shutdown.begun.is_set():
            return  # the sockets may be closed
        token = trio.lowlevel.current_trio_token()
        events = [trio.Event() for _ in self._running]

        def listen(number: int) -> None:
            worker = self._running[number][0]
            try:
                for first in before[number : number + 1]:
                    first()
                worker.listen(*wanted[number])
            except Exception as error:
                token.run_sync_soon(self._failed, worker, error)
                return
            token.run_sync_soon(events[number].set)

        for number, (worker, _) in enumerate(self._running):
            for listening in wanted[number]:
                listen_on(listening.socket, BACKLOG)
            worker.call_soon(partial(listen, number))
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._shutdown.begun.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            for event in events:
                await event.wait()
            nursery.cancel_scope.cancel()

    async def _run_worker(self, worker: Worker, cpus: tuple[int, ...], limiter: trio.CapacityLimiter) -> None:
        """One worker's thread. If it fails, the server ends: it must not limp on with half its connections."""

        def run() -> int | BaseException:
            try:
                with running_on(cpus, self._placement.anywhere):
                    return trio.run(worker.run)
            except BaseException as error:  # of any kind: none may pass for this thread's cancellation
                return error

        try:
            outcome = await trio.to_thread.run_sync(run, limiter=limiter, thread_name=worker.name)
        except RuntimeError as error:  # the system has no thread left for us
            outcome = error
        if isinstance(outcome, BaseException):
            self._failed(worker, outcome)
        else:
            # Not in one step: `+= await` would read the sum before waiting, and lose what others add meanwhile.
            self.cut_off_calls += outcome

    def _failed(self, worker: Worker, error: BaseException) -> None:
        logger.critical("%s failed; the server stops", worker.name, exc_info=error)
        self._shutdown.fail()

    def use_tls(self, tls: Sequence[ssl.SSLContext]) -> None:
        """Have connections to come shake hands with these contexts, one per worker; does nothing before ``run``."""
        for (worker, _), context in zip(self._running, tls, strict=False):
            worker.call_soon(partial(worker.use_tls, context))

    def show_readiness(self, ready: bool) -> None:
        """Tell every worker that serves whether the server is ready."""
        for worker, own in zip(self.all, self._own, strict=True):
            worker.call_soon(partial(own.readiness.update, serving=ready))

    def announce_end(self) -> None:
        """Tell every worker that the server is about to stop."""
        for worker in self.all:
            worker.call_soon(worker.announce_end)

    def show_models(self) -> None:
        """Tell every worker where somebody wants to know it that the table of models has changed."""
        for worker, own in zip(self.all, self._own, strict=True):
            own.readiness.tell_of_models(worker.call_soon)

    async def let_go(self) -> None:
        """Wait until every worker has let go of what the table of models no longer has, and has ended that round.

        At its end the texts that came in it are given to their models, which may not be in the table any more.
        """
        token = trio.lowlevel.current_trio_token()

        def let_go(worker: Worker, event: trio.Event) -> None:
            for infer in self.infer:
                if infer.worker is worker:
                    infer.let_go()
            worker.at_round_end(partial(token.run_sync_soon, event.set))

        left = [(worker, trio.Event()) for worker in self.all]
        for worker, event in left:
            worker.call_soon(partial(let_go, worker, event))
        for _, event in left:
            await event.wait()

    def _drain(self, grace_s: float) -> None:
        for worker, own in zip(self.all, self._own, strict=True):
            worker.call_soon(own.readiness.begin_exit)
        for worker, _ in self._running:
            worker.call_soon(partial(worker.drain, grace_s, shared=self._options.reuse_port))

    async def _end_grace_early(self) -> None:
        """End the grace on a second request to stop, and on cancellation, which threads do not notice."""
        try:
            await self._shutdown.grace_ended.wait()
        finally:
            self._drain(0)
