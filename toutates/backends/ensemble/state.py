"""What the threads of an ensemble share: its binding, what is under way, and what was counted. One lock guards it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toutates.backends.ensemble.binding import Binding, BoundStep
from toutates.backends.ensemble.graph import Graph
from toutates.engine.counters import ExecutorCounters, VersionCounters
from toutates.engine.drain import Drain
from toutates.engine.response_counters import ResponseCounters
from toutates.engine.result import Timing
from toutates.system.errors import ModelNotReady, Overloaded

__all__ = ["Bounds", "EnsembleState"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be under way in an ensemble at once.

    Attributes:
        rows: of all requests.
        memory_bytes: of their tensors.
    """

    rows: int
    memory_bytes: int


class EnsembleState:
    """The state of an ensemble.

    Args:
        graph: of the ensemble.
        bounds: what may be under way.

    Attributes:
        graph, bounds: as given.
        counters: of its requests and runs.
        responses: counts these, where a request has any number of them.
        binding: to the members; None while it cannot answer.
        bindings: how often that was set.
        rows, memory_bytes, groups: under way. ``rows`` is read without the lock as a guess.
        closed: whether no more is taken.
    """

    def __init__(self, graph: Graph, bounds: Bounds) -> None:
        self.graph = graph
        self.bounds = bounds
        self._runs = ExecutorCounters()
        self.counters = VersionCounters([], [self._runs])
        self.responses = ResponseCounters()
        self.binding: Binding | None = None
        self.bindings = 0
        self.rows = self._left = 0
        self._drain = Drain()
        self.memory_bytes = 0
        self.groups = 0
        self.closed = False
        #: outputs that were asked for and not given, and that the log has told of
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._on_idle: Callable[[], None] = lambda: None
        #: by step, where ``max_inflight_requests`` bounds them: requests under way, and what waits
        self._inflight = [0] * len(graph.steps)
        self._waiting: list[deque[tuple[int, Callable[[], object]]]] = [deque() for _ in graph.steps]

    # --- life --------------------------------------------------------------------------------------------------------

    def bind(self, binding: Binding | None) -> None:
        """Use other members, or none, for requests that come from now on."""
        with self._lock:
            before, self.binding = self.binding, binding
            self.bindings += 1
            if before is None:
                return
            before.retired = True
            is_free = not before.groups
        if is_free:
            before.release()

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self.closed = True
            is_idle = not self.groups
        if is_idle:
            self._on_idle()

    def on_idle(self, tell: Callable[[], None]) -> None:
        """Have a function called, in any thread, once it is closed and nothing is under way; more than once maybe."""
        with self._lock:
            self._on_idle = tell
            is_idle = self.closed and not self.groups
        if is_idle:
            tell()

    def join_no_more(self, binding: Binding, why: str) -> None:
        """Have requests go through the members of a binding one by one from now on; told once."""
        with self._lock:
            if not binding.may_join:
                return
            binding.may_join = False
            self.bindings += 1
        logger.warning(
            "ensemble '%s': its requests go through its models one by one from now on, because what these give for "
            "several cannot be divided: %s",
            self.graph.model,
            why,
        )

    def note_missing(self, names: Sequence[str]) -> None:
        """Note outputs that were asked for and that no member has given; each is told once."""
        with self._lock:
            new = [name for name in names if name not in self._told]
            self._told.update(new)
        for name in new:
            logger.warning(
                "Composing models did not output tensor %s of ensemble '%s'; its answers lack it. This is told once",
                name,
                self.graph.model,
            )

    # --- groups of requests ------------------------------------------------------------------------------------------

    def enter(self, rows: int, held_bytes: int, groups: int = 1) -> Binding:
        """A group of requests begins; returns the binding that it is to use.

        Raises:
            ModelNotReady: the ensemble is not bound, or is being unloaded.
            Overloaded: it has too much memory under way.
        """
        model = self.graph.model
        with self._lock:
            binding = self.binding
            if self.closed or binding is None:
                raise ModelNotReady(
                    f"ensemble '{model}' has stopped accepting new inference requests: it, or a model that it is made "
                    "of, is being unloaded"
                )
            self._hold(held_bytes)
            self.rows += rows
            self.groups += groups
            binding.groups += groups
            return binding

    def hold(self, held_bytes: int) -> None:
        """Count the bytes of more tensors of a group.

        Raises:
            Overloaded: there are too many.
        """
        with self._lock:
            self._hold(held_bytes)

    def release(self, held_bytes: int) -> None:
        """The bytes of some tensors are not held any more."""
        with self._lock:
            self.memory_bytes -= held_bytes

    def _hold(self, held_bytes: int) -> None:
        if self.memory_bytes + held_bytes > self.bounds.memory_bytes:
            raise Overloaded(
                f"ensemble '{self.graph.model}' has {self.memory_bytes} of at most {self.bounds.memory_bytes} bytes of "
                f"tensors under way, and there are {held_bytes} more; try again later, or raise capacity_bytes"
            ).after(self._drain.wait_s(self.rows, self._left))
        self.memory_bytes += held_bytes

    def wait_s(self, rows: int) -> float:
        """Seconds until there is room for so many rows, as ``Drain`` has it."""
        with self._lock:
            return self._drain.wait_s(self.rows, self._left, more=rows)

    def split(self, binding: Binding, more: int) -> None:
        """One group has become several: ``more`` of them."""
        with self._lock:
            self.groups += more
            binding.groups += more

    def leave(
        self,
        binding: Binding,
        rows: int,
        held_bytes: int,
        answered: Sequence[tuple[int, int]] = (),
        timing: Timing | None = None,
    ) -> None:
        """A group of requests is over.

        Args:
            binding: that it has used.
            rows: of all its requests.
            held_bytes: of its tensors.
            answered: requests that have an answer, by their rows: (rows, how many requests).
            timing: of them.
        """
        with self._lock:
            self.rows -= rows
            self._left += rows
            self.memory_bytes -= held_bytes
            self.groups -= 1
            binding.groups -= 1
            if timing is not None:
                for rows_of_one, count in answered:
                    self._runs.add(rows_of_one, count, timing, times=count)
            is_free = binding.retired and not binding.groups
            is_idle = self.closed and not self.groups
        if is_free:
            binding.release()
        if is_idle:
            self._on_idle()

    # --- max_inflight_requests ---------------------------------------------------------------------------------------

    def begin_step(self, step: BoundStep, requests: int, begin: Callable[[], object]) -> bool:
        """Whether these requests may go into a step now; else ``begin`` is handed out by ``end_step`` later."""
        with self._lock:
            under_way = self._inflight[step.number]
            if under_way and under_way + requests > self.graph.max_inflight:
                self._waiting[step.number].append((requests, begin))
                return False
            self._inflight[step.number] += requests
            return True

    def end_step(self, step: BoundStep, requests: int) -> list[Callable[[], Any]]:
        """These requests have left a step; returns what may begin in their place, and is counted already."""
        begins: list[Callable[[], Any]] = []
        with self._lock:
            self._inflight[step.number] -= requests
            waiting = self._waiting[step.number]
            while waiting:
                count, begin = waiting[0]
                under_way = self._inflight[step.number]
                if under_way and under_way + count > self.graph.max_inflight:
                    break
                waiting.popleft()
                self._inflight[step.number] += count
                begins.append(begin)
        return begins
