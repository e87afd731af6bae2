"""The manager: loads what the repository holds, owns the executors' threads, and publishes the table of models.

Loading a version blocks in ONNX Runtime, so it happens in threads; executors are threads of the manager's nursery,
which therefore ends only after each of them has. Only the manager writes ``table``; everybody reads it.

An executor whose thread dies, or cannot be started, gets another one: at once the first time, then after a pause that
doubles, up to MAX_PAUSE_S, until one has lived for FORGET_S. A version of which no executor is left meanwhile is not
ready: its new requests are refused as UNAVAILABLE, and those that wait in its SuperTensor already wait for the next
thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import trio

from toutates.batching.counters import ExecutorCounters, VersionCounters, WorkerCounters
from toutates.batching.executor import Executor
from toutates.batching.pinned import PinnedMemory, find_cuda_runtime
from toutates.batching.session import ModelSession, SessionOptions, load_session
from toutates.batching.supertensor import SuperTensor
from toutates.errors import ConfigurationError, ModelLoadError, ToutatesError
from toutates.models.configuration import VersionConfiguration, load_configuration
from toutates.models.describe import model_config
from toutates.models.executor_sessions import executor_session_options
from toutates.models.repository import ModelFolder, VersionFolder
from toutates.models.settings import check_allocator
from toutates.models.signature_reader import read_signature
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.models.warmup import check_warmup
from toutates.placement import Placement, Turns, running_on
from toutates.protocol.signature import Signature

__all__ = ["LoadOptions", "ModelManager"]

logger = logging.getLogger(__name__)

#: Profiles end at unloading where config.yaml gives no number of batches.
_NEVER_STOP: Final = 2**62
#: Pauses before an executor's thread is replaced; none before the first time, then from FIRST_PAUSE_S, doubled.
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 10.0
#: A thread that has lived for so long died of something new.
FORGET_S: Final = 60.0
#: How often a thread is replaced once no worker is left to wait for what it does.
MAX_DEATHS_AT_THE_END: Final = 3


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every model is loaded with.

    Attributes:
        sessions: how ONNX Runtime's sessions are made.
        workers: how many workers will serve.
        is_wanted: whether anybody waits for a ticket until a time, see ``Executor``.
        placement: how many models load at the same time, and where threads run.
    """

    sessions: SessionOptions
    workers: int
    is_wanted: Callable[[object, int], bool]
    placement: Placement = field(default_factory=Placement)


