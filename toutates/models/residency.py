"""Which models are in memory where they are loaded on demand, how much they take, and which of them leave first.

The least recently used model leaves first. When a model was last used is read from the counters that its requests write
anyway, and only of models that might leave: a heap holds what is known of each, and what it holds is looked at again
when it comes to the top. So a request costs nothing, and a model that leaves costs the look at a few.

What stays whatever comes: models with ``pin: true``, those that others in memory are made of, those with requests under
way, and for a while those that were loaded just now.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Residency", "Resident"]

#: Models that are looked at in vain before it is said that nothing can leave now.
MOST_LOOKS: Final = 64


@dataclass(slots=True, eq=False)
class Resident:
    """A model in memory.

    Attributes:
        name: its name.
        size: bytes that it takes.
        loaded_s: when it was loaded, Unix time.
        last_used_s: returns when a request was last answered, Unix time; 0 for never.
        is_busy: returns whether requests are under way.
        pinned: whether it never leaves.
        needs: names of the models that it is made of.
    """

    name: str
    size: int
    loaded_s: float
    last_used_s: Callable[[], float]
    is_busy: Callable[[], bool]
    pinned: bool = False
    needs: frozenset[str] = frozenset()
    #: of this model in the heap; another object for one that was loaded again
    _mark: int = field(default=0)
    #: when it came into memory, by the clock of ``Residency``
    _since_s: float = field(default=0.0)


class Residency:
    """The models in memory. Used by one thread.

    Args:
        budget: bytes that they may take; None for no bound.
        min_stay_s: for so long a model stays after it was loaded.
        clock: monotonic seconds: a model must not stay for longer because somebody sets the time back.

    Attributes:
        used: bytes that models in memory take.
        leaving: bytes of models that have left the table and still have memory.
        coming: bytes that models take which are being loaded.
    """

    def __init__(self, budget: int | None, min_stay_s: float, clock: Callable[[], float]) -> None:
        self.used = 0
        self.leaving = 0
        self.coming = 0
        self.budget = budget
        self._min_stay_s = min_stay_s
        self._clock = clock
        self._residents: dict[str, Resident] = {}
        #: when it was last used as far as is known, and its mark and name
        self._heap: list[tuple[float, int, str]] = []
        self._marks = 0
        #: by name, how many models in memory are made of it
        self._users: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._residents

    def __len__(self) -> int:
        return len(self._residents)

    def get(self, name: str) -> Resident | None:
        """A model; None if it is not in memory."""
        return self._residents.get(name)

    def names(self) -> list[str]:
        """Names of all of them."""
        return list(self._residents)

    def add(self, resident: Resident) -> None:
        """A model is in memory from now on, in place of what was known by its name."""
        known = self.drop(resident.name)
        resident._since_s = self._clock() if known is None else known._since_s
        self._residents[resident.name] = resident
        self.used += resident.size
        for name in resident.needs:
            self._users[name] = self._users.get(name, 0) + 1
        self._push(resident, resident.loaded_s)

    def drop(self, name: str) -> Resident | None:
        """A model is not in memory any more; returns what was known of it."""
        resident = self._residents.pop(name, None)
        if resident is None:
            return None
        self.used -= resident.size
        for need in resident.needs:
            self._users[need] -= 1
            if not self._users[need]:
                del self._users[need]
                member = self._residents.get(need)
                if member is not None:
                    self._push(member, max(member.loaded_s, member.last_used_s()))
        return resident

    def lacking(self, size: int = 0) -> int:
        """Bytes that are missing for one more model; 0 or less if there is room for it."""
        if self.budget is None:
            return 0
        return self.used + self.leaving + self.coming + size - self.budget

    def choose(self, size: int) -> list[str]:
        """Models to leave, the least recently used first: so many that ``size`` bytes become free, or all that may."""
        now = self._clock()
        chosen: list[str] = []
        stay: list[tuple[float, int, str]] = []
        free = 0
        while free < size and self._heap and len(stay) < MOST_LOOKS:
            entry = known_s, mark, name = heapq.heappop(self._heap)
            resident = self._residents.get(name)
            if resident is None or resident._mark != mark or self._is_kept(resident):
                continue  # it comes back when nothing is made of it any more
            used_s = max(resident.loaded_s, resident.last_used_s())
            if used_s > known_s:
                heapq.heappush(self._heap, (used_s, mark, name))
            elif now - resident._since_s < self._min_stay_s or resident.is_busy():
                stay.append(entry)
            else:
                chosen.append(name)
                free += resident.size
                stay.append(entry)  # until it is dropped
        for entry in stay:
            heapq.heappush(self._heap, entry)
        return chosen

    def may_become_free(self) -> bool:
        """Whether anything in memory may ever leave, so that it pays to wait for it."""
        return self.leaving > 0 or self.coming > 0 or any(not self._is_kept(one) for one in self._residents.values())

    def total(self, names: Iterable[str]) -> int:
        """Bytes that these take, as far as they are in memory."""
        return sum(self._residents[name].size for name in names if name in self._residents)

    def _is_kept(self, resident: Resident) -> bool:
        return resident.pinned or resident.name in self._users

    def _push(self, resident: Resident, used_s: float) -> None:
        if self.budget is None:
            return
        self._marks += 1
        resident._mark = self._marks
        heapq.heappush(self._heap, (used_s, self._marks, resident.name))
        if len(self._heap) > 2 * len(self._residents) + MOST_LOOKS:
            # Of models that have left by request, or were loaded again, nothing comes to the top for long.
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        resident = self._residents.get(entry[2])
        return resident is not None and resident._mark == entry[1]
