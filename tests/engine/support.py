"""Models, workers and executors for the tests of batching: real ONNX Runtime sessions, threads where a test wants them.

A worker of the tests has no loop: the test adds rows through its submitter, ends its round, and collects what executors
hand back to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import onnxruntime
import trio

from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.signature_reader import read_signature
from toutates.engine.batched import BatchedServable
from toutates.engine.counters import ExecutorCounters
from toutates.engine.deadlines.backend import InTime
from toutates.engine.deadlines.port import DeadlinePort
from toutates.engine.deadlines.supertensor import DeadlineSuperTensor
from toutates.engine.executor import Executor
from toutates.engine.lane import Batch, GatheredLane, PackedLane, Piece, RowShapes
from toutates.engine.padded.backend import PaddedBackend
from toutates.engine.padded.padding import Padding
from toutates.engine.padded.port import PaddedPort
from toutates.engine.policies.port import PolicyPort, RaggedPolicyPort
from toutates.engine.policies.rules import BatchingRules
from toutates.engine.pool import ExecutorPool, PoolShare
from toutates.engine.ragged.backend import RaggedBackend
from toutates.engine.ragged.port import RaggedPort
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.result import BatchResult, Outputs, Split
from toutates.engine.servable import Backend, Consumer, Host, Port, Servable
from toutates.engine.submitter import Submitter
from toutates.engine.supertensor import SuperTensor
from toutates.models.config.padding import with_made_mask
from toutates.models.config.settings import ModelSettings
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.protocol.strings import EncodedStrings, StringRows, join_rows
from toutates.system.errors import RequestError
from toutates.system.inline_time import INLINE_TIME, NO_BOUND_NS

__all__ = [
    "Clock",
    "Rig",
    "TestWorker",
    "inline_time",
    "rows_of",
    "running",
    "shown_version",
    "some_batch",
    "wait_until",
]

Array = npt.NDArray[Any]

#: How long a thread may take that a test waits for; only a test that fails takes as long.
PATIENCE_S: Final = 120.0


# --- workers ---------------------------------------------------------------------------------------------------------


@dataclass
class TestWorker:
    """What a Submitter needs of a worker, and the answers that have come back, by request context."""

    __test__ = False

    number: int
    signature: Signature
    results: SimpleQueue[BatchResult] = field(default_factory=SimpleQueue)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    answers: dict[Any, list[Array | bytes]] = field(default_factory=dict)
    errors: dict[Any, RequestError] = field(default_factory=dict)
    #: every result, in the order of arrival
    seen: list[BatchResult] = field(default_factory=list)
    submitter: Submitter = field(init=False)
    #: in place of ``submitter`` where rows are padded
    padded: PaddedPort | PolicyPort = field(init=False)
    #: takes what others have run, in place of ``results``
    finish: Callable[[BatchResult], None] | None = None

    def deliver(self, result: BatchResult) -> None:
        """Take what others have run."""
        (self.finish or self.results.put)(result)

    def add(self, context: Any, lane: Any, *arrays: Array, rows: int | None = None) -> None:
        """Add one request's tensors, given by position in the lane."""
        if rows is None:
            rows = len(arrays[0]) if self.signature.batched and arrays else 1
        if isinstance(lane, GatheredLane):
            self.submitter.add_gathered(lane, rows, context, [received(array) for array in arrays])
            return
        contents = [array.tobytes() for array in arrays]
        spans: list[int] = []
        at = 7  # where a message has its own fields before the first content
        for content in contents:
            spans += (at, at + len(content))
            at += len(content)
        self.submitter.add_packed(self.submitter.writer(lane), rows, context, b"headers" + b"".join(contents), spans)

    def add_padded(self, context: Any, *arrays: Array, inputs: Iterable[int] | None = None) -> None:
        """Add one request's tensors where rows are padded, given by position."""
        indices = inputs if inputs is not None else range(len(arrays))
        shapes = tuple((index, array.shape[1:]) for index, array in zip(indices, arrays, strict=True))
        contents = [array.tobytes() for array in arrays]
        port: Port = self.padded
        port.add_contents(port.way(shapes), len(arrays[0]), context, contents)

    def at_round_end(self, callback: Callable[[], None]) -> None:
        """See ``Submitter``."""
        self.callbacks.append(callback)

    def end_round(self) -> None:
        """Commit what was added."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def collect(self, *contexts: Any) -> list[Any]:
        """Wait for the answers of these requests: the first output of each, or its error."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(context in self.answers or context in self.errors for context in contexts):
            self.take(self.results.get(timeout=deadline - time.monotonic()))
        return [self.errors[context] if context in self.errors else self.answers[context][0] for context in contexts]

    def take(self, result: BatchResult) -> None:
        """Give each request of a result its rows."""
        self.seen.append(result)
        outputs = result.outputs
        for context, first, rows, part in result.pending:
            if outputs is None:
                assert result.error is not None
                self.errors[context] = result.error
            elif part is None:
                self.answers[context] = rows_of(outputs, first, rows, self.signature)
            else:
                self._join(context, outputs, first, rows, *part)

    def _join(self, context: Any, outputs: Outputs, first: int, rows: int, split: Split, index: int) -> None:
        split.parts[index] = (outputs, first, rows)
        split.left -= 1
        if not split.left and context not in self.errors:
            parts = [rows_of(*part, self.signature) for part in split.parts if part is not None]
            self.answers[context] = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def received(array: Array) -> Piece:
    """An array as a service hands it to a lane; BYTES are bytes objects."""
    if not array.dtype.hasobject:
        return array
    encoded = EncodedStrings.of(array.ravel().tolist(), array.shape)
    return StringRows.received(encoded.content, array.shape, tensor="x", model="m")


