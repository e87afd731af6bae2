"""The manager: loads models, owns the executors' threads, and publishes the table of models.

**Hot swap.** What is to be served is loaded and warmed up beside what is served. Then the table is replaced, by one
attribute store, and what is no longer in it is *retired*: every worker lets go of it (``settle``), which commits the
rows it has there; its servable is closed, so that its executors end once they have run what waits; then its memory is
freed. No request is refused on the way: a worker that has let go has no way left into the old version, and until it
has, the old version takes its rows.

Changes of one model are made one after the other, each in a turn of its own (``turn``). Models do not wait for each
other. The next turn of a model comes only after the versions that the last turn retired have been freed, so that two
generations of a model at most are in memory.

A version that cannot answer for a while, because all of its threads have died, is not ready: its new requests are
refused as UNAVAILABLE, and those that wait in it already wait for the next thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from toutates.models.current_table import CurrentTable
from toutates.models.load_counters import LoadCounters
from toutates.models.repository import ModelFolder, VersionFolder
from toutates.models.running import LoadOptions, Outcome, RunningVersions
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.models.traffic.rules import TrafficRules
from toutates.models.turn import ModelTurn, all_at
from toutates.system.client_text import without_paths

__all__ = ["LoadOptions", "ModelManager"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def _nobody_to_wait_for() -> None:
    """``settle`` where there are no workers."""


class ModelManager:
    """Loads and unloads models. It belongs to one thread, the one of its nursery.

    Args:
        options: see LoadOptions.
        nursery: where the executors' threads live, and what retires versions. It ends only after each of them has.
        on_change: called when ``table`` has been replaced after the initial load.
        settle: returns once no worker will use a version that is no longer in the table, nor has rows in it that are
            not committed. After ``stop`` it is not waited for.
        may_be_empty, suggests_names, failures_count: see ModelTable.

    Attributes:
        table: of models. Every thread reads it; it is replaced as a whole by one attribute store.
        counters: of loads and failures since the start.
        executor_threads: threads that executors on the CPU share.
    """

    table: ModelTable

    def __init__(
        self,
        options: LoadOptions,
        nursery: trio.Nursery,
        on_change: Callable[[], None] = lambda: None,
        settle: Callable[[], Awaitable[None]] = _nobody_to_wait_for,
        *,
        may_be_empty: bool = True,
        suggests_names: bool = False,
        failures_count: bool = True,
    ) -> None:
        self.counters = LoadCounters()
        self.executor_threads = options.executor_threads
        self._table = CurrentTable(
            self._publish,
            on_change,
            may_be_empty=may_be_empty,
            suggests_names=suggests_names,
            failures_count=failures_count,
        )
        self._running = RunningVersions(options, nursery, self.counters, self._table.note_ready_change)
        self._settle = settle
        self._nursery = nursery
        #: by model; only for those that somebody changes, or waits to change
        self._turns: dict[str, trio.Semaphore] = {}

    def _publish(self, table: ModelTable) -> None:
        self.table = table

    async def load_all(self, folders: Sequence[ModelFolder], on_progress: Callable[[int, int, str], None]) -> None:
        """Load every version of the repository; a broken one is entered in the table with its reason.

        Cancelled, it waits for the versions that ONNX Runtime is busy with, and leaves the table as it was.

        Args:
            folders: what ``repository.scan`` has found.
            on_progress: called for each version, with versions that were loaded, versions in all, and its name; or with
                "" for its name if it could not be loaded.
        """
        for folder in folders:
            self._note_findings(folder)
        total = sum(len(folder.versions) for folder in folders)
        loaded = 0

        entries: dict[str, dict[int, VersionEntry]] = {folder.name: {} for folder in folders}

        def on_version(model: str, entry: VersionEntry) -> None:
            nonlocal loaded
            loaded += entry.served is not None
            entries[model][entry.number] = entry
            on_progress(loaded, total, f"{model} {entry.number}" if entry.served is not None else "")

        await self._running.load_all([(one.name, version) for one in folders for version in one.versions], on_version)
        models = {
            one.name: ModelEntry(
                one.name, dict(sorted(entries[one.name].items())), without_paths(one.problem, one.path)
            )
            for one in folders
        }
        self._table.begin(models)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[ModelTurn]:
        """Be the only one to change a model, in the order in which this was asked for.

        Versions that the block retires are ended after it, before the model's next turn begins.

        Args:
            name: the model's, whether it is known or not.
        """
        alone = self._turns.setdefault(name, trio.Semaphore(1))
        try:
            await alone.acquire()
        except BaseException:
            self._drop_turn(name, alone)
            raise
        turn = self._new_turn(name)
        try:
            yield turn
        finally:
            self.end_turn(turn)

    def try_turn(self, name: str) -> ModelTurn | None:
        """The same, until ``end_turn``, if nobody changes the model now, or waits to; else None."""
        if not self.is_free(name):
            return None
        alone = self._turns[name] = trio.Semaphore(1)
        alone.acquire_nowait()
        return self._new_turn(name)

    def end_turn(self, turn: ModelTurn) -> None:
        """Let others change the model, once the versions have ended that the turn retires."""
        alone = self._turns[turn.name]
        if turn.retiring and not self._running.stopped.is_set():
            self._nursery.start_soon(self._retire, turn.name, alone, turn)
        else:
            self._end_turn(turn.name, alone)

    def _new_turn(self, name: str) -> ModelTurn:
        return ModelTurn(name, self._table, self._running, self.counters, self._note_findings)

    @property
    def tries_again(self) -> bool:
        """Whether a version that could not be loaded is loaded again."""
        return self._running.tries_again

    def begin_in_loader(self, work: Callable[[], T], name: str, on_done: Callable[[T], None]) -> bool:
        """Have work done in a thread that loads versions; see ``RunningVersions.begin``."""
        return self._running.begin(work, name, on_done)

    def try_to_load(self, model: str, version: VersionFolder) -> Outcome:
        """Load a version, in such a thread. Its outcome is for ``ModelTurn.enter``."""
        return self._running.try_to_load(model, version, overridden=False)

    # --- models that come and go with requests -----------------------------------------------------------------------

    def set_loadable(self, names: Collection[str]) -> None:
        """Show that these models are loaded when a request needs them; see ``CurrentTable``."""
        self._table.set_loadable(names)

    def entry(self, name: str) -> ModelEntry | None:
        """What is known of a model; None for one that is not in the table."""
        return self._table.get(name)

    def is_free(self, name: str) -> bool:
        """Whether nobody changes a model, or waits to change it."""
        return name not in self._turns

    def evict(self, names: Sequence[str], on_ended: Callable[[], None]) -> None:
        """End models as if they had never been loaded, several at once. Their requests under way are answered.

        Args:
            names: of models that are free; their turns are taken until their memory is free.
            on_ended: called then.
        """
        turns = [self._turns.setdefault(name, trio.Semaphore(1)) for name in names]
        for alone in turns:
            alone.acquire_nowait()
        entries = [entry for name in names if (entry := self._table.get(name)) is not None]
        retiring = [version for entry in entries for version in entry.served()]
        self.counters.unloads += len(retiring)
        self._table.enter(*(all_at(entry, ModelState.UNLOADING) for entry in entries))
        known = [entry.name for entry in entries]
        del entries  # which hold the versions
        self._nursery.start_soon(self._end_evicted, list(zip(names, turns, strict=True)), known, retiring, on_ended)

    async def _end_evicted(
        self,
        turns: Sequence[tuple[str, trio.Semaphore]],
        known: Sequence[str],
        retiring: list[ServedVersion],
        on_ended: Callable[[], None],
    ) -> None:
        def ended() -> None:
            self._table.remove(*known, remember=False)
            on_ended()

        if not self._running.stopped.is_set():
            await self._running.end(retiring, self._settle, ended, others_come=True)
        for name, alone in turns:
            self._end_turn(name, alone)

    def forget(self, name: str) -> None:
        """Take a model off the table that could not be loaded, unless somebody changes it just now."""
        entry = self._table.get(name)
        if entry is not None and entry.may_be_loaded and self.is_free(name):
            self._table.remove(name, remember=False)

    async def _retire(self, name: str, alone: trio.Semaphore, turn: ModelTurn) -> None:
        await self._running.end(turn.retiring, self._settle, turn.on_ended)
        self._end_turn(name, alone)

    def _end_turn(self, name: str, alone: trio.Semaphore) -> None:
        alone.release()
        self._drop_turn(name, alone)

    def _drop_turn(self, name: str, alone: trio.Semaphore) -> None:
        if alone.value:
            del self._turns[name]

    def set_traffic(self, traffic: TrafficRules, problem: str = "") -> None:
        """Replace what names stand for, and how their requests are divided; see ``ModelTable``."""
        self._table.set_traffic(traffic, problem)

    def answers(self, name: str) -> bool:
        """Whether every version of a model that is served can answer."""
        model = self.table.models.get(name)
        return model is not None and bool(model.served()) and not model.fails

    def missing(self, name: str) -> tuple[str, ...]:
        """Names of models that a model is made of, and of which nothing is served."""
        model = self._table.get(name)
        return self._table.missing(model.served()) if model is not None else ()

    def members(self, name: str) -> set[str]:
        """Names of the models that a model is made of."""
        model = self._table.get(name)
        served = model.served() if model is not None else []
        return {need.model for one in served if one.dependent is not None for need in one.dependent.needs}

    def refuse(self, name: str, problem: str) -> None:
        """Show why a model cannot be served of which nothing is."""
        known = self._table.get(name)
        if known is None or not known.served():
            self._table.enter(ModelEntry(name, problem=without_paths(problem)))

    def _note_findings(self, folder: ModelFolder) -> None:
        for warning in folder.warnings:
            logger.warning("%s", warning)
        if folder.problem:
            self.counters.failures += 1
            for line in folder.problem.splitlines():
                fields = {"model": folder.name, "reason": line}
                logger.error("model '%s' cannot be loaded: %s", *fields.values(), extra=fields)

    def stop(self) -> None:
        """Refuse new rows; executors end once what is in flight has run. Call when no worker's thread is left."""
        self._running.stop()
