"""Versions that run: loaded in threads of their own, with their executors in a nursery, and ended.

Loading a version blocks in ONNX Runtime, so it happens in a thread. There are as many as versions are loaded at a time,
however many have been loaded; they free what they have made, see ``system.shared_threads``. Ending a version needs no
garbage collector, which never looks at frozen objects.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from toutates.engine.batched import BatchedServable
from toutates.engine.cache.store import ResponseCache
from toutates.engine.pool import ExecutorPool
from toutates.engine.servable import Host
from toutates.engine.turns.arbiter import Arbiter
from toutates.models.freed_memory import give_back_freed_memory
from toutates.models.kinds import Kind, load_version
from toutates.models.load_counters import LoadCounters
from toutates.models.repository import VersionFolder
from toutates.models.table import ModelState, ServedVersion, VersionEntry
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.client_text import without_paths
from toutates.system.errors import ConfigurationError, ToutatesError
from toutates.system.interpreter import gil_enabled
from toutates.system.placement import Placement, Turns
from toutates.system.shared_threads import SharedThreads, name_this_thread
from toutates.system.text import described
from toutates.system.thread_pools import ThreadPool

__all__ = ["LoadOptions", "Outcome", "RunningVersions", "identity_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long after models have left for others their memory is given back to the system, seconds. Those that come take
#: most of it before.
SWEEP_S: Final = 1.0
#: Unless they took so much, bytes: then at once.
MOST_SWEPT_LATER: Final = 64 * 1024 * 1024
#: How long a thread loads versions of several models before it hands them over, nanoseconds.
SHARE_NS: Final = 10_000_000
_LOADER_NAME: Final = "ort"
_SWEEPS: Final = ThreadPool("sweep", 2)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every model is loaded with.

    Attributes:
        kinds: of models; see ``kinds.load_version``.
        placement: where threads run.
        parallel_loads: how many versions are loaded at the same time.
        cache: for answers of models that ask for it; None for no cache.
        arbiter: of the turns of executors; None for no turns.
        measured: whether it is found out how much memory each version takes.
        executor_threads: threads that executors on the CPU share; 0 gives each one of its own.
        retries: how often a version that could not be loaded is loaded again.
    """

    kinds: Sequence[Kind]
    placement: Placement = field(default_factory=Placement)
    parallel_loads: int = 1
    cache: ResponseCache | None = None
    arbiter: Arbiter | None = None
    measured: bool = False
    executor_threads: int = 0
    retries: int = 0


@dataclass(slots=True)
class Outcome:
    """What has become of the load of a version, and how long it took.

    Attributes:
        result: the version, or why it cannot be served.
        taken_ns: nanoseconds.
        reason: why it cannot be served, for the log; "" if it can.
        told: the same for clients, without paths of the server.
    """

    result: ServedVersion | Exception
    taken_ns: int
    reason: str = ""
    told: str = ""


