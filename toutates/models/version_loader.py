"""Loading one version: its files read, its sessions made, tried and warmed up. All of it blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from toutates.engine.counters import ExecutorCounters, VersionCounters, WorkerCounters
from toutates.engine.pinned import PinnedMemory, find_cuda_runtime
from toutates.engine.room import PBTXT_KEYS, YAML_KEYS
from toutates.engine.session import ModelSession, SessionOptions, load_session
from toutates.engine.supertensor import SuperTensor
from toutates.models.capacity import capacity_bytes
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import model_config
from toutates.models.config.labels import read_labels, shortfalls
from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.idle_cores import idle_cores_advice, usable_cores
from toutates.models.preparing import check_graph, explained, prepare
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.models.warming import warm_up
from toutates.protocol.signature import Signature
from toutates.system.errors import ConfigurationError
from toutates.system.placement import Placement, Turns, running_on

__all__ = ["LoadOptions", "VersionLoader"]

logger = logging.getLogger(__name__)

#: Profiles end at unloading where config.yaml gives no number of batches.
_NEVER_STOP: Final = 2**62


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


class VersionLoader:
    """See the module.

    Args:
        options: see LoadOptions.
    """

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._intra_op_turns = Turns(options.placement.intra_op)

    def load(self, model: str, version: VersionFolder, *, overridden: bool) -> tuple[ServedVersion, list[ModelSession]]:
        """Load a version. To be called in a thread.

        Args:
            model: its name.
            version: what a repository has of it.
            overridden: whether what ``version.triton`` says holds, even beside a config.yaml.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
        """
        began_ns = time.monotonic_ns()
        # Not on the manager's CPU alone, which the thread inherits, and threads that ONNX Runtime starts would too.
        anywhere = self._options.placement.anywhere
        with running_on(anywhere, anywhere):
            served, sessions = self._load(model, version, overridden)
        return replace(served, load_ns=time.monotonic_ns() - began_ns), sessions

    def _load(self, model: str, version: VersionFolder, overridden: bool) -> tuple[ServedVersion, list[ModelSession]]:
        prepared = prepare(model, version, self._options.sessions, overridden=overridden)
        configuration, options = prepared.configuration, prepared.options
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, version.number, configuration.notice)
        for warning in prepared.warnings:
            logger.warning("model '%s' version %d: %s", model, version.number, warning)
        settings = configuration.settings
        model_path = configuration.folder.model_path
        profiling = settings.profiling
        # Without names of their own, profiles that begin in the same millisecond would overwrite each other.
        prefixes = [
            f"{profiling.file_prefix}_{model}_{version.number}_{number}" if profiling is not None else None
            for number in range(settings.num_executors)
        ]
        with explained(version.path):
            first = load_session(model_path, self._placed(options[0]), profile_prefix=prefixes[0])
        signature = check_graph(first, prepared, first.get_providers(), version.path.parent)
        labels = read_labels(settings, signature, version.path.parent, configuration.source)
        for notice in shortfalls(labels, signature, settings, configuration.source):
            logger.warning("model '%s' version %d: %s", model, version.number, notice)
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
        served = self._describe(model, version.number, configuration, signature, sessions, first.get_providers())
        served = replace(served, labels=labels)
        run_ns = warm_up(sessions, settings, signature, model, version.path.parent)
        if all(session.on_cpu for session in sessions):
            cores = usable_cores(self._options.placement)
            advice = idle_cores_advice(run_ns, settings, options[0].intra_threads, cores, configuration.source.name)
            if advice:
                logger.info("model '%s' version %d: %s", model, version.number, advice)
                served = replace(served, advice=advice)
        return served, sessions

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
                given=configuration.given,
            ),
            supertensor=SuperTensor(
                model,
                signature,
                batch_size=settings.batch_size,
                capacity=settings.capacity,
                workers=workers,
                capacity_bytes=capacity_bytes(settings, signature),
                max_queue_size=settings.max_queue_size,
                keys=PBTXT_KEYS if configuration.source.name == PBTXT_NAME else YAML_KEYS,
                pinned=_pinned_memory(configuration.source) if settings.allocator == "cuda_pinned" else None,
                delay_ns=settings.max_queue_delay_us * 1_000 if signature.batched else 0,
                enough_rows=min(settings.preferred_batch_sizes, default=settings.batch_size),
            ),
            counters=VersionCounters(
                [WorkerCounters() for _ in range(workers)], [ExecutorCounters() for _ in sessions]
            ),
        )


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