def rows_of(outputs: Outputs, first: int, rows: int, signature: Signature) -> list[Any]:
    """Some rows of every output, as a service cuts them."""
    cut: list[Any] = []
    columns = zip(outputs.data, outputs.row_bytes, outputs.row_shapes, signature.outputs, strict=True)
    for index, (data, size, shape, spec) in enumerate(columns):
        whole = (rows, *shape) if signature.batched else shape
        if outputs.forms is not None and index in outputs.forms:
            assert not isinstance(data, EncodedStrings)
            cut.append(np.frombuffer(data, spec.datatype.numpy).reshape(outputs.forms[index][1]))
        elif isinstance(data, EncodedStrings):
            encoded = data.rows(first, rows) if signature.batched else data.content
            strings = StringRows.received(encoded, whole, tensor="y", model="m")
            cut.append(np.array(join_rows([strings], whole).elements(), object).reshape(whole))
        else:
            cut.append(np.frombuffer(data[first * size : (first + rows) * size], spec.datatype.numpy).reshape(whole))
    return cut


@contextmanager
def inline_time(left_ns: int) -> Iterator[None]:
    """A round of the calling thread that has so much time left for inline runs."""
    INLINE_TIME.left_ns = left_ns
    try:
        yield
    finally:
        INLINE_TIME.left_ns = NO_BOUND_NS


# --- parts by themselves ---------------------------------------------------------------------------------------------


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns


def some_batch(order: int, *, rows: int = 1, busy: int = 0) -> Batch:
    """A batch of a lane of its own, which has room for 8 rows.

    Args:
        order: of opening.
        rows: reserved.
        busy: workers that write to it.
    """
    fp32 = BY_NAME["FP32"]
    signature = Signature((TensorSpec("x", fp32, (-1,)),), (TensorSpec("y", fp32, (-1,)),), True)
    batch = PackedLane(signature, ((0, (order,)),), 8).new_batch(1, 8)
    batch.order, batch.rows, batch.busy = order, rows, busy
    return batch


# --- everything together ---------------------------------------------------------------------------------------------


