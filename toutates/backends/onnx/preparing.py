"""Checks a version before it is served: its files, its devices, and its graph against its configuration.

``OnnxKind`` does this for every version that it loads, and ``toutates check`` for every version of a repository, so
that both find the same problems.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import onnxruntime

from toutates.backends.onnx.executor_sessions import executor_session_options, without_effect
from toutates.backends.onnx.named_dimensions import empty_inputs
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.own_libraries import own_libraries
from toutates.backends.onnx.provider_names import ON_DEVICES
from toutates.backends.onnx.signature_reader import NodeArg, read_signature
from toutates.engine.padded.padding import Padding
from toutates.engine.ragged.ragged import Ragged
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.declared import Declared
from toutates.models.config.padding import padding_of, padding_warnings, with_made_mask
from toutates.models.config.ragged import RaggedKeys, ragged_of
from toutates.models.config.settings import ModelSettings
from toutates.models.config.triton_ragged import PBTXT_RAGGED_KEYS
from toutates.models.config.warmup import check_warmup
from toutates.models.repository import VersionFolder
from toutates.protocol.signature import Signature
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.remembered import Remembered

__all__ = ["CheckedGraph", "PreparedVersion", "check_allocator", "check_graph", "explained", "prepare"]

#: How many files of a version are tried, to find one that may not be read.
_MAX_FILES: Final = 1_000
_NOT_PERMITTED: Final = frozenset({errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version whose files were read, except the graph.

    Attributes:
        configuration: its configuration, from its files.
        options: the options of each executor's session.
        warnings: settings in its files that have no effect, one sentence each.
    """

    configuration: VersionConfiguration
    options: tuple[SessionOptions, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedGraph:
    """A version's graph together with its configuration.

    Attributes:
        graph: the tensors of a run, but for batch inputs of ragged rows.
        signature: the tensors that clients see.
        padding: how rows of different length share a batch; None where they do not.
        warnings: what may be a mistake, one sentence each.
    """

    graph: Signature
    signature: Signature
    padding: Padding | Ragged | None
    warnings: tuple[str, ...]


# What versions with the same settings have in common, by the identity of these: what is known holds them, so that no
# other object can have it.
_OPTIONS = Remembered[tuple[int, int], tuple[SessionOptions, ModelSettings, tuple[SessionOptions, ...]]](256)
_COMPARED = Remembered[Hashable, tuple[ModelSettings, Declared | None, CheckedGraph]](256)


def prepare(model: str, configuration: VersionConfiguration, server: SessionOptions) -> PreparedVersion:
    """Check that the graph of a version can be read, and choose the devices of its sessions.

    Args:
        model: its name.
        configuration: of the version.
        server: how the server makes its sessions.

    Raises:
        ConfigurationError: the configuration asks for a device that is not there; with a line for each problem.
        ModelLoadError: the graph's file cannot be found.
    """
    if configuration.folder.problem:
        raise ModelLoadError(configuration.folder.problem)
    settings, source = configuration.settings, configuration.source
    if settings.parameters:
        raise ConfigurationError(
            "are for other backends than that of ONNX models",
            source=source,
            key="parameters",
            value=dict(settings.parameters),
            remedy="write what you mean of ONNX Runtime under `session`, and remove the key",
        )
    options = _options(server, settings, model, source)
    libraries = own_libraries(configuration, server.custom_op_libraries)
    if libraries.paths:
        named = (*server.custom_op_libraries, *libraries.paths)
        options = tuple(replace(own, custom_op_libraries=named) for own in options)
    unused = without_effect(settings, options) if settings.accelerators else ""
    warnings = (f"'{source}': {unused}",) if unused else ()
    return PreparedVersion(configuration, options, (*warnings, *libraries.warnings))


def _options(server: SessionOptions, settings: ModelSettings, model: str, source: Path) -> tuple[SessionOptions, ...]:
    """The options of each executor's session. Versions that share their settings share them."""
    key = (id(server), id(settings))
    known = _OPTIONS.get(key)
    if known is not None:
        return known[-1]
    options = tuple(
        executor_session_options(server, settings, number, model=model, source=source)
        for number in range(settings.num_executors)
    )
    _OPTIONS.put(key, (server, settings, options))
    return options


def check_graph(
    session: onnxruntime.InferenceSession, prepared: PreparedVersion, providers: Sequence[str], model_dir: Path
) -> CheckedGraph:
    """Compare a version's graph with its configuration.

    Args:
        session: a session of the graph.
        prepared: the version.
        providers: the names of the execution providers that the version is served with.
        model_dir: the model's directory, which holds the files of warm-up samples.

    Returns:
        What they have come to.

    Raises:
        ConfigurationError: the configuration does not fit the graph; with a line for each problem.
        ModelLoadError: the graph cannot be served.
    """
    configuration = prepared.configuration
    settings, source = configuration.settings, configuration.source
    check_allocator(settings, providers, source)
    checked = _compared(session, configuration)
    check_warmup(settings, checked.graph, model_dir, source)
    return checked


def _compared(session: onnxruntime.InferenceSession, configuration: VersionConfiguration) -> CheckedGraph:
    """What a graph and its configuration come to. Versions with the same tensors and settings share it."""
    settings, declared = configuration.settings, configuration.declared
    if settings.padding is not None or settings.ragged is not None:  # whose warnings name the file
        return _compare(session, configuration)
    tensors = (
        *map(_as_key, session.get_inputs()),
        None,
        *map(_as_key, session.get_outputs()),
        # Those that the configuration names are inputs too.
        *(
            map(_as_key, session.get_overridable_initializers())
            if settings.input_shapes or declared is not None
            else ()
        ),
    )
    own = () if declared is None else (id(declared.inputs), id(declared.outputs), declared.max_batch_size)
    key = (id(settings), own, tensors)
    known = _COMPARED.get(key)
    if known is not None:
        return known[-1]
    checked = _compare(session, configuration)
    _COMPARED.put(key, (settings, declared, checked))
    return checked


def _as_key(tensor: NodeArg) -> tuple[str, str, tuple[int | str | None, ...]]:
    return tensor.name, tensor.type, tuple(tensor.shape)


def _compare(session: onnxruntime.InferenceSession, configuration: VersionConfiguration) -> CheckedGraph:
    settings, source = configuration.settings, configuration.source
    signature = read_signature(session, settings, source=source, declared=configuration.declared)
    datatypes = {tensor.datatype.name for tensor in (*signature.inputs, *signature.outputs)}
    if {"BF16", "BYTES"} <= datatypes:
        raise ModelLoadError("BF16 and BYTES tensors in one model: onnxruntime's Python interface takes only one kind")
    ragged = ragged_of(
        settings.ragged, signature, source, RaggedKeys() if configuration.declared is None else PBTXT_RAGGED_KEYS
    )
    empty = empty_inputs(signature)
    if ragged is not None:
        return CheckedGraph(signature, signature, ragged, tuple(empty))
    padding = padding_of(settings.padding, signature, source)
    warnings = [*empty, *padding_warnings(padding, signature, source)]
    return CheckedGraph(signature, with_made_mask(signature, padding), padding, tuple(warnings))


def check_allocator(settings: ModelSettings, providers: Sequence[str], source: Path) -> None:
    """Refuse page-locked buffers where no execution provider would allocate or use them.

    Args:
        settings: of the version about to be loaded.
        providers: ONNX Runtime's names of the execution providers in use, such as ``CUDAExecutionProvider``.
        source: the config.yaml to name in the error.

    Raises:
        ConfigurationError: ``allocator: cuda_pinned`` without a CUDA or TensorRT provider.
    """
    if settings.allocator == "cuda_pinned" and ON_DEVICES.isdisjoint(providers):
        raise ConfigurationError(
            f"page-locked memory needs the CUDA or TensorRT execution provider; in use: {', '.join(providers)}",
            source=source,
            key="allocator",
            value=settings.allocator,
            remedy="write `allocator: cpu`, or start the server with `--execution-providers cuda`",
        )


@contextmanager
def explained(folder: VersionFolder) -> Iterator[None]:
    """A block that loads a graph. If its file, or one beside it (its weights), may not be read, the error says so.

    Args:
        folder: of the version.

    Raises:
        ModelLoadError: the block's, or one that names the file.
    """
    try:
        yield
    except ModelLoadError as error:
        # ONNX Runtime says of a file without permission that it does not exist.
        _check_readable(folder.model_path)
        # Of its weights it names neither the file nor what is wrong with it.
        if re.search(r"SystemError : 13\b|[Pp]ermission denied", str(error)):
            for path in islice(folder.path.rglob("*"), _MAX_FILES):
                _check_readable(path)
        raise


def _check_readable(path: Path) -> None:
    """Check that a file can be read.

    Raises:
        ModelLoadError: it cannot be read, with the system's reason.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        remedy = "; make it readable for the server's user" if error.errno in _NOT_PERMITTED else ""
        raise ModelLoadError(f"cannot read '{path}': {error.strerror}{remedy}") from error
