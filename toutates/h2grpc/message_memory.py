"""The memory of large messages: pages of their own, which the system backs as bytes arrive, and gets back at once.

A page that is touched for the first time costs 1 to 5 us, ten times the copy of its 4 KiB. So a few messages' memory is
kept by each driver, and used again.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import ClassVar, Final, Self

from toutates.h2grpc.vector import Vector

__all__ = ["LARGE_MESSAGE_BYTES", "POOL_BYTES", "LargeMessage", "MemoryPool", "MessageMemory"]

#: Messages of this size and more get memory of their own, and are received straight into it.
LARGE_MESSAGE_BYTES: Final = 65_536
#: Memory that a driver keeps for messages to come (nine of 10 MB), and the largest piece of it, bytes.
POOL_BYTES: Final = 96 * 1024 * 1024
LARGEST_SPARE_BYTES: Final = 16 * 1024 * 1024
#: After so long without a large message, nothing is kept.
IDLE_NS: Final = 2_000_000_000
#: Incomplete messages of one driver that have such memory: a process may have 65,530 mappings.
MOST_LENT: Final = 4_096
#: How many times the bytes received of a message the memory reserved for it may be.
GROWTH: Final = 4
#: Where messages end, whose last bytes may be a tensor that is used where it lies: a line of the cache.
ALIGNMENT: Final = 64
#: Bytes of memory behind every message: one whose last bytes are a string is read where it lies by who wants a 0 there.
BEHIND: Final = 1
#: From here on the system is asked for pages of 2 MiB, which cost a fortieth.
HUGE_BYTES: Final = 4 * 1024 * 1024

_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class MessageMemory(mmap.mmap):
    """The memory of one large message. It can be read like ``bytes``: by index, by slices, by ``startswith``.

    The memory may be larger (``capacity``), and so are views of all of it: around the message is what was there before.
    Where the message does not begin with the memory, indices count from the beginning of the memory (``start``).

    Args:
        size: of the memory, bytes.

    Raises:
        OSError: the system has no more.

    Attributes:
        capacity: bytes of the memory.
        start: where the message begins.
        length: of the message, bytes: what ``len`` gives.
        kept_bytes: so much of it came from what the pool keeps, and counts there until ``returned``.
        kind: of the request that was received into it last as a whole (``foresight``).
        vector: where the next one of that kind is received; None until there were two, and once the memory has grown,
            because it may have moved.
    """

    __slots__ = ("capacity", "kept_bytes", "kind", "length", "start", "vector")

    capacity: int
    start: int
    length: int
    kept_bytes: int
    kind: tuple[int, ...]
    vector: Vector | None

    def __new__(cls, size: int) -> MessageMemory:
        """Have the system map new memory."""
        memory = super().__new__(cls, -1, size, flags=_PRIVATE)
        memory.capacity = size
        memory.kept_bytes = 0
        memory.kind = ()
        memory.vector = None
        return memory

    def __len__(self) -> int:
        return self.length

    def startswith(self, prefix: bytes, start: int | None = None) -> bool:
        """Whether the bytes from ``start`` on, which are the message's by default, begin with ``prefix``."""
        if start is None:
            start = self.start
        return self[start : start + len(prefix)] == prefix


