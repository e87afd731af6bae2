"""A version of a text model as the table of models has it, and as APIs use it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from toutates.backends.text.backend import TextBackend, TextCounters
from toutates.backends.text.computing import Computing
from toutates.backends.text.folder import TextFolder
from toutates.backends.text.here import HereRunner
from toutates.backends.text.interface import (
    DEFAULT_OPTIONS,
    Fault,
    Scores,
    Task,
    Text,
    TextError,
    TextInfo,
    TextModel,
    TextOptions,
    TextResult,
    TextsHere,
    TextTimes,
    VectorForm,
)
from toutates.backends.text.port import TextPort
from toutates.backends.text.queue import TextQueue, slices_of
from toutates.backends.text.reading import Reader
from toutates.backends.text.steps import ACTIVATIONS, Activation, sigmoid, softmax
from toutates.backends.text.tokenizing import WordTokenizer
from toutates.backends.text.work import Settled, TextRequest
from toutates.engine.batched import BatchedServable
from toutates.engine.budget import Budget
from toutates.engine.counters import ExecutorCounters, WorkerCounters
from toutates.engine.model_metrics import COUNTER, ModelSeries
from toutates.engine.result import BatchResult, Timing
from toutates.engine.servable import Consumer
from toutates.engine.statistics import VersionStatistics
from toutates.engine.supertensor import SuperTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest, Overloaded, RequestError, TooLate

__all__ = ["TextServable"]

logger = logging.getLogger(__name__)

#: Options whose consequences a model remembers.
_MAX_SETTLED: Final = 256


class TextServable(BatchedServable, TextModel):
    """A version (``engine.servable.Servable`` and ``TextModel``).

    Args:
        version: its number.
        folder: of the version.
        info: what it is.
        tokenizer, reader, computing: by which texts are computed.
        supertensor: of its texts; its queue is a ``TextQueue``.
        executors: how many threads compute them.
        pool_threads: threads that its session has beside these.
    """

    def __init__(
        self,
        version: int,
        folder: TextFolder,
        info: TextInfo,
        tokenizer: WordTokenizer,
        reader: Reader,
        computing: Computing,
        supertensor: SuperTensor,
        executors: int,
        pool_threads: int = 0,
    ) -> None:
        elements = [ExecutorCounters() for _ in range(executors)]
        self._text_counters = [TextCounters() for _ in range(executors)]
        backends = [
            TextBackend(supertensor, reader, computing, info.dimensions, own, texts)
            for own, texts in zip(elements, self._text_counters, strict=True)
        ]
        super().__init__(version, supertensor, backends, counters=elements, pads=True, pool_threads=pool_threads)
        self._labels = (("model", supertensor.name), ("version", str(version)))
        self._folder = folder
        self._info = info
        self._tokenizer = tokenizer
        queue = supertensor.queue
        assert isinstance(queue, TextQueue)
        self._queue = queue
        #: replaced as a whole, so that readers need no lock
        self._settled: dict[TextOptions, Settled] = {}
        self._here = HereRunner(supertensor, queue.quick_lane)
        self.may_compute_here = computing.is_table and not reader.lower
        #: of DEFAULT_OPTIONS, which nearly all requests have; None until one has
        self._usual: Settled | None = None
        self._settling = threading.Lock()
        self._shared: WorkerCounters | None = None
        finish = self._finish_batch
        supertensor.connect(Consumer(finish, finish, lambda callback: None, _is_wanted))

    # --- for APIs ----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> TextInfo:
        """See ``TextModel``."""
        return self._info

    @property
    def tokenizer(self) -> WordTokenizer:
        """See ``TextModel``."""
        return self._tokenizer

    def add(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
        arrived_ns: int | None = None,
        caller: object = None,
    ) -> None:
        """See ``TextModel``."""
        try:
            size = self._check_texts(texts)
            settled = self._usual if options is DEFAULT_OPTIONS else None
            settled = settled or self.settle(options)
            if arrived_ns is None:
                arrived_ns = time.monotonic_ns()
            self.put(TextRequest(texts, settled, self, on_done, is_wanted, size, arrived_ns, caller=caller))
        except RequestError as error:
            with self._settling:
                counters = self._shared_counters()
                if isinstance(error, Overloaded):
                    counters.overloaded += 1
                else:
                    counters.refused += 1
            raise

    def commit(self) -> None:
        """See ``TextModel``."""
        run = self.supertensor.commit(())
        if run is not None:
            executor, batch = run
            del run
            executor.run_inline(batch, self.supertensor.deliver)

    def compute_here(self, texts: Sequence[str], options: TextOptions, arrived_ns: int) -> TextsHere | None:
        """See ``TextModel``."""
        settled = self._usual if options is DEFAULT_OPTIONS else self._settled.get(options)
        if settled is None or not settled.as_is:
            return None
        run = self._here.run(texts, settled)
        if run is None:
            return None
        batch, timing = run
        now_ns = time.monotonic_ns()
        with self._settling:
            group = arrived_ns, 1, batch.computed
            self._shared_counters().count_answered([group], timing, now_ns, time.time_ns() // 1_000_000)
        read_ns, run_ns = batch.read_ns // len(batch.vectors), timing.ended_ns - timing.started_ns
        times = TextTimes(read_ns, max(0, now_ns - arrived_ns - read_ns - run_ns), run_ns)
        return TextsHere(batch.vectors, batch.tokens, times, timing)

    def put(self, request: TextRequest) -> None:
        """Put a request with texts into the queue; executors hear of it by a commit.

        Raises:
            Overloaded: too much is under way.
            InvalidRequest: it is larger than the bounds.
            ModelNotReady: the version is being unloaded.
        """
        slices, texts, queue, supertensor = slices_of(request), len(request.texts), self._queue, self.supertensor
        with supertensor.lock:
            supertensor.let_in(queue.form, texts, request.size)
            queue.put(slices, texts)

    def _check_texts(self, texts: Sequence[Text]) -> int:
        """Refuse texts of a kind that the model does not read; returns their size, about bytes."""
        if not texts:
            raise TextError("there is no text", Fault.EMPTY)
        most = self.supertensor.budget.bounds.rows
        if len(texts) > most:
            raise TextError(
                f"a request may have at most {most} texts, and this one has {len(texts)}", Fault.TOO_LONG, limit=most
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
            with self._settling:
                kept = self._settled if len(self._settled) < _MAX_SETTLED else {}
                self._settled = {**kept, options: settled}
            if options is DEFAULT_OPTIONS:
                self._usual = settled
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
            limit=min(limit, info.max_tokens, options.max_tokens or limit),
            cuts=info.truncate if options.truncate is None else options.truncate,
            left=folder.truncate_left if options.truncate_left is None else options.truncate_left,
            prompt=prompt,
            prompt_tokens=self._tokenizer.length_of_prompt(prompt) if prompt else 0,
            normalize=info.normalized if options.normalize is None else options.normalize,
            dimensions=options.dimensions if options.dimensions is not None else folder.dimensions,
            activation=self._activation(options.scores),
            skips=not is_query,
            counts=options.token_vectors or info.form is not VectorForm.DENSE,
            as_is=self.may_compute_here and not (prompt or options.token_vectors),
        )

    def _activation(self, scores: Scores) -> Activation:
        if scores is Scores.RAW:
            return ACTIVATIONS["Identity"]
        if scores is Scores.AS_CONFIGURED:
            return ACTIVATIONS[self._folder.activation]
        if scores is Scores.PROBABILITIES:
            return softmax if self._info.dimensions > 1 and self._folder.exclusive else sigmoid
        return softmax if scores is Scores.SOFTMAX else sigmoid

    # --- what has become of requests ---------------------------------------------------------------------------------

    def _finish_batch(self, result: BatchResult) -> None:
        """A batch is over: requests with all of their vectors, and those that have failed, go to their sinks."""
        over: list[TextRequest] = []
        with self.supertensor.lock:
            budget = self.supertensor.budget
            for request, _, texts, _ in result.pending:
                request.left -= texts
                if request.is_over:
                    continue
                if result.error is not None and request.error is None:
                    request.error = result.error
                if request.new_size:
                    self._count_results(request, budget)
                if request.error is not None or not request.left:
                    request.is_over = True
                    budget.memory_bytes -= request.size
                    over.append(request)
        while over:
            sink, own = over[0].sink, over
            over = [request for request in over if request.sink is not sink]
            if over:
                own = [request for request in own if request.sink is sink]
            try:
                sink.finish(own, result.timing)
            except Exception:  # and the others hear
                logger.exception("handing out texts that were computed failed")

    def _count_results(self, request: TextRequest, budget: Budget) -> None:
        """Count what was computed for a request as memory under way, or fail it. With the lock held."""
        more, request.new_size = request.new_size, 0
        if budget.memory_bytes + more > budget.bounds.memory_bytes:
            request.error = Overloaded(
                f"model '{self.supertensor.name}' has {budget.memory_bytes} of at most {budget.bounds.memory_bytes} "
                "bytes of texts and results under way, and this request makes more; send fewer texts at once, or raise "
                f"{budget.bounds.keys.memory} in its {budget.bounds.keys.file}"
            ).after(budget.wait_s())
            return
        request.size += more
        budget.memory_bytes += more

    def finish(self, requests: Sequence[TextRequest], timing: Timing) -> None:
        """See ``Sink``: what came by ``add``."""
        now_ns = time.monotonic_ns()
        with self._settling:
            counters = self._shared_counters()
            answered = Counter([(one.arrived_ns, len(one.texts)) for one in requests if one.error is None])
            if answered:
                groups = [(arrived_ns, texts, count) for (arrived_ns, texts), count in answered.items()]
                counters.count_answered(groups, timing, now_ns, time.time_ns() // 1_000_000)
            for one in requests:
                if one.error is not None:
                    _count_failed(counters, one.error, now_ns - one.arrived_ns)
        for one in requests:
            on_done: Callable[[TextResult], object] = one.context
            try:
                on_done(_result(one, timing, now_ns))
            except Exception:  # and the next one hears
                logger.exception("handing out texts that were computed failed")

    def _shared_counters(self) -> WorkerCounters:
        """Of all calls of ``compute``, written under the lock."""
        if self._shared is None:
            self._shared = WorkerCounters()
            self.counters.workers.append(self._shared)
        return self._shared

    # --- as a servable -----------------------------------------------------------------------------------------------

    def port(self, consumer: Consumer) -> TextPort:
        """See ``Servable``."""
        self.counters.workers.append(consumer.counters)
        return TextPort(self.supertensor, consumer, self.put, self.settle_for_port, self._info.dimensions)

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
        """See ``Servable``. Rows are texts."""
        return replace(super().statistics(), own_metrics=self._metrics())

    def _metrics(self) -> tuple[ModelSeries, ...]:
        found: dict[str, float] = {
            "toutates_text_cut_total": self._sum("cut"),
            "toutates_text_read_total": self._sum("texts"),
            "toutates_text_read_seconds_total": self._sum("read_ns") / 1e9,
        }
        return tuple(
            [ModelSeries(name, COUNTER, "", self._labels, (), (value,), ours=True) for name, value in found.items()]
        )

    def _sum(self, counter: str) -> int:
        return sum([getattr(one, counter) for one in self._text_counters])

    def describe(self, most: int) -> list[str]:
        """See ``Servable``."""
        task, unread = self._info.task.value, self._queue.unread
        return [f"text model, {task}: the tokens of {unread} texts are not read", *super().describe(most)]

    def free(self) -> None:
        """See ``Servable``. Executors, which have ended, had the session to themselves."""
        self._settled = {}
        self._usual = None
        super().free()


def _is_wanted(request: TextRequest, by_ns: int) -> bool:
    return request.error is None and request.is_wanted(by_ns)


def _result(request: TextRequest, timing: Timing, now_ns: int) -> TextResult:
    if request.error is not None:
        return TextResult(error=request.error, timing=timing)
    count = len(request.texts)
    read_ns, run_ns = request.read_ns // count, request.run_ns // count
    times = TextTimes(read_ns, max(0, now_ns - request.arrived_ns - read_ns - run_ns), run_ns)
    vectors: Any = request.vectors  # all of them
    return TextResult(vectors, request.tokens, None, times, timing)


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
