"""How ONNX Runtime's sessions are made: options, execution providers, and what can be wrong with them."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnxruntime

from toutates.backends.onnx.provider_names import ON_CPU, ON_DEVICES, Provider
from toutates.backends.onnx.shared_arena import TINY_MODEL, USE_SHARED_ENTRY, shared_arena
from toutates.backends.onnx.weights import Weights
from toutates.system.errors import ModelLoadError
from toutates.system.text import one_line

__all__ = ["MAX_REASON", "OPERATORS_REMEDY", "SessionOptions", "load_session", "provider_problem"]

logger = logging.getLogger(__name__)

#: Characters of what ONNX Runtime says.
MAX_REASON: Final = 1_000

#: What ONNX Runtime says of an operator that it does not know, and what to do about it.
_UNKNOWN_OPERATOR: Final = re.compile(
    r"is not a registered function/op|No opset import for domain|No Op registered for|is not registered"
)
OPERATORS_REMEDY: Final = "name the library of its custom operators in --custom-op-libraries"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session is made.

    Attributes:
        providers: ONNX Runtime's execution providers, by priority, each with its options.
        custom_op_libraries: shared libraries of custom operators; directories from which models may have theirs.
        intra_threads: threads inside one operator. One is right for small models: idle pool threads cost CPU.
        inter_threads: threads across operators.
        intra_op_cpus: the CPU of each thread of the pool inside operators, ``intra_threads`` - 1 of them because the
            executor's own thread is the first; empty leaves them where the system puts them.
        parallel: whether operators run side by side; None: only if ``inter_threads`` is above 1.
        graph_level: graph optimisations: ``off``, ``basic``, ``extended`` or ``all``.
        memory_arena: whether CPU memory comes from an arena, which never gives memory back by itself.
        shared_arena: whether that arena is the one of all small models.
        memory_pattern: whether memory is planned by the pattern of earlier runs.
        config_entries: further entries of ONNX Runtime's session configuration.
    """

    providers: tuple[Provider, ...] = (ON_CPU,)
    custom_op_libraries: tuple[Path, ...] = ()
    intra_threads: int = 1
    inter_threads: int = 1
    intra_op_cpus: tuple[int, ...] = ()
    parallel: bool | None = None
    graph_level: str = "all"
    memory_arena: bool = True
    shared_arena: bool = False
    memory_pattern: bool = True
    config_entries: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Sessions of many versions share them.
        frozen = tuple([(name, MappingProxyType(dict(options))) for name, options in self.providers])
        object.__setattr__(self, "providers", frozen)


_GRAPH_LEVELS: Final = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def load_session(
    model_path: Path, options: SessionOptions, *, profile_prefix: str | None = None, weights: Weights | None = None
) -> onnxruntime.InferenceSession:
    """Load a model. Blocks for as long as ONNX Runtime needs to optimise the graph.

    Args:
        model_path: the ``.onnx`` file.
        options: see SessionOptions.
        profile_prefix: where to write ONNX Runtime's profile, or None for no profile.
        weights: what the session is made with beside the file.

    Raises:
        ModelLoadError: with ONNX Runtime's reason.
    """
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.intra_threads
    session_options.inter_op_num_threads = options.inter_threads
    # A pool that spins takes whole cores from the workers while it waits.
    session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session_options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if options.intra_op_cpus:
        # One group per thread of the pool, and ONNX Runtime counts processors from 1.
        affinities = ";".join(str(cpu + 1) for cpu in options.intra_op_cpus)
        session_options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    parallel = options.inter_threads > 1 if options.parallel is None else options.parallel
    if parallel:  # else there is no second thread
        session_options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    session_options.graph_optimization_level = _GRAPH_LEVELS[options.graph_level]
    session_options.enable_cpu_mem_arena = options.memory_arena
    session_options.enable_mem_pattern = options.memory_pattern
    if options.shared_arena and options.memory_arena and shared_arena():
        session_options.add_session_config_entry(*USE_SHARED_ENTRY)
    for key, value in options.config_entries:
        session_options.add_session_config_entry(key, value)
    # Fatal errors only: a run that fails comes back as an exception, and would leave a line in the log for each request
    # of a broken client. What a provider lacks is said by another logger of ONNX Runtime's.
    session_options.log_severity_level = 4
    if profile_prefix is not None:
        session_options.enable_profiling = True
        session_options.profile_file_prefix = profile_prefix
    try:
        for library in filter(Path.is_file, options.custom_op_libraries):
            session_options.register_custom_ops_library(str(library))
        if weights is not None:
            weights.give(session_options)
        session = _new_session(str(model_path), session_options, options.providers)
    except Exception as error:  # ONNX Runtime's exceptions share no base class of its own
        said = one_line(error, MAX_REASON)
        remedy = f"; {OPERATORS_REMEDY}" if _UNKNOWN_OPERATOR.search(said) else ""
        raise ModelLoadError(f"onnxruntime cannot load '{model_path.name}': {said}{remedy}") from error
    missing = _missing(session, options.providers)
    if missing:
        raise ModelLoadError(missing)
    if weights is not None:
        session.weights = weights  # it reads them, and does not hold them
    return session


def provider_problem(providers: Sequence[Provider]) -> str:
    """Why a session cannot be made with these execution providers; empty if it can. Blocks while a device starts."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return _missing(_new_session(TINY_MODEL, options, providers), providers)
    except Exception as error:
        return one_line(error, MAX_REASON)


def _new_session(
    model: str | bytes, options: onnxruntime.SessionOptions, providers: Sequence[Provider]
) -> onnxruntime.InferenceSession:
    if any(name in ON_DEVICES for name, _ in providers):
        _load_cuda()
    own = [(name, dict(options)) for name, options in providers]  # it takes dicts alone
    # Without its fallback, which prints to stdout and goes on with the CPU, at loading and in the middle of a run.
    return onnxruntime.InferenceSession(model, options, providers=own, enable_fallback=0)


@functools.cache
def _load_cuda() -> None:
    """Load the libraries of CUDA and cuDNN from NVIDIA's packages of PyPI, where ONNX Runtime does not look by itself.

    What those packages do not have is left to the system's loader, as ever. Once in a process.
    """
    preload = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if preload is not None:
        with redirect_stdout(StringIO()) as said:  # it prints what it does not find
            preload()
        if said.getvalue():
            logger.debug("%s", one_line(said.getvalue(), MAX_REASON))


def _missing(session: onnxruntime.InferenceSession, providers: Sequence[Provider]) -> str:
    """The providers that a session lacks, as an error; "" if it has all. ONNX Runtime goes on with the others."""
    missing = [name for name, _ in providers if name not in session.get_providers()]
    return f"onnxruntime could not start {', '.join(missing)}; its messages above say why" if missing else ""
