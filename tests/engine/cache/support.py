"""A servable whose batches a test answers by hand, with the cache before it, and whoever asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.signatures import signature, spec
from toutates.engine.cache.keys import head_of
from toutates.engine.cache.servable import CachingServable
from toutates.engine.cache.store import ENTRY_BYTES, ResponseCache
from toutates.engine.counters import VersionCounters
from toutates.engine.result import BatchResult, Outputs, Timing
from toutates.engine.servable import Consumer

__all__ = ["ONE_ENTRY", "SHAPES", "SIGNATURE", "TIMING", "Caller", "Inner", "cached", "outputs_of"]

SIGNATURE = signature([spec("x", "FP32", [1])], [spec("y", "FP32", [1])])
SHAPES = ((0, (1,)),)
TIMING = Timing(1, 2, 3, 4)
#: What the cache counts for an answer of four bytes to a request of one value.
ONE_ENTRY = ENTRY_BYTES + len(head_of(bytes(24), 1)) + 4 + 4


class Way:
    packed = True


class Inner:
    """A servable whose batches a test answers by hand."""

    def __init__(self, tensors: Any = SIGNATURE) -> None:
        self.signature = tensors
        self.counters = VersionCounters()
        #: what has come, by consumer: (consumer, context, rows)
        self.added: list[tuple[Consumer, Any, int]] = []
        self.refusal: Exception | None = None
        self.answers_at_once: Callable[[int], Outputs] | None = None
        self.commits = 0

    def port(self, consumer: Consumer) -> Any:
        return InnerPort(self, consumer)

    def answer(self, outputs: Outputs | None = None, error: Any = None, *, at: int = 0, part: Any = None) -> None:
        """Let the batch with one request end."""
        consumer, context, rows = self.added[at]
        consumer.finish(BatchResult([(context, 0, rows, part)], outputs, error, TIMING))


class InnerPort:
    def __init__(self, inner: Inner, consumer: Consumer) -> None:
        self.inner, self.consumer = inner, consumer

    def way(self, row_shapes: Any, outputs: Any = None) -> Way:
        return Way()

    def add_packed(self, way: Way, rows: int, context: Any, buffer: Any, spans: Any) -> None:
        self._add(context, rows)

    def add_contents(self, way: Way, rows: int, context: Any, contents: Any) -> None:
        self._add(context, rows)

    def add_gathered(self, way: Way, rows: int, context: Any, arrays: Any, held_bytes: int = 0) -> None:
        self._add(context, rows)

    def commit(self, *, inline: bool = True) -> None:
        self.inner.commits += 1

    def _add(self, context: Any, rows: int) -> None:
        if self.inner.refusal is not None:
            raise self.inner.refusal
        self.inner.added.append((self.consumer, context, rows))
        if self.inner.answers_at_once is not None:
            outputs = self.inner.answers_at_once(rows)
            self.consumer.finish_here(BatchResult([(context, 0, rows, None)], outputs, None, TIMING))


class Caller:
    """A consumer that keeps what it gets, by context."""

    def __init__(self, servable: CachingServable) -> None:
        self.results: dict[str, BatchResult] = {}
        self.contents: dict[str, bytes] = {}
        self.here: list[str] = []
        self.unwanted: set[str] = set()
        self.said: dict[str, dict[str, Any]] = {}
        self.rounds: list[Callable[[], None]] = []
        self.on_result: Callable[[], None] = lambda: None
        consumer = Consumer(
            self._finish,
            self._finish_here,
            self.rounds.append,
            lambda context, by_ns: context not in self.unwanted,
            parameters=lambda context: self.said.get(context, {}),
            may_have_left=lambda context: context in self.unwanted,
        )
        self.port = servable.port(consumer)
        self.way = self.port.way(SHAPES)

    def send(self, context: str, value: float, rows: int = 1, *, way: Any = None, **said: Any) -> None:
        self.said[context] = said
        content = np.full(rows, value, np.float32).tobytes()
        self.port.add_packed(way or self.way, rows, context, content, (0, len(content)))

    def end_round(self) -> None:
        callbacks, self.rounds[:] = list(self.rounds), []
        for callback in callbacks:
            callback()

    def _finish(self, result: BatchResult) -> None:
        for context, first, rows, _ in result.pending:
            self.results[context] = result
            if result.outputs is not None:
                self.contents[context] = bytes(result.outputs.rows(0, first, rows, batched=True))
        on_result, self.on_result = self.on_result, lambda: None
        on_result()

    def _finish_here(self, result: BatchResult) -> None:
        self.here += [context for context, *_ in result.pending]
        self._finish(result)


def outputs_of(*values: float) -> Outputs:
    return Outputs((np.array(values, np.float32).tobytes(),), (4,), ((1,),), fixed=True)


def cached(inner: Inner, size: int = 1 << 20, *, reads: bool = False) -> tuple[CachingServable, ResponseCache]:
    cache = ResponseCache(size)
    return CachingServable(inner, cache, "m", 1, lambda: reads), cache  # type: ignore[arg-type]
