"""Resources that runs need, as Triton's rate limiter has them. Nothing here knows a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from toutates.system.errors import ModelLoadError

__all__ = ["EXECUTION_COUNT", "Limit", "Need", "Resources"]

#: Triton's word for the one way of rating runs.
EXECUTION_COUNT: Final = "execution_count"
#: A resource: its name, and the device that it is of; None for one that all devices share.
Key = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Need:
    """What a run needs of a resource.

    Attributes:
        name: of the resource.
        count: how many of it.
        is_global: whether all devices share it; else each has its own.
    """

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """How many there are of a resource.

    Attributes:
        name: of the resource.
        count: how many.
        device: of which; None for each, or for one that all share.
    """

    name: str
    count: int
    device: int | None = None


class Resources:
    """Which resources are there, and how many of them are free.

    There are as many of a resource as some limit says; without one, as many as any instance needs at most.

    Args:
        limits: of resources; the last one of a resource and device holds.
    """

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._limits: dict[Key, int] = {(limit.name, limit.device): limit.count for limit in limits}
        #: needs of the instances that there are, and how many instances have each
        self._asked: dict[Key, Counter[int]] = {}
        self._used: Counter[Key] = Counter()

    def add(self, needs: Iterable[Need], device: int) -> Mapping[Key, int]:
        """Add the needs of an instance on a device; returns them by resource.

        Raises:
            ModelLoadError: there will never be enough; nothing was added.
        """
        found: dict[Key, int] = {}
        for need in needs:
            found[need.name, None if need.is_global else device] = need.count
            for name, other in (*self._asked, *found):
                if name == need.name and (other is None) is not need.is_global:
                    raise ModelLoadError(
                        f'Resource "{name}" is present as both global and device-specific resource in the model '
                        "configuration."
                    )
        for key, count in found.items():
            limit = self._limit(key)
            if limit is not None and count > limit:
                raise ModelLoadError(
                    f'Resource count for "{key[0]}" is limited to {limit} which will prevent scheduling of one or more '
                    f"model instances, the minimum required count is {count}"
                )
        for key, count in found.items():
            self._asked.setdefault(key, Counter())[count] += 1
        return found

    def remove(self, needs: Mapping[Key, int]) -> None:
        """Forget the needs of an instance."""
        for key, count in needs.items():
            asked = self._asked[key]
            asked[count] -= 1
            if not asked[count]:
                del asked[count]
            if not asked:
                del self._asked[key]

    def are_free(self, needs: Mapping[Key, int]) -> bool:
        """Whether a run with these needs could begin."""
        return all([self._used[key] + count <= self._there(key) for key, count in needs.items()])

    def take(self, needs: Mapping[Key, int]) -> None:
        """Take what a run needs that begins."""
        for key, count in needs.items():
            self._used[key] += count

    def give_back(self, needs: Mapping[Key, int]) -> None:
        """Give back what a run needed that has ended."""
        for key, count in needs.items():
            self._used[key] -= count

    def _limit(self, key: Key) -> int | None:
        return self._limits.get(key, self._limits.get((key[0], None)))

    def _there(self, key: Key) -> int:
        limit = self._limit(key)
        return limit if limit is not None else max(self._asked.get(key, (0,)))
