"""Calls of a model version from inside the server: from any thread, without a message and without a hop.

    calls.hold()                                    the version stays until let_go
    calls.submit(call, shapes, contents)            rows go into the version's own batches, beside those of clients
    call.on_done(outcome)                           on the thread that has run them, which may be the caller's

A port is used by one thread at a time. So a version's ports for such calls are lent: a thread takes one that is free,
or opens one more, adds its rows, commits them and gives it back. There are as many as threads have called at once. What
comes back with the rows says whom it is for, so that it does not matter who has the port by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, cast

import numpy as np

from toutates.engine.counters import WorkerCounters
from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import BatchResult, Outputs, Parameters, PendingRequest, Timing, indivisible, parameters_of
from toutates.engine.servable import Consumer, Content, Port, RequestAbout, Servable, view_of
from toutates.engine.tensor import Tensor
from toutates.engine.thread_queue import ThreadQueue
from toutates.protocol.input_checks import check_batch, check_input, check_names
from toutates.protocol.names import request_prefix
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringRows
from toutates.system.errors import ExecutionFailed, Overloaded, QueueTimeout, RequestError, TooLate, WouldBeLate

__all__ = ["THREAD", "Calls", "Fitting", "ModelCall", "Outcome"]

logger = logging.getLogger(__name__)

#: What each thread has still to do with the outcomes of calls.
THREAD: Final = ThreadQueue()

#: Ways that a port remembers, by row shapes.
_MAX_WAYS: Final = 256


@dataclass(slots=True)
class Outcome:
    """What has become of a call.

    Attributes:
        outputs: of the batch that its rows were in; None if it failed.
        first: its first row in them.
        rows: how many.
        error: why it failed; None if it did not.
        timing: of its batch; of one whose rows were in several, the last.
        begun_ns: when it was submitted, monotonic nanoseconds.
        is_whole: whether ``outputs`` are of these rows alone, as bytes, because they were in several batches.
        more: whether others may follow, of a decoupled version. Its last one may have neither outputs nor an error.
        taken: see ``BatchResult``, of a call that passes its outcomes on; None for others.
    """

    outputs: Outputs | None
    first: int
    rows: int
    error: RequestError | None
    timing: Timing
    begun_ns: int
    is_whole: bool = False
    more: bool = False
    taken: Callable[[], object] | None = None

    def content(self, index: int, *, batched: bool) -> Content:
        """The bytes of one output's rows."""
        assert self.outputs is not None
        if self.is_whole:
            return cast(Content, self.outputs.data[index])
        content: Content = self.outputs.rows(index, self.first, self.rows, batched=batched)
        # A view may not be sliced by two threads at once; an array may.
        return np.frombuffer(content, np.uint8) if isinstance(content, memoryview) else content

    def tensor(self, index: int, signature: Signature) -> Tensor:
        """One output as clients would see it.

        Args:
            index: of the output.
            signature: of the model that was called.
        """
        assert self.outputs is not None
        spec, forms = signature.outputs[index], self.outputs.forms
        if forms is not None and index in forms:
            return Tensor(*forms[index], self.content(index, batched=signature.batched))
        shape = spec.to_wire(self.outputs.row_shapes[index])
        whole = (self.rows, *shape) if signature.batched else shape
        return Tensor(spec.datatype, whole, self.content(index, batched=signature.batched))


@dataclass(slots=True, eq=False)
class ModelCall:
    """Rows for a model version, of one request or of several.

    Attributes:
        rows: how many in all.
        on_done: takes the outcome, in the thread that has run the rows. It may call other models, and must not block.
            A decoupled version has any number of outcomes.
        outputs: indices of the outputs that are wanted, ascending; None for all.
        is_wanted: whether somebody waits for it still at a time, monotonic nanoseconds. Called in any thread.
        requests: for how many requests the rows are, by the rows of each: (rows, how many requests); () for one.
        begun_ns: when it was submitted.
        about: what is said beside the tensors, for models that ask; None for nothing. Called in any thread.
        caller: see ``Consumer``.
    """

    rows: int
    on_done: Callable[[Outcome], object]
    outputs: tuple[int, ...] | None = None
    is_wanted: Callable[[int], bool] = lambda by_ns: True
    requests: Sequence[tuple[int, int]] = ()
    begun_ns: int = 0
    about: Callable[[], RequestAbout] | None = None
    caller: object = None

    #: whether ``on_done`` deals with ``Outcome.taken``
    passes_on: ClassVar[bool] = False

    def may_have_left(self) -> bool:
        """See ``Consumer``."""
        return False

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        return 0

    def released(self) -> None:
        """See ``Consumer``."""


