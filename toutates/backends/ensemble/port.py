"""A consumer's way into an ensemble: the requests of a round that are alike become one group.

Requests are alike if their inputs have the same row shapes and the same outputs are wanted. What a group costs is paid
once for all of its requests; what a request costs is the copy of its bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from toutates.backends.ensemble.binding import Value
from toutates.backends.ensemble.group import Group, requests_of
from toutates.backends.ensemble.state import EnsembleState
from toutates.backends.ensemble.waves import Waves
from toutates.engine.calls import THREAD
from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import BatchResult, PendingRequest, Timing
from toutates.engine.servable import Buffer, Consumer, Content
from toutates.protocol.strings import StringRows
from toutates.system.errors import InvalidRequest, Overloaded, RequestError

__all__ = ["EnsemblePort", "EnsembleWay"]

#: Bytes that a group takes at most, unless it is one request; more together gain little.
_MAX_GROUP_BYTES: Final = 8 * 1024 * 1024
#: Row shapes that a port remembers.
_MAX_SEEN_SHAPES: Final = 256


@dataclass(slots=True, eq=False)
class EnsembleWay:
    """The way into an ensemble for requests of one kind, and the group of them that is being put together.

    Attributes:
        packed: whether all inputs have elements of fixed size, so that requests can be put together.
        row_shapes: of the inputs that are given.
        outputs: indices of those that are wanted.
        needed: bits of the steps that these need.
        read: bits of the ensemble tensors that somebody reads.
        row_bytes: of all inputs.
        most_rows: that may be put together, besides one request of any size; as the binding has it.
        most_requests: likewise.
        bindings: how often the ensemble had been bound when these were read.
        caller: whose the group's request is, where a member's requests take turns by callers: it has one then.
        rows, pending, contents: of the group; ``contents`` has the pieces of each input.
    """

    packed: bool
    row_shapes: RowShapes
    outputs: tuple[int, ...]
    needed: int
    read: int
    row_bytes: int
    most_rows: int = 0
    most_requests: int = 1
    bindings: int = 0
    caller: object = None
    rows: int = 0
    pending: list[PendingRequest] = field(default_factory=list)
    contents: list[list[Content]] = field(default_factory=list)


class EnsemblePort:
    """A port of an ensemble (``engine.servable.Port``).

    Args:
        state: of the ensemble.
        consumer: for whom it is.

    Attributes:
        counters: the consumer's.
    """

    def __init__(self, state: EnsembleState, consumer: Consumer) -> None:
        self.counters = consumer.counters
        self._state = state
        self._consumer = consumer
        #: ways that have a group since the last commit
        self._touched: list[EnsembleWay] = []
        self._commit_asked = False
        #: rows that were added since the last commit, and how many these may become
        self._rows = 0
        self._room = 0
        #: the thread that is within ``commit``
        self._committing = 0
        #: row shapes of outputs that were seen, so that equal ones are the same object; see ``Outputs``
        self._seen_shapes: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = {}

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> EnsembleWay:
        """See ``Port``."""
        graph = self._state.graph
        inputs = graph.signature.inputs
        wanted = tuple(range(len(graph.signature.outputs))) if outputs is None else tuple(sorted(set(outputs)))
        sizes = [prod(shape) * inputs[index].datatype.size for index, shape in row_shapes]
        packed = bool(sizes) and 0 not in sizes
        needed = graph.needed(wanted)
        return EnsembleWay(packed, row_shapes, wanted, needed, graph.read(wanted, needed), sum(sizes))

    def add_packed(self, way: EnsembleWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``."""
        # Copied first, so that nothing is reserved where memory runs out.
        if len(spans) == 2:
            content = bytes(buffer[spans[0] : spans[1]])
            first = way.rows
            end = first + rows
            if (
                first
                and end <= way.most_rows
                and len(way.pending) < way.most_requests
                and self._rows + rows <= self._room
            ):
                way.rows = end
                self._rows += rows
            else:
                first = self._reserve(way, rows, context)
            way.contents[0].append(content)
        else:
            contents = [bytes(buffer[spans[at] : spans[at + 1]]) for at in range(0, len(spans), 2)]
            first = self._reserve(way, rows, context)
            for pieces, content in zip(way.contents, contents, strict=True):
                pieces.append(content)
        way.pending.append((context, first, rows, None))

    def add_contents(self, way: EnsembleWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        first = self._reserve(way, rows, context)
        for pieces, content in zip(way.contents, contents, strict=True):
            pieces.append(content)
        way.pending.append((context, first, rows, None))

    def add_gathered(
        self, way: EnsembleWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Port``."""
        contents = [_content_of(array) for array in arrays]
        self._reserve(way, rows, context)
        way.contents = [[content] for content in contents]
        way.pending.append((context, 0, rows, None))

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``: the groups go their way. Members' quick batches are run here, as ``THREAD`` allows."""
        touched, self._touched = self._touched, []
        self._rows = 0
        self._committing = threading.get_ident()
        outermost = THREAD.enter()
        try:
            for way in touched:
                if way.pending:
                    self._begin(way)
        finally:
            THREAD.leave(outermost=outermost)
            self._committing = 0

    def _reserve(self, way: EnsembleWay, rows: int, context: Any) -> int:
        """Make room for one more request in a way's group; returns its first row."""
        count = len(way.pending)
        if count and (way.rows + rows > way.most_rows or count >= way.most_requests):
            outermost = THREAD.enter()
            try:
                self._begin(way)
            finally:
                THREAD.leave(outermost=outermost)
            count = 0
        if not self._touched:
            self._room = self._state.bounds.rows - self._state.rows
        if self._rows + rows > self._room:
            self._refuse(rows)
        self._rows += rows
        if not count:
            self._open(way, context)
        first = way.rows
        way.rows = first + rows
        return first

    def _refuse(self, rows: int) -> None:
        state = self._state
        if rows > state.bounds.rows:
            raise InvalidRequest(
                f"inference request batch-size must be <= {state.bounds.rows} for '{state.graph.model}'"
            )
        raise Overloaded(
            f"ensemble '{state.graph.model}' has {state.rows + self._rows} of at most {state.bounds.rows} rows under "
            f"way, and this request has {rows} more; try again later, or raise max_batch_size or capacity",
            state.bounds.rows,
            rows,
        ).after(state.wait_s(rows))

    def _open(self, way: EnsembleWay, context: Any) -> None:
        """Begin to put a group together."""
        binding = self._state.binding
        takes_turns = binding is not None and binding.takes_turns
        way.caller = self._consumer.caller(context) if takes_turns else None
        if self._state.bindings != way.bindings:
            way.bindings = self._state.bindings
            way.most_requests, way.most_rows = 1, 0
            if binding is not None and binding.may_join and way.packed and not takes_turns:
                way.most_rows = max(1, min(binding.most_rows, _MAX_GROUP_BYTES // way.row_bytes))
                way.most_requests = self._state.graph.max_inflight or way.most_rows
        way.contents = [[] for _ in way.row_shapes]
        if way not in self._touched:
            self._touched.append(way)
        if not self._commit_asked:
            self._commit_asked = True
            self._consumer.at_round_end(self._commit_round)

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()

    def _begin(self, way: EnsembleWay) -> None:
        """Send a way's group on its way. The thread has entered THREAD."""
        pending, contents, rows = way.pending, way.contents, way.rows
        way.pending, way.contents, way.rows = [], [], 0
        if len(pending) > 1 and not self._say_the_same(pending):
            for at, (context, _, own_rows, _) in enumerate(pending):
                own = [[pieces[at]] for pieces in contents]
                self._send(way, [(context, 0, own_rows, None)], own, own_rows)
            return
        self._send(way, pending, contents, rows)

    def _say_the_same(self, pending: list[PendingRequest]) -> bool:
        """Whether requests say the same beside their tensors, as far as a member reads it. Those of a sequence do not:
        a member with sequences takes one at a time, and never twice."""
        binding = self._state.binding
        if binding is None or not binding.asks:
            return True
        about = self._consumer.about
        first = about(pending[0][0])
        return not first.parameters.get("sequence_id") and all(
            (said.identifier, said.parameters) == (first.identifier, first.parameters)
            for said in [about(request[0]) for request in pending[1:]]
        )

    def _send(self, way: EnsembleWay, pending: list[PendingRequest], contents: list[list[Content]], rows: int) -> None:
        """Send requests on their way as one group."""
        state = self._state
        signature = state.graph.signature
        values: list[Value | None] = [None] * len(state.graph.tensors)
        held_bytes = 0
        for (index, shape), pieces in zip(way.row_shapes, contents, strict=True):
            content = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # type: ignore[arg-type]
            datatype = signature.inputs[index].datatype
            values[index] = ((rows, *shape) if signature.batched else shape, content, datatype)
            held_bytes += len(content)
        try:
            binding = state.enter(rows, held_bytes)
        except RequestError as error:
            now_ns = time.monotonic_ns()
            self._deliver(BatchResult(pending, None, error, Timing(now_ns, now_ns, now_ns, now_ns)))
            return
        if binding.levels.sources:
            # Each response by the same way, so that they stay in order: this thread may also have some to give at once.
            of_request = values, way.outputs, way.needed, way.read
            waves = Waves(state, binding, pending[0], *of_request, self._consumer, held_bytes)
            waves.caller = way.caller
            waves.begin()
            return
        group = Group(
            state,
            binding,
            pending,
            rows,
            requests_of(pending),
            values,
            way.outputs,
            way.needed,
            way.read,
            self._consumer,
            self._deliver,
            held_bytes,
        )
        group.caller = way.caller
        group.advance()

    def _deliver(self, result: BatchResult) -> None:
        """Hand a group's result to the consumer, from any thread."""
        outputs = result.shared_outputs
        if outputs is not None:
            seen = self._seen_shapes
            if len(seen) > _MAX_SEEN_SHAPES:
                self._seen_shapes = seen = {}
            outputs.row_shapes = seen.setdefault(outputs.row_shapes, outputs.row_shapes)
        if self._committing == threading.get_ident():
            self._consumer.finish_here(result)
        else:
            self._consumer.finish(result)


def _content_of(array: Piece) -> Content:
    """The bytes of one input of one request."""
    if isinstance(array, StringRows):
        return np.frombuffer(array.content, np.uint8)[:-1]  # nobody runs it, so nobody overwrites it
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
