"""Loads a version of a Python model: starts its processes, completes its configuration, and initializes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toutates.backends.python.arena import Arena
from toutates.backends.python.child import frames
from toutates.backends.python.completing import (
    PYTHON,
    as_dict,
    completed_config,
    instance_names,
    parameters_of,
    signature_of,
    start_config,
    with_defaults,
)
from toutates.backends.python.environments import Environments
from toutates.backends.python.instance import Limits, PythonInstance
from toutates.backends.python.output import OutputReader
from toutates.backends.python.process import Failed, Interpreter, ModelProcess, ProcessEnded
from toutates.engine.batched import BatchedServable
from toutates.engine.budget import PBTXT_KEYS, YAML_KEYS
from toutates.engine.supertensor import SuperTensor
from toutates.models.capacity import capacity_bytes
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import model_config
from toutates.models.config.labels import read_labels
from toutates.models.config.settings import ModelSettings
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.logs.limit import LineLimit
from toutates.system.memory import available_memory

__all__ = ["PythonKind"]

logger = logging.getLogger(__name__)

_INVALID_IN_NAMES: Final = frozenset(";|&$`<>()[]{}\\\"'*?~#!")
_TRUE: Final = {"true": True, "false": False}


class PythonKind:
    """The kind of Python models. It claims versions that hold a model.py, and no graph of another kind."""

    def __init__(self) -> None:
        self._reader = OutputReader()
        self._environments = Environments()

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return (PYTHON.name,)

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``."""
        # Where there is the file of the default backend as well, that is what the directory is for.
        return bool(version.problem) and (version.path / PYTHON.filename).is_file()

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        loading = self._loading(model, configuration)
        with _explained(loading):
            return loading.load()

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``: model.py is imported, in a process that is ended then."""
        loading = self._loading(model, configuration)
        with _explained(loading):
            return loading.inspect()

    def _loading(self, model: str, configuration: VersionConfiguration) -> _Loading:
        if _INVALID_IN_NAMES.intersection(model):
            raise ModelLoadError("Invalid stub name: contains invalid characters")
        return _Loading(model, configuration, self._reader, self._environments)


@contextmanager
def _explained(loading: _Loading) -> Iterator[None]:
    """A block that loads. If it fails, nothing is left of it, and the error says why.

    Raises:
        ModelLoadError: in place of what a process said, or the system.
    """
    try:
        yield
    except BaseException as error:
        loading.give_up()
        if isinstance(error, Failed | ProcessEnded | OSError):
            raise ModelLoadError(str(error)) from error
        raise


class _Loading:
    """One load of one version. Blocks while its processes start.

    Args:
        model: its name.
        configuration: of the version.
        reader: of what processes print.
        environments: in which they run.
    """

    def __init__(
        self, model: str, configuration: VersionConfiguration, reader: OutputReader, environments: Environments
    ) -> None:
        self._model = model
        self._configuration = configuration
        self._version = configuration.folder
        self._config = start_config(model, configuration)
        self._path = self._version.path / self._config.default_model_filename
        if not self._path.is_file():
            raise ModelLoadError(f"Python model file not found in '{self._path}'")
        parameters = parameters_of(self._config)
        self._stacked = _flag(parameters, "toutates.stacked", configuration.source)
        self._limits = Limits(
            start_s=_seconds(parameters, "toutates.start_timeout_s", Limits().start_s, configuration.source),
            execute_s=_seconds(parameters, "toutates.execute_timeout_s", Limits().execute_s, configuration.source),
        )
        interpreter = environments.interpreter(parameters.get("EXECUTION_ENV_PATH", ""), self._version.model_dir)
        self._starter = _Starter(
            model=model,
            version=self._version,
            path=self._path,
            interpreter=interpreter,
            # Batches within their bounds, and outputs: the bound of the machine. Pages are taken when they are used.
            arena=Arena(available_memory()),
            reader=reader,
            limit=LineLimit(),
            start_s=self._limits.start_s,
        )
        self._processes: list[ModelProcess] = []

    def load(self) -> ServedVersion:
        """Start and initialize every instance.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
            Failed, ProcessEnded, OSError: likewise.
        """
        model, configuration, version = self._model, self._configuration, self._version
        config, signature, settings = self._complete()
        first = self._processes[0]
        triton = version.triton
        shown = model_config(
            model,
            signature,
            settings,
            version_policy=triton.version_policy if triton is not None else None,
            given=config,
            backend=PYTHON,
        )
        labels = read_labels(settings, signature, version.model_dir, configuration.source)
        names = instance_names(config)
        # Triton batches where the configuration says so, and a model may count on it.
        one_by_one = configuration.given is not None and not config.HasField("dynamic_batching") and not self._stacked
        starts = [
            partial(self._starter.ready, name, self._initialization(shown, signature, name, kind, device, one_by_one))
            for name, kind, device in names
        ]
        others = [self._start(name) for name, _, _ in names[1:]]
        instances: list[PythonInstance] = []
        for process, (name, _, _), start in zip([first, *others], names, starts, strict=True):
            self._starter.initialize(process, start.args[1], configured=process is first)
            instances.append(
                PythonInstance(
                    name, signature, model, self._starter.arena, process, start, self._limits, stacked=self._stacked
                )
            )
        supertensor = SuperTensor(
            model,
            signature,
            batch_size=settings.batch_size,
            capacity=settings.capacity,
            capacity_bytes=capacity_bytes(settings, signature),
            max_queue_size=settings.max_queue_size,
            keys=YAML_KEYS if configuration.given is None else PBTXT_KEYS,
            allocate=self._starter.arena.allocate,
            quick_ns=0,
            delay_ns=settings.max_queue_delay_us * 1_000 if signature.batched else 0,
            enough_rows=min(settings.preferred_batch_sizes, default=settings.batch_size),
        )
        for instance in instances:
            instance.ports = supertensor.ports
        return ServedVersion(
            model=model,
            number=version.number,
            config=shown,
            servable=BatchedServable(version.number, supertensor, instances),
            labels=labels,
            takes_parameters=True,
        )

    def inspect(self) -> InspectedVersion:
        """Start one process, which completes the configuration and is not initialized; then end it."""
        config, signature, settings = self._complete()
        read_labels(settings, signature, self._version.model_dir, self._configuration.source)
        self.give_up()
        return InspectedVersion.of(
            self._model, replace(self._configuration, settings=settings, given=config), signature, PYTHON
        )

    def _complete(self) -> tuple[ModelConfig, Signature, ModelSettings]:
        """The whole configuration, from the files and the model."""
        configuration = self._configuration
        first = self._start(instance_names(self._config)[0][0])
        completed = self._starter.configure(first, as_dict(self._config), complete=True)
        config = completed_config(self._config, completed, self._model)
        if config.model_transaction_policy.decoupled:
            raise ModelLoadError("decoupled models are not served: they answer a request with any number of responses")
        signature, said = signature_of(config, self._model, configuration.source)
        return config, signature, with_defaults(configuration.settings, said, configuration)

    def give_up(self) -> None:
        """End what was started: the version is not served."""
        for process in self._processes:
            process.kill()
        self._starter.arena.close()

    def _start(self, name: str) -> ModelProcess:
        process = self._starter.start(name)
        self._processes.append(process)
        return process

    def _initialization(
        self, config: ModelConfig, signature: Signature, name: str, kind: str, device: str, one_by_one: bool
    ) -> dict[str, Any]:
        """The content of INITIALIZE."""
        args = {
            "model_config": json.dumps(as_dict(config)),
            "model_instance_kind": kind,
            "model_instance_name": name,
            "model_instance_device_id": device,
            "model_repository": str(self._version.model_dir),
            "model_version": str(self._version.number),
            "model_name": self._model,
        }
        return {
            "args": args,
            "inputs": [[tensor.name, tensor.datatype.name] for tensor in signature.inputs],
            "outputs": [[tensor.name, tensor.datatype.name, tensor.graph_shape] for tensor in signature.outputs],
            "batched": signature.batched,
            "one_by_one": one_by_one,
            "stacked": self._stacked,
        }


@dataclass(frozen=True, slots=True)
class _Starter:
    """Starts processes of a version, when it is loaded and when one has died.

    Attributes:
        model: its name.
        version: its files.
        path: of model.py.
        interpreter, arena, reader, limit: see ``ModelProcess``.
        start_s: seconds that a process may take to import the model, and to initialize it.
    """

    model: str
    version: VersionFolder
    path: Path
    interpreter: Interpreter
    arena: Arena
    reader: OutputReader
    limit: LineLimit[str]
    start_s: float

    def start(self, name: str) -> ModelProcess:
        """A process that has read nothing yet."""
        return ModelProcess(self.model, name, self.interpreter, self.arena, self.reader, self.limit)

    def configure(self, process: ModelProcess, config: Mapping[str, Any], *, complete: bool) -> dict[str, Any] | None:
        """Have a process import model.py; returns the configuration as ``auto_complete_config`` has completed it."""
        content = {
            "path": str(self.path.absolute()),
            "instance": process.instance,
            "model": self.model,
            "version": self.version.number,
            "version_dir": str(self.version.path.absolute()),
            "model_dir": str(self.version.model_dir.absolute()),
            "config": config,
            "complete": complete,
        }
        said = process.ask(frames.CONFIGURE, content, self.start_s)
        return None if said == b"null" else process.parsed(said)

    def initialize(self, process: ModelProcess, content: Mapping[str, Any], *, configured: bool) -> None:
        """Have a process initialize the model."""
        if not configured:
            self.configure(process, {}, complete=False)
        process.ask(frames.INITIALIZE, content, self.start_s)

    def ready(self, name: str, content: Mapping[str, Any]) -> ModelProcess:
        """Another process in place of one that has died.

        Raises:
            Failed, ProcessEnded, OSError: it cannot be had.
        """
        process = self.start(name)
        try:
            self.initialize(process, content, configured=False)
        except BaseException:
            process.kill()
            raise
        return process


def _flag(parameters: Mapping[str, str], key: str, source: Path) -> bool:
    value = parameters.get(key, "false")
    if value not in _TRUE:
        raise ConfigurationError(
            "is neither true nor false", source=source, key=f"parameters.{key}", value=value, remedy="write 'true'"
        )
    return _TRUE[value]


def _seconds(parameters: Mapping[str, str], key: str, default: float, source: Path) -> float:
    value = parameters.get(key)
    if value is None:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise ConfigurationError(
            "is no number of seconds", source=source, key=f"parameters.{key}", value=value, remedy="write such as '60'"
        )
    return seconds
