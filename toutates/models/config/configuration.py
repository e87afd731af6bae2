"""The configuration of one version: config.yaml where it has one, else the model's config.pbtxt, else the defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from toutates.models.config.declared import Declared
from toutates.models.config.describe import ONNX_NAME, BackendName
from toutates.models.config.other_kinds import refuse_unknown_backend
from toutates.models.config.problems import MAX_PROBLEMS
from toutates.models.config.settings import (
    CONFIG_NAME,
    MODEL_FILENAME,
    ONNX_BACKENDS,
    ModelSettings,
    RateLimit,
    load_settings,
)
from toutates.models.config.triton_configuration import TritonConfiguration
from toutates.models.repository import VersionFolder, version_folder
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

__all__ = ["VersionConfiguration", "completed", "load_configuration"]


@dataclass(frozen=True, slots=True)
class VersionConfiguration:
    """How a version is to be loaded.

    Attributes:
        folder: the version's; its file is the one that the settings name.
        settings: what the files say; what they leave to the graph is left out.
        source: the file that says it, for errors; config.yaml where there is none.
        declared: what config.pbtxt says of the tensors; None where config.yaml holds, or neither is there.
        given: the whole config.pbtxt; None in the same cases.
        notice: what the operator should know; "" for nothing.
    """

    folder: VersionFolder
    settings: ModelSettings
    source: Path
    declared: Declared | None = None
    given: ModelConfig | None = None
    notice: str = ""


#: Of versions without a configuration, one record for all.
_DEFAULTS: Final = ModelSettings()


def load_configuration(
    folder: VersionFolder,
    backends: Sequence[str] = ONNX_BACKENDS,
    *,
    overridden: bool = False,
    most_problems: int | None = MAX_PROBLEMS,
) -> VersionConfiguration:
    """Read the configuration of a version.

    Args:
        folder: what ``repository.scan`` has found.
        backends: names of those that there are.
        overridden: whether what ``folder.triton`` says holds, even beside a config.yaml.
        most_problems: of a config.yaml that are told; None for all.

    Raises:
        ConfigurationError: a file cannot be read or used, or names a backend that is not there; with a line for each
            problem.
    """
    triton = folder.triton
    if overridden and triton is not None:
        return _from_triton(folder, triton, backends)
    if folder.is_file:  # named, so that no kind claims it by what lies beside
        return VersionConfiguration(folder, ModelSettings(backend=ONNX_BACKENDS[0]), folder.model_path)
    source = folder.path / CONFIG_NAME
    own = load_settings(folder.path, backends, most_problems=most_problems)
    if own is not None:
        notice = ""
        if triton is not None:
            notice = (
                f"'{source}' holds, and not '{triton.source}' beside its directory, which only chooses the versions"
            )
        return VersionConfiguration(
            _located(folder, own.model_filename, triton),
            own,
            source,
            given=own.ensemble,
            notice=notice,
        )
    if triton is not None:
        return _from_triton(folder, triton, backends)
    return VersionConfiguration(folder, _DEFAULTS, source)


def _located(folder: VersionFolder, filename: str, triton: TritonConfiguration | None) -> VersionFolder:
    """A version with its graph under the name that its configuration gives it.

    Where that is the file that was found, nothing is looked at again: whoever opens it sees what it is by then.
    """
    is_found = not folder.problem and folder.triton is triton
    if is_found and folder.model_path.name == (filename or MODEL_FILENAME) and folder.model_path.parent == folder.path:
        return folder
    return version_folder(folder.path, filename, triton, is_lone=folder.is_lone)


def _from_triton(folder: VersionFolder, triton: TritonConfiguration, backends: Sequence[str]) -> VersionConfiguration:
    """The configuration that a config.pbtxt, or a message in its place, gives a version."""
    refuse_unknown_backend(triton.given, backends, triton.source)
    if folder.is_file:  # the only one of its directory that is the model's
        if triton.settings.backend not in ("", *ONNX_BACKENDS):
            raise ConfigurationError(
                "is not for a model that is a file",
                source=triton.source,
                key="backend",
                value=triton.settings.backend,
                remedy=f"leave it out, or write {ONNX_BACKENDS[1]}",
            )
        return VersionConfiguration(folder, triton.settings, triton.source, triton.declared, triton.given)
    located = _located(folder, triton.settings.model_filename, triton)
    return VersionConfiguration(located, triton.settings, triton.source, triton.declared, triton.given)


def completed(settings: ModelSettings, signature: Signature, backend: BackendName = ONNX_NAME) -> ModelSettings:
    """The settings with everything that the graph has said: those that give the same when they are read again.

    Args:
        settings: what the files say.
        signature: what the graph and they have come to.
        backend: of the version.
    """
    batched = signature.batched

    def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (-1, *shape) if batched else shape

    def graph_shapes(tensors: tuple[TensorSpec, ...]) -> MappingProxyType[str, tuple[int, ...]]:
        # A size of 0, which a graph may have, cannot be configured.
        return MappingProxyType({t.name: whole(t.graph_shape) for t in tensors if 0 not in t.graph_shape})

    def wire_shapes(tensors: tuple[TensorSpec, ...]) -> MappingProxyType[str, tuple[int, ...]]:
        return MappingProxyType({t.name: whole(t.shape) for t in tensors if t.reshape is not None and not t.is_scalar})

    preferred = tuple(sorted(set(settings.preferred_batch_sizes)))
    return replace(
        settings,
        backend=settings.backend or backend.name,
        model_filename=settings.model_filename or backend.filename,
        batch_size=settings.batch_size if batched else 1,
        batching=batched,
        max_queue_delay_us=settings.max_queue_delay_us if batched else 0,
        preferred_batch_sizes=() if not batched or preferred == (settings.batch_size,) else preferred,
        input_shapes=graph_shapes(signature.inputs),
        output_shapes=graph_shapes(signature.outputs),
        input_wire_shapes=wire_shapes(signature.inputs),
        output_wire_shapes=wire_shapes(signature.outputs),
        required_inputs=tuple(tensor.name for tensor in signature.inputs if not tensor.optional),
        outputs=tuple(tensor.name for tensor in signature.outputs),
        devices=_devices(settings),
        rate_limits=_rate_limits(settings),
    )


def _devices(settings: ModelSettings) -> tuple[str, ...]:
    """By executor, those of one device and rate limit side by side; one alone stands for all."""
    devices = tuple(device for device, _ in _executors(settings))
    if len(set(devices)) > 1:
        return devices
    return () if "auto" in devices else devices[:1]


def _rate_limits(settings: ModelSettings) -> tuple[RateLimit, ...]:
    """The same for what the rate limiter has to know."""
    limits = tuple(limit for _, limit in _executors(settings))
    if len(set(limits)) > 1:
        return limits
    return () if RateLimit() in limits else limits[:1]


def _executors(settings: ModelSettings) -> list[tuple[str, RateLimit]]:
    every = Counter((settings.device(number), settings.rate_limit(number)) for number in range(settings.num_executors))
    return list(every.elements())
