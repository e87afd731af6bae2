"""The memory of large messages where the test mode of ``system.poison`` is on: it is filled before a message has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from toutates.h2grpc.message_memory import MemoryPool, MessageMemory
from toutates.system.poison import Poison

__all__ = ["PoisonedPool"]


class PoisonedPool(MemoryPool):
    """A pool whose memory is filled when it is mapped, where it grows, and when it is to be used again.

    What is used again is filled before it is among the spare ones: what is received into ``next_one`` is there already
    when it is taken.

    Args:
        most_bytes: see ``MemoryPool``.
        poison: that it is filled with.
    """

    __slots__ = ("_poison",)

    def __init__(self, most_bytes: int, poison: Poison) -> None:
        super().__init__(most_bytes)
        self._poison = poison
        self._spare = _Filled(poison)

    def take(self, least: int) -> MessageMemory | None:
        """See ``MemoryPool``."""
        memory = super().take(least)
        if memory is not None and not memory.kept_bytes:  # it is new
            _fill(self._poison, memory)
        return memory

    def small(self, size: int) -> bytearray:  # type: ignore[override]  # which the type itself is there
        """See ``MemoryPool``."""
        memory = bytearray(size)
        _fill(self._poison, memory)
        return memory

    def grow(self, memory: MessageMemory, size: int) -> MessageMemory:
        """See ``MemoryPool``."""
        before = memory.capacity
        memory = super().grow(memory, size)
        _fill(self._poison, memory, before)
        return memory


class _Filled(list[MessageMemory]):
    """Spare memory."""

    def __init__(self, poison: Poison, memories: Iterable[MessageMemory] = ()) -> None:
        super().__init__(memories)
        self._poison = poison

    def append(self, memory: MessageMemory, /) -> None:
        """Add memory that is to be used again."""
        _fill(self._poison, memory)
        super().append(memory)


def _fill(poison: Poison, memory: Any, first: int = 0) -> None:
    poison.fill(np.frombuffer(memory, np.uint8)[first:])
