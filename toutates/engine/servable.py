"""The seam between what serves requests and what computes the answers.

The table of models holds ``Servable`` objects. Whoever has requests for one opens a ``Port`` to it. A servable that
runs batches drives a ``Backend`` with each of its executors (``batched``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from toutates.engine.counters import VersionCounters, WorkerCounters
from toutates.engine.lane import Batch, Piece, RowShapes
from toutates.engine.pool import ExecutorPool
from toutates.engine.result import BatchResult, Outputs, Parameters, Separate
from toutates.engine.statistics import VersionStatistics
from toutates.protocol.signature import Signature

__all__ = [
    "Backend",
    "Buffer",
    "Consumer",
    "Content",
    "Host",
    "Port",
    "RequestAbout",
    "SequenceOf",
    "Servable",
    "Way",
    "view_of",
]

Buffer = bytes | bytearray | memoryview
#: The bytes of one input. An array is one of uint8; several threads may read it, as they may not slice one memoryview.
Content = Buffer | npt.NDArray[np.uint8]


def view_of(content: Content) -> memoryview:
    """The bytes of a content, for the calling thread alone."""
    # Of an array object of its own, see ``Outputs.with_views``.
    return content[:].data if isinstance(content, np.ndarray) else memoryview(content)


#: What a request says of its sequence: the id, a number of 64 bits or a text, 0 or "" for none; whether it is the first
#: and the last one of the sequence; and for how many microseconds it waits for a slot, 0 for ever.
SequenceOf = tuple[int | str, bool, bool, int]


@dataclass(frozen=True, slots=True)
class RequestAbout:
    """What a request says beside its tensors, for backends whose models may ask.

    Attributes:
        identifier: the request's id; "" for none.
        outputs: indices of the outputs that are asked for; None for all.
        parameters: the request's, by name.
    """

    identifier: str = ""
    outputs: Sequence[int] | None = None
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consumer:
    """Whoever adds requests through a port, always on one and the same thread.

    Attributes:
        finish: takes the outcome of batches with rows of this consumer, in the thread that has run them.
        finish_here: the same for batches that the consumer's own thread has run, within ``Port.commit``.
        at_round_end: asks for a callback once the consumer has handed out the requests it has read.
        is_wanted: whether the request of a context still has a caller at a time, monotonic nanoseconds. Called in any
            thread.
        counters: what the consumer counts of its requests.
        about: what the request of a context says beside its tensors. Called in any thread, by backends whose models
            ask for it.
        may_have_left: whether the caller of a request may have left, although nobody can tell: what a model is told
            that has begun to answer it and may stop. Called in any thread.
        sequence: what the request of a context says of its sequence; None where ``about`` says it.
        parameters: of the request of a context, by name: those of ``about``, without the rest. Called in any thread.
        around_ns: how long a request that is added at a time, monotonic nanoseconds, is expected to have waited before,
            and to wait when it has run. Asked by versions with a latency target.
        unread_bytes: how many bytes of responses wait until the caller of a request reads them; asked for decoupled
            versions alone. Called in any thread.
        caller: whose the request of a context is, for versions whose callers take turns: the same of all requests of
            one caller, None where nobody knows. Called while the request is added.
        released: called when a decoupled version has begun the request of a context, and may begin others: what is
            left to come are responses. In any thread; None where nobody needs to know.
        sift: what the consumer gets in place of an outcome that neither ``finish`` nor ``finish_here`` takes; None for
            itself.
    """

    finish: Callable[[BatchResult], None]
    finish_here: Callable[[BatchResult], None]
    at_round_end: Callable[[Callable[[], None]], None]
    is_wanted: Callable[[Any, int], bool] = lambda context, by_ns: True
    counters: WorkerCounters = field(default_factory=WorkerCounters)
    about: Callable[[Any], RequestAbout] = lambda context: RequestAbout()
    may_have_left: Callable[[Any], bool] = lambda context: False
    sequence: Callable[[Any], SequenceOf] | None = None
    parameters: Callable[[Any], Parameters] = lambda context: {}
    released: Callable[[Any], object] | None = None
    sift: Callable[[BatchResult], Sequence[BatchResult]] | None = None
    around_ns: Callable[[int], int] = lambda now_ns: 0
    unread_bytes: Callable[[Any], int] = lambda context: 0
    caller: Callable[[Any], object] = lambda context: None


class Way(Protocol):
    """The way into a port for rows of certain shapes. To be kept as long as such rows come.

    Attributes:
        packed: whether the rows are given as bytes (``Port.add_packed``) or as arrays (``Port.add_gathered``).
    """

    @property
    def packed(self) -> bool: ...


class Port(Protocol):
    """One consumer's way into a servable, used by the consumer's thread only.

    Attributes:
        counters: the consumer's.
    """

    counters: WorkerCounters

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> Way:
        """The way for rows of these shapes. Not for every request: keep it.

        Args:
            row_shapes: of the inputs that are given.
            outputs: indices of the outputs that are wanted; None for all. A model may leave out what only others need.
        """
        ...

    def add_packed(self, way: Any, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """Add one request, copying its rows.

        Args:
            way: for its row shapes; a packed one.
            rows: how many rows.
            context: the request's; it comes back in ``BatchResult.pending``.
            buffer: the received message.
            spans: start and end of each input's bytes in ``buffer``, flat, in the order of the row shapes.

        Raises:
            Overloaded: too much is under way; nothing was added.
            ModelNotReady: the model version is being unloaded.
        """
        ...

    def add_contents(self, way: Any, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """The same as ``add_packed``, with the bytes of each input by itself, in the order of the row shapes."""
        ...

    def add_gathered(self, way: Any, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0) -> None:
        """Add one request by a way that is not packed. Its arrays are kept until they have run.

        Args:
            way, rows, context: as for ``add_packed``.
            arrays: one per input, in the order of the row shapes.
            held_bytes: memory that the arrays keep.
        """
        ...

    def commit(self, *, inline: bool = True) -> None:
        """Let run what was added so far.

        Args:
            inline: whether the calling thread may run a quick batch itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """What the model manager gives to a servable that it runs.

    Attributes:
        take_cpus: chooses the CPUs of one more thread; none leaves it where it is.
        anywhere: the CPUs that such a thread is left on when its job is done.
        on_death: called when a thread has died, or could not be started.
        on_ready_change: called when ``Servable.ready`` has changed.
        pool: threads for executors that need none of their own; None where all have their own.
    """

    take_cpus: Callable[[], tuple[int, ...]]
    anywhere: tuple[int, ...]
    on_death: Callable[[], None]
    on_ready_change: Callable[[], None]
    pool: ExecutorPool | None = None


