"""model-config.yaml of a model archive, and what it comes to in a config.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from toutates.models.config.small_file import read_small_file
from toutates.protocol.model_config_pb2 import TYPE_STRING, ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput
from toutates.system.errors import ConfigurationError

__all__ = [
    "BODY",
    "HEAD",
    "MAX_WORKERS",
    "RESULT",
    "RESULT_HEAD",
    "WorkerSettings",
    "model_config",
    "read_settings",
    "set_workers",
    "workers_of",
]

#: Tensors of an imported model, BYTES of one element for each request: the body as it came; the header fields as a
#: JSON object, or nothing; what the handler returned; and its status and header fields as a JSON object.
BODY: Final = "body"
HEAD: Final = "head"
RESULT: Final = "result"
RESULT_HEAD: Final = "result_head"

#: Workers of a model, and requests of a batch, at most.
MAX_WORKERS: Final = 256
_MAX_BATCH: Final = 65_536
_MAX_DELAY_MS: Final = 3_600_000
_MOST_BYTES: Final = 2**20

#: Keys of TorchServe that say how it runs a model, and have no meaning here.
_WITHOUT_EFFECT: Final = (
    "parallelType", "parallelLevel", "torchrun", "maxRetryTimeoutInSec", "clientTimeoutInMills", "jobQueueSize",
    "useJobTicket", "continuousBatching", "sequenceBatching", "sequenceMaxIdleMSec", "sequenceTimeoutMSec",
    "maxNumSequence", "maxSequenceJobQueueSize", "asyncCommunication", "useVenv", "responseTimeout", "startupTimeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a model is run.

    Attributes:
        batch_size: requests that the handler gets at once, at most.
        max_batch_delay_ms: how long the first of them waits for others; None for no time at all, which leaves batches
            to what comes while the handler is busy.
        workers: processes that run the handler; None where nothing was said.
        gpu: whether it runs on GPUs.
        device_ids: numbers of these; none for all.
    """

    batch_size: int = 1
    max_batch_delay_ms: int | None = None
    workers: int | None = None
    gpu: bool = False
    device_ids: tuple[int, ...] = ()


def read_settings(folder: Path, name: str) -> tuple[WorkerSettings, list[str], dict[str, Any]]:
    """Read a model-config.yaml; returns what it says, a sentence for each key that has no effect, and all of it.

    Args:
        folder: where the archive is unpacked.
        name: of the file; "" for the usual one, if it is there.

    Raises:
        ConfigurationError: it is no YAML of keys and values, or too large.
    """
    source = folder / (name or "model-config.yaml")
    data = read_small_file(source, _MOST_BYTES)
    if data is None:
        return WorkerSettings(), [], {}
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError("is no YAML", source=source, remedy="correct it in the archive") from error
    if document is None:
        return WorkerSettings(), [], {}
    if not isinstance(document, dict):
        raise ConfigurationError("has no keys and values", source=source, remedy="write KEY: VALUE lines")
    reader = _Reader(document)
    workers = reader.integer("minWorkers", 1, MAX_WORKERS)
    device = document.get("deviceType")
    if device not in (None, "cpu", "gpu"):
        reader.note("deviceType", "expected cpu or gpu")
    devices = document.get("deviceIds")
    if devices is not None and not (isinstance(devices, list) and all(type(one) is int for one in devices)):
        reader.note("deviceIds", "expected a list of numbers")
        devices = None
    settings = WorkerSettings(
        batch_size=reader.integer("batchSize", 1, _MAX_BATCH) or 1,
        max_batch_delay_ms=reader.integer("maxBatchDelay", 0, _MAX_DELAY_MS),
        workers=workers,
        gpu=device == "gpu",
        device_ids=tuple(devices or ()) if device == "gpu" else (),
    )
    most = reader.integer("maxWorkers", 1, MAX_WORKERS)
    if most is not None and most != settings.workers:
        reader.notes.append(f"maxWorkers is not used: {settings.workers or 1} workers (minWorkers) run the handler")
    idle = sorted(set(document) & set(_WITHOUT_EFFECT))
    if idle:
        reader.notes.append(f"model-config.yaml: no effect here: {', '.join(idle)}")
    return settings, reader.notes, document


class _Reader:
    """Reads numbers as TorchServe does: what is none is passed over, and noted."""

    def __init__(self, document: Mapping[Any, Any]) -> None:
        self._document = document
        self.notes: list[str] = []

    def note(self, key: str, problem: str) -> None:
        self.notes.append(f"model-config.yaml: {key} is passed over: {problem}")

    def integer(self, key: str, least: int, most: int) -> int | None:
        value = self._document.get(key)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            self.note(key, f"expected a whole number from {least} to {most}")
            return None
        return value


def model_config(name: str, settings: WorkerSettings, workers: int) -> ModelConfig:
    """The config.pbtxt of an imported model that so many workers run."""
    config = ModelConfig(name=name, backend="python", max_batch_size=settings.batch_size)
    config.version_policy.all.SetInParent()
    for tensor in (BODY, HEAD):
        config.input.append(ModelInput(name=tensor, data_type=TYPE_STRING, dims=[1]))
    for tensor in (RESULT, RESULT_HEAD):
        config.output.append(ModelOutput(name=tensor, data_type=TYPE_STRING, dims=[1]))
    group = config.instance_group.add(kind=ModelInstanceGroup.KIND_CPU)
    if settings.gpu:
        group.kind = ModelInstanceGroup.KIND_GPU
        group.gpus.extend(settings.device_ids)
    set_workers(config, workers)
    if settings.batch_size > 1:
        config.dynamic_batching.SetInParent()
        if settings.max_batch_delay_ms:
            config.dynamic_batching.max_queue_delay_microseconds = 1_000 * settings.max_batch_delay_ms
    return config


def set_workers(config: ModelConfig, workers: int) -> None:
    """Have a model run by so many workers; by as many on each of its GPUs, which may be a few more."""
    del config.instance_group[1:]
    group = config.instance_group[0] if config.instance_group else config.instance_group.add()
    group.count = -(-workers // max(1, len(group.gpus)))


def workers_of(config: ModelConfig) -> int:
    """How many workers run a model once it is loaded."""
    return sum(max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group) or 1
