"""A version of a text model as the table of models has it, and as APIs use it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from toutates.backends.text.computing import Computing
from toutates.backends.text.executor import TextCounters, TextExecutor
from toutates.backends.text.folder import TextFolder
from toutates.backends.text.interface import (
    Fault,
    Float32,
    Scores,
    SparseVector,
    Task,
    Text,
    TextError,
    TextInfo,
    TextModel,
    TextOptions,
    TextResult,
    TextTimes,
    VectorForm,
)
from toutates.backends.text.port import TextPort
from toutates.backends.text.queue import TextQueue
from toutates.backends.text.reading import Reader
from toutates.backends.text.steps import ACTIVATIONS, Activation, sigmoid, softmax
from toutates.backends.text.tokenizing import WordTokenizer
from toutates.backends.text.work import Settled, TextRequest
from toutates.engine.counters import ExecutorCounters, VersionCounters, WorkerCounters
from toutates.engine.executor_threads import ExecutorThreads
from toutates.engine.model_metrics import COUNTER, ModelSeries
from toutates.engine.result import Timing
from toutates.engine.servable import Consumer, Host
from toutates.engine.statistics import Occupancy, VersionStatistics
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, InvalidRequest, Overloaded, RequestError, TooLate

__all__ = ["TextServable"]

logger = logging.getLogger(__name__)

#: Options whose consequences a model remembers.
_MAX_SETTLED: Final = 256


class TextServable(TextModel):
    """A version (``engine.servable.Servable`` and ``TextModel``).

    Args:
        model, version: name and number.
        folder: of the version.
        info: what it is.
        signature: its tensors.
        tokenizer, reader, computing: by which texts are computed.
        queue: of its texts.
        executors: how many threads compute them.
        pool_threads: threads that its session has beside these.
    """

    def __init__(
        self,
        model: str,
        version: int,
        folder: TextFolder,
        info: TextInfo,
        signature: Signature,
        tokenizer: WordTokenizer,
        reader: Reader,
        computing: Computing,
        queue: TextQueue,
        executors: int,
        pool_threads: int = 0,
    ) -> None:
        self._model, self._version = model, version
        self._folder = folder
        self._info = info
        self._signature = signature
        self._tokenizer = tokenizer
        self._queue = queue
        self._pool_threads = pool_threads
        self._lock = threading.Lock()
        #: replaced as a whole, so that readers need no lock
        self._settled: dict[TextOptions, Settled] = {}
        self._shared: WorkerCounters | None = None
        self._text_counters = [TextCounters() for _ in range(executors)]
        self._counters = VersionCounters([], [ExecutorCounters() for _ in range(executors)])
        loops = [
            TextExecutor(queue, reader, computing, info.dimensions, batches.add, texts)
            for batches, texts in zip(self._counters.executors, self._text_counters, strict=True)
        ]
        self._threads = ExecutorThreads(model, version, loops)

    # --- for APIs ----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> TextInfo:
        """See ``TextModel``."""
        return self._info

    @property
    def tokenizer(self) -> WordTokenizer:
        """See ``TextModel``."""
        return self._tokenizer

    def compute(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
    ) -> None:
        """See ``TextModel``."""
        try:
            settled = self.settle(options)
            size = self._check_texts(texts)
            self._queue.submit(TextRequest(texts, settled, self, on_done, is_wanted, size, time.monotonic_ns()))
        except RequestError as error:
            with self._lock:
                counters = self._shared_counters()
                if isinstance(error, Overloaded):
                    counters.overloaded += 1
                else:
                    counters.refused += 1
            raise

    def _check_texts(self, texts: Sequence[Text]) -> int:
        """Refuse texts of a kind that the model does not read; returns their size, about bytes."""
        if not texts:
            raise TextError("there is no text", Fault.EMPTY)
        if len(texts) > self._queue.bounds.texts:
            raise TextError(
                f"a request may have at most {self._queue.bounds.texts} texts, and this one has {len(texts)}",
                Fault.TOO_LONG,
                limit=self._queue.bounds.texts,
            )
        task, size = self._info.task, 0
        for index, text in enumerate(texts):
            if type(text) is str:
                size += len(text)
                if task is Task.RERANK:
                    raise TextError("the model reads pairs of strings", Fault.WRONG_KIND, index=index)
            elif type(text) is tuple:
                if len(text) != 2 or type(text[0]) is not str or type(text[1]) is not str:
                    raise TextError("a pair has two strings", Fault.WRONG_KIND, index=index)
                size += len(text[0]) + len(text[1])
                if task is Task.EMBED:
                    raise TextError("the model reads single texts, no pairs", Fault.WRONG_KIND, index=index)
            else:
                size += 8 * len(text)
                if task is Task.RERANK:
                    raise TextError("the model reads pairs of strings", Fault.WRONG_KIND, index=index)
        return size

    def settle(self, options: TextOptions) -> Settled:
        """How texts with these options are computed: the same object for the same options.

        Raises:
            TextError: the model cannot follow them.
        """
        settled = self._settled.get(options)
        if settled is None:
            self.check(options)
            settled = self._settle(options)
            with self._lock:
                kept = self._settled if len(self._settled) < _MAX_SETTLED else {}
                self._settled = {**kept, options: settled}
        return settled

    def _settle(self, options: TextOptions) -> Settled:
        info, folder = self._info, self._folder
        name = info.default_prompt if options.prompt is None else options.prompt
        prompt = info.prompts.get(name, "")
        is_query = name == "query" and info.form is VectorForm.MULTI
        limit = folder.query_tokens if is_query and folder.query_tokens else info.max_tokens
        return Settled(
            options=options,
            special=options.add_special_tokens and folder.special,
            limit=min(limit, info.max_tokens),
            cuts=info.truncate if options.truncate is None else options.truncate,
            left=folder.truncate_left if options.truncate_left is None else options.truncate_left,
            prompt=prompt,
            prompt_tokens=self._tokenizer.length_of_prompt(prompt) if prompt else 0,
            normalize=info.normalized if options.normalize is None else options.normalize,
            dimensions=options.dimensions if options.dimensions is not None else folder.dimensions,
            activation=self._activation(options.scores),
            skips=not is_query,
            counts=options.token_vectors or info.form is not VectorForm.DENSE,
        )

    def _activation(self, scores: Scores) -> Activation:
        if scores is Scores.RAW:
            return ACTIVATIONS["Identity"]
        if scores is Scores.AS_CONFIGURED:
            return ACTIVATIONS[self._folder.activation]
        return softmax if self._info.dimensions > 1 and self._folder.exclusive else sigmoid

    # --- as a sink ---------------------------------------------------------------------------------------------------

    def finish(self, requests: Sequence[TextRequest], timing: Timing) -> None:
        """See ``Sink``: what came by ``compute``."""
        now_ns = time.monotonic_ns()
        with self._lock:
            counters = self._shared_counters()
            answered = [(one.arrived_ns, len(one.texts), 1) for one in requests if one.error is None]
            if answered:
                counters.count_answered(answered, timing, now_ns, time.time_ns() // 1_000_000)
            for one in requests:
                if one.error is not None:
                    _count_failed(counters, one.error, now_ns - one.arrived_ns)
        for one in requests:
            on_done: Callable[[TextResult], object] = one.context
            try:
                on_done(_result(one, now_ns))
            except Exception:  # and the next one hears
                logger.exception("handing out texts that were computed failed")

    def _shared_counters(self) -> WorkerCounters:
        """Of all calls of ``compute``, written under the lock."""
        if self._shared is None:
            self._shared = WorkerCounters()
            self._counters.workers.append(self._shared)
        return self._shared

    # --- as a servable -----------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """See ``Servable``."""
        return self._signature

    @property
    def counters(self) -> VersionCounters:
        """See ``Servable``."""
        return self._counters

    @property
    def ready(self) -> bool:
        """See ``Servable``."""
        return self._threads.ready

    def port(self, consumer: Consumer) -> TextPort:
        """See ``Servable``."""
        self._counters.workers.append(consumer.counters)
        return TextPort(self._queue, consumer, self._signature, self.settle_for_port, self._info.dimensions)

    def settle_for_port(self, options: TextOptions) -> Settled:
        """``settle``, with errors that have no parts beside their words.

        Raises:
            InvalidRequest: the model cannot follow the options.
        """
        try:
            return self.settle(options)
        except TextError as error:
            raise InvalidRequest(str(error)) from None

    def statistics(self) -> VersionStatistics:
        """See ``Servable``. What is under way is counted in texts."""
        counters, queue = self._counters, self._queue
        unread, waiting, idle = queue.state()
        return VersionStatistics(
            requests=counters.requests(),
            batches=counters.batches(),
            batch_durations=counters.batch_durations(),
            batch_runs=counters.batch_runs(),
            occupancy=Occupancy(
                in_flight=queue.running,
                running=queue.running,
                capacity=max(1, queue.bounds.texts // queue.bounds.batch_rows),
                waiting=unread + waiting,
                rows=queue.texts,
                row_capacity=queue.bounds.texts,
                in_flight_bytes=queue.memory_bytes,
                capacity_bytes=queue.bounds.memory_bytes,
                idle_executors=idle,
                lanes=0,
                spare_bytes=0,
                buffer_bytes=0,
            ),
            batch_size=queue.bounds.batch_rows,
            executors=len(counters.executors),
            pool_threads=self._pool_threads,
            own_metrics=self._metrics(),
        )

    def _metrics(self) -> tuple[ModelSeries, ...]:
        labels = (("model", self._model), ("version", str(self._version)))
        found: list[tuple[str, str, float]] = [
            ("text_tokens_total", "Tokens of texts that were run", self._sum("tokens")),
            ("text_padded_tokens_total", "The same with padding", self._sum("padded")),
            ("text_cut_total", "Texts that were too long and were cut", self._sum("cut")),
            ("text_read_total", "Texts whose tokens were read", self._sum("texts")),
            ("text_read_seconds_total", "Time in which tokens were read", self._sum("read_ns") / 1e9),
        ]
        return tuple([ModelSeries(name, COUNTER, text, labels, (), (value,)) for name, text, value in found])

    def _sum(self, counter: str) -> int:
        return sum([getattr(one, counter) for one in self._text_counters])

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        unread, waiting, idle = self._queue.state()
        return [
            f"text model, {self._info.task.value}: {self._queue.texts} of {self._queue.bounds.texts} texts and "
            f"{self._queue.memory_bytes} of {self._queue.bounds.memory_bytes} bytes under way; {unread} texts are not "
            f"read, {waiting} wait for a batch, {self._queue.running} batches run, {idle} executors are idle"
        ]

    async def run(self, host: Host) -> None:
        """See ``Servable``."""
        await self._threads.run(host)

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``."""
        if workers_ended:
            self._threads.note_that_workers_ended()
        self._queue.close(abandoned=workers_ended)

    def free(self) -> None:
        """See ``Servable``. Executors, which have ended, had the session to themselves."""
        self._settled = {}


def _result(request: TextRequest, now_ns: int) -> TextResult:
    if request.error is not None:
        return TextResult(error=request.error)
    count = len(request.texts)
    read_ns, run_ns = request.read_ns // count, request.run_ns // count
    times = TextTimes(read_ns, max(0, now_ns - request.arrived_ns - read_ns - run_ns), run_ns)
    vectors: list[Float32 | SparseVector] = [vector for vector in request.vectors if vector is not None]
    return TextResult(vectors, request.tokens, None, times)


def _count_failed(counters: WorkerCounters, error: RequestError, took_ns: int) -> None:
    counters.fail_ns += took_ns
    if isinstance(error, TooLate):
        counters.cancel += 1
        return
    counters.fail += 1
    if isinstance(error, ExecutionFailed):
        counters.broken += 1
    else:
        counters.other += 1
