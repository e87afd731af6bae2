"""Models that are loaded when a request needs them (``--model-control-mode on-demand``).

An index says which models there are, and none is opened for it. A request for one that is not in memory waits on
its worker (``infer.parking``); here, on the main thread, the model is loaded once for all who want it:

    want ─▶ queue, first in first out ─▶ its files ─▶ room in memory ─▶ loaded, in the table ─▶ done, for all
             (--model-load-thread-count at a time)        │
                                                          └── others leave, see ``models.residency``

Small models, for which there is room anyway, take the short way: a thread that loads models looks at the files and
loads them in one go, and no task waits for it. It was given a part of the room before. All others go on in a task.

A model that cannot be loaded is not tried again for FAILURE_S, whatever asks for it: its error is remembered, and
answers at once. What is remembered of names is bounded, and of names that are in no repository there is nothing.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from toutates.models.demand import DemandCounters, DemandState
from toutates.models.manager import ModelManager
from toutates.models.memory_size import VERSION_BYTES, files_size
from toutates.models.repository import ModelFolder
from toutates.repositories.control.demand_memory import DemandMemory, TooLarge
from toutates.repositories.control.model_control import MakeRoom, ModelControl, Rest
from toutates.repositories.control.threads import LOOKS, in_thread
from toutates.repositories.interface import Repository
from toutates.repositories.opening import double_model, refuse_double
from toutates.system.client_text import without_paths
from toutates.system.errors import (
    ConfigurationError,
    ExecutionFailed,
    ModelLoadError,
    ModelNotReady,
    Overloaded,
    RequestError,
    ToutatesError,
    Unavailable,
    UnknownModel,
    anew,
)

__all__ = ["OnDemand"]

logger = logging.getLogger(__name__)

#: For how long the error of a model that could not be loaded answers its requests. Seconds.
FAILURE_S: Final = 10.0
#: Models of which that is remembered; of more, the oldest errors are forgotten.
MAX_FAILURES: Final = 1_000
Done = Callable[[RequestError | None], None]


@dataclass(slots=True)
class _Wanted:
    """A model that is to be loaded.

    Attributes:
        since_ns: when it was first asked for.
        done: of all who wait.
    """

    since_ns: int
    done: list[Done] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a model could not be loaded.

    Attributes:
        error: the reason.
        until_s: as long as it answers requests for the model, monotonic seconds.
    """

    error: RequestError
    until_s: float


