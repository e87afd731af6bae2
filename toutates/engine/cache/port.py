"""A port that looks into the response cache before a request goes on to the version's own port.

    found        the request is answered at the round's end, on its worker's thread, and goes no further
    under way    another request computes the same: this one waits for its answer
    neither      the request goes on; its answer is kept, and handed to those that wait for it

An answer that lacks an output, or whose outputs cannot be cut out of its batch, is for its own request alone. Those
that wait for it are then computed, of a copy of the inputs, which are the same for all of them. The copy counts as
bytes of the cache; where there is no room for it, nobody waits.
A request that waits takes no rows. One that has a timeout or a priority of its own does not wait, and nobody waits
for it, because its end may be its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from toutates.engine.cache.again import Again, Asked
from toutates.engine.cache.cutting import Part, cut, size_of
from toutates.engine.cache.joining import joined
from toutates.engine.cache.keys import EXACT_BYTES, OPT_OUT, contents_of, head_of, key_of, said_to_model, spans_of
from toutates.engine.cache.keys import of_way as start_of_keys
from toutates.engine.cache.store import CachedAnswer, Owner, ResponseCache
from toutates.engine.lane import Piece, RowShapes
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Timing
from toutates.engine.servable import Buffer, Consumer, Content, Port, RequestAbout, Servable
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["CachedVersion", "CachingPort"]

logger = logging.getLogger(__name__)

#: Requests with more bytes of inputs are computed each time: a worker hashes a MiB in about 1 ms, and others wait.
MAX_HASHED_BYTES: Final = 4_194_304
#: Requests that wait for one that computes the same. More of them are computed, within the bounds of the version.
MAX_WAITING: Final = 1_024
_OF_ITS_OWN: Final = frozenset({"timeout", "priority"})

Finish = Callable[[BatchResult], None]

#: For those that wait for a request which has failed by an error of our own.
_NO_ANSWER: Final = ExecutionFailed("internal error")


class CachedVersion:
    """What all ports of one version share.

    Args:
        cache: of the server.
        owner: the version.
        number: of its keys, see ``keys.new_version``.
        signature: its tensors.
        reads_parameters: whether an answer may depend on the request's parameters.
        on_too_large: called with the size of an answer that is larger than the cache.
        again: computes those that have waited in vain.

    Attributes:
        under_way: by key, requests that compute what others may wait for. Guarded by the cache's lock.
        lacks_outputs: whether an answer has lacked an output that was asked for. Who asks once more may be given it, so
            that each request is computed from then on.
        Others: as given.
    """

    def __init__(
        self,
        cache: ResponseCache,
        owner: Owner,
        number: int,
        signature: Signature,
        reads_parameters: Callable[[], bool],
        on_too_large: Callable[[int], None],
        again: Again,
    ) -> None:
        self.cache = cache
        self.owner = owner
        self.number = number
        self.signature = signature
        self.reads_parameters = reads_parameters
        self.on_too_large = on_too_large
        self.again = again
        self.under_way: dict[bytes, Computed] = {}
        self.lacks_outputs = False


class CachingWay:
    """See ``Way``: that of the version's own port, and what the keys of its rows begin with.

    Attributes:
        inner: of the version's own port.
        packed: likewise.
        asked: makes a copy of what such a request asks for, of its contents.
        rows: of the last request; nearly always those of the next one, because each plan has a way of its own.
        head: what keys of so many rows begin with.
    """

    __slots__ = ("_start", "asked", "head", "inner", "packed", "rows")

    def __init__(self, inner: Any, start: bytes, asked: Callable[[Sequence[Buffer]], Asked]) -> None:
        self.inner = inner
        self.asked = asked
        self.packed: bool = inner.packed
        self._start = start
        self.rows = 1
        self.head = head_of(start, 1)

    def head_of(self, rows: int) -> bytes:
        """What keys of ``rows`` rows begin with."""
        self.rows, self.head = rows, head_of(self._start, rows)
        return self.head


class Computed:
    """A request that goes on to the version, in place of its context. The cache's lock guards what changes.

    Attributes:
        context: of the request.
        key: of its answer.
        alone: whether nobody may wait for it.
        waiting: others that get the same answer: port, context and rows.
        asked: what all of them ask for; None while nobody waits.
        is_over: whether nobody may join these any more.
        parts: what has come back of a request whose rows were in several batches, by position.
        ended: how many of these batches have ended.
        error: of one of them.
    """

    __slots__ = ("alone", "asked", "context", "ended", "error", "is_over", "key", "parts", "waiting")

    def __init__(self, context: Any, key: bytes, *, alone: bool) -> None:
        self.context = context
        self.key = key
        self.alone = alone
        self.waiting: list[tuple[CachingPort, Any, int]] = []
        self.asked: Asked | None = None
        self.is_over = False
        self.parts: dict[int, Part] = {}
        self.ended = 0
        self.error: RequestError | None = None


class CachingPort:
    """See ``engine.servable.Port``; used by its consumer's thread only, but for ``_finish`` and ``_is_wanted``.

    Args:
        version: whose answers are kept.
        servable: what computes.
        consumer: for whom it is.

    Attributes:
        counters: the consumer's.
    """

    def __init__(self, version: CachedVersion, servable: Servable, consumer: Consumer) -> None:
        self._version = version
        self._cache = version.cache
        self._peek = version.cache.peek
        self._consumer = consumer
        self._parameters = consumer.parameters
        sequence = consumer.sequence
        self._port: Port = servable.port(
            replace(
                consumer,
                finish=self._finish,
                finish_here=self._finish_here,
                is_wanted=self._is_wanted,
                about=self._about,
                may_have_left=self._may_have_left,
                unread_bytes=lambda context: consumer.unread_bytes(_own(context)),
                caller=lambda context: consumer.caller(_own(context)),
                sequence=None if sequence is None else lambda context: sequence(_own(context)),
                parameters=lambda context: consumer.parameters(_own(context)),
            )
        )
        self.counters = consumer.counters
        #: found since the last commit: by answer, who gets it
        self._found: dict[CachedAnswer, list[PendingRequest]] = {}
        #: what the first look-up of a round took that found something; the others are taken to be alike
        self._hit_ns = 0
        self._commit_asked = False

    def way(self, row_shapes: RowShapes, outputs: Sequence[int] | None = None) -> CachingWay:
        """See ``Port``."""
        start = start_of_keys(self._version.number, row_shapes, outputs)
        return CachingWay(self._port.way(row_shapes, outputs), start, partial(Asked, row_shapes, outputs))

    def add_packed(self, way: CachingWay, rows: int, context: Any, buffer: Buffer, spans: Sequence[int]) -> None:
        """See ``Port``. To find a small request of one input takes as long as a copy of its rows into a batch."""
        found = self._found
        if len(spans) == 2 and spans[1] - spans[0] <= EXACT_BYTES and not self._parameters(context):
            began_ns = 0 if found else time.monotonic_ns()
            key = (way.head if rows == way.rows else way.head_of(rows)) + buffer[spans[0] : spans[1]]
            answer = self._peek(key)
            if answer is not None:
                pending = found.get(answer)
                if pending is not None:
                    pending.append((context, 0, rows, None))
                else:
                    self._add_found(answer, rows, context, began_ns)
                return
            goes_on = self._miss(way, key, rows, context, began_ns, None)
        else:
            goes_on = self._look_up(way, rows, context, spans_of(buffer, spans))
        if goes_on is not None:
            self._port.add_packed(way.inner, rows, goes_on, buffer, spans)
            self._announce(goes_on)

    def add_contents(self, way: CachingWay, rows: int, context: Any, contents: Sequence[Content]) -> None:
        """See ``Port``."""
        goes_on = self._look_up(way, rows, context, contents_of(contents))
        if goes_on is not None:
            self._port.add_contents(way.inner, rows, goes_on, contents)
            self._announce(goes_on)

    def add_gathered(
        self, way: CachingWay, rows: int, context: Any, arrays: Sequence[Piece], held_bytes: int = 0
    ) -> None:
        """See ``Port``."""
        goes_on = self._look_up(way, rows, context, contents_of(arrays))
        if goes_on is not None:
            self._port.add_gathered(way.inner, rows, goes_on, arrays, held_bytes)
            self._announce(goes_on)

    def commit(self, *, inline: bool = True) -> None:
        """See ``Port``."""
        found = self._found
        if found:
            self._found = {}
            hits = sum(map(len, found.values()))
            self._cache.note_used(self._version.owner, list(found), hits, hits * self._hit_ns)
            now_ns = time.monotonic_ns()
            timing = Timing(now_ns, now_ns, now_ns, now_ns, cached=True)
            for outputs, pending in joined(found, batched=self._version.signature.batched):
                self._consumer.finish_here(BatchResult(pending, outputs, None, timing))
        self._port.commit(inline=inline)

    def _commit_round(self) -> None:
        self._commit_asked = False
        self.commit()

    # --- looking for an answer ---------------------------------------------------------------------------------------

    def _look_up(self, way: CachingWay, rows: int, context: Any, contents: Sequence[Buffer]) -> Any:
        """Have a request answered; or return what goes on to the version in its context's place."""
        said, alone = b"", False
        parameters = self._parameters(context)
        if parameters:
            if parameters.get(OPT_OUT) is False:
                return context
            alone = not _OF_ITS_OWN.isdisjoint(parameters)
            if self._version.reads_parameters():
                said = said_to_model(parameters)
        if sum(map(len, contents)) > MAX_HASHED_BYTES:
            return context
        began_ns = time.monotonic_ns()
        key = key_of(way.head if rows == way.rows else way.head_of(rows), said, contents)
        answer = self._peek(key)
        if answer is None:
            return self._miss(way, key, rows, context, began_ns, contents, alone=alone)
        self._add_found(answer, rows, context, began_ns)
        return None

    def _add_found(self, answer: CachedAnswer, rows: int, context: Any, began_ns: int) -> None:
        """Have a request answered at the round's end."""
        found = self._found
        if not found:
            self._hit_ns = time.monotonic_ns() - began_ns
            if not self._commit_asked:
                self._commit_asked = True
                self._consumer.at_round_end(self._commit_round)
        found.setdefault(answer, []).append((context, 0, rows, None))

    def _miss(
        self,
        way: CachingWay,
        key: bytes,
        rows: int,
        context: Any,
        began_ns: int,
        contents: Sequence[Buffer] | None,
        *,
        alone: bool = False,
    ) -> Any:
        """Have a request wait for another one that computes the same; or return what goes on in its context's place.

        Args:
            way: of its rows.
            key: of the request. Nothing was found a moment ago.
            rows: of the request.
            context: of the request.
            began_ns: when its look-up began, monotonic nanoseconds; 0 where that was not asked.
            contents: bytes of each input; None for what the key ends with.
            alone: whether it neither waits nor is awaited.
        """
        version, cache = self._version, self._cache
        began_ns = began_ns or time.monotonic_ns() - self._hit_ns
        goes_on = asked = None
        if not alone and (awaited := version.under_way.get(key)) is not None and awaited.asked is None:
            asked = way.asked([key[len(way.head) :]] if contents is None else contents)
        with cache.lock:
            answer = cache.peek(key)  # it may have come meanwhile, and then nobody computes it any more
            if answer is None:
                other = None if alone or version.lacks_outputs else version.under_way.get(key)
                took_ns = time.monotonic_ns() - began_ns
                if other is not None and len(other.waiting) < MAX_WAITING and self._may_wait(other, asked):
                    other.waiting.append((self, context, rows))
                    cache.count_hits(version.owner, 1, took_ns)
                else:
                    goes_on = Computed(context, key, alone=alone)
                    cache.count_miss(version.owner, took_ns)
        if answer is not None:
            self._add_found(answer, rows, context, began_ns)
        return goes_on

    def _may_wait(self, other: Computed, asked: Asked | None) -> bool:
        """Whether there is, or can be, a copy of what another request asks for. With the lock held."""
        if other.asked is None and asked is not None and self._cache.hold(asked.size):
            other.asked = asked
        return other.asked is not None

    def _announce(self, goes_on: Any) -> None:
        """Let others wait for a request that the version has taken, and has not answered yet."""
        if isinstance(goes_on, Computed) and not goes_on.alone:
            with self._cache.lock:
                if not goes_on.is_over:
                    self._version.under_way.setdefault(goes_on.key, goes_on)

    # --- what comes back, in any thread ------------------------------------------------------------------------------

    def _finish(self, result: BatchResult) -> None:
        self._hand_on(result, self._consumer.finish)

    def _finish_here(self, result: BatchResult) -> None:
        self._hand_on(result, self._consumer.finish_here)

    def _hand_on(self, result: BatchResult, finish: Finish) -> None:
        """Answer the requests of a batch; then keep what is new, and answer those that wait for it."""
        outputs, error = result.shared_outputs, result.error
        pending = [(_own(context), first, rows, part) for context, first, rows, part in result.pending]
        try:
            finish(BatchResult(pending, outputs, error, result.timing))
        finally:
            for request in result.pending:
                if isinstance(request[0], Computed):
                    try:
                        self._conclude(request, outputs, error, result.timing, finish)
                    except Exception:  # others of the batch are awaited too
                        logger.exception("keeping an answer failed")

    def _conclude(
        self,
        request: PendingRequest,
        outputs: Outputs | None,
        error: RequestError | None,
        timing: Timing,
        finish: Finish,
    ) -> None:
        """Keep the answer of a request, and give it to those that wait. A split one has to be whole."""
        computed, first, rows, part = request
        parts: list[Part] | None = None
        if outputs is not None and part is None:
            parts = [(outputs, first, rows)]
        elif part is not None:
            split, index = part
            with self._cache.lock:
                if outputs is not None:
                    computed.parts[index] = (outputs, first, rows)
                computed.ended += 1
                computed.error = error = computed.error or error
                if computed.ended < len(split.parts):
                    return
            if error is None:
                parts = [own for _, own in sorted(computed.parts.items())]
        kept = None
        try:
            if parts is not None:
                kept = self._keep(computed.key, parts)
        except Exception:
            error = _NO_ANSWER
            raise
        finally:
            self._tell_waiting(computed, kept, error, timing, finish)

    def _keep(self, key: bytes, parts: Sequence[Part]) -> Outputs | None:
        version, cache = self._version, self._cache
        began_ns = time.monotonic_ns()
        outputs = cut(parts, batched=version.signature.batched)
        if outputs is None:
            return None
        if outputs.missing:
            version.lacks_outputs = True
            return outputs
        size = size_of(outputs)
        if size and cache.fits(key, size):
            cache.insert(key, outputs, size, version.owner)
        elif size:
            version.on_too_large(size)
        with cache.lock:
            cache.count_insertion(version.owner, time.monotonic_ns() - began_ns)
        return outputs

    def _tell_waiting(
        self, computed: Computed, outputs: Outputs | None, error: RequestError | None, timing: Timing, finish: Finish
    ) -> None:
        """Let nobody wait any more for a request that is over, and answer those who do."""
        version = self._version
        with self._cache.lock:
            computed.is_over = True
            if version.under_way.get(computed.key) is computed:
                del version.under_way[computed.key]
            waiting, computed.waiting = computed.waiting, []
            if computed.asked is not None:
                self._cache.let_go(computed.asked.size)
        if not waiting:
            return
        if error is None and (outputs is None or outputs.missing):
            # An answer that is not theirs. They stay counted as found.
            assert computed.asked is not None
            rows = waiting[0][2]  # which the key has
            version.again.compute(computed.asked, rows, [(port._consumer, context) for port, context, _ in waiting])
            return
        if outputs is not None:
            # Now, not when the run ended: some may have come since, for whom its time would lie before they arrived.
            now_ns = time.monotonic_ns()
            timing = Timing(now_ns, now_ns, now_ns, now_ns, cached=True)
        by_port: dict[CachingPort, list[PendingRequest]] = {}
        for port, context, rows in waiting:
            by_port.setdefault(port, []).append((context, 0, rows, None))
        for port, pending in by_port.items():
            # Another port's requests belong to another thread.
            own = finish if port is self else port._consumer.finish
            own(BatchResult(pending, outputs, error, timing))

    # --- what the version asks of a request, in any thread -----------------------------------------------------------

    def _is_wanted(self, context: Any, by_ns: int) -> bool:
        """Whether anybody waits still. If not, nobody may join any more: the request may be left out from now on."""
        is_wanted = self._consumer.is_wanted
        if not isinstance(context, Computed):
            return is_wanted(context, by_ns)
        if is_wanted(context.context, by_ns):
            return True
        with self._cache.lock:
            waiting = list(context.waiting)
        if any(port._consumer.is_wanted(own, by_ns) for port, own, _ in waiting):
            return True
        with self._cache.lock:
            if len(context.waiting) > len(waiting):
                return True
            context.is_over = True
            if self._version.under_way.get(context.key) is context:
                del self._version.under_way[context.key]
        return False

    def _may_have_left(self, context: Any) -> bool:
        others = isinstance(context, Computed) and context.waiting
        return not others and self._consumer.may_have_left(_own(context))

    def _about(self, context: Any) -> RequestAbout:
        return self._consumer.about(_own(context))


def _own(context: Any) -> Any:
    """The context that a consumer has given."""
    return context.context if isinstance(context, Computed) else context
