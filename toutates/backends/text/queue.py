"""The texts of one version on their way: those whose tokens are not read yet, those that wait, and who works on them.

Each executor's thread takes what is next: it reads the tokens of texts that have come, or it takes a batch of texts of
about the same length (``engine.lengths``) and runs it. Reading comes first as long as few texts wait, because more of
them make better batches; but not so often that texts wait for others' tokens without end.

One lock guards all of it; it is held for constant time, or for the choice of a batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from toutates.backends.text.interface import Float32, SparseVector
from toutates.backends.text.reading import ReadTexts, Slice
from toutates.backends.text.work import Row, Sink, TextRequest
from toutates.engine.lengths import Buckets, WaitingRows
from toutates.engine.result import Timing
from toutates.system.errors import ModelNotReady, Overloaded, RequestError, TooLate

__all__ = ["ENDED", "Bounds", "Ended", "Inbox", "TextBatch", "TextQueue"]

logger = logging.getLogger(__name__)

#: Wakes an executor.
Inbox = SimpleQueue[None]

#: Texts whose tokens are read at once.
_SLICE: Final = 64
#: Characters or bytes of these, unless one text has more.
_SLICE_SIZE: Final = 65_536
#: How many slices are read in a row while others wait to be run.
_MOST_READS: Final = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be under way in a version.

    Attributes:
        texts: how many.
        memory_bytes: of their characters.
        batch_rows: texts of a batch.
        batch_tokens: of a batch, padding included.
        file: that sets them, for errors.
    """

    texts: int
    memory_bytes: int
    batch_rows: int
    batch_tokens: int
    file: str = "config.yaml"


@dataclass(slots=True)
class TextBatch:
    """Texts that run together.

    Attributes:
        rows: the texts.
        length: that they are padded to.
        taken_ns: when they were taken, monotonic.
    """

    rows: list[Row]
    length: int
    taken_ns: int


class Ended:
    """There will be no more."""


ENDED: Final = Ended()


