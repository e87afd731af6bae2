"""The memory of models that are loaded on demand: what is in it, and how room is made for what comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from toutates.models.demand import DemandCounters
from toutates.models.manager import ModelManager
from toutates.models.memory_size import occupancy_of
from toutates.models.residency import Residency, Resident
from toutates.models.table import ServedVersion
from toutates.repositories.control.model_control import ModelControl
from toutates.system.errors import Overloaded

__all__ = ["DemandMemory", "TooLarge"]

#: How long a model waits for room in memory. Seconds.
PATIENCE_S: Final = 10.0
#: How often it looks again while nothing has left: requests end and models become old without telling anybody.
LOOK_S: Final = 0.02
#: With so many models in memory a small part of the budget is kept free, so that loads need not wait for others to
#: leave, and models leave several at a time, which costs less for each. It is few of them, because the manager's thread
#: has what loads are waiting for to do as well: with sixteen at a time, one load of ten waited 20 ms longer.
MANY: Final = 256
FREE_SHARE: Final = 64
AHEAD_AT_ONCE: Final = 4
#: What the first model may take that is loaded without a task. Bytes.
SMALL_BYTES: Final = 1024 * 1024
#: Models that leave at once, at most, so that the manager's thread has others to do soon.
MOST_AT_ONCE: Final = 256


class TooLarge(Overloaded):
    """A model takes more memory than all models may."""


class DemandMemory:
    """Knows which models are in memory, and has them leave for others. Used on the main thread, in Trio.

    Args:
        manager: ends models.
        control: knows which files are in use.
        counters: of the loads on demand.
        is_wanted: whether requests wait for a model.
        budget: bytes that models in memory may take; None for no bound.
        min_stay_s: for so long a model stays after it was loaded.

    Attributes:
        residency: what is in memory. Who loads a model counts it there as coming until it is entered.
        freed: set when there is more room than before; another event takes its place then.
    """

    def __init__(
        self,
        manager: ModelManager,
        control: ModelControl,
        counters: DemandCounters,
        is_wanted: Callable[[str], bool],
        budget: int | None,
        min_stay_s: float,
    ) -> None:
        self.residency = Residency(budget, min_stay_s, time.monotonic)
        self.freed = trio.Event()
        self._manager = manager
        self._control = control
        self._counters = counters
        self._is_wanted = is_wanted

    def note_changes(self) -> None:
        """Take note of all models that were loaded or unloaded."""
        served = {name for name, model in self._manager.table.models.items() if model.served()}
        for name in self.residency.names():
            if name not in served:
                self.residency.drop(name)
        for name in served:
            self.enter(name)
        self.make_room_ahead()

    def room_for_one(self) -> int | None:
        """What a model may take for which nothing has to leave: bytes, not much more than others take. None for any."""
        residency = self.residency
        if residency.budget is None:
            return None
        typical = 2 * residency.used // len(residency) if len(residency) else SMALL_BYTES
        return min(typical, -residency.lacking())

    def see_that_it_fits(self, model: str) -> None:
        """It may have taken more memory than its files said.

        Raises:
            Overloaded: it takes more than there is for all models.
        """
        resident, budget = self.residency.get(model), self.residency.budget
        if resident is not None and budget is not None and resident.size > budget:
            self.evict([model])
            self._refuse_larger(model, resident.size, budget)

    def enter(self, model: str) -> None:
        """Note that a model is in memory."""
        entry = self._manager.entry(model)
        served = [] if entry is None else entry.served()
        if not served:
            return
        known = self.residency.get(model)
        self.residency.add(
            Resident(
                model,
                sum(one.memory_bytes for one in served),
                time.time() if known is None else known.loaded_s,
                partial(self._last_used_s, model),
                partial(self._is_busy, model),
                any(one.pinned for one in served) or self._control.is_made_up(model),
                frozenset(self._manager.members(model)),
            )
        )

    # Versions are looked up each time: who holds one keeps its memory.

    def _served(self, model: str) -> Iterator[ServedVersion]:
        entry = self._manager.entry(model)
        yield from [] if entry is None else entry.served()

    def _last_used_s(self, model: str) -> float:
        stamps = [one.last_ms for version in self._served(model) for one in version.servable.counters.workers]
        return max(stamps, default=0) / 1_000

    def _is_busy(self, model: str) -> bool:
        if self._is_wanted(model) or not self._manager.is_free(model):
            return True
        return any(occupancy_of(version.servable).in_flight for version in self._served(model))

    async def make_room(self, model: str, size: int) -> None:
        """Wait until there is room for a model, and have others leave; the room is then taken.

        Raises:
            Overloaded: there is none.
        """
        residency = self.residency
        budget = residency.budget
        if budget is not None:
            self._refuse_larger(model, size, budget)
            with trio.move_on_after(PATIENCE_S):
                while (lacking := residency.lacking(size)) > 0:
                    if lacking > residency.leaving and not self.evict(residency.choose(lacking - residency.leaving)):
                        if not residency.may_become_free():
                            break
                        with trio.move_on_after(LOOK_S):
                            await self.freed.wait()
                    elif residency.leaving:
                        await self.freed.wait()
            if residency.lacking(size) > 0:
                raise Overloaded(
                    f"there is no room for model '{model}' of {size} bytes: models of {residency.used} bytes are in "
                    f"memory and cannot leave now, and --model-memory is {budget}; try again later, or raise the flag"
                )
        residency.coming += size

    @staticmethod
    def _refuse_larger(model: str, size: int, budget: int) -> None:
        if size > budget:
            raise TooLarge(f"model '{model}' takes {size} bytes, and --model-memory is {budget}; raise the flag")

    def make_room_ahead(self) -> None:
        """Have models leave before there is no room, where many come and go, or loads took more than expected."""
        residency = self.residency
        if residency.budget is None:
            return
        if len(residency) < MANY:
            lacking = residency.lacking() - residency.leaving
            if lacking > 0:
                self.evict(residency.choose(lacking))
            return
        lacking = residency.lacking(residency.budget // FREE_SHARE) - residency.leaving
        if lacking > 0:
            several = (AHEAD_AT_ONCE - 1) * residency.used // len(residency)
            self.evict(residency.choose(lacking + several)[:AHEAD_AT_ONCE])

    def evict(self, names: Sequence[str]) -> bool:
        """Have models leave; returns whether any does."""
        free = [name for name in names if self._manager.is_free(name)][:MOST_AT_ONCE]
        if not free:
            return False
        size = 0
        for name in free:
            resident = self.residency.drop(name)
            size += 0 if resident is None else resident.size
        self.residency.leaving += size
        self._counters.evictions += len(free)

        def ended() -> None:
            self.residency.leaving -= size
            self.tell_of_room()

        self._manager.evict(free, ended)
        for name in free:
            self._control.forget(name)
        return True

    def tell_of_room(self) -> None:
        """Models have left, or less is coming than was thought."""
        freed, self.freed = self.freed, trio.Event()
        freed.set()