class LargeMessage:
    """A message of a known size, on its way into memory of its own, which grows with what has come.

    Args:
        pool: the memory's.
        memory: of the pool, of any size.
        size: of the message, bytes.
        start: where in the memory the message begins.

    Attributes:
        missing: bytes that have not come.
        held_bytes: bytes that count for it: up to GROWTH times as many as have come, so that a size reserves nothing.
    """

    __slots__ = ("_memory", "_pool", "_size", "_start", "_view", "held_bytes", "missing")

    def __init__(self, pool: MemoryPool, memory: MessageMemory, size: int, start: int = 0) -> None:
        self._pool = pool
        self._memory: MessageMemory | None = memory
        self._size = size
        self._start = start
        self._view = memoryview(memory)[start : start + size]
        self.missing = size
        self.held_bytes = 0

    @classmethod
    def begin(cls, pool: MemoryPool, size: int, least: int, start: int = 0) -> Self | None:
        """Have memory for a message of which ``least`` bytes are there; None if too many messages have some.

        Args:
            pool: the memory's.
            size: of the message, bytes.
            least: bytes that are there.
            start: where in the memory the message is to begin.

        Raises:
            MemoryError: the system has no more.
        """
        memory = pool.take(start + min(size, GROWTH * least))
        return None if memory is None else cls(pool, memory, size, start)

    @classmethod
    def begin_aligned(cls, pool: MemoryPool, size: int, least: int) -> Self | None:
        """``begin`` for a message that is to end at a multiple of ALIGNMENT, so that a tensor at its end is aligned."""
        return cls.begin(pool, size, least, -size % ALIGNMENT)

    def room(self) -> memoryview:
        """Where the next bytes belong; not empty while some are missing. Nobody keeps it when they are there.

        Raises:
            MemoryError: there is none.
        """
        if self._size - self.missing >= len(self._view):
            self._grow(self._size - self.missing + 1)
        return self._view[self._size - self.missing :]

    def advance(self, count: int) -> None:
        """Note that ``count`` bytes are in ``room``."""
        self.missing -= count
        received = self._size - self.missing
        if received > self.held_bytes:
            self.held_bytes = min(len(self._view), GROWTH * received)

    def add(self, part: bytes | memoryview) -> None:
        """Copy the next bytes.

        Raises:
            MemoryError: there is no room for them.
        """
        received = self._size - self.missing
        if received + len(part) > len(self._view):
            self._grow(received + len(part))
        self._view[received : received + len(part)] = part
        self.advance(len(part))

    def take(self) -> MessageMemory:
        """The whole message, which is no longer of this object."""
        memory = self._memory
        assert memory is not None
        self._view.release()
        self._memory = None
        self._pool.returned(memory)
        memory.start = self._start
        memory.length = self._size
        return memory

    def drop(self) -> None:
        """Give the memory back: the message will never be whole."""
        if self._memory is not None:
            self._pool.give_back(self.take())

    def _grow(self, least: int) -> None:
        assert self._memory is not None
        start = self._start
        size = start + min(self._size, GROWTH * least)
        if self._memory.capacity < size + BEHIND:
            self._view.release()
            self._memory = self._pool.grow(self._memory, size)
        self._view = memoryview(self._memory)[start : start + self._size]