class RunningVersions:
    """Every version that runs, whether the table of models shows it or not. It belongs to the manager's thread.

    Args:
        options: see LoadOptions.
        nursery: where the executors' threads live.
        counters: of loads, failures and dead executors.
        on_ready_change: called when a version has lost its executors, or has some again.

    Attributes:
        stopped: set by ``stop``.
    """

    def __init__(
        self,
        options: LoadOptions,
        nursery: trio.Nursery,
        counters: LoadCounters,
        on_ready_change: Callable[[], None],
    ) -> None:
        self.stopped = trio.Event()
        self._options = options
        self._nursery = nursery
        self._counters = counters
        #: set once the version has ended
        self._ended: dict[ServedVersion, trio.Event] = {}
        #: that load versions, and how many they are at
        self._loaders = SharedThreads(options.parallel_loads)
        self._under_way = 0
        self._loading = trio.CapacityLimiter(options.parallel_loads)
        self._executor_turns = Turns(options.placement.executors)
        anywhere = options.placement.anywhere
        self._pool: ExecutorPool | None = None
        if options.executor_threads:
            self._pool = ExecutorPool(options.executor_threads, self._take_cpus, anywhere)
        self._host = Host(self._take_cpus, anywhere, self._count_death, on_ready_change, self._pool)
        self._watching: trio.CancelScope | None = None
        #: of versions that are to end, until nobody uses them any more
        self._waiting: set[trio.CancelScope] = set()
        #: whether memory is given back in a moment, and how much of it has left by now
        self._will_sweep = False
        self._left_bytes = 0

    async def load(
        self,
        model: str,
        versions: Sequence[VersionFolder],
        on_version: Callable[[str], None] = lambda name: None,
        *,
        overridden: bool = False,
    ) -> dict[int, VersionEntry]:
        """Load versions of a model side by side, and start their executors.

        Args:
            model: its name.
            versions: with their files at hand.
            on_version: called after each version, with its name, or with "" if it could not be loaded.
            overridden: see ``kinds.load_version``.

        Returns:
            An entry for each version, by number, ascending. Those that failed have the reason.
        """
        entries: dict[int, VersionEntry] = {}
        if len(versions) == 1:
            [only] = versions
            entry = await self._load(model, only, overridden)
            on_version(f"{model} {only.number}" if entry.served is not None else "")
            return {only.number: entry}

        async def load_one(version: VersionFolder) -> None:
            entries[version.number] = await self._load(model, version, overridden)
            on_version(f"{model} {version.number}" if entries[version.number].served is not None else "")

        async with trio.open_nursery() as nursery:
            for version in versions:
                nursery.start_soon(load_one, version)
        return dict(sorted(entries.items()))

    async def load_all(
        self, versions: Sequence[tuple[str, VersionFolder]], on_version: Callable[[str, VersionEntry], None]
    ) -> None:
        """Load versions of any number of models, and start their executors.

        Small models are loaded in less time than it takes to hand one over to a thread and back. So a thread gets as
        many as it loads in SHARE_NS.

        Args:
            versions: each with its model's name, and its files at hand.
            on_version: called after each, with its model's name and its entry. One that failed has the reason.
        """
        waiting = deque(versions)
        #: how often each may be loaded again
        left: defaultdict[tuple[str, int], int] = defaultdict(lambda: self._options.retries)

        async def load_some() -> None:
            while waiting:
                outcomes: list[tuple[str, VersionFolder, Outcome]] = []
                self._under_way += 1
                try:
                    async with self._loading:
                        await self._loaders.run(partial(self._try_some, waiting, outcomes), _LOADER_NAME)
                except Exception as error:  # the system has no thread left
                    if waiting:
                        outcomes.append((*waiting.popleft(), _failure(error)))
                finally:
                    for model, version, outcome in outcomes:
                        if self._is_loaded_again(model, version, outcome, left[model, version.number]):
                            left[model, version.number] -= 1
                            waiting.append((model, version))
                            continue
                        on_version(model, self.enter(model, version, outcome, overridden=False))
                    outcomes.clear()
                    self._under_way -= 1
                    self._end_threads()

        async def load_no_more_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                waiting.clear()

        async with trio.open_nursery() as watching:
            watching.start_soon(load_no_more_when_cancelled)
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._options.parallel_loads, len(versions))):
                    nursery.start_soon(load_some)
            watching.cancel_scope.cancel()

    async def end(
        self,
        versions: list[ServedVersion],
        settle: Callable[[], Awaitable[None]],
        on_ended: Callable[[], None],
        *,
        others_come: bool = False,
    ) -> None:
        """End versions once everybody who waits for them has been answered, and free their memory.

        Args:
            versions: not in the table any more. The list is emptied, so that nobody holds the versions afterwards.
            settle: see ModelManager. After ``stop`` it is not waited for.
            on_ended: called once all have ended, before their memory is given back.
            others_come: whether they leave for others, so that small ones' memory is given back a little later, with
                that of all that leave by then.
        """
        with self._until_stopped():
            await settle()
            for version in versions:
                await _nobody_holds(version)
        for version in versions:
            self._left_bytes += version.memory_bytes
            version.servable.close(workers_ended=self.stopped.is_set())
            if self._options.arbiter is not None and version.turns is not None:
                self._options.arbiter.remove(version.turns)
        del version
        while versions:
            await self._free(versions.pop())  # which is the last to hold it
        on_ended()
        if not others_come or self._left_bytes > MOST_SWEPT_LATER:
            await self._sweep(settle)
        elif not self._will_sweep:
            self._will_sweep = True
            self._nursery.start_soon(self._sweep_later, settle)

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """A block that ends when the server stops, or has stopped: no worker is left then."""
        with trio.CancelScope() as waiting:
            self._waiting.add(waiting)
            if self.stopped.is_set():
                waiting.cancel()
            try:
                yield
            finally:
                self._waiting.discard(waiting)

    async def _sweep_later(self, settle: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(SWEEP_S):
            await self.stopped.wait()
            return
        self._will_sweep = False
        await self._sweep(settle)

    async def _sweep(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Have what has left memory give it back to the system; without a thread for that, with those that leave next.

        Whoever waits for it has a model's turn, and no failure of it may end the server.
        """
        if not gil_enabled():
            # Lanes, and buffers of batches, belong to the worker that made them (``system.own_thread``), and one that
            # nobody asks does not run. They go before what they refer to, which is of the other threads.
            with self._until_stopped():
                await settle()
        left_bytes, self._left_bytes = self._left_bytes, 0
        try:
            await _SWEEPS.run(self._give_back)
        except (RuntimeError, MemoryError) as error:
            self._left_bytes += left_bytes
            logger.warning("memory of models that have left is given back later: %s", error)

    def _give_back(self) -> None:
        """Blocks for a moment."""
        self._loaders.tidy()
        if self._pool is not None:
            self._pool.tidy()
        # Without it, what a version leaves behind depends on which threads have loaded and run it.
        give_back_freed_memory()

    def stop(self) -> None:
        """Refuse new rows; executors end once what is in flight has run. Call when no worker's thread is left."""
        self.stopped.set()
        for waiting in self._waiting:
            waiting.cancel()
        for version in list(self._ended):
            version.servable.close(workers_ended=True)
        self._end_threads()

    def _end_threads(self) -> None:
        """End the threads that versions share, once the server has stopped and nothing is left for them to free."""
        if self.stopped.is_set() and not self._ended and not self._under_way:
            self._loaders.end()
            if self._pool is not None:
                self._pool.end()
            if self._watching is not None:
                self._watching.cancel()

    async def _watch_pool(self, pool: ExecutorPool) -> None:
        assert self._watching is not None
        with self._watching:
            await pool.run()

    async def _free(self, version: ServedVersion) -> None:
        ended = self._ended.get(version)
        if ended is not None and not ended.is_set():
            await ended.wait()
        version.servable.free()

    async def _load(self, model: str, version: VersionFolder, overridden: bool) -> VersionEntry:
        self._under_way += 1
        left = self._options.retries
        try:
            async with self._loading:
                while True:
                    try:
                        outcome = await self._loaders.run(
                            partial(self.try_to_load, model, version, overridden=overridden), f"ort {model}"
                        )
                    except Exception as error:  # the system has no thread left
                        outcome = _failure(error)
                    if not self._is_loaded_again(model, version, outcome, left):
                        break
                    left -= 1
            return self.enter(model, version, outcome, overridden=overridden)
        finally:
            self._under_way -= 1
            self._end_threads()

    @property
    def tries_again(self) -> bool:
        """Whether a version that could not be loaded is loaded again."""
        return self._options.retries > 0

    def _is_loaded_again(self, model: str, version: VersionFolder, outcome: Outcome, left: int) -> bool:
        """Whether a version is to be loaded once more, where it may be ``left`` times; notes why.

        A configuration that cannot be used does not become another one by that.
        """
        error = outcome.result
        if not left or isinstance(error, ServedVersion | ConfigurationError):
            return False
        outcome.result = RuntimeError()  # see ``enter``
        del error
        self._loaders.nudge()
        first_line = outcome.reason.partition("\n")[0]
        fields = {"model": model, "version": version.number, "reason": first_line, "left": left}
        text = "model '%s' version %d could not be loaded, and is loaded again: %s (%d left)"
        logger.warning(text, *fields.values(), extra=fields)
        return True

    def begin(self, work: Callable[[], T], name: str, on_done: Callable[[T], None]) -> bool:
        """Have work done in a thread that loads versions, without waiting for it, unless all of them have something.

        Args:
            work: to be done. It raises nothing.
            name: of the thread meanwhile.
            on_done: called with its result, in this thread. It raises nothing.

        Returns:
            Whether it is done.
        """
        whose = object()
        try:
            self._loading.acquire_on_behalf_of_nowait(whose)
        except trio.WouldBlock:
            return False

        def done(result: T) -> None:
            self._loading.release_on_behalf_of(whose)
            on_done(result)
            self._under_way -= 1
            self._end_threads()

        try:
            self._loaders.begin(work, name, done)
        except Exception:  # the system has no thread left
            self._loading.release_on_behalf_of(whose)
            return False
        self._under_way += 1
        return True

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _try_some(
        self, waiting: deque[tuple[str, VersionFolder]], outcomes: list[tuple[str, VersionFolder, Outcome]]
    ) -> None:
        """Load versions of those that wait, one after the other."""
        until_ns = time.monotonic_ns() + SHARE_NS
        while True:
            try:
                model, version = waiting.popleft()
            except IndexError:
                return
            name_this_thread(f"ort {model}")
            outcomes.append((model, version, self.try_to_load(model, version, overridden=False)))
            if time.monotonic_ns() >= until_ns:
                return

    def try_to_load(self, model: str, version: VersionFolder, *, overridden: bool) -> Outcome:
        """Load a version, in a thread of ``begin``; call ``enter`` then.

        The threads of ONNX Runtime's pools inherit the name of the calling one.
        """
        options = self._options
        began_ns = time.monotonic_ns()
        try:
            served = load_version(
                options.kinds,
                model,
                version,
                overridden=overridden,
                placement=options.placement,
                cache=options.cache,
                arbiter=options.arbiter,
                measured=options.measured,
            )
        except Exception as error:
            # In no variable: an error holds the frames that it came through, this one with them. What they have made,
            # such as memory shared with processes, would then wait for the garbage collector.
            return _failure(error, time.monotonic_ns() - began_ns, version.model_dir)
        return Outcome(served, time.monotonic_ns() - began_ns)

    # --- in the manager's --------------------------------------------------------------------------------------------

    def enter(self, model: str, version: VersionFolder, outcome: Outcome, *, overridden: bool) -> VersionEntry:
        """Start the executors of a version that was loaded; returns its entry."""
        self._counters.load_ns += outcome.taken_ns
        served = outcome.result
        if isinstance(served, Exception):
            # Not kept: it holds what was made in vain, by the frames that it came through.
            outcome.result = RuntimeError()
            entry = self._refused(model, version, served, outcome)
            del served
            self._loaders.nudge()  # to free what was made in vain
            return entry
        self._counters.loads += 1
        self._ended[served] = trio.Event()
        if self.stopped.is_set():
            served.servable.close(workers_ended=True)
        if self._pool is not None and self._watching is None:
            self._watching = trio.CancelScope()
            self._nursery.start_soon(self._watch_pool, self._pool)
        self._start(served)
        return VersionEntry(version.number, ModelState.READY, served=served, identity=identity_of(version, overridden))

    def _refused(self, model: str, version: VersionFolder, error: Exception, outcome: Outcome) -> VersionEntry:
        self._counters.failures += 1
        if not isinstance(error, ToutatesError):
            fields = {"model": model, "version": version.number}
            text = "loading model '%s' version %d failed unexpectedly"
            logger.error(text, *fields.values(), exc_info=error, extra=fields)
        for line in outcome.reason.splitlines():
            fields = {"model": model, "version": version.number, "reason": line}
            logger.error("model '%s' version %d cannot be served: %s", *fields.values(), extra=fields)
        return VersionEntry(version.number, ModelState.UNAVAILABLE, f"Internal: {outcome.told}")

    def _start(self, served: ServedVersion) -> None:
        """Have a version answer; most need no task for it until they end."""
        keep_running = partial(self._nursery.start_soon, self._keep_running, served)
        servable = served.servable
        if not isinstance(servable, BatchedServable) or not servable.start(self._host, keep_running):
            keep_running()

    async def _keep_running(self, served: ServedVersion) -> None:
        """A version's own threads, until it is closed.

        Also where the server ends by a failure of its own, which cancels everything: ``stop`` is called then too. A
        thread that comes back from ONNX Runtime's code while the interpreter ends would abort the process.
        """
        try:
            with trio.CancelScope(shield=True):
                await served.servable.run(self._host)
        finally:
            self._ended.pop(served).set()
            self._end_threads()

    def _take_cpus(self) -> tuple[int, ...]:
        return self._executor_turns.take(1)

    def _count_death(self) -> None:
        self._counters.executor_deaths += 1


def _failure(error: Exception, taken_ns: int = 0, folder: Path | None = None) -> Outcome:
    """What has become of a load that failed. Blocks, where there is a folder.

    Args:
        error: which the caller must not keep in a variable.
        taken_ns: nanoseconds.
        folder: of the model. Libraries name its files by where links lead as well.
    """
    reason = str(error) if isinstance(error, ToutatesError) else described(error)
    folders = () if folder is None else (folder, os.path.abspath(folder), os.path.realpath(folder))
    return Outcome(error, taken_ns, reason, without_paths(reason, *folders))


async def _nobody_holds(version: ServedVersion) -> None:
    """Wait until no other model uses a version, and see that none begins to."""
    free = trio.Event()
    token = trio.lowlevel.current_trio_token()
    own = threading.get_ident()

    def tell() -> None:
        if threading.get_ident() == own:  # as of most versions: nobody holds them
            free.set()
            return
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(free.set)

    version.calls.close(tell)
    if not free.is_set():
        await free.wait()


def identity_of(version: VersionFolder, overridden: bool) -> object:
    """Equal for versions of the same files and the same configuration; None where they have no fingerprint.

    Which versions are served is nothing that one of them has (``ServedVersion.note_policy``).
    """
    if not version.fingerprint:
        return None
    if version.triton is None:
        return version.fingerprint
    # Whole: clients are shown all of it.
    triton = version.triton
    given = ModelConfig()
    given.CopyFrom(triton.given)
    given.ClearField("version_policy")
    # A message has no place for a batch size of 0.
    return version.fingerprint, overridden, given.SerializeToString(deterministic=True), triton.declared.is_unbatched
