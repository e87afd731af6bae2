"""Loads a version of a Python model: starts its code, completes its configuration, and initializes its instances."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from toutates.backends.batches import batches_of
from toutates.backends.python.completing import (
    PYTHON,
    as_dict,
    backend_of,
    completed_config,
    instance_names,
    parameters_of,
    signature_of,
    start_config,
    with_defaults,
)
from toutates.backends.python.deviations import STRICT_KEY, Deviations
from toutates.backends.python.environments import Environments
from toutates.backends.python.instance import Limits, PythonInstance
from toutates.backends.python.isolation import Code, Processes, Start, Threads
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.metrics import VersionMetrics
from toutates.backends.python.output import OutputReader
from toutates.backends.python.process import Closing, Failed, ProcessEnded
from toutates.backends.python.starts import LoadsUnderWay
from toutates.backends.python.threaded import ThreadInstance
from toutates.backends.sequences import instance_settings, sequence_servable, sequences_of
from toutates.engine.batched import BatchedServable
from toutates.engine.open_request import Responses
from toutates.engine.sequences.servable import SequenceServable
from toutates.engine.sequences.tensors import SequenceTensors
from toutates.engine.servable import Backend, Servable
from toutates.engine.statistics import VersionStatistics
from toutates.engine.supertensor import SuperTensor
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import model_config
from toutates.models.config.labels import read_labels
from toutates.models.config.other_kinds import PYTORCH_RUNTIME
from toutates.models.config.settings import ModelSettings
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ModelTable, ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.logs.limit import LineLimit

__all__ = ["PythonKind"]

#: How long a process may go on with a batch, or finalize, once no worker of the server is left.
_CLOSING_S: Final = 3.0
#: The code that runs modules of PyTorch.
_TORCH_RUNTIME: Final = Path(__file__).parent / "child" / "torch_runtime.py"
_INVALID_IN_NAMES: Final = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


class PythonKind:
    """The kind of Python models. It claims versions that hold a model.py, and no graph of another kind.

    Args:
        get_table: returns the models that Python models may call; None for none.
        loads: loads and unloads models for them; None where nobody does.
        under_way: has the loads that are under way.
    """

    def __init__(
        self,
        get_table: Callable[[], ModelTable] | None = None,
        loads: LoadsModels | None = None,
        under_way: LoadsUnderWay | None = None,
    ) -> None:
        self._get_table, self._loads, self._under_way = get_table, loads, under_way
        self._reader = OutputReader()
        self._environments = Environments()

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return PYTHON.name, PYTORCH_RUNTIME

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
        return _Loading(
            model,
            configuration,
            self._reader,
            self._environments,
            self._get_table,
            self._loads,
            self._under_way,
        )


@contextmanager
def _explained(loading: _Loading) -> Iterator[None]:
    """A block that loads. If it fails, nothing is left of it, and the error says why.

    Raises:
        ModelLoadError: in place of what a process said, or the system.
    """
    try:
        yield
    except BaseException as error:
        loading.isolation.give_up()
        if isinstance(error, Failed | ProcessEnded | OSError):
            raise ModelLoadError(f"{error}{loading.isolation.remedy_for(str(error))}") from error
        raise


class PythonServable(BatchedServable):
    """A version of a Python model, whose processes do not keep the server from its end.

    Args:
        version, supertensor, instances: see ``BatchedServable``.
        closing: read by the processes.
        metrics: that the model's code keeps.
        responses: of a decoupled model.
        free: called when no executor is left; a second time where several servables are one version.
    """

    def __init__(
        self,
        version: int,
        supertensor: SuperTensor,
        instances: Sequence[Backend],
        closing: Closing,
        metrics: VersionMetrics,
        responses: Responses,
        free: Callable[[], None],
    ) -> None:
        super().__init__(version, supertensor, instances, responses=responses)
        self._closing = closing
        self._free = free
        self._metrics = metrics

    def statistics(self) -> VersionStatistics:
        """See ``Servable``."""
        return replace(super().statistics(), own_metrics=self._metrics.series())

    def close(self, *, workers_ended: bool = False) -> None:
        """See ``Servable``."""
        if workers_ended:
            _begin_to_close(self._closing)
        super().close(workers_ended=workers_ended)

    def free(self) -> None:
        """See ``Servable``."""
        super().free()
        self._free()


def _begin_to_close(closing: Closing) -> None:
    """Have processes end soon, whatever they are at: no worker of the server is left."""
    closing.at = time.monotonic() + _CLOSING_S


class _Loading:
    """One load of one version. Blocks while its code starts.

    Args:
        model: its name.
        configuration: of the version.
        reader: of what processes print.
        environments: in which they run.
        get_table, loads, under_way: see ``PythonKind``.
    """

    def __init__(
        self,
        model: str,
        configuration: VersionConfiguration,
        reader: OutputReader,
        environments: Environments,
        get_table: Callable[[], ModelTable] | None,
        loads: LoadsModels | None,
        under_way: LoadsUnderWay | None,
    ) -> None:
        self._model = model
        self._configuration = configuration
        self._version = version = configuration.folder
        self._config = start_config(model, configuration)
        path = version.path / self._config.default_model_filename
        is_torch = configuration.settings.backend == PYTORCH_RUNTIME
        if not path.is_file():
            if is_torch:
                raise ModelLoadError(f"No model found in {version.path}/['model.py', 'model.pt']")
            raise ModelLoadError(f"Python model file not found in '{path}'")
        source, parameters = configuration.source, parameters_of(self._config)
        self._stacked = is_torch or _choice(parameters, "toutates.stacked", ("false", "true"), source) == "true"
        strict = _choice(parameters, STRICT_KEY, ("false", "true"), source) == "true"
        self._deviations = Deviations(model, strict=strict)
        code = Code(
            model, version.number, _TORCH_RUNTIME if is_torch else path, version.path, version.model_dir, LineLimit()
        )
        environment = parameters.get("EXECUTION_ENV_PATH", "")
        self.isolation: Processes | Threads
        if _choice(parameters, "toutates.isolation", ("process", "thread"), source) == "process":
            limits = Limits(
                start_s=_seconds(parameters, "toutates.start_timeout_s", Limits().start_s, source),
                execute_s=_seconds(parameters, "toutates.execute_timeout_s", Limits().execute_s, source),
            )
            kept = parameters.get("toutates.environment")
            interpreter = environments.interpreter(environment, version.model_dir)
            if kept is not None:
                interpreter = replace(interpreter, kept=frozenset(map(str.strip, kept.split(","))))
            try:
                self.isolation = Processes(code, interpreter, reader, limits, get_table, loads, under_way)
            except BaseException:
                interpreter.release()
                raise
        elif own := [key for key in ("EXECUTION_ENV_PATH", "toutates.environment") if key in parameters]:
            raise ConfigurationError(
                "a thread of the server has no environment of its own",
                source=source,
                key=f"parameters.{own[0]}",
                value=parameters[own[0]],
                remedy="remove it, or set toutates.isolation to 'process'",
            )
        else:
            self.isolation = Threads(code, get_table, loads)

    def load(self) -> ServedVersion:
        """Start and initialize every instance.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
            Failed, ProcessEnded, OSError: likewise.
        """
        model, configuration, version = self._model, self._configuration, self._version
        config, signature, settings, tensors = self._complete()
        triton = version.triton
        shown = model_config(
            model,
            signature if tensors is None else tensors.signature,
            settings,
            version_policy=triton.version_policy if triton is not None else None,
            given=config,
            backend=backend_of(configuration),
        )
        labels = read_labels(settings, signature, version.model_dir, configuration.source)
        # Triton batches where the configuration says so, and a model may count on it.
        batches = config.HasField("dynamic_batching") or tensors is not None
        one_by_one = configuration.given is not None and not batches and not self._stacked
        decoupled = shown.model_transaction_policy.decoupled
        starts = [
            Start(
                name,
                self._args(shown, name, kind, device),
                signature,
                one_by_one,
                self._stacked,
                self._deviations,
                decoupled,
            )
            for name, kind, device in instance_names(config)
        ]
        instances = self.isolation.instances(starts)
        closing, metrics, responses = self.isolation.closing, self.isolation.metrics, Responses()

        def batched(own: ModelSettings, some: Sequence[PythonInstance | ThreadInstance]) -> PythonServable:
            supertensor = batches_of(
                model,
                signature,
                own,
                is_triton=configuration.given is not None,
                allocate=self.isolation.allocate,
                quick_ns=0,
                keeps_whole=not self._stacked,
                splits_large=not decoupled,
                grows=tensors is None,
            )
            for instance in some:
                instance.ports = supertensor.ports
                instance.responses = responses
                instance.keeps_places = tensors is not None
            return PythonServable(version.number, supertensor, some, closing, metrics, responses, self.isolation.free)

        servable: Servable
        if tensors is None:
            servable = batched(settings, instances)
        else:
            own = instance_settings(settings)
            servable = sequence_servable(
                model,
                version.number,
                tensors,
                settings,
                [batched(own, [one]) for one in instances],
                by_row=not self._stacked,
                on_end=partial(_begin_to_close, closing),
            )
            for at, instance in enumerate(instances):
                if isinstance(instance, PythonInstance):
                    instance.on_death = partial(_forget_sequences, weakref.ref(servable), at)
        served = ServedVersion(
            model=model,
            number=version.number,
            description=shown,
            servable=servable,
            labels=labels,
            takes_parameters=lambda: True,
            has_code=partial(_some_alive, [weakref.ref(instance) for instance in instances]),
        )
        self.isolation.done()
        return served

    def inspect(self) -> InspectedVersion:
        """Complete the configuration, and initialize nothing."""
        config, signature, settings, tensors = self._complete()
        signature = signature if tensors is None else tensors.signature
        read_labels(settings, signature, self._version.model_dir, self._configuration.source)
        self.isolation.give_up()
        return InspectedVersion.of(
            self._model,
            replace(self._configuration, settings=settings, given=config),
            signature,
            backend_of(self._configuration),
            decoupled=config.model_transaction_policy.decoupled,
        )

    def _complete(self) -> tuple[ModelConfig, Signature, ModelSettings, SequenceTensors | None]:
        """The whole configuration, from the files and the model; its tensors are those that the code sees."""
        configuration = self._configuration
        completed = self.isolation.complete(instance_names(self._config)[0][0], as_dict(self._config))
        config = completed_config(self._config, completed, self._model)
        if config.model_transaction_policy.decoupled and self._stacked:
            raise ConfigurationError(
                "a decoupled model answers each request by its own sender",
                source=configuration.source,
                key="parameters.toutates.stacked",
                value="true",
                remedy="remove it",
            )
        signature, said = signature_of(config, self._model, configuration.source)
        settings = with_defaults(configuration.settings, said, configuration)
        own = replace(configuration, settings=settings)
        tensors = sequences_of(self._model, signature, own, by_row=not self._stacked)
        return config, signature if tensors is None else tensors.whole, settings, tensors

    def _args(self, config: ModelConfig, name: str, kind: str, device: str) -> dict[str, str]:
        """What ``initialize`` gets."""
        return {
            "model_config": json.dumps(as_dict(config)),
            "model_instance_kind": kind,
            "model_instance_name": name,
            "model_instance_device_id": device,
            "model_repository": str(self._version.model_dir),
            "model_version": str(self._version.number),
            "model_name": self._model,
        }


def _some_alive(instances: Sequence[weakref.ref[PythonInstance | ThreadInstance]]) -> bool:
    """Whether an instance has something to run its code; nothing keeps the instances."""
    return any([instance.alive for one in instances if (instance := one()) is not None])


def _forget_sequences(servable: weakref.ref[SequenceServable], instance: int) -> None:
    """End the sequences of an instance whose process has ended; nothing keeps the servable."""
    if (own := servable()) is not None:
        own.forget(instance)


def _choice(parameters: Mapping[str, str], key: str, choices: Sequence[str], source: Path) -> str:
    """A parameter that is one of some words; the first where it is absent."""
    value = parameters.get(key, choices[0])
    if value not in choices:
        raise ConfigurationError(
            f"is neither {' nor '.join(choices)}",
            source=source,
            key=f"parameters.{key}",
            value=value,
            remedy=f"write '{choices[-1]}'",
        )
    return value


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
