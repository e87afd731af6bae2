"""Loads a version of an ONNX model: reads its files, makes its sessions, and warms them up. All of it blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from onnxruntime import InferenceSession

from toutates.backends.batches import batches_of
from toutates.backends.onnx.graph_file import GraphFile
from toutates.backends.onnx.inspection import inspect_graph
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.pinned import PinnedMemory, find_cuda_runtime
from toutates.backends.onnx.preparing import CheckedGraph, check_graph, explained, prepare
from toutates.backends.onnx.provider_names import CPU, Provider
from toutates.backends.onnx.row_probe import probe_rows
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.shared_arena import is_small
from toutates.backends.onnx.weights import GraphFiles, GraphSource
from toutates.backends.output_shapes import SeenShapes
from toutates.backends.sequences import instance_settings, sequence_servable, sequences_of
from toutates.backends.warming import run_two_rows, warm_up
from toutates.engine.batched import BatchedServable
from toutates.engine.packing import OtherSizes
from toutates.engine.ragged.backend import RaggedBackend
from toutates.engine.ragged.ragged import Ragged
from toutates.engine.sequences.tensors import SequenceTensors
from toutates.engine.servable import Servable
from toutates.engine.supertensor import QUICK_NS
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import model_config
from toutates.models.config.labels import read_labels, shortfalls
from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import ONNX_BACKENDS, ModelSettings
from toutates.models.idle_cores import SLOW_RUN_NS, idle_cores_advice, usable_cores
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.system.errors import ConfigurationError
from toutates.system.placement import Placement, Turns
from toutates.system.remembered import Remembered

__all__ = ["OnnxKind"]

logger = logging.getLogger(__name__)

#: Batches that are profiled where config.yaml gives no number: all until the version is unloaded.
_NEVER_STOP: Final = 2**62
#: Runs that take less are done by workers where the process has one core: an executor's thread would run at the
#: worker's expense all the same, and the way to it and back takes as long as a small run.
_QUICK_ON_ONE_CORE_NS: Final = 150_000


class OnnxKind:
    """The kind of ONNX models. It claims every version that names no backend, so it must be asked last.

    Args:
        sessions: how the server makes ONNX Runtime's sessions.
        placement: where threads run.
        files: opens graphs.
        device_problem: for ``inspect``, tells why there can be no session with some execution providers; "" if there
            can.
    """

    def __init__(
        self,
        sessions: SessionOptions,
        placement: Placement | None = None,
        device_problem: Callable[[Sequence[Provider]], str] = lambda providers: "",
        files: GraphFiles | None = None,
    ) -> None:
        self._sessions = sessions
        self._files = files or GraphFiles()
        self._device_problem = device_problem
        self._placement = placement or Placement()
        self._intra_op_turns = Turns(self._placement.intra_op)
        self._quick_ns = QUICK_NS if usable_cores(self._placement) > 1 else _QUICK_ON_ONE_CORE_NS
        #: by the identity of options, which are held: the same with the shared arena
        self._sharing: Remembered[int, tuple[tuple[SessionOptions, ...], tuple[SessionOptions, ...]]] = Remembered(64)

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return ONNX_BACKENDS

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``. A directory without a graph is claimed too, and refused by ``load`` with the reason."""
        return True

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        prepared = prepare(model, configuration, self._sessions)
        options, version = prepared.options, configuration.folder
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, version.number, configuration.notice)
        settings = configuration.settings
        model_path = version.model_path
        profiling = settings.profiling
        # Without names of their own, profiles that begin in the same millisecond would overwrite each other.
        prefixes = [
            f"{profiling.file_prefix}_{model}_{version.number}_{number}" if profiling is not None else None
            for number in range(settings.num_executors)
        ]
        shrinkage = settings.session.arena_shrinkage
        sized = settings.padding is not None or settings.ragged is not None
        shares_arena = not (shrinkage or sized) and _on_cpu(options) and options[0].memory_arena and is_small(version)
        if shares_arena:
            options = self._with_shared_arena(options)
        # Weights then are in memory once. Threads and memory of a session's own are an executor's own.
        share_session = _on_cpu(options) and profiling is None and not (shrinkage or sized) and _one_thread(options[0])
        count = 1 if share_session else len(options)

        def make(source: GraphSource) -> tuple[list[InferenceSession], GraphFile]:
            own = zip(options[:count], prefixes, strict=False)
            made = [
                load_session(source.path, self._placed(one), profile_prefix=prefix, weights=source.weights)
                for one, prefix in own
            ]
            if profiling is not None and settings.ragged is None:  # a profile is to show the clients' batches only
                made.append(load_session(source.path, options[0], weights=source.weights))
            return made, source.graph_file

        with explained(version):
            what = f"model '{model}' version {version.number}"
            made, graph_file = self._files.read(version, model_path, what, make, several=count > 1)
        first, others = made[0], made[1:count] if count > 1 else [made[0]] * (len(options) - 1)
        checked = check_graph(first, prepared, first.get_providers(), version.model_dir)
        signature = checked.signature
        for warning in (*prepared.warnings, *checked.warnings):
            logger.warning("model '%s' version %d: %s", model, version.number, warning)
        tensors = sequences_of(model, signature, configuration)
        if tensors is not None:
            signature, checked = tensors.whole, replace(checked, signature=tensors.whole, graph=tensors.whole)
        labels = read_labels(settings, signature, version.model_dir, configuration.source)
        for notice in shortfalls(labels, signature, settings, configuration.source):
            logger.warning("model '%s' version %d: %s", model, version.number, notice)
        profile_batches = (profiling.stop_after_batches or _NEVER_STOP) if profiling is not None else None
        in_time = checked.padding is not None and settings.session.memory_arena and not shrinkage
        other_sizes = OtherSizes(model, version.number)
        ragged = checked.padding if isinstance(checked.padding, Ragged) else None
        sessions = [
            ModelSession(
                session,
                ragged.run_signature(signature) if ragged is not None else signature,
                model,
                number,
                profile_batches=profile_batches,
                arena_shrinkage=shrinkage,
                shrinks_in_time=in_time,
                shares_arena=shares_arena,
                has_subgraphs=graph_file.has_subgraphs,
                other_sizes=other_sizes,
            )
            for number, session in enumerate((first, *others))
        ]
        backends: Sequence[ModelSession | RaggedBackend] = sessions
        if ragged is not None:
            backends = [RaggedBackend(session, ragged, signature, model) for session in sessions]
        seen = SeenShapes(checked.graph) if ragged is None else None
        run_ns = warm_up(
            backends[:1] if first in others else backends, settings, checked.graph, model, version.model_dir, seen
        )
        probed = backends[0]
        if len(made) > count:
            probed = ModelSession(made[-1], signature, model)
        rows = probe_rows(probed, checked.graph, graph_file, configuration, first.get_providers(), run_ns, seen)
        if seen is not None and sessions[0].on_cpu:  # on a device, a shape may need an engine of its own
            run_two_rows(sessions[0], settings, checked.graph, model, version.model_dir, seen)
        if seen is not None and seen.problem:
            other_sizes.say(seen.problem)
            for session in sessions:
                session.declare(seen.opened(session.signature))
            checked = replace(checked, graph=seen.opened(checked.graph), signature=seen.opened(checked.signature))
            if tensors is not None:
                tensors = replace(tensors, signature=seen.opened(tensors.signature), whole=seen.opened(tensors.whole))
        if rows.warning:
            logger.warning("model '%s' version %d: %s", model, version.number, rows.warning, extra={"model": model})
        advice = ""
        if run_ns >= SLOW_RUN_NS and all(session.on_cpu for session in sessions):
            cores = usable_cores(self._placement)
            advice = idle_cores_advice(run_ns, settings, options[0].intra_threads, cores, configuration.source.name)
            if advice:
                logger.info("model '%s' version %d: %s", model, version.number, advice)
        providers = first.get_providers()
        servable = self._servable(model, version.number, configuration, checked, tensors, backends, joins=rows.joins)
        triton = version.triton
        return ServedVersion(
            model=model,
            number=version.number,
            description=partial(
                model_config,
                model,
                servable.signature,
                settings,
                gpu=providers[0] != CPU,
                version_policy=triton.version_policy if triton is not None else None,
                given=configuration.given,
            ),
            servable=servable,
            given=configuration.given,
            labels=labels,
            advice=advice,
            takes_parameters=None if tensors is None else lambda: True,
            sessions=1 + sum(session is not first for session in others),
        )

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``. Reads the graph on the CPU, whatever it is served with."""
        return inspect_graph(model, configuration, self._sessions, self._device_problem, try_warmup=try_warmup)

    def _placed(self, options: SessionOptions) -> SessionOptions:
        """The options, with CPUs for the intra-op threads of one more session."""
        cpus = self._intra_op_turns.take(options.intra_threads - 1)
        return replace(options, intra_op_cpus=cpus) if cpus else options

    def _with_shared_arena(self, options: tuple[SessionOptions, ...]) -> tuple[SessionOptions, ...]:
        """The options of a version's sessions, which share the arena of all small models."""
        known = self._sharing.get(id(options))
        if known is None:
            known = (options, tuple(replace(own, shared_arena=True) for own in options))
            self._sharing.put(id(options), known)
        return known[-1]

    def _servable(
        self,
        model: str,
        number: int,
        configuration: VersionConfiguration,
        checked: CheckedGraph,
        tensors: SequenceTensors | None,
        sessions: Sequence[ModelSession | RaggedBackend],
        *,
        joins: bool,
    ) -> Servable:
        """What serves a version, whose requests share runs or do not."""
        signature, settings = checked.signature, configuration.settings
        pinned = settings.allocator == "cuda_pinned"
        pin = _pinned_memory(configuration.source).pin if pinned else None
        pool_threads = (settings.session.intra_threads or self._sessions.intra_threads) - 1

        def batched(own: ModelSettings, backends: Sequence[ModelSession | RaggedBackend]) -> BatchedServable:
            supertensor = batches_of(
                model,
                signature,
                own,
                is_triton=configuration.source.name == PBTXT_NAME,
                pin=pin,
                lends=not pinned,
                quick_ns=self._quick_ns,
                padding=checked.padding,
                keeps_split=True,
                grows=tensors is None,
                joins=joins,
            )
            return BatchedServable(
                number,
                supertensor,
                backends,
                pool_threads=len(backends) * pool_threads,
                memory_kind="CPU_PINNED" if pinned else "CPU",
                device=_device_of(backends),
                pooled=all([one.on_cpu for one in backends]),
            )

        if tensors is None:
            return batched(settings, sessions)
        own = instance_settings(settings)
        return sequence_servable(model, number, tensors, settings, [batched(own, [one]) for one in sessions])


def _device_of(backends: Sequence[ModelSession | RaggedBackend]) -> int | None:
    """The GPU that all of these run on; None where they differ, or join rows themselves."""
    devices = {backend.device if isinstance(backend, ModelSession) else None for backend in backends}
    return devices.pop() if len(devices) == 1 else None


def _on_cpu(options: Sequence[SessionOptions]) -> bool:
    """Whether all sessions with these options run on the CPU."""
    return all(name == CPU for own in options for name, _ in own.providers)


def _one_thread(options: SessionOptions) -> bool:
    """Whether a run of such a session uses no thread but the caller's."""
    return options.intra_threads == 1 and options.inter_threads == 1 and not options.parallel


def _pinned_memory(source: Path) -> PinnedMemory:
    """Page-locked memory for a version whose session runs on a GPU, and has therefore loaded a CUDA runtime.

    Raises:
        ConfigurationError: no CUDA runtime is loaded.
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
