"""The answers that are kept, of all models of a server together.

Any thread may call. The one lock is held for constant time. An entry never changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toutates.engine.counters import CacheCounters
from toutates.engine.result import Outputs

__all__ = ["ENTRY_BYTES", "LEAST_CACHE_BYTES", "CacheStatistics", "CachedAnswer", "Owner", "ResponseCache"]

#: What an entry takes beside the bytes of its outputs and its key: its place in two tables, and its objects (measured).
ENTRY_BYTES: Final = 1_024
#: A cache that holds no answer at all is a mistake of whoever has set its size.
LEAST_CACHE_BYTES: Final = 4_096
#: Entries that are removed while the lock is held once, in 0.2 ms.
_REMOVED_AT_ONCE: Final = 256
#: Entries that are made the most recently used while the lock is held once.
_MOVED_AT_ONCE: Final = 256
#: Up to this size, with what an entry takes, the copy of an answer costs far less than its hand-over, some 5 us.
_SMALL_ANSWER: Final = 4_096


@dataclass(slots=True, eq=False)
class CachedAnswer:
    """One answer.

    Attributes:
        key: of the request.
        outputs: whose rows are those of one request alone.
        size: of its bytes and itself.
        owner: the version that has answered.
        is_small: whether it is cheaper to copy it beside others than to hand it over by itself.
    """

    key: bytes
    outputs: Outputs
    size: int
    owner: Owner
    is_small: bool


class Owner:
    """A version whose answers are kept.

    Attributes:
        counters: of the version; changed with the cache's lock held.
        keys: of its entries.
        is_over: whether it has ended, and nothing of it is kept any more.
    """

    __slots__ = ("counters", "is_over", "keys")

    def __init__(self, counters: CacheCounters) -> None:
        self.counters = counters
        self.keys: set[bytes] = set()
        self.is_over = False


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The whole cache at one moment, or since the start. Times are nanoseconds.

    Attributes:
        size_bytes: what it may hold.
        used_bytes, entries: what it holds; the bytes of requests that others wait for, too.
        hits, misses: look-ups that have found an answer, or none.
        evictions: entries that made room for others.
        lookup_ns, insertion_ns: time that look-ups and insertions have taken.
    """

    size_bytes: int
    used_bytes: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ResponseCache:
    """Keeps answers by key up to a number of bytes; the least recently used is the first to go.

    Args:
        size_bytes: what all entries may take together.

    Attributes:
        size_bytes: as given.
        lock: guards the entries, and what ports know of requests under way (``port``). Held for constant time only.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.lock = threading.Lock()
        self._entries: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._used = self._evictions = 0
        self._hits = self._misses = 0
        self._lookup_ns = self._insertion_ns = 0
        #: the answer of a key, or None; without the lock, and without making it the most recently used
        self.peek = self._entries.get

    def note_used(self, owner: Owner, answers: Sequence[CachedAnswer], hits: int, ns: int) -> None:
        """Make answers that ``peek`` has found the most recently used, and count them. Takes the lock, in slices.

        Args:
            owner: the version.
            answers: of it.
            hits: how many requests get one of these.
            ns: what looking them up took, all together.
        """
        entries = self._entries
        for first in range(0, len(answers), _MOVED_AT_ONCE):
            with self.lock:
                if not first:
                    self.count_hits(owner, hits, ns)
                for answer in answers[first : first + _MOVED_AT_ONCE]:
                    if answer.key in entries:
                        entries.move_to_end(answer.key)

    def count_hits(self, owner: Owner, hits: int, ns: int) -> None:
        """Count look-ups that have found an answer, and took ``ns`` nanoseconds together. Call with the lock held."""
        self._hits += hits
        self._lookup_ns += ns
        owner.counters.hits += hits
        owner.counters.hit_ns += ns

    def count_miss(self, owner: Owner, ns: int) -> None:
        """Count a look-up that has found nothing, and took ``ns`` nanoseconds. Call with the lock held."""
        self._misses += 1
        self._lookup_ns += ns
        owner.counters.misses += 1
        owner.counters.miss_ns += ns

    def insert(self, key: bytes, outputs: Outputs, size: int, owner: Owner) -> None:
        """Keep an answer that ``fits``, and leave out others until there is room. Takes the lock, in slices.

        Args:
            key: of the request.
            outputs: see ``CachedAnswer``.
            size: of their bytes.
            owner: the version.
        """
        size += ENTRY_BYTES + len(key)
        while not self._insert(key, outputs, size, owner):
            pass

    def _insert(self, key: bytes, outputs: Outputs, size: int, owner: Owner) -> bool:
        """Insert, or make some room; returns whether that is done."""
        is_small = (
            size <= _SMALL_ANSWER
            and outputs.parameters is None
            and outputs.is_regular
            and all(type(one) is bytes for one in outputs.data)
        )
        with self.lock:
            if owner.is_over or key in self._entries:
                return True
            if not self._make_room(size):
                return not self._entries  # then all of it holds requests
            self._entries[key] = CachedAnswer(key, outputs, size, owner, is_small)
            self._used += size
            owner.keys.add(key)
        return True

    def _make_room(self, size: int) -> bool:
        """Leave out some answers for so many bytes; returns whether there is room now. With the lock held."""
        for _ in range(_REMOVED_AT_ONCE):
            if self._used + size <= self.size_bytes:
                return True
            if not self._entries:
                return False
            oldest, left_out = self._entries.popitem(last=False)
            left_out.owner.keys.discard(oldest)
            self._used -= left_out.size
            self._evictions += 1
        return False

    def hold(self, size: int) -> bool:
        """Count the bytes of a request that others wait for, if there is room. Call with the lock held."""
        has_room = self._make_room(size)
        if has_room:
            self._used += size
        return has_room

    def let_go(self, size: int) -> None:
        """Bytes that were counted by ``hold`` are no more. Call with the lock held."""
        self._used -= size

    def count_insertion(self, owner: Owner, ns: int) -> None:
        """Count the time of an insertion, which belongs to its miss. Call with the lock held."""
        owner.counters.miss_ns += ns
        self._insertion_ns += ns

    def fits(self, key: bytes, size: int) -> bool:
        """Whether an answer of so many bytes can be kept at all."""
        return size + ENTRY_BYTES + len(key) <= self.size_bytes

    def forget(self, owner: Owner) -> None:
        """Remove all entries of a version, which has ended; in slices, so that nobody waits for the lock."""
        with self.lock:
            owner.is_over = True
        while owner.keys:
            with self.lock:
                for _ in range(min(len(owner.keys), _REMOVED_AT_ONCE)):
                    entry = self._entries.pop(owner.keys.pop())
                    self._used -= entry.size

    def statistics(self) -> CacheStatistics:
        """Its contents and counters."""
        with self.lock:
            return CacheStatistics(
                self.size_bytes,
                used_bytes=self._used,
                entries=len(self._entries),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                lookup_ns=self._lookup_ns,
                insertion_ns=self._insertion_ns,
            )
