"""A map that never changes, and of which another one is made for each change.

With a thousand models in memory, a copy of a dict touches a thousand objects: 50 µs, and as many to let go of the one
before, for each model that comes or goes. So names are spread over PARTS small dicts. A change copies one of them, and
the pointers to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

__all__ = ["EntryMap"]

V = TypeVar("V")

#: A power of two.
PARTS: Final = 64


class EntryMap(Generic[V]):
    """Values by name, in no order. Any thread may read it.

    Args:
        parts: the names and values by the last bits of the names' hashes. Nobody changes them any more.
        count: how many there are.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, parts: tuple[Mapping[str, V], ...] = ({},) * PARTS, count: int = 0) -> None:
        self._parts = parts
        self._count = count

    @classmethod
    def of(cls, values: Mapping[str, V]) -> EntryMap[V]:
        """A map of all of these."""
        parts: tuple[dict[str, V], ...] = tuple({} for _ in range(PARTS))
        for name, value in values.items():
            parts[hash(name) % PARTS][name] = value
        return cls(parts, len(values))

    def get(self, name: str) -> V | None:
        """The value of a name; None for one that is not there."""
        return self._parts[hash(name) % PARTS].get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._parts[hash(name) % PARTS]

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[str, V]]:
        """All names with their values."""
        return (item for part in self._parts for item in part.items())

    def having(self, name: str, value: V) -> EntryMap[V]:
        """The same with this value for a name."""
        at = hash(name) % PARTS
        part = self._parts[at]
        return self._replaced(at, {**part, name: value}, self._count + (name not in part))

    def without(self, name: str) -> EntryMap[V]:
        """The same without a name, which is there."""
        at = hash(name) % PARTS
        part = dict(self._parts[at])
        del part[name]
        return self._replaced(at, part, self._count - 1)

    def _replaced(self, at: int, part: Mapping[str, V], count: int) -> EntryMap[V]:
        parts = self._parts
        return EntryMap((*parts[:at], part, *parts[at + 1 :]), count)
