"""Probes the rows of a version of an ONNX model (``backends.probing``), once for equal files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from toutates.backends.onnx.graph_file import GraphFile
from toutates.backends.onnx.provider_names import ON_DEVICES, TENSORRT
from toutates.backends.onnx.session import ModelSession
from toutates.backends.output_shapes import SeenShapes
from toutates.backends.probing import NOT_TRIED, Verdict, probe, sample_lengths
from toutates.backends.warming import most_rows
from toutates.engine.ragged.backend import RaggedBackend
from toutates.models.config.configuration import VersionConfiguration
from toutates.protocol.signature import Signature
from toutates.system.remembered import Remembered

__all__ = ["FOUND", "probe_rows"]

#: Of a run that takes less, a probe takes no longer than to read the file.
_QUICK_NS: Final = 50_000

#: A file of so many bytes is read in less time than the shortest probe takes.
_SMALL_BYTES: Final = 65_536

#: A probe computes so many rows at least.
_ROW_RUNS: Final = 8

#: The shapes of the outputs of a run, and how many rows went in.
Run = tuple[list[tuple[int, ...]], int]

#: What was found, and the runs, by the content of a file and by what else a probe depends on.
FOUND: Final[Remembered[tuple[object, ...], tuple[Verdict, list[Run]]]] = Remembered(1_024)


def probe_rows(
    session: ModelSession | RaggedBackend,
    graph: Signature,
    file: GraphFile,
    configuration: VersionConfiguration,
    providers: Sequence[str],
    row_ns: int,
    seen: SeenShapes | None = None,
) -> Verdict:
    """Find whether the rows of a version depend on each other. Blocks, for a second at most.

    Args:
        session: of the version, which was warmed up; nothing else uses it.
        graph: the tensors of a run.
        file: of the graph.
        configuration: of the version.
        providers: the names of the execution providers that it is served with.
        row_ns: how long a run of one row takes, nanoseconds; 0 if that is not known.
        seen: takes in the shapes of outputs; None for nobody.
    """
    settings = configuration.settings
    if not graph.batched:
        return Verdict()
    lengths = sample_lengths(settings, graph)
    joint_rows = 0
    if providers[0] == TENSORRT or (providers[0] in ON_DEVICES and session.device is None):
        # An engine is built for each shape, which takes minutes, or a graph of CUDA recorded: those of the warm-up are
        # there.
        if lengths is None:
            lengths = {index: _closed(tensor.graph_shape) for index, tensor in enumerate(graph.inputs)}
            sizes = {1, most_rows(settings, graph)}
        else:
            sizes = {sample.batch_size for sample in settings.warmup}
        if 1 not in sizes or max(sizes) == 1:
            why = "the warm-up has not run both a row and several, and the provider prepares each shape anew"
            return Verdict(skipped=f"{NOT_TRIED}{why}; write samples of 1 row and of 4, of the same dims")
        joint_rows = min(sizes - {1})
    runs: list[Run] = []
    ragged = session.ragged if isinstance(session, RaggedBackend) else None
    run = partial(
        probe,
        session,
        graph,
        row_ns=row_ns,
        says_joined=settings.joined_by,
        lengths=lengths,
        facts=file.facts,
        run_joined=session.run_each if isinstance(session, RaggedBackend) else None,
        uncounted=tuple(ragged.outputs) if ragged is not None else (),
        joint_rows=joint_rows,
        on_run=lambda outputs, rows: runs.append(([array.shape for array in outputs], rows)),
    )
    digest = _digest(file, row_ns) if ragged is None else b""
    key = (digest, graph, settings.joined_by, tuple((lengths or {}).items()), tuple(providers), joint_rows)
    known = FOUND.get(key) if digest else None
    if known is None:
        known = run(), runs
        if digest and not known[0].skipped:  # which may be different when the machine is less busy
            FOUND.put(key, known)
    if seen is not None:
        for shapes, rows in known[1]:
            seen.note_shapes(shapes, rows)
    return known[0]


def _digest(file: GraphFile, row_ns: int) -> bytes:
    """The digest of a graph's file; empty where a probe takes no longer than to read that.

    Args:
        file: of the graph.
        row_ns: how long a run of one row takes, nanoseconds.
    """
    size = 0 if file.identity is None else file.identity[2]
    # It is read at a byte or two in each nanosecond.
    is_dear = size > _SMALL_BYTES and (row_ns < _QUICK_NS or size > _ROW_RUNS * row_ns)
    return b"" if is_dear else file.digest()


def _closed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([1 if size == -1 else size for size in shape])
