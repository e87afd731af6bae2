"""The manager: loads models, owns the executors' threads, and publishes the table of models.

Loading a version blocks in ONNX Runtime, so it happens in threads; executors are threads of the manager's nursery,
which therefore ends only after each of them has. Only the manager writes ``table``; everybody reads it.

**Hot swap.** What is to be served is loaded and warmed up beside what is served. Then the table is replaced, by one
attribute store, and what is no longer in it is *retired*: every worker lets go of it (``settle``), which commits the
rows it has there; its SuperTensor is closed, so that its executors end once they have run what waits; then its memory
is freed, without the garbage collector, for which frozen objects do not exist. No request is refused on the way: a
worker that has let go has no way left into the old version, and until it has, the old version takes its rows.

What concerns one model happens one after the other (``_turn``), and models do not wait for each other. A model's next
turn comes only after what the last one retired is gone, so that two versions of each at most are in memory.

A version that cannot answer for a while, because all of its threads have died, is not ready: its new requests are
refused as UNAVAILABLE, and those that wait in it already wait for the next thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from toutates.engine.servable import Host
from toutates.models.freed_memory import give_back_freed_memory
from toutates.models.kinds import Kind, load_version
from toutates.models.load_counters import LoadCounters
from toutates.models.repository import ModelFolder, VersionFolder
from toutates.models.table import UNLOADED, ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.system.errors import ModelLoadError, NotPolled, PartlyLoaded, ToutatesError
from toutates.system.own_thread import OwnThread
from toutates.system.placement import Placement, Turns

__all__ = ["LoadOptions", "ModelManager"]

logger = logging.getLogger(__name__)

#: Versions of a model, and models, that are remembered though they are not served any more: the latest ones.
MAX_GONE: Final = 100
MAX_REMOVED: Final = 1_000


async def _nobody_to_wait_for() -> None:
    """``settle`` where there are no workers."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every model is loaded with.

    Attributes:
        kinds: of models; the first that claims a version loads it.
        placement: where threads run.
        parallel_loads: how many models are loaded at the same time.
    """

    kinds: Sequence[Kind]
    placement: Placement = field(default_factory=Placement)
    parallel_loads: int = 1


class _Retiring(list[ServedVersion]):
    """Versions that are to end, and what is to be done then."""

    def __init__(self) -> None:
        super().__init__()
        self.on_gone: Callable[[], None] = lambda: None


class ModelManager:
    """See the module.

    Args:
        options: see LoadOptions.
        nursery: where the executors' threads live, and what retires versions.
        on_change: called when ``table`` has been replaced after the initial load.
        settle: returns once no worker will use a version that is no longer in the table, nor has rows in it that are
            not committed. Given up on when the manager is stopped.
    """

    def __init__(
        self,
        options: LoadOptions,
        nursery: trio.Nursery,
        on_change: Callable[[], None] = lambda: None,
        settle: Callable[[], Awaitable[None]] = _nobody_to_wait_for,
        *,
        may_be_empty: bool = True,
        suggests_names: bool = False,
    ) -> None:
        #: read by every thread, replaced as a whole by the manager alone
        self.table = ModelTable({}, complete=False, may_be_empty=may_be_empty, suggests_names=suggests_names)
        self.counters = LoadCounters()
        self._on_change = on_change
        self._settle = settle
        #: what the table shows, but for executors that have died
        self._models: dict[str, ModelEntry] = {}
        #: models that were served and are in no repository any more: numbers of their versions
        self._removed: dict[str, tuple[int, ...]] = {}
        #: every version that runs, in the table or not; set once it has ended
        self._lives: dict[ServedVersion, trio.Event] = {}
        #: the threads that have loaded these
        self._makers: dict[ServedVersion, OwnThread] = {}
        self._options = options
        self._nursery = nursery
        self._stopped = trio.Event()
        #: by model, one at a time; only for those that have somebody in it or before it
        self._turns: dict[str, trio.Semaphore] = {}
        self._loading = trio.CapacityLimiter(options.parallel_loads)
        self._executor_turns = Turns(options.placement.executors)
        self._host = Host(self._take_cpus, options.placement.anywhere, self._count_death, self._note_ready_change)

    # --- what models there are ---------------------------------------------------------------------------------------

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

        def on_version(name: str) -> None:
            nonlocal loaded
            loaded += bool(name)
            on_progress(loaded, total, name)

        models: dict[str, ModelEntry] = {}

        async def load_one(folder: ModelFolder) -> None:
            entries = await self._load_versions(folder.name, folder.versions, on_version)
            models[folder.name] = ModelEntry(folder.name, entries, folder.problem)

        async with trio.open_nursery() as nursery:
            for folder in folders:
                nursery.start_soon(load_one, folder)
        self._models = models
        self._publish()

    async def load(self, folder: ModelFolder, *, overridden: bool = False, all_or_none: bool = True) -> None:
        """Serve a model as ``folder`` has it. Versions that are served already, and would come out the same, stay.

        Returns once the table has been replaced; what was served before may still have requests then.

        Args:
            folder: with all versions that are to be served, their files at hand until this returns.
            overridden: whether the configuration that the folder has holds even beside a config.yaml.
            all_or_none: whether all of it is to be served or nothing of it. A model of which something is served
                already is replaced only by a whole one in any case.

        Raises:
            ModelLoadError: what is wrong, a clause per version. What was served before is served still.
            NotPolled: likewise, before any version was tried.
            PartlyLoaded: likewise, where the other versions are served now.
        """
        name = folder.name
        async with self._turn(name) as to_retire:
            self._note_findings(folder)
            before = self._models.get(name, ModelEntry(name))
            if folder.problem:
                # Nothing of it is known by its number.
                self._enter(before if before.served() else ModelEntry(name, problem=folder.problem))
                if folder.has_no_version:
                    raise ModelLoadError(
                        f"at least one version must be available under the version policy of model '{name}': "
                        f"{folder.problem}"
                    )
                raise NotPolled(folder.problem)
            identities = {version.number: _identity(version, overridden) for version in folder.versions}
            kept = {
                number: replace(before.versions[number], reason="")
                for number, identity in identities.items()
                if number in before.versions and _is_the_same(before.versions[number], identity)
            }
            new = [version for version in folder.versions if version.number not in kept]
            if new:
                loading = {one.number: VersionEntry(one.number, ModelState.LOADING) for one in new}
                self._enter(replace(_after(before, loading | _served(before)), retried=before.fails))
            loaded: dict[int, VersionEntry] = {}
            try:
                loaded = await self._load_versions(name, new, overridden=overridden)
            finally:
                if len(loaded) < len(new):  # cancelled, or a bug of ours
                    self._enter(before)
            failed = {number: entry for number, entry in loaded.items() if entry.served is None}
            kind = ModelLoadError
            if failed and (all_or_none or before.served()):
                to_retire += [entry.served for entry in loaded.values() if entry.served is not None]
                still = {
                    number: replace(entry, reason=failed[number].reason if number in failed else entry.reason)
                    for number, entry in _served(before).items()
                }
                self._enter(_after(before, failed | still))
            else:
                self._enter(_after(before, kept | loaded))
                if len(failed) < len(loaded):
                    kind = PartlyLoaded
                gone = {number: one for number, one in before.versions.items() if one.served and number not in kept}
                to_retire += [one.served for one in gone.values() if one.served]
                self.counters.unloads += len(gone)
                self.counters.reloads += len(gone.keys() & loaded.keys() - failed.keys())
            if failed:
                raise kind(
                    "\n".join(
                        f"version {number} is at UNAVAILABLE state: {entry.reason};" for number, entry in failed.items()
                    )
                )

    async def unload(self, name: str, *, forget: bool = False) -> None:
        """Stop serving a model. Its new requests are refused from now on, those that are queued are answered.

        Returns at once, unless the model is being loaded; unknown models are no error.

        Args:
            name: the model's.
            forget: whether it is in no repository any more, so that the table is not to list it as unloaded.
        """
        async with self._turn(name) as to_retire:
            before = self._models.get(name)
            if before is None:
                return
            gone = before.served()
            state = ModelState.UNLOADING if gone else ModelState.UNAVAILABLE
            versions = {number: VersionEntry(number, state, "" if gone else UNLOADED) for number in before.versions}
            after = ModelEntry(name, versions, gone=before.gone)
            to_retire += gone
            self.counters.unloads += len(gone)
            if gone:
                self._enter(after)
                to_retire.on_gone = lambda: self._end_unloading(name, forget)
            elif forget:
                self._forget(name)
            else:
                self._enter(after)

    def _end_unloading(self, name: str, forget: bool) -> None:
        if forget:
            self._forget(name)
        else:
            before = self._models[name]
            unloaded = {number: VersionEntry(number, ModelState.UNAVAILABLE, UNLOADED) for number in before.versions}
            self._enter(ModelEntry(name, unloaded, gone=before.gone))

    def refuse(self, name: str, problem: str) -> None:
        """Show why a model cannot be served of which nothing is."""
        known = self._models.get(name)
        if known is None or not known.served():
            self._enter(ModelEntry(name, problem=problem))

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[_Retiring]:
        """Alone with a model. Versions that the block names are retired after it, before the next one's turn."""
        turn = self._turns.setdefault(name, trio.Semaphore(1))
        await turn.acquire()
        retiring = _Retiring()
        try:
            yield retiring
        finally:
            if retiring and not self._stopped.is_set():
                self._nursery.start_soon(self._retire, name, turn, retiring)
            else:
                self._leave_turn(name, turn)

    def _leave_turn(self, name: str, turn: trio.Semaphore) -> None:
        turn.release()
        if turn.value and self._turns.get(name) is turn:
            del self._turns[name]

    async def _retire(self, name: str, turn: trio.Semaphore, retiring: _Retiring) -> None:
        """End versions that are no longer in the table, once everybody who waits for them has been answered."""
        async with trio.open_nursery() as nursery:

            async def give_up_when_stopped() -> None:
                await self._stopped.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up_when_stopped)
            await self._settle()
            nursery.cancel_scope.cancel()
        for version in retiring:
            version.servable.close(workers_ended=self._stopped.is_set())
        del version
        makers = [self._makers.pop(version) for version in retiring if version in self._makers]  # not ended by `stop`
        while retiring:
            await self._see_off(retiring.pop())  # which is the last to know of it
        retiring.on_gone()

        def free() -> None:
            for maker in makers:
                maker.end()
            # Without it, what a version leaves behind depends on which threads have loaded and run it.
            give_back_freed_memory()

        await trio.to_thread.run_sync(free)
        self._leave_turn(name, turn)

    async def _see_off(self, version: ServedVersion) -> None:
        ended = self._lives.get(version)
        if ended is not None:
            await ended.wait()
        version.servable.free()

    def _enter(self, model: ModelEntry) -> None:
        self._models = {**self._models, model.name: model}
        self._removed = {name: gone for name, gone in self._removed.items() if name != model.name}
        self._publish()
        self._on_change()

    def _forget(self, name: str) -> None:
        model = self._models[name]
        self._models = {known: one for known, one in self._models.items() if known != name}
        if numbers := _latest({*model.versions, *model.gone}):
            oldest = len(self._removed) - MAX_REMOVED + 1
            self._removed = dict(list(self._removed.items())[max(oldest, 0) :]) | {name: numbers}
        self._publish()
        self._on_change()

    def _publish(self) -> None:
        """Replace the table: what was loaded, less what has no executor left."""
        self.table = ModelTable(
            {
                name: replace(model, versions={n: self._as_it_is(entry) for n, entry in model.versions.items()})
                for name, model in self._models.items()
            },
            removed=self._removed,
            may_be_empty=self.table.may_be_empty,
            suggests_names=self.table.suggests_names,
        )

    def _as_it_is(self, entry: VersionEntry) -> VersionEntry:
        if entry.served is None or entry.served.servable.ready:
            return entry
        return replace(entry, state=ModelState.UNAVAILABLE, reason="Internal: its executors died and are replaced")

    # --- versions and their executors --------------------------------------------------------------------------------

    async def _load_versions(
        self,
        model: str,
        versions: Sequence[VersionFolder],
        on_version: Callable[[str], None] = lambda name: None,
        *,
        overridden: bool = False,
    ) -> dict[int, VersionEntry]:
        """Load versions side by side; those that fail have entries too."""
        entries: dict[int, VersionEntry] = {}

        async def load_one(version: VersionFolder) -> None:
            entries[version.number] = await self._load(model, version, overridden)
            on_version(f"{model} {version.number}" if entries[version.number].served is not None else "")

        async with trio.open_nursery() as nursery:
            for version in versions:
                nursery.start_soon(load_one, version)
        return _in_order(entries)

    async def _load(self, model: str, version: VersionFolder, overridden: bool) -> VersionEntry:
        def load() -> ServedVersion:
            options = self._options
            return load_version(options.kinds, model, version, overridden=overridden, placement=options.placement)

        # The threads of ONNX Runtime's pools inherit the name.
        thread = OwnThread(f"ort {model}")
        began_ns = time.monotonic_ns()
        try:
            async with self._loading:
                served = await thread.run(load)
            self.counters.loads += 1
        except ToutatesError as error:
            return self._failed(model, version, str(error))
        except Exception as error:
            fields = {"model": model, "version": version.number}
            logger.exception("loading model '%s' version %d failed unexpectedly", *fields.values(), extra=fields)
            return self._failed(model, version, f"{type(error).__name__}: {error}")
        finally:
            self.counters.load_ns += time.monotonic_ns() - began_ns
        self._lives[served] = trio.Event()
        self._makers[served] = thread
        if self._stopped.is_set():
            served.servable.close(workers_ended=True)
        self._nursery.start_soon(self._keep_running, served)
        return VersionEntry(version.number, ModelState.READY, served=served, identity=_identity(version, overridden))

    async def _keep_running(self, served: ServedVersion) -> None:
        """A version's own threads, until it is closed."""
        try:
            await served.servable.run(self._host)
        finally:
            self._lives.pop(served).set()
            if self._stopped.is_set() and (maker := self._makers.pop(served, None)) is not None:
                maker.end()

    def _take_cpus(self) -> tuple[int, ...]:
        return self._executor_turns.take(1)

    def _count_death(self) -> None:
        self.counters.executor_deaths += 1

    def _note_ready_change(self) -> None:
        if self.table.complete:
            self._publish()
            self._on_change()

    def _failed(self, model: str, version: VersionFolder, reason: str) -> VersionEntry:
        self.counters.failures += 1
        for line in reason.splitlines():
            fields = {"model": model, "version": version.number, "reason": line}
            logger.error("model '%s' version %d cannot be served: %s", *fields.values(), extra=fields)
        return VersionEntry(version.number, ModelState.UNAVAILABLE, f"Internal: {reason}")

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
        self._stopped.set()
        for version in list(self._lives):
            version.servable.close(workers_ended=True)


def _in_order(entries: Mapping[int, VersionEntry]) -> dict[int, VersionEntry]:
    return dict(sorted(entries.items()))


def _latest(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(numbers)[-MAX_GONE:])


def _after(before: ModelEntry, versions: Mapping[int, VersionEntry]) -> ModelEntry:
    """A model with these versions; those that were served before are remembered, so that callers are told of them."""
    gone = {number for number, one in before.versions.items() if one.served or one.reason == UNLOADED}
    return ModelEntry(before.name, _in_order(versions), gone=_latest({*before.gone, *gone} - versions.keys()))


def _served(model: ModelEntry) -> dict[int, VersionEntry]:
    """The entries of versions that are served."""
    return {number: entry for number, entry in model.versions.items() if entry.served is not None}


def _is_the_same(entry: VersionEntry, identity: object) -> bool:
    return entry.served is not None and identity is not None and entry.identity == identity


def _identity(version: VersionFolder, overridden: bool) -> object:
    """Equal for versions of the same files and the same configuration; None where nobody has looked at the files."""
    if not version.fingerprint:
        return None
    if version.triton is None:
        return version.fingerprint
    # Whole: clients are shown all of it.
    return (version.fingerprint, overridden, version.triton.given.SerializeToString(deterministic=True))