#: Stands for a call that is not made.
_REFUSED: Final = ModelCall(0, lambda outcome: None)


class Fitting(NamedTuple):
    """How inputs fit a model version.

    Attributes:
        rows: of the call.
        shapes: of one row of each input, see ``Calls.submit``.
        order: for each of these, which of the inputs it is.
    """

    rows: int
    shapes: RowShapes
    order: Sequence[int]


@dataclass(slots=True, eq=False)
class _LentPort:
    """A port, with the ways that were used last."""

    port: Port
    ways: dict[tuple[RowShapes, tuple[int, ...] | None], Any] = field(default_factory=dict)


class Calls:
    """All calls of one model version from inside the server. Any thread may use it.

    Args:
        model: name of the model.
        number: of the version.
        servable: the version.
    """

    def __init__(self, model: str, number: int, servable: Servable) -> None:
        self.model = model
        self.number = number
        self._servable = servable
        self._lock = threading.Lock()
        self._free: list[_LentPort] = []
        #: of all such calls; made with the first of them
        self._counters: WorkerCounters | None = None
        self._holds = 0
        self._on_free: Callable[[], None] | None = None

    # --- who uses the version ----------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the version until ``let_go``. False if it is about to end: then look into the table of models again."""
        with self._lock:
            if self._on_free is not None:
                return False
            self._holds += 1
            return True

    def let_go(self) -> None:
        """Take back one ``hold``."""
        with self._lock:
            self._holds -= 1
            on_free = self._on_free if not self._holds else None
        if on_free is not None:
            on_free()

    def close(self, on_free: Callable[[], None]) -> None:
        """Let nobody hold the version any more, and have a function called, in any thread, once nobody does."""
        with self._lock:
            self._on_free = on_free
            is_free = not self._holds
        if is_free:
            on_free()

    # --- calls -------------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The version's tensors."""
        return self._servable.signature

    def call(self, call: ModelCall, inputs: Mapping[str, Tensor]) -> None:
        """Check inputs as a client's are checked, and submit them. Sets the call's ``rows``.

        Raises:
            RequestError: they do not fit the model, or ``submit`` refuses them. ``on_done`` is not called then.
        """
        fitting = self.check([(name, tensor.datatype.name, tensor.shape) for name, tensor in inputs.items()])
        call.rows = fitting.rows
        contents = [tensor.content for tensor in inputs.values()]
        self.submit(call, fitting.shapes, [contents[at] for at in fitting.order])

    def check(self, inputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> Fitting:
        """Check inputs as a client's are checked: what holds for them holds for all of the same names and shapes.

        Args:
            inputs: name, datatype's name and shape of each.

        Raises:
            RequestError: they do not fit the model.
        """
        signature = self.signature
        prefix = request_prefix("")
        try:
            check_names([name for name, _, _ in inputs], signature, self.model, prefix)
            rows = 1
            if inputs:
                rows = check_batch([(name, shape) for name, _, shape in inputs], signature, self.model, prefix)
            specs = {spec.name: (index, spec) for index, spec in enumerate(signature.inputs)}
            for name, datatype, shape in reversed(inputs):
                check_input(specs[name][1], datatype, shape, signature, self.model, prefix)
        except RequestError as error:
            self._count_refused(_REFUSED, error)
            raise
        row = slice(1, None) if signature.batched else slice(None)
        places = {specs[name][0]: at for at, (name, _, _) in enumerate(inputs)}
        shapes = tuple([(index, inputs[at][2][row]) for index, at in sorted(places.items())])
        return Fitting(rows, shapes, [places[index] for index, _ in shapes])

    def submit(self, call: ModelCall, shapes: RowShapes, contents: Sequence[Content]) -> None:
        """Put rows into the version's batches.

        Args:
            call: what they are for.
            shapes: shape of one row of each input that is given, as clients see it, by the input's index; ascending.
            contents: bytes of each, of the datatype that the model has; their lengths fit the shapes.

        Raises:
            RequestError: a shape does not fit the model, too much is under way, or the version does not answer any
                more. ``on_done`` is not called then.
        """
        outermost = THREAD.enter()
        try:
            call.begun_ns = time.monotonic_ns()
            lent = self._take_port()
            try:
                self._add(lent, call, shapes, contents)
                lent.port.commit(inline=THREAD.may_run_inline())
            except RequestError as error:
                self._count_refused(call, error)
                raise
            finally:
                self._free.append(lent)
        finally:
            THREAD.leave(outermost=outermost)

    def submit_each(self, calls: Sequence[ModelCall], shapes: RowShapes, contents: Sequence[Sequence[Content]]) -> None:
        """Put the rows of several calls into the version's batches, with one commit, so that they run together.

        What is refused is the outcome of its call, like any other.

        Args:
            calls: what the rows are for; their shapes and outputs are checked only once.
            shapes: of all of them, see ``submit``.
            contents: of each.
        """
        outermost = THREAD.enter()
        try:
            lent = self._take_port()
            try:
                for call, own in zip(calls, contents, strict=True):
                    call.begun_ns = time.monotonic_ns()
                    try:
                        self._add(lent, call, shapes, own)
                    except Exception as error:
                        self._refuse(call, error)
                lent.port.commit(inline=THREAD.may_run_inline())
            finally:
                self._free.append(lent)
        finally:
            THREAD.leave(outermost=outermost)

    def _refuse(self, call: ModelCall, error: Exception) -> None:
        """Have a call fail that was not added."""
        if not isinstance(error, RequestError):  # such as MemoryError
            logger.error("a call of model '%s' failed", self.model, exc_info=error)
            error = ExecutionFailed("internal error")
        self._count_refused(call, error)
        at_ns = call.begun_ns
        timing = Timing(at_ns, at_ns, at_ns, at_ns)
        THREAD.put(call.on_done, Outcome(None, 0, call.rows, error, timing, at_ns))

    def _take_port(self) -> _LentPort:
        try:
            return self._free.pop()  # one operation on a list, which threads may do at once
        except IndexError:
            pass
        with self._lock:
            consumer = Consumer(
                self._finish,
                self._finish,
                lambda callback: None,
                _is_wanted,
                about=_about,
                parameters=_parameters,
                may_have_left=_may_have_left,
                unread_bytes=_unread_bytes,
                released=_released,
                caller=_caller,
            )
            return _LentPort(self._servable.port(consumer))

    def _add(self, lent: _LentPort, call: ModelCall, shapes: RowShapes, contents: Sequence[Content]) -> None:
        key = shapes, call.outputs
        way = lent.ways.get(key)
        if way is None:
            way = self._new_way(lent, key, call.rows)
        if way.packed:
            lent.port.add_contents(way, call.rows, call, contents)
        else:
            lent.port.add_gathered(way, call.rows, call, *self._pieces(shapes, call.rows, contents))

    def _new_way(self, lent: _LentPort, key: tuple[RowShapes, tuple[int, ...] | None], rows: int) -> Any:
        signature = self.signature
        inputs = signature.inputs
        for index, shape in reversed(key[0]):
            whole = (rows, *shape) if signature.batched else shape
            check_input(inputs[index], inputs[index].datatype.name, whole, signature, self.model, request_prefix(""))
        row_shapes = tuple([(index, inputs[index].to_graph(shape)) for index, shape in key[0]])
        if len(lent.ways) >= _MAX_WAYS:
            lent.ways.clear()
        way = lent.ways[key] = lent.port.way(row_shapes, key[1])
        return way

    def _pieces(self, shapes: RowShapes, rows: int, contents: Sequence[Content]) -> tuple[list[Piece], int]:
        """Each input as an array, and the bytes of all."""
        signature = self.signature
        pieces: list[Piece] = []
        for (index, shape), content in zip(shapes, contents, strict=True):
            spec = signature.inputs[index]
            row = spec.to_graph(shape)
            whole = (rows, *row) if signature.batched else row
            if spec.datatype.size:
                pieces.append(np.frombuffer(content, spec.datatype.numpy).reshape(whole))
            else:
                prefix = request_prefix("")
                view = view_of(content)
                pieces.append(StringRows.received(view, whole, tensor=spec.name, model=self.model, prefix=prefix))
        return pieces, sum(map(len, contents))

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def _finish(self, result: BatchResult) -> None:
        """Hand out what has become of the calls of a batch. On the thread that has run it."""
        outermost = THREAD.enter()
        taken = result.taken
        try:
            for request in result.pending:
                outcome = self._outcome(request, result)
                if outcome is not None:
                    call: ModelCall = request[0]
                    if not outcome.more:
                        self._count(call, outcome)
                    if taken is not None and call.passes_on:
                        outcome.taken, taken = taken, None  # such a result is of one request
                    THREAD.put(call.on_done, outcome)
            if taken is not None:
                taken()
        finally:
            THREAD.leave(outermost=outermost)

    def _outcome(self, request: PendingRequest, result: BatchResult) -> Outcome | None:
        """What has become of a call; None if other batches have rows of it that have not run."""
        call, first, rows, part = request
        outputs = result.shared_outputs
        if part is None:
            return Outcome(outputs, first, rows, result.error, result.timing, call.begun_ns, more=result.more)
        split, index = part
        with self._lock:
            if outputs is not None:
                split.parts[index] = (outputs, first, rows)
            split.error = split.error or result.error
            split.left -= 1
            if split.left:
                return None
        if split.error is not None:
            return Outcome(None, 0, call.rows, split.error, result.timing, call.begun_ns)
        parts = [part_of for part_of in split.parts if part_of is not None]
        try:
            return Outcome(self._joined(parts, call.rows), 0, call.rows, None, result.timing, call.begun_ns, True)
        except RequestError as error:
            return Outcome(None, 0, call.rows, error, result.timing, call.begun_ns)

    def _joined(self, parts: Sequence[tuple[Outputs, int, int]], rows: int) -> Outputs:
        """The outputs of rows that were in several batches."""
        if not all(outputs.is_regular for outputs, _, _ in parts):
            raise indivisible(self.model, rows, len(parts))
        row_shapes = parts[0][0].row_shapes
        if any(outputs.row_shapes != row_shapes for outputs, _, _ in parts):
            raise ExecutionFailed(
                f"the rows of model '{self.model}' have shapes that depend on their batch, so that a call with {rows} "
                f"rows, which took {len(parts)} batches, has no one shape"
            )
        data = [
            b"".join([outputs.rows(index, first, count, batched=True) for outputs, first, count in parts])
            for index in range(len(row_shapes))
        ]
        return Outputs(tuple(data), parts[0][0].row_bytes, row_shapes, parameters=parameters_of(parts))

    def _count(self, call: ModelCall, outcome: Outcome) -> None:
        now_ns = time.monotonic_ns()
        requests = call.requests or ((call.rows, 1),)
        with self._lock:
            counters = self._shared_counters()
            if outcome.error is None:
                groups = [(call.begun_ns, rows, count) for rows, count in requests]
                counters.count_answered(groups, outcome.timing, now_ns, time.time_ns() // 1_000_000)
                return
            failed = sum([count for _, count in requests])
            counters.fail_ns += failed * (now_ns - call.begun_ns)
            if isinstance(outcome.error, TooLate) and not call.is_wanted(now_ns):
                counters.cancel += failed
                return
            counters.fail += failed
            if isinstance(outcome.error, TooLate | QueueTimeout):
                counters.rejected += failed
            elif isinstance(outcome.error, ExecutionFailed):
                counters.broken += failed
            else:
                counters.other += failed

    def _count_refused(self, call: ModelCall, error: RequestError) -> None:
        refused = sum([count for _, count in call.requests or ((call.rows, 1),)])
        with self._lock:
            counters = self._shared_counters()
            if isinstance(error, Overloaded):
                counters.overloaded += refused
            elif isinstance(error, WouldBeLate):
                counters.late += refused
            else:
                counters.refused += refused

    def _shared_counters(self) -> WorkerCounters:
        """One set for all, written under the lock: the outcome of a batch comes on whatever thread has run it."""
        if self._counters is None:
            self._counters = WorkerCounters()
            self._servable.counters.workers.append(self._counters)
        return self._counters


def _about(call: ModelCall) -> RequestAbout:
    said = call.about() if call.about is not None else RequestAbout()
    return RequestAbout(said.identifier, call.outputs, said.parameters)


def _parameters(call: ModelCall) -> Parameters:
    return call.about().parameters if call.about is not None else {}


def _is_wanted(call: ModelCall, by_ns: int) -> bool:
    return call.is_wanted(by_ns)


def _may_have_left(call: ModelCall) -> bool:
    return call.may_have_left()


def _unread_bytes(call: ModelCall) -> int:
    return call.unread_bytes()


def _released(call: ModelCall) -> None:
    call.released()


def _caller(call: ModelCall) -> object:
    return call.caller
