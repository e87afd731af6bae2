"""One SuperTensor with its workers and executors, for the tests of batching: real ONNX Runtime sessions, real threads.

What is put together is what a version is served by, ``BatchedServable``: it chooses ports and executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime

from tests.engine.workers import TestWorker
from tests.waiting import PATIENCE_S, wait_until
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.signature_reader import read_signature
from toutates.engine.batched import BatchedServable
from toutates.engine.counters import ExecutorCounters
from toutates.engine.lane import PackedLane, RowShapes
from toutates.engine.servable import Consumer
from toutates.engine.supertensor import SuperTensor
from toutates.models.config.settings import ModelSettings

__all__ = ["Rig", "Runs"]


class Runs:
    """The backend of an executor, in whose place a test may run batches.

    Args:
        backend: what else runs them.

    Attributes:
        instead: called in place of ``Backend.run``; None for the backend's own.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.instead: Callable[..., Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def run(self, *arguments: Any) -> Any:
        """See ``Backend``."""
        return (self.instead or self.backend.run)(*arguments)

    @contextmanager
    def raising(self, error: BaseException) -> Iterator[None]:
        """Have every run of a block fail."""

        def fail(*arguments: object) -> Any:
            raise error

        self.instead = fail
        try:
            yield
        finally:
            self.instead = None


