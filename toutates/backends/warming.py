"""Warm-up: runs before a version is ready, so that no client waits for what is done at the first run only.

Where the configuration has samples (``model_warmup``), these are run, and the version fails if one of them fails. Else
rows of zeros are run: one, and as many as a batch takes. On the CPU a small model's first full batch takes no longer
than the next ones, and would only make its arena larger; so it is left out. No user asked for zeros, so a model that
fails on them is served nevertheless.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.backends.output_shapes import SeenShapes
from toutates.engine.lane import MAX_BATCH_BYTES
from toutates.models.config.settings import ModelSettings, WarmupSample
from toutates.models.config.warmup import warmup_arrays
from toutates.models.idle_cores import SLOW_RUN_NS
from toutates.protocol.signature import Signature
from toutates.protocol.strings import StringTensor
from toutates.system.errors import ModelLoadError, RequestError
from toutates.system.text import text_of

__all__ = ["Inputs", "Runner", "most_rows", "run_two_rows", "time_row", "warm_up"]

logger = logging.getLogger(__name__)

#: A run that takes longer than this, in nanoseconds, is not repeated to measure it.
LONG_RUN_NS: Final = 1_000_000_000
#: Runs of the samples of a version, over all its sessions, and how long samples are repeated, nanoseconds: a load
#: occupies a thread that others wait for, and somebody who may load models shall not occupy it for ever.
MAX_RUNS: Final = 1_000
MAX_REPEATING_NS: Final = 10_000_000_000
#: Two rows are not run where one takes longer, nanoseconds.
LONG_ROW_NS: Final = 250_000_000
#: A model is small whose first run takes less than this, nanoseconds.
_SMALL_RUN_NS: Final = 1_000_000


#: Inputs of a run, by the input's index.
Inputs = Mapping[int, npt.NDArray[Any] | StringTensor]


class Runner(Protocol):
    """The part of a backend that warm-up uses.

    Attributes:
        started_ns, ended_ns, on_cpu: see ``engine.servable.Backend``.
    """

    started_ns: int
    ended_ns: int

    @property
    def on_cpu(self) -> bool: ...

    def run_arrays(self, inputs: Inputs) -> Any:
        """Run on arrays, by the input's index; returns the outputs.

        Raises:
            RequestError: the run failed.
        """
        ...


def warm_up(
    sessions: Sequence[Runner],
    settings: ModelSettings,
    signature: Signature,
    model: str,
    model_dir: Path,
    seen: SeenShapes | None = None,
    repeating_ns: int = MAX_REPEATING_NS,
) -> int:
    """Warm up each session of a version. Blocks.

    Args:
        sessions: the version's; nothing else uses them yet.
        settings, signature: the version's.
        model: the model's name.
        model_dir: the model's directory, which holds the samples' files.
        seen: takes in the shapes of outputs; None where these are not those of ``signature``.
        repeating_ns: how long samples are repeated, nanoseconds.

    Returns:
        How long a run of one row takes, nanoseconds: a row of zeros, or a sample's time divided by its rows. 0 if there
        was no run.

    Raises:
        ModelLoadError: a sample failed.
        ConfigurationError: a sample's file cannot be used.
    """
    times = _run_samples(sessions, settings.warmup, signature, model, model_dir, seen, repeating_ns)
    # A profile is to show the clients' batches only.
    if not settings.warmup and settings.profiling is None:
        row_ns = time_row(sessions[0], signature, seen)
        times.append(row_ns)
        is_small = 0 < row_ns < _SMALL_RUN_NS and sessions[0].on_cpu
        for rows in sorted({1} if is_small else {1, most_rows(settings, signature)}):
            arrays = _zeros(signature, rows)
            for session in sessions:
                if rows == 1 and session is sessions[0] and row_ns:
                    continue  # which it has run
                try:
                    _run(session, arrays, rows, seen)
                except RequestError as error:
                    logger.debug("model '%s' does not run on %d rows of zeros: %s", model, rows, error)

    return min(filter(None, times), default=0)


def _run_samples(
    sessions: Sequence[Runner],
    samples: Sequence[WarmupSample],
    signature: Signature,
    model: str,
    model_dir: Path,
    seen: SeenShapes | None,
    repeating_ns: int,
) -> list[int]:
    """Run samples as often as they ask for, within MAX_RUNS and ``repeating_ns``; returns nanoseconds of a row of each.

    Each sample is run once by each session, however long that takes, because a first run of a shape may be the one that
    counts; but the time that has passed since the beginning is left for no second one.
    """
    times: list[int] = []
    until_ns = time.monotonic_ns() + repeating_ns
    wanted = sum(sample.count for sample in samples) * len(sessions)
    for sample in samples:
        if len(times) >= MAX_RUNS:
            break
        arrays = warmup_arrays(sample, signature, model, model_dir)
        for session in sessions:
            try:
                for number in range(sample.count):
                    if len(times) >= MAX_RUNS or (number and time.monotonic_ns() >= until_ns):
                        break
                    _run(session, arrays, sample.batch_size, seen)
                    times.append((session.ended_ns - session.started_ns) // sample.batch_size)
            except RequestError as error:
                raise ModelLoadError(f"failed to run warmup sample '{sample.name}': {text_of(error)}") from error
    if len(times) < wanted:
        logger.warning(
            "model '%s': %d of %d warm-up runs were made: %d at most, and no sample is repeated after %.0f s; "
            "give the samples a smaller count",
            model,
            len(times),
            wanted,
            MAX_RUNS,
            repeating_ns / 1e9,
        )
    return times


def _run(session: Runner, arrays: Inputs, rows: int, seen: SeenShapes | None) -> None:
    outputs = session.run_arrays(arrays)
    if seen is not None:
        seen.note(outputs, rows)


def run_two_rows(
    session: Runner, settings: ModelSettings, signature: Signature, model: str, model_dir: Path, seen: SeenShapes
) -> None:
    """Run two rows where the first axis of inputs is open, which shows sizes that follow it. Blocks.

    They are zeros, or those of the first sample twice; that they do not run says nothing. Nothing is run where several
    rows have been, as by a probe, and where a row takes long. Not to be called where each shape needs an engine of its
    own.

    Args:
        session: which has been warmed up; nothing else uses it yet.
        settings, signature, model, model_dir: as of ``warm_up``.
        seen: takes in the shapes of outputs.
    """
    is_slow = session.ended_ns - session.started_ns > LONG_ROW_NS
    if seen.most_rows > 1 or is_slow or settings.profiling is not None:
        return
    if settings.warmup:
        sample = settings.warmup[0]
        arrays = _doubled(warmup_arrays(sample, signature, model, model_dir), signature)
        rows = 2 * sample.batch_size
    else:
        arrays, rows = _zeros(signature, 2), 2
        if not signature.batched:
            if all(tensor.graph_shape[:1] != (-1,) for tensor in signature.inputs):
                return
            arrays = _doubled(arrays, signature)
    try:
        _run(session, arrays, rows, seen)
    except RequestError as error:
        logger.debug("model '%s' does not run on %d rows: %s", model, rows, error)


def _doubled(arrays: Inputs, signature: Signature) -> dict[int, npt.NDArray[Any] | StringTensor]:
    """The arrays with all that they have twice, along a first axis that is open."""
    doubled = dict(arrays)
    for index, array in arrays.items():
        shape = array.shape
        if signature.batched or signature.inputs[index].graph_shape[:1] == (-1,):
            whole = (2 * shape[0], *shape[1:])
            if isinstance(array, StringTensor):
                doubled[index] = StringTensor.of([*array.elements(), *array.elements()], whole)
            else:
                doubled[index] = np.concatenate([array, array])
    return doubled


def time_row(session: Runner, signature: Signature, seen: SeenShapes | None = None) -> int:
    """How long a run of one row of zeros takes, nanoseconds; 0 if the run fails.

    The first run also allocates memory, so a run that is neither quick nor very long is done twice.
    """
    arrays = _zeros(signature, 1)
    taken_ns = 0
    try:
        _run(session, arrays, 1, seen)
        taken_ns = session.ended_ns - session.started_ns
        if SLOW_RUN_NS <= taken_ns < LONG_RUN_NS:
            session.run_arrays(arrays)
            taken_ns = min(taken_ns, session.ended_ns - session.started_ns)
    except RequestError:
        pass  # ``warm_up`` says so
    return taken_ns


def most_rows(settings: ModelSettings, signature: Signature) -> int:
    """Rows of a full batch."""
    if not signature.batched:
        return 1
    row_bytes = sum(
        prod(_closed(tensor.graph_shape)) * max(tensor.datatype.size, 1)
        for tensor in signature.inputs
        if not tensor.optional
    )
    return max(1, min(settings.batch_size, MAX_BATCH_BYTES // max(row_bytes, 1)))


def _zeros(signature: Signature, rows: int) -> dict[int, npt.NDArray[Any] | StringTensor]:
    """Zeros for every required input; dimensions that the model leaves open are 1."""
    arrays: dict[int, npt.NDArray[Any] | StringTensor] = {}
    for index, tensor in enumerate(signature.inputs):
        if not tensor.optional:
            shape = (rows,) * signature.batched + _closed(tensor.graph_shape)
            if tensor.datatype.size:
                arrays[index] = np.zeros(shape, tensor.datatype.numpy)
            else:
                arrays[index] = StringTensor.of([b""] * prod(shape), shape)
    return arrays


def _closed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if size == -1 else size for size in shape)