class TextQueue:
    """See the module.

    Args:
        model: its name, for errors.
        bounds: how much may be under way.
        buckets: what lengths are rounded up to.

    Attributes:
        texts, memory_bytes: under way.
        running: batches that run.
    """

    def __init__(self, model: str, bounds: Bounds, buckets: Buckets) -> None:
        self.bounds = bounds
        self.texts = 0
        self.memory_bytes = 0
        self.running = 0
        self._model = model
        self._lock = threading.Lock()
        self._unread: deque[Slice] = deque()
        self._waiting: WaitingRows[Row] = WaitingRows(buckets, bounds.batch_rows, bounds.batch_tokens)
        self._idle: list[Inbox] = []
        self._reads = 0
        self._closed = self._abandoned = False
        #: how long a padded token takes to run, nanoseconds; a moving average
        self._token_ns = 0.0

    # --- in ----------------------------------------------------------------------------------------------------------

    def check(self, texts: int, size: int) -> None:
        """Refuse a request that does not fit in now. Whoever adds it next may still be refused.

        Raises:
            Overloaded: too much is under way.
            ModelNotReady: the version is being unloaded.
        """
        bounds = self.bounds
        if self._closed:
            raise ModelNotReady("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if self.texts + texts > bounds.texts:
            raise Overloaded(
                f"model '{self._model}' has {self.texts} of at most {bounds.texts} texts under way, and this request "
                f"has {texts} more; try again later, or raise 'capacity' in its {bounds.file}"
            )
        if self.memory_bytes + size > bounds.memory_bytes:
            raise Overloaded(
                f"model '{self._model}' has {self.memory_bytes} of at most {bounds.memory_bytes} bytes of texts under "
                f"way, and this request has {size} more; try again later, or raise 'capacity_bytes' in its "
                f"{bounds.file}"
            )

    def count(self, texts: int, size: int) -> None:
        """Let a request in, which ``add`` follows for.

        Raises:
            Overloaded, ModelNotReady: see ``check``.
        """
        with self._lock:
            self.check(texts, size)
            self.texts += texts
            self.memory_bytes += size

    def give_back(self, texts: int, size: int) -> None:
        """A request that was let in does not come."""
        with self._lock:
            self.texts -= texts
            self.memory_bytes -= size
            idle = self._take_idle_at_end()
        _wake(idle)

    def submit(self, request: TextRequest) -> None:
        """``count`` and ``add`` for one request with texts.

        Raises:
            Overloaded, ModelNotReady: see ``check``.
        """
        texts, size = len(request.texts), request.size
        slices = ((request, 0, texts),) if texts <= _SLICE and request.text_size <= _SLICE_SIZE else _slices(request)
        with self._lock:
            self.check(texts, size)
            self.texts += texts
            self.memory_bytes += size
            self._unread.extend(slices)
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(None)

    def add(self, requests: Iterable[TextRequest]) -> None:
        """Put requests that were let in into the queue. Returns at once. Those without a text are over."""
        empty: list[TextRequest] = []
        with self._lock:
            for request in requests:
                if request.texts:
                    self._unread.extend(_slices(request))
                else:
                    empty.append(request)
            inbox = self._idle.pop() if self._idle and self._unread else None
        if inbox is not None:
            inbox.put(None)
        for request in empty:
            self.give_back(0, request.size)
            now_ns = request.arrived_ns
            _hand_out([request], Timing(now_ns, now_ns, now_ns, now_ns))

    # --- out ---------------------------------------------------------------------------------------------------------

    def take(self, inbox: Inbox) -> list[Slice] | TextBatch | Ended | None:
        """What an executor is to do next; None if there is nothing, and ``inbox`` will get something when there is."""
        while True:
            dropped: list[Row] = []
            wake: Inbox | None = None
            with self._lock:
                found: list[Slice] | TextBatch | Ended | None = None
                if self._unread and (
                    not self._waiting or (self._waiting.rows < 4 * self.bounds.batch_rows and self._reads < _MOST_READS)
                ):
                    self._reads += 1
                    found = self._take_slices()
                elif self._waiting:
                    self._reads = 0
                    found = self._take_batch(dropped)
                elif self._is_finished():
                    found = ENDED
                else:
                    self._idle.append(inbox)
                if found is not None and self._idle and (self._unread or self._waiting):
                    wake = self._idle.pop()
            if wake is not None:
                wake.put(None)
            if dropped:
                self._drop(dropped)
            if not isinstance(found, TextBatch) or found.rows:
                return found

    def _take_slices(self) -> list[Slice]:
        texts, size = 0, 0
        found: list[Slice] = []
        while self._unread and texts < _SLICE and size < _SLICE_SIZE:
            request, first, end = slice_ = self._unread.popleft()
            if not request.is_over:
                found.append(slice_)
                texts += end - first
                size += request.text_size * (end - first) // len(request.texts)
        return found

    def _take_batch(self, dropped: list[Row]) -> TextBatch:
        chosen = self._waiting.take()
        now_ns = time.monotonic_ns()
        # Where others wait, what will be late anyway is left out.
        by_ns = now_ns + int(self._token_ns * chosen.rows * chosen.length) if self._waiting else now_ns
        rows: list[Row] = []
        verdicts: dict[TextRequest, bool] = {}
        for row in chosen.entries:
            request = row.request
            if request.is_over:
                continue
            wanted = verdicts.get(request)
            if wanted is None:
                wanted = verdicts[request] = request.is_wanted(by_ns)
            (rows if wanted else dropped).append(row)
        self.running += bool(rows)
        return TextBatch(rows, chosen.length, now_ns)

    def _drop(self, rows: Sequence[Row]) -> None:
        now_ns = time.monotonic_ns()
        error = TooLate("the answer would come after the caller's deadline, or the caller has left")
        requests = dict.fromkeys(row.request for row in rows)
        self.finish((), [(request, error) for request in requests], Timing(now_ns, now_ns, now_ns, now_ns))

    def runs_alone(self) -> bool:
        """Whether nothing waits, so that whoever has read a text may run it at once. It is then counted as running."""
        with self._lock:
            if self._waiting or self._unread:
                return False
            self.running += 1
            return True

    def add_read(self, read: ReadTexts, timing: Timing) -> None:
        """Texts were read: they wait for a batch, have an answer, or have failed."""
        with self._lock:
            for row in read.rows:
                if not row.request.is_over:
                    self._waiting.add(row, 1, len(row.ids))
        if read.empty or read.failed:
            self.finish(read.empty, read.failed, timing)

    def note_run(self, batch: TextBatch, duration_ns: int) -> None:
        """A batch has run. Called by any thread; a lost update is one measurement less."""
        own = duration_ns / (len(batch.rows) * batch.length)
        self._token_ns += (own - self._token_ns) / 8 if self._token_ns else own

    def finish(
        self,
        rows: Iterable[Row],
        failed: Sequence[tuple[TextRequest, RequestError]],
        timing: Timing,
        *,
        ran: bool = False,
    ) -> None:
        """Texts are computed, and requests have failed. Those that are over go to their sinks.

        Args:
            rows: whose requests have their vectors.
            failed: requests and why; what is left of them is not computed.
            timing: of the batch.
            ran: whether it was a batch of ``take``.
        """
        over: list[TextRequest] = []
        with self._lock:
            self.running -= ran
            for request, error in failed:
                if not request.is_over:
                    request.error = error
                    request.is_over = True
                    over.append(request)
            for row in rows:
                request = row.request
                request.left -= 1
                if request.settled.counts and not request.is_over:
                    self._count_result(request, row.index)
                if not request.is_over and (not request.left or request.error is not None):
                    request.is_over = True
                    over.append(request)
            for request in over:
                self.texts -= len(request.texts)
                self.memory_bytes -= request.size
            idle = self._take_idle_at_end()
        _wake(idle)
        if over:
            _hand_out(over, timing)

    def _count_result(self, request: TextRequest, index: int) -> None:
        """Count what was computed for a text as memory under way, or fail its request. With the lock held."""
        size = _size_of(request.vectors[index])
        if self.memory_bytes + size > self.bounds.memory_bytes:
            request.error = Overloaded(
                f"model '{self._model}' has {self.memory_bytes} of at most {self.bounds.memory_bytes} bytes of texts "
                f"and results under way, and this request makes more; send fewer texts at once, or raise "
                f"'capacity_bytes' in its {self.bounds.file}"
            )
            return
        request.size += size
        self.memory_bytes += size

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self, *, abandoned: bool = False) -> None:
        """Take no more; executors end once what is under way is done.

        Args:
            abandoned: whether no thread is left that would put what was let in into the queue.
        """
        with self._lock:
            self._closed = True
            self._abandoned |= abandoned
            idle, self._idle = self._idle, []
        _wake(idle)

    def _take_idle_at_end(self) -> Sequence[Inbox]:
        """The idle executors, to be told that there will be no more; none as long as there may be. With the lock."""
        if not self._is_finished():
            return ()
        idle, self._idle = self._idle, []
        return idle

    def _is_finished(self) -> bool:
        """Whether nothing is left, with the lock held. Of a worker that is gone, nobody puts the texts in."""
        if not self._closed:
            return False
        return not self.texts or (self._abandoned and not self._unread and not self._waiting)

    def state(self) -> tuple[int, int, int]:
        """Texts that are not read yet, texts that wait for a batch, and idle executors."""
        with self._lock:
            return sum(end - first for _, first, end in self._unread), self._waiting.rows, len(self._idle)


def _wake(idle: Iterable[Inbox]) -> None:
    for inbox in idle:
        inbox.put(None)


def _hand_out(over: Iterable[TextRequest], timing: Timing) -> None:
    """Give requests that are over to their sinks, those of one sink together."""
    by_sink: dict[Sink, list[TextRequest]] = {}
    for request in over:
        by_sink.setdefault(request.sink, []).append(request)
    for sink, own in by_sink.items():
        try:
            sink.finish(own, timing)
        except Exception:
            logger.exception("handing out texts that were computed failed")


def _size_of(result: Float32 | SparseVector | None) -> int:
    if isinstance(result, SparseVector):
        return result.indices.nbytes + result.values.nbytes
    return result.nbytes if result is not None else 0


def _slices(request: TextRequest) -> Iterable[Slice]:
    """A request's texts in parts that are read at once."""
    count = len(request.texts)
    most = max(1, min(_SLICE, _SLICE_SIZE * count // max(request.text_size, 1)))
    return [(request, first, min(first + most, count)) for first in range(0, count, most)]