class _Noted(ExecutorCounters):
    """The counters of an executor, which tell the rig of every batch."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig

    def add(self, rows: int, requests: int, timing: Any, *, times: int = 1) -> None:
        """See ``ExecutorCounters``."""
        if "on_batch" in self._rig.faults:
            raise self._rig.faults["on_batch"]
        self._rig.batches.append((rows, requests))
        self._rig.ran_in.append(threading.current_thread())
        super().add(rows, requests, timing, times=times)


class Rig:
    """One SuperTensor with its workers and executors. ``start`` begins the executors' threads, ``close`` ends them.

    Args:
        content: the ONNX file.
        make: makes the SuperTensor.
        batch_size, capacity, quick_ns: see SuperTensor; with ``quick_ns`` 0 every batch runs in an executor's thread.
        workers, executors: how many.
        settings: for shapes that config.yaml gives.
        profile: where each session writes its profile, and after how many batches.
        make_session: makes the backend of an executor of what ``ModelSession`` takes.
        pool: whose threads run the batches; None for a thread of its own for each executor.
        rest: what else the SuperTensor takes.
    """

    def __init__(
        self,
        content: bytes,
        *,
        make: Callable[..., SuperTensor] = SuperTensor,
        batch_size: int = 8,
        capacity: int = 4,
        quick_ns: int = 0,
        workers: int = 1,
        executors: int = 1,
        settings: ModelSettings | None = None,
        profile: tuple[Path, int] | None = None,
        make_session: Callable[..., ModelSession] = ModelSession,
        pool: Any = None,
        **rest: Any,
    ) -> None:
        sessions = []
        for number in range(executors):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 4
            if profile is not None:
                options.enable_profiling = True
                options.profile_file_prefix = f"{profile[0]}_{number}"
            sessions.append(onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]))
        self.signature = self.served(
            read_signature(sessions[0], settings or ModelSettings(), source=Path("config.yaml"))
        )
        self.sessions = [
            make_session(session, self.run_signature(), "m", number, profile_batches=profile[1] if profile else None)
            for number, session in enumerate(sessions)
        ]
        self.supertensor = make(
            "m", self.signature, batch_size=batch_size, capacity=capacity, quick_ns=quick_ns, **rest
        )
        #: what requests say beside their tensors, by context
        self.said: dict[Any, dict[str, int]] = {}
        #: raised in place of the answer: "is_wanted" and "on_batch"
        self.faults: dict[str, BaseException] = {}
        #: (rows, requests) of every batch that ran
        self.batches: list[tuple[int, int]] = []
        #: the thread that each of them ran in
        self.ran_in: list[threading.Thread] = []
        self.counters: list[ExecutorCounters] = [_Noted(self) for _ in self.sessions]
        #: one per executor
        self.runs = [Runs(self.backend(session)) for session in self.sessions]
        backends: list[Any] = list(self.runs)
        self.servable = BatchedServable(1, self.supertensor, backends, counters=self.counters)
        self.workers = [TestWorker(number, self.signature) for number in range(workers)]
        for worker in self.workers:
            worker.port = self.servable.port(
                Consumer(
                    worker.deliver,
                    worker.results.put,
                    worker.at_round_end,
                    self._is_wanted,
                    parameters=lambda context: self.said.get(context, {}),
                )
            )
        #: cleared: executors stop before their next run
        self.gate = threading.Event()
        self.gate.set()
        #: set: an executor, or a worker in its place, has come to the gate
        self.at_gate = threading.Event()
        self.unwanted: set[Any] = set()
        #: until when requests are wanted, by context, monotonic nanoseconds
        self.deadlines: dict[Any, int] = {}
        self.executors = self.servable.executors
        self.pool = pool
        #: executors of the pool that have ended
        self.ended: list[threading.Thread] = []
        of_their_own = self.executors if pool is None else []
        self.threads = [threading.Thread(target=executor.run) for executor in of_their_own]

    def served(self, signature: Any) -> Any:
        """The tensors that requests have, of those that the file has."""
        return signature

    def run_signature(self) -> Any:
        """The tensors that runs have."""
        return self.signature

    def backend(self, session: ModelSession) -> Any:
        """What runs batches with a session."""
        return session

    def _is_wanted(self, context: Any, by_ns: int) -> bool:
        self.at_gate.set()
        assert self.gate.wait(PATIENCE_S)
        if "is_wanted" in self.faults:
            raise self.faults["is_wanted"]
        return context not in self.unwanted and self.deadlines.get(context, by_ns + 1) > by_ns

    @property
    def worker(self) -> TestWorker:
        """The first worker."""
        return self.workers[0]

    def lane(self, *shapes: tuple[int, ...], inputs: Iterable[int] | None = None) -> Any:
        """The lane of rows of these shapes."""
        row_shapes: RowShapes = tuple(zip(inputs if inputs is not None else range(len(shapes)), shapes, strict=True))
        return self.supertensor.lane(row_shapes)

    def packed(self, *shapes: tuple[int, ...]) -> PackedLane:
        """The same, where it is a packed one."""
        lane = self.lane(*shapes)
        assert isinstance(lane, PackedLane)
        return lane

    def start(self) -> None:
        """Start the executors and see them idle, or busy with what was there."""
        for thread in self.threads:
            thread.start()
        if self.pool is not None:
            for executor in self.executors:
                executor.join_pool(self.pool, self.executors[0].share, self)

    def hold(self, add: Callable[..., None], *request: Any) -> threading.Thread:
        """Have a thread add a request whose run then waits at the gate."""
        self.gate.clear()
        self.at_gate.clear()
        thread = threading.Thread(target=add, args=request)
        thread.start()
        assert self.at_gate.wait(PATIENCE_S)
        return thread

    def end(self) -> None:
        """An executor of the pool has ended."""
        self.ended.append(threading.current_thread())

    def die(self, executor: Any, death: BaseException) -> None:
        """A thread has died in its run."""
        executor.look()

    def wait_idle(self) -> None:
        """Wait until every executor waits for work."""
        wait_until(lambda: self.supertensor.occupancy().idle_executors == len(self.executors))

    def assert_empty(self) -> None:
        """Nothing is under way, and nothing is counted."""
        wait_until(lambda: self.supertensor.occupancy().in_flight == 0)
        budget = self.supertensor.budget
        assert (budget.rows, budget.memory_bytes, budget.waiting) == (0, 0, 0)

    def close(self, *, workers_ended: bool = False) -> None:
        """Close the SuperTensor and see every executor end."""
        self.gate.set()
        self.supertensor.close(workers_ended=workers_ended)
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        if self.pool is not None:
            wait_until(lambda: len(self.ended) == len(self.executors))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Executors for the length of a block."""
        self.start()
        try:
            yield
        finally:
            self.close(workers_ended=True)
