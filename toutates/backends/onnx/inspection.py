"""Inspects a version without serving it: reads its graph and tries it on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from onnxruntime import InferenceSession

from toutates.backends.onnx.named_dimensions import shared_dimensions
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.preparing import CheckedGraph, check_graph, explained, prepare
from toutates.backends.onnx.provider_names import CPU, CUDA, ON_CPU, TENSORRT, Provider
from toutates.backends.onnx.row_probe import probe_rows
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.weights import GraphFiles
from toutates.backends.output_shapes import SeenShapes
from toutates.backends.sequences import sequences_of
from toutates.backends.warming import run_two_rows, time_row, warm_up
from toutates.engine.ragged.backend import RaggedBackend
from toutates.engine.ragged.ragged import Ragged
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import ONNX_NAME
from toutates.models.config.labels import read_labels, shortfalls
from toutates.models.idle_cores import idle_cores_advice, usable_cores
from toutates.models.inspection import InspectedVersion
from toutates.system.errors import ModelLoadError
from toutates.system.placement import Placement

__all__ = ["ALL_DEVICES", "inspect_graph"]

#: Execution providers of a server that has every device.
ALL_DEVICES: Final[tuple[Provider, ...]] = ((TENSORRT, {}), (CUDA, {}), ON_CPU)


def inspect_graph(
    model: str,
    configuration: VersionConfiguration,
    server: SessionOptions,
    device_problem: Callable[[Sequence[Provider]], str],
    *,
    try_warmup: bool,
) -> InspectedVersion:
    """Read a version's graph, on the CPU. Blocks while ONNX Runtime reads the weights, which are freed again.

    Args:
        model: its name.
        configuration: of the version.
        server: how the server would make its sessions.
        device_problem: tells why there can be no session with some execution providers; "" if there can.
        try_warmup: whether the warm-up samples are run, once each. A version without samples that is served on the CPU
            runs a row of zeros.

    Raises:
        ConfigurationError: a file cannot be used, or contradicts the graph; with a line for each problem.
        ModelLoadError: the graph cannot be read or run, with ONNX Runtime's reason.
    """
    prepared = prepare(model, configuration, server)
    folder = configuration.folder
    for providers in dict.fromkeys(_hashable(options.providers) for options in prepared.options):
        problem = device_problem([(name, dict(options)) for name, options in providers])
        if problem:
            raise ModelLoadError(problem)
    settings = configuration.settings
    on_cpu = SessionOptions(
        custom_op_libraries=prepared.options[0].custom_op_libraries,
        graph_level="off",
        memory_arena=False,
        memory_pattern=False,
        # Weights are not copied into the layout that the CPU's operators prefer.
        config_entries=(("session.disable_prepacking", "1"),),
    )
    with explained(folder):
        session, graph_file = GraphFiles().read(
            folder,
            folder.model_path,
            f"model '{model}' version {folder.number}",
            lambda source: (load_session(source.path, on_cpu, weights=source.weights), source.graph_file),
        )
    served_by = [name for name, _ in prepared.options[0].providers]
    checked = check_graph(session, prepared, served_by, folder.model_dir)
    signature, graph = checked.signature, checked.graph
    tensors = sequences_of(model, signature, configuration)
    labels = read_labels(settings, signature, folder.model_dir, configuration.source)
    warnings = (*prepared.warnings, *checked.warnings, *shortfalls(labels, signature, settings, configuration.source))
    run_ns = 0
    runner = _runner(session, checked, model)
    shapes = SeenShapes(graph) if isinstance(runner, ModelSession) else None
    if try_warmup and settings.warmup:
        once = replace(settings, warmup=tuple(replace(sample, count=1) for sample in settings.warmup))
        run_ns = warm_up([runner], once, graph, model, folder.model_dir, shapes)
    elif try_warmup and served_by[0] == CPU:
        run_ns = time_row(runner, graph, shapes)
    if shapes is not None and run_ns:
        run_two_rows(runner, settings, graph, model, folder.model_dir, shapes)
    if shapes is not None and shapes.problem:
        warnings, signature = (*warnings, shapes.problem), shapes.opened(signature)
        tensors = None if tensors is None else replace(tensors, signature=shapes.opened(tensors.signature))
    notices = shared_dimensions(session, graph)
    if try_warmup:
        found = probe_rows(runner, graph, graph_file, configuration, served_by, run_ns)
        warnings = (*warnings, found.warning) if found.warning else warnings
        notices = (*notices, found.skipped) if found.skipped else notices
    advice = ""
    if served_by[0] == CPU:
        threads, cores = prepared.options[0].intra_threads, usable_cores(Placement())
        advice = idle_cores_advice(run_ns, settings, threads, cores, configuration.source.name)
    seen = signature if tensors is None else tensors.signature
    return InspectedVersion.of(model, configuration, seen, ONNX_NAME, warnings, advice, notices=notices)


def _runner(session: InferenceSession, checked: CheckedGraph, model: str) -> ModelSession | RaggedBackend:
    """What runs the arrays of clients."""
    graph, ragged = checked.graph, checked.padding
    if not isinstance(ragged, Ragged):
        return ModelSession(session, graph, model)
    return RaggedBackend(ModelSession(session, ragged.run_signature(graph), model), ragged, graph, model)


def _hashable(providers: Sequence[Provider]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    return tuple((name, tuple(sorted(options.items()))) for name, options in providers)