class ModelManager:
    """See the module.

    Args:
        options: see LoadOptions.
        nursery: where the executors' threads live.
        on_change: called when ``table`` has been replaced after the initial load.
    """

    def __init__(
        self, options: LoadOptions, nursery: trio.Nursery, on_change: Callable[[], None] = lambda: None
    ) -> None:
        #: read by every thread, replaced as a whole by the manager alone
        self.table = ModelTable({}, complete=False)
        self._on_change = on_change
        #: what the initial load has found, once it is over
        self._models: list[ModelEntry] = []
        #: by version, the numbers of its executors that have no thread
        self._dead: dict[ServedVersion, set[int]] = {}
        self._options = options
        self._nursery = nursery
        #: of every version whose executors run, in the table or not yet
        self._supertensors: list[SuperTensor] = []
        self._stopped = trio.Event()
        self._executor_threads = trio.CapacityLimiter(math.inf)
        self._loader_threads = trio.CapacityLimiter(options.placement.executor_cores)
        self._executor_turns = Turns(options.placement.executors)
        self._intra_op_turns = Turns(options.placement.intra_op)

    async def load_all(self, folders: Sequence[ModelFolder], on_progress: Callable[[int, int, str], None]) -> None:
        """Load every version of the repository; a broken one is entered in the table with its reason.

        Cancelled, it waits for the versions that ONNX Runtime is busy with, and leaves the table as it was.

        Args:
            folders: what ``repository.scan`` has found.
            on_progress: called with versions done, versions in all, and the version done last.
        """
        for folder in folders:
            for warning in folder.warnings:
                logger.warning("%s", warning)
            if folder.problem:
                logger.error("model '%s' cannot be loaded: %s", folder.name, folder.problem)
        entries: dict[str, dict[int, VersionEntry]] = {folder.name: {} for folder in folders}
        total = sum(len(folder.versions) for folder in folders)
        done = 0

        async def load_one(folder: ModelFolder, version: VersionFolder) -> None:
            nonlocal done
            entries[folder.name][version.number] = await self._load(folder.name, version)
            done += 1
            on_progress(done, total, f"{folder.name} {version.number}")

        async with trio.open_nursery() as nursery:
            for folder in folders:
                for version in folder.versions:
                    nursery.start_soon(load_one, folder, version)
        self._models = [
            ModelEntry(folder.name, dict(sorted(entries[folder.name].items())), folder.problem) for folder in folders
        ]
        self._publish()

    def _publish(self) -> None:
        """Replace the table: what was loaded, less what has no executor left."""
        self.table = ModelTable(
            {
                model.name: replace(model, versions={n: self._as_it_is(entry) for n, entry in model.versions.items()})
                for model in self._models
            }
        )

    def _as_it_is(self, entry: VersionEntry) -> VersionEntry:
        if entry.served is None or self._has_executor(entry.served):
            return entry
        return replace(entry, state=ModelState.UNAVAILABLE, reason="Internal: its executors died and are replaced")

    async def _load(self, model: str, version: VersionFolder) -> VersionEntry:
        try:
            served, sessions = await trio.to_thread.run_sync(
                self._load_anywhere,
                model,
                version,
                limiter=self._loader_threads,
                # The threads of ONNX Runtime's pools inherit it.
                thread_name=f"ort {model}",
            )
        except ToutatesError as error:
            return self._failed(model, version, str(error))
        except Exception as error:
            logger.exception("loading model '%s' version %d failed unexpectedly", model, version.number)
            return self._failed(model, version, f"{type(error).__name__}: {error}")
        self._supertensors.append(served.supertensor)
        if self._stopped.is_set():
            served.supertensor.close(workers_ended=True)
        for number, session in enumerate(sessions):
            executor = Executor(
                served.supertensor,
                session,
                number,
                is_wanted=self._options.is_wanted,
                on_batch=served.counters.executors[number].add,
            )
            self._nursery.start_soon(self._keep_running, executor, served, number)
        return VersionEntry(version.number, ModelState.READY, served=served)

    async def _keep_running(self, executor: Executor, served: ServedVersion, number: int) -> None:
        """An executor's threads, one after the other should they die, until its SuperTensor is closed."""
        name = f"executor-{number} {served.model}"
        cpus = self._executor_turns.take(1)
        deaths = deaths_at_the_end = 0
        while True:
            started = trio.current_time()
            death = await self._run_executor(executor, name, cpus)
            if death is None:
                return
            deaths = 1 if trio.current_time() - started >= FORGET_S else deaths + 1
            pause_s = 0.0 if deaths == 1 else min(FIRST_PAUSE_S * 2 ** min(deaths - 2, 30), MAX_PAUSE_S)
            logger.error(
                "%s of version %d died (%d in a row); it is replaced %s",
                name,
                served.number,
                deaths,
                f"in {pause_s:g} s" if pause_s else "at once",
                exc_info=death,
            )
            if self._stopped.is_set():
                deaths_at_the_end += 1
                if deaths_at_the_end == MAX_DEATHS_AT_THE_END:
                    return
            self._mark(served, number, dead=True)
            with trio.move_on_after(pause_s):
                await self._stopped.wait()
            self._mark(served, number, dead=False)

    async def _run_executor(self, executor: Executor, name: str, cpus: tuple[int, ...]) -> BaseException | None:
        """One thread of an executor; returns what it died of, or that it could not be started for."""

        def run() -> BaseException | None:
            try:
                with running_on(cpus, self._options.placement.anywhere):
                    executor.run()
            except BaseException as death:
                return death
            return None

        try:
            # Not abandoned on cancellation: `stop` ends the thread, and the nursery waits for that.
            return await trio.to_thread.run_sync(run, limiter=self._executor_threads, thread_name=name)
        except (RuntimeError, OSError, MemoryError) as error:  # the system has no thread left for us
            return error

    def _mark(self, served: ServedVersion, number: int, *, dead: bool) -> None:
        """Note that an executor has no thread, or has one again."""
        numbers = self._dead.setdefault(served, set())
        had_executor = self._has_executor(served)
        if dead:
            numbers.add(number)
        else:
            numbers.discard(number)
        if self._models and self._has_executor(served) is not had_executor:
            self._publish()
            self._on_change()

    def _has_executor(self, served: ServedVersion) -> bool:
        return len(self._dead.get(served, ())) < len(served.counters.executors)

    def _failed(self, model: str, version: VersionFolder, reason: str) -> VersionEntry:
        logger.error("model '%s' version %d cannot be served: %s", model, version.number, reason)
        return VersionEntry(version.number, ModelState.UNAVAILABLE, f"Internal: {reason}")

    def _load_anywhere(self, model: str, version: VersionFolder) -> tuple[ServedVersion, list[ModelSession]]:
        """Not on the manager's CPU alone, which the thread inherits, and threads that ONNX Runtime starts would too."""
        anywhere = self._options.placement.anywhere
        with running_on(anywhere, anywhere):
            return self._load_blocking(model, version)

    def _load_blocking(self, model: str, version: VersionFolder) -> tuple[ServedVersion, list[ModelSession]]:
        """Everything that takes time; in a thread."""
        configuration = load_configuration(version)
        if configuration.folder.problem:
            raise ModelLoadError(configuration.folder.problem)
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, version.number, configuration.notice)
        settings, source = configuration.settings, configuration.source
        model_path = configuration.folder.model_path
        options = [
            executor_session_options(self._options.sessions, settings, number, model=model, source=source)
            for number in range(settings.num_executors)
        ]
        profiling = settings.profiling
        # Without names of their own, profiles that begin in the same millisecond would overwrite each other.
        prefixes = [
            f"{profiling.file_prefix}_{model}_{version.number}_{number}" if profiling is not None else None
            for number in range(settings.num_executors)
        ]
        first = load_session(model_path, self._placed(options[0]), profile_prefix=prefixes[0])
        check_allocator(settings, first.get_providers(), source)
        signature = read_signature(first, settings, source=source, declared=configuration.declared)
        check_warmup(settings, signature, version.path.parent, source)
        datatypes = {tensor.datatype.name for tensor in (*signature.inputs, *signature.outputs)}
        if {"BF16", "BYTES"} <= datatypes:
            raise ModelLoadError(
                "BF16 and BYTES tensors in one model: onnxruntime's Python interface takes only one kind"
            )
        others = [
            load_session(model_path, self._placed(own), profile_prefix=prefix)
            for own, prefix in zip(options[1:], prefixes[1:], strict=True)
        ]
        profile_batches = (profiling.stop_after_batches or _NEVER_STOP) if profiling is not None else None
        shrinkage = settings.session.arena_shrinkage
        sessions = [
            ModelSession(session, signature, model, profile_batches=profile_batches, arena_shrinkage=shrinkage)
            for session in (first, *others)
        ]
        return self._describe(
            model, version.number, configuration, signature, sessions, first.get_providers()
        ), sessions

    def _placed(self, options: SessionOptions) -> SessionOptions:
        """The options, with CPUs for the pool of one more session."""
        return replace(options, intra_op_cpus=self._intra_op_turns.take(options.intra_threads - 1))

    def _describe(
        self,
        model: str,
        number: int,
        configuration: VersionConfiguration,
        signature: Signature,
        sessions: list[ModelSession],
        providers: list[str],
    ) -> ServedVersion:
        workers = self._options.workers
        settings, triton = configuration.settings, configuration.folder.triton
        return ServedVersion(
            model=model,
            number=number,
            signature=signature,
            settings=settings,
            config=model_config(
                model,
                signature,
                settings,
                gpu=providers[0] != "CPUExecutionProvider",
                version_policy=triton.version_policy if triton is not None else None,
            ),
            supertensor=SuperTensor(
                model,
                signature,
                batch_size=settings.batch_size,
                capacity=settings.capacity,
                workers=workers,
                pinned=_pinned_memory(configuration.source) if settings.allocator == "cuda_pinned" else None,
            ),
            counters=VersionCounters(
                [WorkerCounters() for _ in range(workers)], [ExecutorCounters() for _ in sessions]
            ),
        )

    def stop(self) -> None:
        """Refuse new rows; executors end once what is in flight has run. Call when no worker's thread is left."""
        self._stopped.set()
        for supertensor in self._supertensors:
            supertensor.close(workers_ended=True)


def _pinned_memory(source: Path) -> PinnedMemory:
    """For a version whose session runs on a GPU, so that a CUDA runtime is loaded.

    Raises:
        ConfigurationError: it cannot be found.
    """
    runtime = find_cuda_runtime()
    if runtime is None:
        raise ConfigurationError(
            "memory cannot be pinned: no CUDA runtime (libcudart) is loaded into the process",
            source=source,
            key="allocator",
            value="cuda_pinned",
            remedy="write allocator: cpu",
        )
    return PinnedMemory(runtime)
