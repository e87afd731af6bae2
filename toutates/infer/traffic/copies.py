"""Copies of requests: another version answers them too, and its answers are compared with those that were sent.

A worker copies the bytes of a request when it adds it, and those of the answer once that is written. A thread of its
own does the rest, then: it has the other version run the copy, through the same batches as clients' requests, and
compares. So nothing of a copy comes before the real answer, and no error of it reaches the client. How many copies are
under way, and how many bytes they hold, is bounded; beyond that they are left out, and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final

from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.result import BatchResult, Outputs
from toutates.engine.servable import Buffer, RequestAbout
from toutates.engine.tensor import Tensor
from toutates.infer.answers import RequestContext
from toutates.infer.plan import Plan
from toutates.infer.traffic.comparing import difference
from toutates.models.demand import Loader
from toutates.models.table import ModelTable, ServedVersion
from toutates.models.traffic.rules import Shadow, Target
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.strings import rest
from toutates.system.errors import NotLoaded, Overloaded, RequestError

__all__ = ["CopiedContext", "Copies", "Copy", "ShadowCounts", "comparing"]

logger = logging.getLogger(__name__)

#: Copies that are under way at most, and bytes that they hold: of requests and of answers.
MAX_UNDER_WAY: Final = 256
MAX_BYTES: Final = 64 * 2**20
#: A request or an answer of more bytes is not copied: a worker would take too long.
MAX_COPIED: Final = 4 * 2**20
#: The same for all answers of a batch, which are copied one after the other.
MAX_AT_ONCE: Final = 8 * 2**20
#: How long a copy waits for its version, nanoseconds. Then nobody wants its answer any more.
PATIENCE_NS: Final = 30_000_000_000
MAX_TEXT: Final = 200


@dataclass(slots=True)
class ShadowCounts:
    """What became of the copies for one version.

    Attributes:
        equal, different: compared answers.
        failed: copies that the version did not answer, while the client got an answer.
        skipped: requests that were chosen and not copied or not compared: too many were under way, they are too large,
            or they were not answered themselves.
        slower: of those compared, how many took longer than the request itself.
        sent_ns, shadow_ns: how long those compared took, from the arrival to the end of the run.
        last: what the last difference or failure was; "" for none.
    """

    equal: int = 0
    different: int = 0
    failed: int = 0
    skipped: int = 0
    slower: int = 0
    sent_ns: int = 0
    shadow_ns: int = 0
    last: str = ""


class Copy:
    """A request that is to be answered by another version too. Its bytes are given back when nobody has it any more."""

    __slots__ = ("copies", "inputs", "key", "parameters", "sent", "sent_ns", "shadow", "size")

    def __init__(
        self, copies: Copies, key: tuple[str, Target], shadow: Shadow, inputs: Mapping[str, Tensor], size: int
    ) -> None:
        self.copies = copies
        self.key = key
        self.shadow = shadow
        self.inputs = inputs
        self.size = size
        self.parameters: Mapping[str, Any] = {}
        self.sent: dict[str, Tensor] = {}
        self.sent_ns = 0

    def __del__(self) -> None:
        self.copies.give_back(self.size)


class CopiedContext(tuple[Any, Plan, bytes, int]):
    """The context of a request of which there is a copy.

    Attributes:
        kept: the copy.
    """

    kept: Copy | None

    @classmethod
    def of(cls, context: RequestContext, kept: Copy) -> CopiedContext:
        """A context that has the copy as well."""
        made = cls(context)
        made.kept = kept
        return made


class Copies:
    """The copies of one process. Workers add them; the thread does the rest.

    Args:
        get_table: returns the model table as it is now. Any thread may call it.
        most, most_bytes: see MAX_UNDER_WAY and MAX_BYTES.
        loader: has versions loaded that are not in memory; None where models are not loaded on demand.
    """

    def __init__(
        self,
        get_table: Callable[[], ModelTable],
        most: int = MAX_UNDER_WAY,
        most_bytes: int = MAX_BYTES,
        loader: Loader | None = None,
    ) -> None:
        self._loader = loader
        self._get_table = get_table
        self._most = most
        self._most_bytes = most_bytes
        #: guards the rest; never held for longer than constant time
        self._lock = threading.Lock()
        self._under_way = 0
        self._bytes = 0
        #: bytes of copies that are gone, each until somebody has the lock and counts it
        self._gone: deque[int] = deque()
        self._counts: dict[tuple[str, Target], ShadowCounts] = {}
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False

    # --- for workers -------------------------------------------------------------------------------------------------

    def take(self, name: str, shadow: Shadow, plan: Plan, sent: Sequence[Buffer]) -> Copy | None:
        """Copy a request; None where that is not possible just now, which is counted.

        Args:
            name: of the route.
            shadow: says what for.
            plan: of the version that answers the request.
            sent: the bytes of each input, in the order of the plan's.
        """
        key = name, shadow.target
        size = sum(map(len, sent))
        if size > MAX_COPIED or not self._reserve(size):
            self.count(key, "skipped")
            return None
        signature, request = plan.version.signature, plan.request
        inputs: dict[str, Tensor] = {}
        made = Copy(self, key, shadow, inputs, size)  # from here on what was reserved is given back with it
        made.parameters = request.parameters
        try:
            for index, row_shape, content in zip(request.inputs, request.shapes, sent, strict=True):
                spec = signature.inputs[index]
                shape = spec.to_wire(row_shape)
                whole = (plan.rows, *shape) if signature.batched else shape
                inputs[spec.name] = Tensor(spec.datatype, whole, bytes(content))
        except MemoryError:  # which is no reason to refuse the request itself
            self.count(key, "skipped")
            return None
        return made

    def count(self, key: tuple[str, Target], what: str, text: str = "") -> None:
        """Count what became of a copy, by the name of an attribute of ``ShadowCounts``."""
        with self._lock:
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = ShadowCounts()
            setattr(counts, what, getattr(counts, what) + 1)
            if text:
                counts.last = text[:MAX_TEXT]

    def answered(
        self, kept: Copy, plan: Plan, outputs: Outputs, first: int, rows: int, sent_ns: int, room: int = MAX_COPIED
    ) -> int:
        """Keep the answer to a request that was copied, and have the other version answer it. On the worker's thread.

        Args:
            kept: the copy.
            plan: of the request.
            outputs: of its batch.
            first, rows: where its rows are in these.
            sent_ns: how long it took.
            room: bytes of an answer that may be copied.

        Returns:
            The bytes that were copied.
        """
        signature = plan.version.signature
        batched = signature.batched
        indices = plan.outputs_in(outputs)
        contents = [outputs.rows(index, first, rows, batched=batched) for index in indices]
        size = sum(map(len, contents))
        if size > min(MAX_COPIED, room) or not self._grow(kept, size):
            self.count(kept.key, "skipped")
            return 0
        for index, content in zip(indices, contents, strict=True):
            tensor = plan.tensor_of(outputs, index, rows)
            kept.sent[tensor.name] = Tensor(BY_NAME[tensor.datatype], tuple(tensor.shape), bytes(content))
        kept.sent_ns = sent_ns
        self._put(lambda: self._run(kept))
        return size

    def _reserve(self, size: int) -> bool:
        with self._lock:
            self._count_gone()
            if self._closed or self._under_way >= self._most or self._bytes + size > self._most_bytes:
                return False
            self._under_way += 1
            self._bytes += size
            return True

    def _grow(self, kept: Copy, size: int) -> bool:
        with self._lock:
            self._count_gone()
            if self._bytes + size > self._most_bytes:
                return False
            self._bytes += size
            kept.size += size
            return True

    def give_back(self, size: int) -> None:
        """A copy is gone that held so many bytes.

        It takes no lock: a copy may be freed in any thread between any two of its steps, with the lock held too. So
        does free-threaded Python with what another thread had last.
        """
        self._gone.append(size)

    def _count_gone(self) -> None:
        """Count the copies that are gone. The lock is held."""
        while self._gone:
            self._bytes -= self._gone.popleft()
            self._under_way -= 1

    # --- the thread --------------------------------------------------------------------------------------------------

    def _put(self, job: Callable[[], None]) -> None:
        if self._thread is None and not self._start():
            return  # the copy is dropped
        self._jobs.put(job)

    def _start(self) -> bool:
        """Start the thread, unless another worker has; returns whether there is one."""
        with self._lock:
            if self._thread is not None or self._closed:
                return self._thread is not None
            thread = threading.Thread(target=self._work, name="shadow", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False  # the system has none
            self._thread = thread
            return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("comparing an answer with that of a shadow failed")
            del job  # with the copy
            rest()  # so that workers get the interpreter between two copies

    def _run(self, kept: Copy, until_ns: int = 0) -> None:
        """Have the version answer a copy.

        Args:
            kept: the copy.
            until_ns: when nobody wants its answer any more; 0 for after PATIENCE_NS.
        """
        name, target = kept.key
        until_ns = until_ns or time.monotonic_ns() + PATIENCE_NS
        parameters = kept.parameters
        try:
            version = self._hold(name, target)
        except NotLoaded as missing:
            self._load(missing, kept, until_ns)
            return
        except RequestError as error:
            self.count(kept.key, "failed", str(error))
            return
        done = _Once(version)
        call = ModelCall(
            0,
            lambda outcome: self._put(lambda: done.then(lambda: self._compare(kept, version, outcome))),
            is_wanted=lambda by_ns: by_ns < until_ns,
            about=lambda: RequestAbout("", None, parameters),
        )
        try:
            version.calls.call(call, kept.inputs)
        except RequestError as error:
            what, text = "skipped" if isinstance(error, Overloaded) else "failed", str(error)
            done.then(lambda: self.count(kept.key, what, text))
        except BaseException:
            done.then(lambda: self.count(kept.key, "failed", "internal error"))
            raise

    def _load(self, missing: NotLoaded, kept: Copy, until_ns: int) -> None:
        """Have a copy run once its version is loaded. How long that takes is not the shadow's time."""
        loader = self._loader
        failure: RequestError | None = missing
        if loader is not None and time.monotonic_ns() < until_ns:
            failure = loader.failure_of(missing.model)
        if loader is None or failure is not None:
            self.count(kept.key, "failed", str(failure))
            return

        def done(error: RequestError | None) -> None:
            if error is None:
                self._put(lambda: self._run(kept, until_ns))
            else:
                self.count(kept.key, "failed", str(error))

        loader.want(missing.model, done)

    def _hold(self, name: str, target: Target) -> ServedVersion:
        while True:
            version = self._get_table().find_target(name, target)
            if version.calls.hold():
                return version

    def _compare(self, kept: Copy, version: ServedVersion, outcome: Outcome) -> None:
        if outcome.error is not None or outcome.outputs is None:
            self.count(kept.key, "failed", str(outcome.error or "no outputs"))
            return
        signature = version.signature
        names = [spec.name for spec in signature.outputs]
        try:
            missing = {names[index] for index in outcome.outputs.missing}
            given = [name for name in kept.sent if name in names and name not in missing]
            found = {name: outcome.tensor(names.index(name), signature) for name in given}
            text = difference(kept.sent, found, kept.shadow.rtol, kept.shadow.atol)
        except RequestError as error:
            self.count(kept.key, "failed", str(error))
            return
        took_ns = outcome.timing.done_ns - outcome.begun_ns
        self.count(kept.key, "different" if text else "equal", text)
        with self._lock:
            counts = self._counts[kept.key]
            counts.slower += took_ns > kept.sent_ns
            counts.sent_ns += kept.sent_ns
            counts.shadow_ns += took_ns

    # --- for others --------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[tuple[str, Target], ShadowCounts]:
        """What became of the copies so far, by the name of the route and the version. Any thread may call it."""
        with self._lock:
            return {key: replace(counts) for key, counts in self._counts.items()}

    @property
    def held(self) -> tuple[int, int]:
        """How many copies are under way, and how many bytes they hold."""
        with self._lock:
            self._count_gone()
            return self._under_way, self._bytes

    def close(self) -> None:
        """Take no more copies, and end the thread once it has done what it is at."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._jobs.put(None)
        if thread is not None:
            thread.join(timeout=5)


class _Once:
    """Lets go of a version when the copy that holds it is done."""

    __slots__ = ("_done", "_version")

    def __init__(self, version: ServedVersion) -> None:
        self._version = version
        self._done = False

    def then(self, act: Callable[[], None]) -> None:
        if self._done:
            return
        self._done = True
        try:
            act()
        finally:
            self._version.calls.let_go()


def comparing(copies: Copies, finish: Callable[[BatchResult], None]) -> Callable[[BatchResult], None]:
    """``finish`` of a port for requests that are copied: they are answered, and then their answers are kept."""

    def finish_copied(result: BatchResult) -> None:
        finish(result)
        outputs, room = result.outputs, MAX_AT_ONCE
        for context, first, rows, part in result.pending:
            kept, context.kept = context.kept, None
            if kept is None:
                continue
            if outputs is None or part is not None:
                copies.count(kept.key, "skipped")
            else:
                _, plan, _, arrival = context
                took_ns = result.timing.done_ns - arrival
                room -= copies.answered(kept, plan, outputs, first, rows, took_ns, room)

    return finish_copied
