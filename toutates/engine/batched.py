"""The servable that batches: a SuperTensor, the executors that run its batches, and what both have counted.

It serves whatever its backends compute: a kind of model gives it a signature and one backend per executor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import trio

from toutates.engine.counters import ExecutorCounters, VersionCounters
from toutates.engine.deadlines.backend import InTime
from toutates.engine.deadlines.port import DeadlinePort
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.executor import Executor
from toutates.engine.executor_threads import ExecutorThreads
from toutates.engine.lane import LaneState
from toutates.engine.on_device import DevicePort
from toutates.engine.open_request import Responses
from toutates.engine.padded.backend import PaddedBackend
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.port import PaddedPort
from toutates.engine.poisoned import watching
from toutates.engine.policies.keeper import keep_time, tell_dropped
from toutates.engine.policies.port import PolicyPort, RaggedPolicyPort
from toutates.engine.policies.queue import PolicyQueue
from toutates.engine.pool import ExecutorPool
from toutates.engine.pooled_executors import PooledExecutors
from toutates.engine.ragged.port import RaggedPort
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.servable import Backend, Consumer, Host, Port
from toutates.engine.statistics import VersionStatistics
from toutates.engine.submitter import Submitter
from toutates.engine.supertensor import SuperTensor
from toutates.protocol.signature import Signature
from toutates.system.poison import current

__all__ = ["BatchedServable"]


class BatchedServable:
    """A model version whose requests are batched (``engine.servable.Servable``).

    Args:
        version: its number, for the log.
        supertensor: holds its rows. It belongs to this servable.
        backends: one per executor.
        counters: of each executor, where somebody else counts or reads there too; without them, new ones.
        pads: whether the backends pad the rows of a batch themselves.
        pool_threads: threads that these have of their own.
        memory_kind: see ``VersionStatistics``.
        responses: of a decoupled version.
        device: number of the GPU on which all backends run, where they take ``DeviceRows``; else None.
        pooled: whether executors may have the threads of the host's pool: runs take none but the CPU's time, and wait
            for nothing.
    """

    def __init__(
        self,
        version: int,
        supertensor: SuperTensor,
        backends: Sequence[Backend],
        *,
        counters: Sequence[ExecutorCounters] = (),
        pads: bool = False,
        pool_threads: int = 0,
        memory_kind: str = "CPU",
        responses: Responses | None = None,
        device: int | None = None,
        pooled: bool = False,
    ) -> None:
        self.supertensor = supertensor
        self.counters = VersionCounters([], list(counters) or [ExecutorCounters() for _ in backends])
        self._pool_threads = pool_threads
        self._memory_kind = memory_kind
        self._responses = responses
        self._device = device
        executors = [
            Executor(supertensor, backend if pads else self._wrapped(backend, own), on_batch=own.add)
            for backend, own in zip(backends, self.counters.executors, strict=True)
        ]
        self._executors = [weakref.ref(executor) for executor in executors]
        self._version = version
        self._may_be_pooled = pooled
        #: until ``run``, which leaves them to what has them run: when they end, their memory is free
        self._starting = executors
        self._closed = self._workers_ended = False
        self._threads: ExecutorThreads | PooledExecutors | None = None

    @property
    def signature(self) -> Signature:
        """See ``Servable``."""
        return self.supertensor.signature

    @property
    def joins(self) -> bool:
        """See ``Servable``."""
        return self.supertensor.joins

    @property
    def ready(self) -> bool:
        """See ``Servable``."""
        return self._threads is None or self._threads.ready

    @property
    def executors(self) -> list[Executor]:
        """Those that have not ended, by their number."""
        return [executor for reference in self._executors if (executor := reference()) is not None]

    @property
    def on_cpu(self) -> bool:
        """Whether all runs are on the CPU, as its backends say."""
        return all([executor.on_cpu for executor in self.executors])

    def _wrapped(self, backend: Backend, counters: ExecutorCounters) -> Backend:
        """The backend of an executor that leaves out what is late, or pads; one for ragged rows joins them itself."""
        supertensor = self.supertensor
        if isinstance(supertensor, DeadlineSuperTensor):
            return InTime(backend, supertensor.deadlines)
        if not isinstance(supertensor.padding, Padding):
            return backend
        return PaddedBackend(backend, supertensor.padding, supertensor.signature, supertensor.name, counters)

    def port(self, consumer: Consumer) -> Port:
        """See ``Servable``."""
        self.counters.workers.append(consumer.counters)
        poison = current()
        if poison is not None:
            consumer = watching(consumer, self.supertensor.name, self.signature, poison)
        padding = self.supertensor.padding
        if isinstance(self.supertensor, DeadlineSuperTensor):
            return DeadlinePort(self.supertensor, consumer)
        if isinstance(self.supertensor.queue, PolicyQueue):
            if isinstance(padding, Ragged):
                return RaggedPolicyPort(self.supertensor, padding, consumer)
            return PolicyPort(self.supertensor, consumer)
        if padding is None:
            if self._device is not None:
                return DevicePort(self.supertensor, consumer, self._device)
            return Submitter(self.supertensor, consumer)
        kind = PaddedPort if isinstance(padding, Padding) else RaggedPort
        return kind(self.supertensor, padding, consumer)

    def statistics(self) -> VersionStatistics:
        """See ``Servable``."""
        counters = self.counters
        return VersionStatistics(
            requests=counters.requests(),
            batches=counters.batches(),
            batch_durations=counters.batch_durations(),
            batch_runs=counters.batch_runs(),
            occupancy=self.supertensor.occupancy(),
            batch_size=self.supertensor.batch_size if self.signature.batched else 1,
            executors=len(counters.executors),
            pool_threads=self._pool_threads,
            pooled=isinstance(self._threads, PooledExecutors),
            memory_kind=self._memory_kind,
            responses=self._responses.counters.statistics() if self._responses is not None else {},
            forecast=self.supertensor.forecast() if isinstance(self.supertensor, DeadlineSuperTensor) else None,
        )

    def describe(self, most: int) -> list[str]:
        """See ``Servable``: the batches and the lanes."""
        occupancy = self.supertensor.occupancy()
        lines = [
            f"{occupancy.in_flight} batches in flight, {occupancy.running} running; {occupancy.rows} of "
            f"{occupancy.row_capacity} rows, {occupancy.in_flight_bytes} of {occupancy.capacity_bytes} bytes; "
            f"{occupancy.waiting} requests wait; {occupancy.idle_executors} executors idle; "
            f"{occupancy.lanes} lanes, {occupancy.spare_bytes} bytes of spare batches"
        ]
        lines += map(_lane, self.supertensor.lane_states(most))
        if isinstance(self.supertensor, DeadlineSuperTensor):
            lines += self.supertensor.profiles(most)
        if occupancy.lanes > most:
            lines.append(f"and {occupancy.lanes - most} more lanes")
        return lines

    def start(self, host: Host, on_news: Callable[[], None]) -> bool:
        """Have requests answered without a task, where that is possible; else ``run`` is to be called at once.

        Args:
            host: see ``Servable.run``.
            on_news: called once when there is something to do or to wait for, as at the end: ``run`` is to be called
                then.
        """
        pool = self._pool_of(host)
        if pool is None or isinstance(self.supertensor.queue, PolicyQueue):
            return False
        self._pool_executors(pool).start(host, on_news)
        return True

    async def run(self, host: Host) -> None:
        """See ``Servable``. What ``start`` has begun goes on."""
        if self._threads is not None:
            await self._threads.run(host)
            return
        queue = self.supertensor.queue
        if not isinstance(queue, PolicyQueue):
            await self._run_executors(host)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_time, self.supertensor, queue)
            await self._run_executors(host)
            nursery.cancel_scope.cancel()
        tell_dropped(self.supertensor, queue.dropped)

    async def _run_executors(self, host: Host) -> None:
        pool = self._pool_of(host)
        if pool is not None:
            await self._pool_executors(pool).run(host)
            return
        self._threads = threads = ExecutorThreads(self.supertensor.name, self._version, self._starting)
        self._starting = []
        self._tell_closed()
        await threads.run(host)

    def _pool_of(self, host: Host) -> ExecutorPool | None:
        return host.pool if self._may_be_pooled else None

    def _pool_executors(self, pool: ExecutorPool) -> PooledExecutors:
        """The executors, which are to have threads of a pool."""
        executors, self._starting = self._starting, []
        self._threads = pooled = PooledExecutors(self.supertensor.name, self._version, executors, pool)
        self._tell_closed()
        return pooled

    def _tell_closed(self) -> None:
        """Tell the threads of the executors what ``close`` was told, if it was called."""
        if self._threads is None:
            return
        if self._workers_ended:
            self._threads.note_that_workers_ended()
        elif self._closed:
            self._threads.note_closed()

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``."""
        self._closed = True
        self._workers_ended |= workers_ended
        self._tell_closed()
        self.supertensor.close(workers_ended=workers_ended)

    def free(self) -> None:
        """See ``Servable``."""
        self.supertensor.free()


def _lane(state: LaneState) -> str:
    shapes = ", ".join(f"input {index}: {list(shape)}" for index, shape in state.row_shapes)
    known = [f"{ns / 1000:.0f} us" for ns in state.run_ns if ns < 2**62]
    waiting = "" if state.open_rows is None else f"; {state.open_rows} rows wait, {state.writing} workers are writing"
    return (
        f"lane of {shapes or 'no inputs'}: batches of up to {state.batch_rows} rows, the next of "
        f"{state.room} and {state.batch_bytes} bytes, "
        f"{state.spare} spare; runs take {', '.join(known) or 'nobody knows how long'}{waiting}"
    )
