"""The workers: their threads, from before the first to after the last call."""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections.abc import Sequence
from functools import partial

import trio

from toutates.api.dataplane.readiness import Readiness
from toutates.infer.parking import Parking
from toutates.infer.service import InferService
from toutates.net import Listening, Worker
from toutates.net.connection import Service
from toutates.server.options import Options
from toutates.server.services import Services
from toutates.server.shutdown import Shutdown
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
    """

    def __init__(self, options: Options, placement: Placement, shutdown: Shutdown) -> None:
        self.all: list[Worker] = []
        self.infer: list[InferService] = []
        self.cut_off_calls = 0
        self.parking: list[Parking] = []
        self._readiness: list[Readiness] = []
        self._grpc: list[Service] = []
        self._http: list[Service] = []
        self._management: Service | None = None
        self._options = options
        self._placement = placement
        self._shutdown = shutdown

    def make(self, services: Services, tls: Sequence[ssl.SSLContext], *, ready: bool) -> None:
        """Make all of them.

        Args:
            services: what they serve.
            tls: a context for each; none for plaintext.
            ready: whether the server is ready now.
        """
        options, count = self._options, self._placement.processing_cores
        buffer_bytes = options.max_buffered_bytes or available_memory() // 2
        for number in range(count):
            worker = Worker(
                f"worker-{number}",
                options.limits,
                max_connections=max(1, options.max_concurrent_connections // count),
                buffer_bytes=max(1, buffer_bytes // count),
            )
            worker.tls = tls[number] if tls else None
            own = services.attach(worker, number, ready=ready)
            self.all.append(worker)
            self.infer += own.infer
            self.parking += [] if own.parking is None else [own.parking]
            self._grpc.append(own.grpc)
            self._http.append(own.http)
            self._management = own.management or self._management
            self._readiness.append(own.readiness)

    async def run(
        self,
        grpc: Sequence[socket.socket],
        http: Sequence[socket.socket],
        management: socket.socket | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until the shutdown begins and every worker has drained.

        Args:
            grpc: one per worker, bound.
            http: as many, or none.
            management: of TorchServe's management API, which the first worker serves.
            task_status: told when all of them listen.
        """
        limiter = trio.CapacityLimiter(math.inf)
        async with trio.open_nursery() as watching:
            watching.start_soon(self._end_grace_early)
            async with trio.open_nursery() as threads:
                encrypted = self._options.rest_tls
                for number, worker in enumerate(self.all):
                    listenings = [Listening(grpc[number], self._grpc[number])]
                    listenings += [Listening(one, self._http[number], encrypted) for one in http[number : number + 1]]
                    if management is not None and self._management is not None and number == 0:
                        listenings.append(Listening(management, self._management, encrypted))
                    for listening in listenings:
                        listening.socket.listen(BACKLOG)
                    cpus = self._placement.workers[number : number + 1]
                    threads.start_soon(self._run_worker, worker, listenings, cpus, limiter)
                task_status.started()
                await self._shutdown.begun.wait()
                self._drain(self._options.shutdown_grace_s)
            watching.cancel_scope.cancel()

    async def _run_worker(
        self, worker: Worker, listenings: Sequence[Listening], cpus: tuple[int, ...], limiter: trio.CapacityLimiter
    ) -> None:
        """One worker's thread. If it fails, the server ends: it must not limp on with half its connections."""

        def run() -> int | BaseException:
            try:
                with running_on(cpus, self._placement.anywhere):
                    return trio.run(partial(worker.run, *listenings))
            except BaseException as error:  # of any kind: none may pass for this thread's cancellation
                return error

        try:
            outcome = await trio.to_thread.run_sync(run, limiter=limiter, thread_name=worker.name)
        except RuntimeError as error:  # the system has no thread left for us
            outcome = error
        if isinstance(outcome, BaseException):
            logger.critical("%s failed; the server stops", worker.name, exc_info=outcome)
            self._shutdown.fail()
        else:
            # Not in one step: `+= await` would read the sum before waiting, and lose what others add meanwhile.
            self.cut_off_calls += outcome

    def use_tls(self, tls: Sequence[ssl.SSLContext]) -> None:
        """Have connections to come shake hands with these contexts, one per worker; does nothing before ``make``."""
        for worker, context in zip(self.all, tls, strict=False):
            worker.call_soon(partial(worker.use_tls, context))

    def show_readiness(self, ready: bool) -> None:
        """Tell every worker whether the server is ready."""
        for worker, readiness in zip(self.all, self._readiness, strict=True):
            worker.call_soon(partial(readiness.update, serving=ready))

    def show_models(self) -> None:
        """Tell every worker where somebody wants to know it that the table of models has changed."""
        for worker, readiness in zip(self.all, self._readiness, strict=False):
            readiness.tell_of_models(worker.call_soon)

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
        for worker, readiness in zip(self.all, self._readiness, strict=True):
            worker.call_soon(readiness.begin_exit)
            worker.call_soon(partial(worker.drain, grace_s))

    async def _end_grace_early(self) -> None:
        """End the grace on a second request to stop, and on cancellation, which threads do not notice."""
        try:
            await self._shutdown.grace_ended.wait()
        finally:
            self._drain(0)