class Servable(Protocol):
    """A model version that can be served, whatever it is made of.

    Attributes:
        signature: its tensors.
        counters: the live counters behind ``statistics``. They outlive the servable: requests that were answered late
            are still added to the sums of their model.
    """

    @property
    def signature(self) -> Signature: ...

    @property
    def counters(self) -> VersionCounters: ...

    @property
    def joins(self) -> bool:
        """Whether rows of several requests may share a run. Once it is false it stays so."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it can answer now. It cannot while all of its threads have died and are replaced."""
        ...

    def port(self, consumer: Consumer) -> Port:
        """A way in for one more consumer."""
        ...

    def statistics(self) -> VersionStatistics:
        """Its counters and how full it is. Takes a lock for constant time."""
        ...

    def describe(self, most: int) -> list[str]:
        """Lines about its inner state for a debugging dump, about ``most`` parts of each kind."""
        ...

    async def run(self, host: Host) -> None:
        """Keep its threads running; returns once it is closed and has answered everything. Called once."""
        ...

    def close(self, *, workers_ended: bool = False) -> None:
        """Take no more requests.

        Args:
            workers_ended: whether no consumer's thread is left, so that nobody commits what was added.
        """
        ...

    def free(self) -> None:
        """Let go of all memory, once ``run`` has returned."""
        ...


class Backend(Protocol):
    """Runs batches for one executor, for instance with an ONNX Runtime session. Used by one thread at a time.

    Attributes:
        started_ns, ended_ns: when the last computation began and ended, monotonic nanoseconds.
        on_cpu: whether all of a run is on the CPU. Only then can it be quick enough for a worker to do it itself.
        one_thread: whether a run uses no thread but the caller's.
    """

    started_ns: int
    ended_ns: int

    @property
    def on_cpu(self) -> bool: ...

    @property
    def one_thread(self) -> bool: ...

    def run(self, batch: Batch, first: int, rows: int) -> Outputs | Separate:
        """Run some rows of a batch: all of it, or after that has failed, those of one request.

        ``Separate`` is for backends that see requests and not only rows, and may be returned for a whole batch. What it
        says holds: no request of the batch is run again by itself.

        Args:
            batch: whose lane gives the inputs (``Lane.inputs``).
            first: the first of the rows.
            rows: how many.

        Raises:
            RequestError: the run failed; its text goes to the client.
        """
        ...

    def close(self) -> None:
        """Free what is held; no run will follow."""
        ...