class Rig:
    """One SuperTensor with its workers and executors. ``start`` begins the executors' threads, ``close`` ends them.

    Args:
        content: the ONNX file.
        batch_size, capacity, capacity_bytes, max_queue_size: of the ring.
        workers, executors: how many.
        quick_ns: see SuperTensor; without it, every batch runs in an executor's thread.
        lends: see SuperTensor.
        delay_ns, enough_rows: see SuperTensor.
        settings: for shapes that config.yaml gives.
        profile: where each session writes its profile, and after how many batches.
        padding: see SuperTensor; the mask is optional for requests.
        target_ns, clock_ns: see DeadlineSuperTensor; 0 for a SuperTensor without a target.
        rules: see SuperTensor. What a request says of itself is in ``said``.
        pool: whose threads run the batches; None for a thread of its own for each executor.
    """

    def __init__(
        self,
        content: bytes,
        *,
        batch_size: int = 8,
        capacity: int = 4,
        capacity_bytes: int = 2**40,
        max_queue_size: int = 0,
        workers: int = 1,
        executors: int = 1,
        quick_ns: int = 0,
        lends: bool = False,
        delay_ns: int = 0,
        enough_rows: int = 1,
        settings: ModelSettings | None = None,
        profile: tuple[Path, int] | None = None,
        padding: Padding | Ragged | None = None,
        target_ns: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        rules: BatchingRules | None = None,
        pool: ExecutorPool | None = None,
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
        self.signature = read_signature(sessions[0], settings or ModelSettings(), source=Path("config.yaml"))
        if isinstance(padding, Ragged):
            run_signature = padding.run_signature(self.signature)
        else:
            run_signature = self.signature = with_made_mask(self.signature, padding)
        self.sessions = [
            ModelSession(session, run_signature, "m", number, profile_batches=profile[1] if profile else None)
            for number, session in enumerate(sessions)
        ]
        make: Any = SuperTensor
        if target_ns:
            make = partial(DeadlineSuperTensor, target_ns=target_ns, executors=executors, clock_ns=clock_ns)
        self.supertensor: SuperTensor = make(
            "m",
            self.signature,
            batch_size=batch_size,
            capacity=capacity,
            capacity_bytes=capacity_bytes,
            max_queue_size=max_queue_size,
            quick_ns=quick_ns,
            lends=lends,
            delay_ns=delay_ns,
            enough_rows=enough_rows,
            padding=padding,
            rules=rules,
        )
        #: what requests say beside their tensors, by context
        self.said: dict[Any, dict[str, int]] = {}
        self.workers = [TestWorker(number, self.signature) for number in range(workers)]
        for worker in self.workers:
            consumer = Consumer(
                worker.deliver,
                worker.results.put,
                worker.at_round_end,
                self._is_wanted,
                parameters=lambda context: self.said.get(context, {}),
            )
            if isinstance(self.supertensor, DeadlineSuperTensor):
                worker.submitter = DeadlinePort(self.supertensor, consumer)
            elif rules is not None and isinstance(padding, Ragged):
                worker.padded = RaggedPolicyPort(self.supertensor, padding, consumer)
            elif rules is not None:
                worker.padded = PolicyPort(self.supertensor, consumer)
            elif padding is None:
                worker.submitter = Submitter(self.supertensor, consumer)
            else:
                kind = PaddedPort if isinstance(padding, Padding) else RaggedPort
                worker.padded = kind(self.supertensor, padding, consumer)
        #: cleared: executors stop before their next run
        self.gate = threading.Event()
        self.gate.set()
        #: set: an executor, or a worker in its place, has come to the gate
        self.at_gate = threading.Event()
        self.unwanted: set[Any] = set()
        #: until when requests are wanted, by context, monotonic nanoseconds
        self.deadlines: dict[Any, int] = {}
        #: raised in place of the answer: "is_wanted" and "on_batch"
        self.faults: dict[str, BaseException] = {}
        #: (rows, requests) of every batch that ran
        self.batches: list[tuple[int, int]] = []
        #: the thread that each of them ran in
        self.ran_in: list[threading.Thread] = []
        self.counters = [ExecutorCounters() for _ in self.sessions]
        self.executors = [self._executor(number) for number in range(executors)]
        self.pool = pool
        self.share = PoolShare()
        #: executors of the pool that have ended
        self.ended: list[threading.Thread] = []
        of_their_own = self.executors if pool is None else []
        self.threads = [threading.Thread(target=executor.run) for executor in of_their_own]

    def _executor(self, number: int) -> Executor:
        def on_batch(rows: int, requests: int, timing: Any) -> None:
            if "on_batch" in self.faults:
                raise self.faults["on_batch"]
            self.batches.append((rows, requests))
            self.ran_in.append(threading.current_thread())
            self.counters[number].add(rows, requests, timing)

        backend: Backend = self.sessions[number]
        padding = self.supertensor.padding
        if isinstance(padding, Ragged):
            backend = RaggedBackend(self.sessions[number], padding, self.signature, "m")
        elif isinstance(self.supertensor, DeadlineSuperTensor):
            backend = InTime(backend, self.supertensor.deadlines)
        elif padding is not None:
            backend = PaddedBackend(backend, padding, self.signature, "m", self.counters[number])
        return Executor(self.supertensor, backend, on_batch=on_batch)

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
                executor.join_pool(self.pool, self.share, self)

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

    def die(self, executor: Executor, death: BaseException) -> None:
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


def shown_version(
    model: str,
    number: int,
    signature: Signature,
    *,
    batch_size: int = 64,
    capacity: int = 16,
    executors: int = 1,
    pool_threads: int = 0,
) -> ServedVersion:
    """A version that only tells what it is, but cannot run."""
    supertensor = SuperTensor(model, signature, batch_size=batch_size, capacity=capacity)
    backends = [cast(Any, None)] * executors
    return ServedVersion(
        model, number, ModelConfig(), BatchedServable(number, supertensor, backends, pool_threads=pool_threads)
    )


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread is about to do."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


@contextmanager
def running(servable: Servable, host: Host) -> Iterator[None]:
    """A servable that runs in an event loop of its own, in which it is closed at the end of the block."""
    tokens: SimpleQueue[trio.lowlevel.TrioToken] = SimpleQueue()

    async def run() -> None:
        tokens.put(trio.lowlevel.current_trio_token())
        await servable.run(host)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    token = tokens.get(timeout=120)
    try:
        yield
    finally:
        with suppress(trio.RunFinishedError):  # the test has closed it
            trio.from_thread.run_sync(servable.close, trio_token=token)
        thread.join(120)
        assert not thread.is_alive()
        servable.free()