class MemoryPool:
    """The memory of messages that are done, kept for those to come. Used by one thread.

    All of what is kept may be backed by the system, however little of the next message comes. So it counts against
    ``most_bytes`` as long as an incomplete message has it, too: peers that begin messages hold no more than that by it.

    Args:
        most_bytes: that are kept.

    Attributes:
        lent: how many incomplete messages have memory.
        kept_bytes: bytes kept, with those that incomplete messages have of them.
    """

    __slots__ = ("_idle_since_ns", "_most_bytes", "_read", "_spare", "_used", "kept_bytes", "lent")

    #: makes what is too small to be kept
    small: ClassVar[type[bytearray]] = bytearray

    def __init__(self, most_bytes: int = POOL_BYTES) -> None:
        self._most_bytes = most_bytes
        self._spare: list[MessageMemory] = []
        #: memory that somebody still had a view of when it was given back; the oldest first
        self._read: deque[MessageMemory] = deque()
        #: whether a message came since the last ``trim``
        self._used = False
        self._idle_since_ns = 0
        self.lent = 0
        self.kept_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether ``take`` would give memory to one more message."""
        return self.lent < MOST_LENT

    def take(self, least: int) -> MessageMemory | None:
        """Memory of ``least`` bytes or more, and BEHIND, with anything in it; None if too many messages have some.

        Raises:
            MemoryError: the system has no more.
        """
        if not self.has_room:
            return None
        self._used = True
        if not self._spare and self._read:
            self._look_again()
        if self._spare:
            memory = self._spare.pop()
            memory.kept_bytes = memory.capacity
            if memory.capacity < least + BEHIND:
                try:
                    memory = self.grow(memory, least)
                except MemoryError:
                    self._spare.append(memory)
                    raise
        else:
            memory = _new_memory(least)
        self.lent += 1
        return memory

    def next_one(self, size: int) -> MessageMemory | None:
        """The memory that ``take`` gives next, if it is there and has ``size`` bytes; nothing has a view of it."""
        if not self._spare and self._read:
            self._look_again()
        if self._spare and self.lent < MOST_LENT:
            memory = self._spare[-1]
            if memory.capacity >= size + BEHIND:
                return memory
        return None

    def take_whole(self, size: int, start: int = 0) -> MessageMemory | None:
        """Memory for ``size`` bytes from ``start`` on, which the caller has and writes there at once; see ``take``."""
        memory = self.take(start + size)
        if memory is not None:
            self.returned(memory)
            memory.start, memory.length = start, size
        return memory

    def take_next(self, size: int, start: int) -> MessageMemory:
        """``take_whole`` of what ``next_one`` has given just now."""
        memory = self._spare.pop()
        self._used = True
        self.kept_bytes -= memory.capacity
        memory.start, memory.length = start, size
        return memory

    def grow(self, memory: MessageMemory, size: int) -> MessageMemory:
        """Make memory larger: ``size`` bytes, and BEHIND. Copies nothing, unless somebody has a view of it.

        A debugger or a profiler that holds our frames has views that we have let go of. The memory returned is another
        one then.

        Raises:
            MemoryError: the system has no more.
        """
        memory.kind = ()
        memory.vector = None
        try:
            memory.resize(size + BEHIND)
        except BufferError:
            return self._moved(memory, size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        memory.capacity = size + BEHIND
        _ask_for_huge_pages(memory)
        return memory

    def _moved(self, memory: MessageMemory, size: int) -> MessageMemory:
        moved = _new_memory(size)
        moved[: memory.capacity] = memory
        self.kept_bytes -= memory.kept_bytes
        self.give_back(memory)
        return moved

    def returned(self, memory: MessageMemory) -> None:
        """Note that its message is whole, or will never be: it is the caller's, or ``give_back``'s."""
        self.lent -= 1
        self.kept_bytes -= memory.kept_bytes

    def give_back(self, memory: MessageMemory) -> None:
        """Keep memory that nobody else refers to any more but by views. It is used again when these are gone."""
        size = memory.capacity
        if size > LARGEST_SPARE_BYTES or self.kept_bytes + size > self._most_bytes:
            return
        self.kept_bytes += size
        if _has_views(memory):
            self._read.append(memory)
        else:
            self._spare.append(memory)

    def _look_again(self) -> None:
        """Take the oldest memory of ``_read``, if nobody reads it any more."""
        if not _has_views(self._read[0]):
            self._spare.append(self._read.popleft())
        else:
            self._read.rotate(-1)

    def trim(self, now_ns: int) -> None:
        """Give what is kept back to the system, if no message has needed it for IDLE_NS. Called every few seconds."""
        if self._used:
            self._used = False
            self._idle_since_ns = now_ns
        if now_ns - self._idle_since_ns < IDLE_NS:
            return
        self.kept_bytes -= sum([memory.capacity for memory in (*self._spare, *self._read)])
        self._spare.clear()
        self._read.clear()


def _new_memory(size: int) -> MessageMemory:
    try:
        memory = MessageMemory(size + BEHIND)
    except OSError as error:
        raise MemoryError(str(error)) from error
    _ask_for_huge_pages(memory)
    return memory


def _has_views(memory: MessageMemory) -> bool:
    try:
        memory.resize(-1)  # no size; but it is refused for that reason first
    except BufferError:
        return True
    except ValueError:
        return False
    raise AssertionError("a size below 0 was taken")


def _ask_for_huge_pages(memory: MessageMemory) -> None:
    if _HUGE_PAGES is not None and memory.capacity >= HUGE_BYTES:
        try:
            memory.madvise(_HUGE_PAGES)
        except OSError:
            pass  # a kernel without them