class OnDemand:
    """Loads models on demand (``models.demand.Loader``), and has them leave. Made on the main thread, in Trio.

    Args:
        repositories: that have the models; more may be added until ``begin``.
        manager: loads and ends models.
        control: knows which files are in use.
        budget: bytes that models in memory may take; None for no bound.
        min_stay_s: for so long a model stays after it was loaded.
        parallel: models that are loaded at a time.
        poll_s: seconds between two looks at the index.
        cpus: where threads run, see ``placement.running_on``.
    """

    def __init__(
        self,
        repositories: Sequence[Repository],
        manager: ModelManager,
        control: ModelControl,
        *,
        budget: int | None = None,
        min_stay_s: float = 1.0,
        parallel: int = 1,
        poll_s: float = 15.0,
        cpus: tuple[int, ...] = (),
    ) -> None:
        self.counters = DemandCounters()
        self._repositories = repositories
        self._manager = manager
        self._control = control
        self._parallel = parallel
        self._poll_s = poll_s
        self._cpus = cpus
        self._memory = DemandMemory(manager, control, self.counters, self.is_loading, budget, min_stay_s)
        self._token = trio.lowlevel.current_trio_token()
        #: where each model is, and what is known of it without a look: nothing, of one in a directory
        self._index: Mapping[str, tuple[Repository, ModelFolder | None]] = {}
        self._unread: dict[str, str] = {}
        #: models that two repositories had when the index was read last, see ``_mark_doubles``
        self._doubles: Mapping[str, tuple[Repository, ModelFolder]] = {}
        self._wanted: dict[str, _Wanted] = {}
        self._queue: deque[str] = deque()
        #: models that are being loaded, and those of them that no task waits for
        self._under_way = 0
        self._without_task = 0
        #: once it runs
        self._nursery: trio.Nursery | None = None
        self._is_ending = False
        self._failures: OrderedDict[str, _Failure] = OrderedDict()
        #: models that somebody has unloaded by request
        self._unloaded: set[str] = set()
        control.demand = self

    # --- for workers -------------------------------------------------------------------------------------------------

    def failure_of(self, model: str) -> RequestError | None:
        """See ``Loader``."""
        if model in self._unloaded:
            return ModelNotReady(f"Request for unknown model: '{model}' was unloaded, and nobody has loaded it again")
        failure = self._failures.get(model)
        if failure is None or failure.until_s <= time.monotonic():
            return None
        return type(failure.error)(str(failure.error))  # of its own, for each thread that raises it

    def want(self, model: str, done: Done) -> None:
        """See ``Loader``."""
        try:
            self._token.run_sync_soon(self._want, model, done)
        except trio.RunFinishedError:
            done(_exiting())

    # --- for whoever watches -----------------------------------------------------------------------------------------

    def state(self, misses: int) -> DemandState:
        """How it stands; any thread may ask.

        Args:
            misses: requests that had to wait so far.
        """
        residency, counters = self._memory.residency, self.counters
        return DemandState(
            indexed=len(self._index),
            resident=len(residency),
            used=residency.used,
            budget=residency.budget or 0,
            queued=len(self._wanted),
            misses=misses,
            loads=counters.loads,
            failures=counters.failures,
            refusals=counters.refusals,
            evictions=counters.evictions,
            load_ns=counters.load_ns,
        )

    @property
    def names(self) -> Collection[str]:
        """Names of the models in the repositories, in any order. Nobody changes them: a new index is another object."""
        return self._index.keys()

    @property
    def unready_reason(self) -> str:
        """Why the index keeps the server from being ready; "" if it does not."""
        for name, problem in self._unread.items():
            return f"the models of '{name}' are not known: {problem}"
        return ""

    # --- the index ---------------------------------------------------------------------------------------------------

    async def begin(self, *, all_must_answer: bool = False) -> None:
        """Read the index for the first time, and take note of what is served already.

        Args:
            all_must_answer: whether a repository that cannot be read is an error.

        Raises:
            ConfigurationError: all must answer, and one has not, or two have a model of one name.
        """
        began_s = time.monotonic()
        await self._read_index(is_first=True, all_must_answer=all_must_answer)
        self.note_changes()
        seconds = time.monotonic() - began_s
        logger.info("%d models are indexed, in %.2f s; each is loaded when one needs it", len(self._index), seconds)

    async def _read_index(self, *, is_first: bool = False, all_must_answer: bool = False) -> None:
        index: dict[str, tuple[Repository, ModelFolder | None]] = {}
        doubles: dict[str, tuple[Repository, Repository]] = {}
        for repository in self._repositories:
            try:
                found = await in_thread(self._cpus, LOOKS, repository.index, abandon_on_cancel=True)
            except ToutatesError as error:
                if all_must_answer:
                    raise ConfigurationError(str(error)) from error
                if repository.name not in self._unread:
                    logger.error("the index of '%s' cannot be read: %s", repository.name, error)
                if is_first:
                    self._unread[repository.name] = str(error)
                found = {name: one[1] for name, one in self._index.items() if one[0] is repository}
            else:
                self._unread.pop(repository.name, None)
            for name, folder in found.items():
                other = index.setdefault(name, (repository, folder))
                if other[0] is not repository:
                    if all_must_answer:
                        refuse_double(name, other[0].name, repository.name)
                    doubles.setdefault(name, (other[0], repository))
        self._mark_doubles(index, doubles)
        if index.keys() != self._index.keys():
            self._index = index
            self._unloaded &= index.keys()
            self._manager.set_loadable(index)
        else:
            self._index = index

    def _mark_doubles(
        self,
        index: dict[str, tuple[Repository, ModelFolder | None]],
        doubles: Mapping[str, tuple[Repository, Repository]],
    ) -> None:
        """Have an index say of models that two repositories have why they cannot be loaded, and the log, once.

        A model that was found alone before goes on to be loaded from there.
        """
        news = doubles.keys() - self._doubles.keys() - self._index.keys()
        marked: dict[str, tuple[Repository, ModelFolder]] = {}
        for name, (one, other) in doubles.items():
            if name not in news and name not in self._doubles:
                if self._index[name][0] is other:
                    index[name] = self._index[name]
                continue
            marked[name] = (one, double_model(name, one.name, other.name))
            if name in news:
                logger.error("model '%s' cannot be loaded: %s", name, marked[name][1].problem, extra={"model": name})
        index.update(marked)
        self._doubles = marked

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load what is wanted, look at the index again and again, until cancelled. What is wanted then is refused."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._look_for_ever)
            nursery.start_soon(self._forget_for_ever)
            self._begin_next()
            try:
                await trio.sleep_forever()
            finally:
                self._is_ending = True
                wanted, self._wanted = self._wanted, {}
                for one in wanted.values():
                    for done in one.done:
                        done(_exiting())
                # ONNX Runtime cannot be stopped, and must not be at work when the process ends.
                with trio.CancelScope(shield=True):
                    while self._without_task:
                        await self._memory.freed.wait()

    async def _look_for_ever(self) -> None:
        while True:
            await trio.sleep(self._poll_s)
            try:
                await self._read_index()
            except Exception:
                logger.exception("the index could not be read; it is tried again")

    async def _forget_for_ever(self) -> None:
        """Take models off the table that could not be loaded, once that is no news any more."""
        while True:
            await trio.sleep(1.0)
            now = time.monotonic()
            for name in [name for name, one in self._failures.items() if one.until_s <= now]:
                self._forget_failure(name)
            self._memory.make_room_ahead()

    # --- loads -------------------------------------------------------------------------------------------------------

    def _want(self, model: str, done: Done) -> None:
        wanted = self._wanted.get(model)
        if wanted is not None:
            wanted.done.append(done)
            return
        failure = self.failure_of(model)
        if failure is not None:
            done(failure)
            return
        entry = self._manager.entry(model)
        if entry is not None and entry.served():
            done(None)
            return
        if self._is_ending:  # workers still read the requests that they have begun with
            done(_exiting())
            return
        self._wanted[model] = _Wanted(time.monotonic_ns(), [done])
        self._queue.append(model)
        self._begin_next()

    def is_loading(self, model: str) -> bool:
        """See ``Loader``."""
        return model in self._wanted

    def _begin_next(self) -> None:
        """Begin with what waits, as far as it may."""
        while self._nursery is not None and not self._is_ending and self._queue and self._under_way < self._parallel:
            model = self._queue.popleft()
            self._under_way += 1
            if not self._begin_without_task(model):
                self._nursery.start_soon(self._load, model, partial(self._bring, model, ()))

    async def _load(self, model: str, bring: Callable[[], Awaitable[None]]) -> None:
        """Load a model, or do the rest of that."""
        error: RequestError | None = None
        try:
            await bring()
        except RequestError as problem:
            error = anew(problem)
        except Exception as bug:
            error = _of_ours(model, bug)
        self._end(model, error)

    def _end(self, model: str, error: RequestError | None) -> None:
        """A model is loaded, or cannot be."""
        self._under_way -= 1
        wanted = self._wanted.pop(model, None)
        if wanted is not None:  # else the server exits
            if error is None:
                self.counters.loads += 1
                self.counters.load_ns += time.monotonic_ns() - wanted.since_ns
            else:
                self._note_failure(model, error)
            for done in wanted.done:
                done(error)
        self._begin_next()
        self._memory.make_room_ahead()

    # --- without a task ----------------------------------------------------------------------------------------------

    def _begin_without_task(self, model: str) -> bool:
        """Have a thread look at a model's files and load it, if there is room; returns whether it does."""
        where = self._index.get(model)
        if where is None or where[1] is not None:
            return False
        room = self._memory.room_for_one()
        if room is not None and room < VERSION_BYTES:
            return False
        size = 0

        def fits(folder: ModelFolder) -> bool:
            nonlocal size
            if room is None:
                return True
            size = _expected_size(folder)
            return size <= room

        def done(rest: Rest | None, error: Exception | None) -> None:
            self._without_task -= 1
            self._memory.residency.coming -= room or 0
            self._memory.tell_of_room()
            self._go_on(model, size, rest, error)

        if not self._control.begin_on_demand(model, where[0], fits, done):
            return False
        self._without_task += 1
        self._memory.residency.coming += room or 0
        return True

    def _go_on(self, model: str, size: int, rest: Rest | None, error: Exception | None) -> None:
        """A thread has looked at a model, and may have loaded it. Raises nothing."""
        nursery = self._nursery
        refusal: RequestError | None = None
        try:
            if rest is not None:
                if nursery is not None:
                    nursery.start_soon(self._load, model, partial(self._bring_rest, model, size, rest))
                return
            missing = self._note_loaded(model, error)
            if missing or self._manager.members(model):
                if nursery is not None:
                    nursery.start_soon(self._load, model, partial(self._bring_members, model, missing, ()))
                return
        except RequestError as problem:
            refusal = anew(problem)
        except Exception as bug:
            refusal = _of_ours(model, bug)
        self._end(model, refusal)

    async def _bring_rest(self, model: str, size: int, rest: Rest) -> None:
        """Load a model that a thread has looked at.

        Args:
            model: its name.
            size: bytes that it takes, by its files.
            rest: loads it.

        Raises:
            RequestError: it cannot be loaded.
        """
        missing = await self._bring_alone(model, rest, lambda: size)
        await self._bring_members(model, missing, ())

    # --- in a task ---------------------------------------------------------------------------------------------------

    async def _bring(self, model: str, way: tuple[str, ...]) -> None:
        """Load a model, and what it is made of.

        Args:
            model: its name.
            way: names of those that are made of it, which are being loaded.

        Raises:
            RequestError: it cannot be loaded.
        """
        where = self._index.get(model)
        if where is None:
            raise UnknownModel(f"Request for unknown model: '{model}' is not found")
        size = 0

        def look(folder: ModelFolder) -> None:
            nonlocal size
            if self._memory.residency.budget is not None:
                size = _expected_size(folder)

        async def load(make_room: MakeRoom) -> None:
            await self._control.load_on_demand(model, *where, make_room, look)

        missing = await self._bring_alone(model, load, lambda: size)
        await self._bring_members(model, missing, way)

    async def _bring_alone(self, model: str, load: Rest, size_of: Callable[[], int]) -> tuple[str, ...]:
        """Load a model, without what it is made of.

        Args:
            model: its name.
            load: does it.
            size_of: returns how much memory it takes, by its files, once these are known.

        Returns:
            Names of models that it is made of, and that are missing.

        Raises:
            RequestError: it cannot be loaded.
        """
        coming = 0

        async def make_room(folder: ModelFolder) -> None:
            nonlocal coming
            await self._memory.make_room(model, size_of())
            coming = size_of()

        problem: Exception | None = None
        try:
            await load(make_room)
        except ToutatesError as error:
            problem = anew(error)
        finally:
            self._memory.residency.coming -= coming
        return self._note_loaded(model, problem)

    def _note_loaded(self, model: str, error: Exception | None) -> tuple[str, ...]:
        """Note that a model was loaded, as far as it could be.

        Returns:
            Names of models that it is made of, and that are missing.

        Raises:
            RequestError: it cannot be served.
        """
        missing: tuple[str, ...] = ()
        if isinstance(error, ModelLoadError):
            entry = self._manager.entry(model)
            if entry is None or not entry.served():
                raise ModelNotReady(f"model '{model}' cannot be loaded: {_one_line(error)}") from None
            missing = error.missing  # and what is served is served
        elif isinstance(error, ToutatesError) and not isinstance(error, RequestError):  # its repository cannot be read
            reason = _one_line(error)
            told = without_paths(reason)
            if told != reason:
                logger.error("model '%s' cannot be loaded: %s", model, reason, extra={"model": model})
            raise ModelNotReady(f"model '{model}' cannot be loaded: {told}") from None
        elif error is not None:
            raise anew(error)
        self._memory.enter(model)
        self._memory.see_that_it_fits(model)
        return missing

    async def _bring_members(self, model: str, missing: Sequence[str], way: tuple[str, ...]) -> None:
        """Load what a model is made of.

        Args:
            model: its name.
            missing: what it cannot be served without.
            way: names of those that are made of it, which are being loaded.

        Raises:
            RequestError: it cannot be served.
        """
        for member in missing:
            if member not in (*way, model):
                await self._bring_member(model, member, (*way, model))
        for member in self._manager.members(model):
            if member in self._index and not self._manager.answers(member) and member not in (*way, model):
                await self._bring_member(model, member, (*way, model))
        if missing and not self._manager.answers(model):
            entry = self._manager.table.get(model)
            reasons = [] if entry is None else [one.reason for one in entry.versions.values() if one.reason]
            self._memory.evict([model])
            raise ModelNotReady(f"model '{model}' cannot be loaded: {'; '.join(reasons)}")

    async def _bring_member(self, model: str, member: str, way: tuple[str, ...]) -> None:
        try:
            await self._bring(member, way)
        except RequestError as error:
            logger.warning("model '%s' is made of '%s', which is not there: %s", model, member, error)

    def _note_failure(self, model: str, error: RequestError) -> None:
        if isinstance(error, Overloaded):
            self.counters.refusals += 1
            if not isinstance(error, TooLarge):
                return  # there may be room in a moment
        else:
            self.counters.failures += 1
        self._failures[model] = _Failure(error, time.monotonic() + FAILURE_S)
        while len(self._failures) > MAX_FAILURES:
            self._forget_failure(next(iter(self._failures)))

    def _forget_failure(self, model: str) -> None:
        del self._failures[model]
        self._manager.forget(model)

    # --- changes by request ------------------------------------------------------------------------------------------

    def note_changes(self, asked_for: str = "") -> None:
        """Models were loaded or unloaded by request.

        Args:
            asked_for: the one that somebody has loaded; "" for none.
        """
        self._unloaded.discard(asked_for)
        self._failures.pop(asked_for, None)
        self._memory.note_changes()

    def note_unloaded(self, model: str) -> None:
        """Somebody has unloaded a model: requests do not load it until somebody does."""
        if model in self._index:
            self._unloaded.add(model)
        self.note_changes()


def _expected_size(folder: ModelFolder) -> int:
    """What a model will take at least, bytes, by its files. Blocks."""
    return sum(files_size(version) + VERSION_BYTES for version in folder.versions)


def _exiting() -> RequestError:
    return Unavailable("Server exiting")


def _of_ours(model: str, bug: Exception) -> RequestError:
    """The error of a load that failed by a mistake of this server."""
    logger.error("model '%s' could not be loaded", model, exc_info=bug)
    return ExecutionFailed(f"model '{model}' cannot be loaded: internal error")


def _one_line(error: Exception) -> str:
    return "; ".join(line.rstrip(";") for line in str(error).splitlines())
