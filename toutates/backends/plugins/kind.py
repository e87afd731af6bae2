"""The kind of models that a backend of ``backends.interface`` computes, of the server or of an installed package."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from toutates.backends.batches import batches_of
from toutates.backends.interface import Backend, Instance, Responder, SequenceInstance, Source, Tensor, Tensors
from toutates.backends.output_shapes import SeenShapes
from toutates.backends.plugins.catalogue import Catalogue
from toutates.backends.plugins.decoupled import DecoupledRunner
from toutates.backends.plugins.importing import MAX_REASON, import_backend, reason_of
from toutates.backends.plugins.limited import NotInTime, within
from toutates.backends.plugins.running import PluginFailures, PluginRunner
from toutates.backends.probing import PROBED_ROWS, Verdict, probe, sample_lengths
from toutates.backends.sequences import instance_settings, sequence_servable, sequences_of
from toutates.backends.warming import run_two_rows, time_row, warm_up
from toutates.engine.batched import BatchedServable
from toutates.engine.open_request import Responses
from toutates.engine.packing import OtherSizes
from toutates.engine.sequences.tensors import SequenceTensors
from toutates.engine.servable import Servable
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import BackendName, model_config
from toutates.models.config.labels import Labels, read_labels, shortfalls
from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.problems import Problems
from toutates.models.config.settings import ModelSettings, SessionSettings
from toutates.models.config.signature_of import signature_of
from toutates.models.config.triton_fields import check_fields
from toutates.models.config.warmup import check_warmup
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError, ModelLoadError, ToutatesError
from toutates.system.private_copies import TRIES, Identity, identity_of
from toutates.system.text import one_line

__all__ = ["LoadedVersion", "PluginKind"]

logger = logging.getLogger(__name__)

#: The parameter that says how long loading a version may take, and its default, seconds.
LOAD_TIMEOUT: Final = "toutates.load_timeout_s"
LOAD_TIMEOUT_S: Final = 120
_MAX_TIMEOUT_S: Final = 86_400


@dataclass(slots=True)
class LoadedVersion:
    """A version that its backend has loaded.

    Attributes:
        name: of the backend.
        source: what it was loaded from.
        configuration: of the version, within what the model can compute.
        signature: its tensors.
        sequences: what the server gives to its sequences; None for a version without.
        runners: one per instance.
        decoupled: whether a request gets any number of responses.
        warnings: for the operator, one sentence each.
        labels: of classes, by the index of the output.
        independent_rows: what the backend says of its rows; see ``Tensors``.
    """

    name: str
    source: Source
    configuration: VersionConfiguration
    signature: Signature
    sequences: SequenceTensors | None
    runners: list[PluginRunner | DecoupledRunner]
    decoupled: bool
    warnings: list[str]
    labels: dict[int, Labels]
    independent_rows: bool | None = True

    @property
    def seen(self) -> Signature:
        """The tensors that clients see."""
        return self.signature if self.sequences is None else self.sequences.signature

    @property
    def keeps_state(self) -> bool:
        """Whether the model keeps a state for each sequence, whose requests are one row each."""
        return self.sequences is not None and self.sequences.model_keeps_states

    @property
    def plain(self) -> list[PluginRunner]:
        """Those of a version that is not decoupled, which can be warmed up."""
        return [runner for runner in self.runners if isinstance(runner, PluginRunner)]

    def open(self, seen: SeenShapes) -> None:
        """Open the axes of outputs that runs have contradicted, and warn of them."""
        if not seen.problem:
            return
        self.warnings.append(seen.problem)
        self.signature = seen.opened(self.signature)
        if self.sequences is not None:
            signature, whole = seen.opened(self.sequences.signature), seen.opened(self.sequences.whole)
            self.sequences = replace(self.sequences, signature=signature, whole=whole)
        for runner in self.plain:
            runner.declare(self.signature, is_told=True)

    def close(self) -> None:
        """Free it, as closing its servable does."""
        for runner in self.runners:
            runner.close()


class PluginKind:
    """Versions whose configuration names a backend of ``catalogue``, or whose files choose one.

    Args:
        catalogue: of the backends that there are.
        allow_pickle: whether backends may load files that may hold pickles.
    """

    def __init__(self, catalogue: Catalogue | None = None, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        #: by version's directory: set once a load that was given up has ended after all
        self._given_up: dict[Path, threading.Event] = {}
        self._catalogue = catalogue if catalogue is not None else Catalogue()

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return self._catalogue

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``."""
        return bool(self._chosen(version))

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        loaded = self.open(model, configuration)
        configuration = loaded.configuration
        settings, folder = configuration.settings, configuration.folder
        plain = loaded.plain
        rows = Verdict(loaded.independent_rows is not False)
        seen = SeenShapes(loaded.signature)

        def run() -> None:
            nonlocal rows
            row_ns = warm_up(plain, settings, loaded.signature, model, folder.model_dir, seen)
            if not loaded.keeps_state:
                run_two_rows(plain[0], settings, loaded.signature, model, folder.model_dir, seen)
            if loaded.independent_rows is None:
                rows = _probe(loaded, settings, row_ns)

        if plain:
            self._run_limited(run, loaded, configuration)
            loaded.open(seen)
        try:
            served = _serve(model, configuration, loaded, joins=rows.joins)
        except BaseException:
            loaded.close()
            raise
        if rows.warning:
            loaded.warnings.append(rows.warning)
        for warning in loaded.warnings:
            logger.warning("model '%s' version %d: %s", model, configuration.folder.number, warning)
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, configuration.folder.number, configuration.notice)
        return served

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``."""
        loaded = self.open(model, configuration)
        configuration = loaded.configuration
        settings, signature, folder = configuration.settings, loaded.signature, configuration.folder
        plain = loaded.plain

        notices: list[str] = []
        seen = SeenShapes(signature)

        def run() -> None:
            row_ns = 0
            if try_warmup and settings.warmup:
                once = replace(settings, warmup=tuple(replace(sample, count=1) for sample in settings.warmup))
                row_ns = warm_up(plain[:1], once, signature, model, folder.model_dir, seen)
            elif try_warmup:
                row_ns = time_row(plain[0], signature, seen)
            if try_warmup and not loaded.keeps_state:
                run_two_rows(plain[0], settings, signature, model, folder.model_dir, seen)
            if try_warmup and loaded.independent_rows is None:
                rows = _probe(loaded, settings, row_ns)
                loaded.warnings += [rows.warning] if rows.warning else []
                notices.append(rows.skipped)

        if plain:
            self._run_limited(run, loaded, configuration)
            loaded.open(seen)
        loaded.close()
        return InspectedVersion.of(
            model,
            configuration,
            loaded.seen,
            _described(loaded),
            tuple(loaded.warnings),
            decoupled=loaded.decoupled,
            notices=tuple(filter(None, notices)),
        )

    def _run_limited(self, run: Callable[[], None], loaded: LoadedVersion, configuration: VersionConfiguration) -> None:
        """Make the first runs of a version, which may hang as well as its load.

        Raises:
            ConfigurationError, ModelLoadError: they failed or hang. The version is closed, but for one that hangs,
                which is still in use.
        """
        ended = threading.Event()

        def job() -> None:
            try:
                run()
            finally:
                ended.set()

        seconds = _load_timeout(loaded.source)
        try:
            within(seconds, job, name=f"load {loaded.source.model}", too_late=lambda _: loaded.close())
        except NotInTime as error:
            self._given_up[configuration.folder.path] = ended
            raise ModelLoadError(
                f"the backend '{loaded.name}' has not answered its first run within {seconds} s, and its thread was "
                f"left to itself; see why, or raise the parameter {LOAD_TIMEOUT}"
            ) from error
        except BaseException:
            loaded.close()
            raise

    def _chosen(self, version: VersionFolder) -> str:
        try:
            names = sorted(os.listdir(version.path))
        except OSError:
            return ""
        # The file that the configuration names, or model.onnx, chooses the backend alone where it is there.
        named = version.model_path.relative_to(version.path).parts[0]
        return self._catalogue.chosen_by([named] if named in names else names)

    def open(self, model: str, configuration: VersionConfiguration) -> LoadedVersion:
        """Load a version that is not served yet. Blocks.

        Args:
            model: its name.
            configuration: of the version.

        Raises:
            ConfigurationError, ModelLoadError: it cannot be served.
        """
        settings, folder = configuration.settings, configuration.folder
        name = settings.backend or self._chosen(folder)
        warnings = _check_settings(name, configuration)
        source = _source(model, configuration, allow_pickle=self._allow_pickle)
        seconds = _load_timeout(source)

        ended = threading.Event()
        last = self._given_up.get(folder.path)
        if last is not None and not last.is_set():
            # Each load that is tried again would leave one more thread behind.
            raise ModelLoadError(
                f"the backend '{name}' is still busy with the last load of this version, which was given up; see why "
                "it hangs, and start the server again"
            )

        def load() -> tuple[Backend, Source, Tensors, list[Instance | SequenceInstance | Responder]]:
            try:
                made = import_backend(name, self._catalogue)
                _check_devices(name, made, settings, configuration.source)
                own = replace(source, path=_find(made, settings.model_filename, folder.path))
                for _ in range(TRIES):
                    before = _identities(own.path)
                    backend = made()
                    try:
                        tensors = backend.load(own)
                        numbers = range(settings.num_executors)
                        instances = [backend.instance(at, settings.device(at)) for at in numbers]
                    except BaseException as error:
                        _free(backend, name, model)
                        if not isinstance(error, Exception) or _identities(own.path) == before:
                            raise
                        continue  # it was half written
                    if _identities(own.path) == before:
                        return backend, own, tensors, instances
                    del instances
                    _free(backend, name, model)
                raise ModelLoadError(
                    f"'{own.path}' has changed while it was read, {TRIES} times; load the version again when all of "
                    "its files are written"
                )
            finally:
                ended.set()

        try:
            backend, source, tensors, instances = within(
                seconds, load, name=f"load {model}", too_late=lambda late: _free(late[0], name, model)
            )
        except ToutatesError:
            raise
        except NotInTime as error:
            self._given_up[folder.path] = ended
            raise ModelLoadError(
                f"the backend '{name}' has not loaded the model within {seconds} s, and its thread was left to itself; "
                f"see why, or raise the parameter {LOAD_TIMEOUT}"
            ) from error
        except BaseException as error:
            logger.error("loading model '%s' version %d failed", model, folder.number, exc_info=error)
            raise ModelLoadError(f"the backend '{name}' cannot load the model: {reason_of(error)}") from error
        runners: list[PluginRunner | DecoupledRunner] = []
        try:
            signature = signature_of(
                *_specs(name, tensors), settings, source=configuration.source, declared=configuration.declared
            )
            if signature.batched and tensors.max_rows:
                configuration, more = _within(configuration, tensors.max_rows)
                settings, warnings = configuration.settings, warnings + more
            if tensors.keeps_state and settings.sequences is None:
                raise ModelLoadError(
                    f"the backend '{name}' keeps a state between runs, which only sequences may have; its author has "
                    "to ask Source.keeps_state"
                )
            sequences = sequences_of(model, signature, configuration, keeps_state=tensors.keeps_state)
            signature = signature if sequences is None else sequences.whole
            _check_decoupled(name, tensors, configuration)
            check_warmup(settings, signature, folder.model_dir, configuration.source)
            labels = dict(read_labels(settings, signature, folder.model_dir, configuration.source))
            warnings += shortfalls(labels, signature, settings, configuration.source)
            if source.left_over:
                unknown = ", ".join(source.left_over)
                warnings.append(f"'{configuration.source}': the backend '{name}' has no parameters {unknown}")
            warnings += [one_line(text, MAX_REASON) for text in tensors.warnings]
            runners += _runners(name, model, backend, signature, instances, tensors)
        except BaseException as error:
            _free(backend, name, model)
            if isinstance(error, ToutatesError):
                raise
            raise ModelLoadError(f"the backend '{name}' has instances that cannot run: {reason_of(error)}") from error
        return LoadedVersion(
            name,
            source,
            configuration,
            signature,
            sequences,
            runners,
            tensors.decoupled,
            warnings,
            labels,
            False if tensors.keeps_state else tensors.independent_rows,
        )


def _within(configuration: VersionConfiguration, most: int) -> tuple[VersionConfiguration, list[str]]:
    """A configuration whose batches have no more rows than the model can compute, and warnings."""
    settings, given = configuration.settings, configuration.given
    if settings.batch_size <= most:
        return configuration, []
    warnings = []
    if given is not None and given.max_batch_size > most:
        warnings.append(f"'{configuration.source}': max_batch_size is {most}, because the model takes no more rows")
    preferred = tuple(size for size in settings.preferred_batch_sizes if size <= most)
    settings = replace(settings, batch_size=most, preferred_batch_sizes=preferred)
    return replace(configuration, settings=settings), warnings


def _probe(loaded: LoadedVersion, settings: ModelSettings, row_ns: int) -> Verdict:
    most = settings.batch_size
    if most == 1:
        return Verdict()
    return probe(
        loaded.plain[0],
        loaded.signature,
        row_ns=row_ns,
        says_joined=settings.joined_by,
        lengths=sample_lengths(settings, loaded.signature),
        # The model may be unable to run more.
        joint_rows=most if most < PROBED_ROWS else 0,
    )


def _load_timeout(source: Source) -> int:
    return source.integer(LOAD_TIMEOUT, LOAD_TIMEOUT_S, 1, _MAX_TIMEOUT_S)


def _check_settings(name: str, configuration: VersionConfiguration) -> list[str]:
    """Refuse what only ONNX models have; returns warnings of what is passed over."""
    settings, warnings = configuration.settings, []
    problems = Problems(configuration.source)
    if configuration.given is not None:
        ignored = check_fields(configuration.given, problems, may_be_decoupled=True)
        if configuration.given.parameters and not settings.backend:
            # Without a name the file was read as that of an ONNX model.
            remedy = f"write backend: '{name}'"
            problems.add("parameters", "are read for a backend only where the file names it", None, remedy)
        if configuration.given.HasField("optimization"):
            ignored.append(f"optimization (of ONNX models only; the backend '{name}' has parameters)")
        if configuration.given.model_operations.op_library_filename:
            ignored.append("model_operations.op_library_filename (of ONNX models only)")
        if ignored:
            warnings.append(
                f"'{configuration.source}': passed over, because this server does not act on it: {'; '.join(ignored)}"
            )
    elif settings.accelerators or settings.session != SessionSettings():
        key = "accelerators" if settings.accelerators else "session"
        problems.add(key, "is for ONNX models only", None, f"remove it; the backend '{name}' has `parameters`")
    if settings.profiling is not None:
        problems.add("profiling", "is for ONNX models only", None, "remove it")
    if settings.allocator != "cpu":
        problems.add("allocator", "is for ONNX models only", settings.allocator, "write allocator: cpu")
    problems.raise_all()
    return warnings


def _check_decoupled(name: str, tensors: Tensors, configuration: VersionConfiguration) -> None:
    """Refuse a configuration that takes a model for decoupled that is not, or that asks what no such model has."""
    given, settings = configuration.given, configuration.settings
    if given is not None and given.model_transaction_policy.decoupled and not tensors.decoupled:
        raise ConfigurationError(
            f"the backend '{name}' gives one response per request of this model",
            source=configuration.source,
            key="model_transaction_policy.decoupled",
            value="true",
            remedy="remove it",
        )
    if tensors.decoupled and settings.sequences is not None:
        raise ConfigurationError(
            f"a decoupled model of the backend '{name}' has no sequences",
            source=configuration.source,
            key="sequence_batching" if given is not None else "sequences",
            remedy="remove it",
        )
    if tensors.decoupled and settings.warmup:
        raise ConfigurationError(
            f"a decoupled model of the backend '{name}' is not warmed up",
            source=configuration.source,
            key="model_warmup" if given is not None else "warmup",
            remedy="remove it, and let the backend do in `load` what its first request would",
        )


def _check_devices(name: str, backend: type[Backend], settings: ModelSettings, source: Path) -> None:
    wanted = [device for device in settings.devices if device.startswith("gpu")]
    if wanted and not backend.gpu:
        raise ConfigurationError(
            f"the backend '{name}' runs on the CPU only",
            source=source,
            key="devices" if source.name != PBTXT_NAME else "instance_group",
            value=wanted[0],
            remedy="write KIND_CPU (config.yaml: cpu)",
        )


def _identities(path: Path) -> list[Identity | None]:
    """What tells whether a model's file, or that of its weights, has been written or replaced."""
    found: list[Identity | None] = []
    for one in (path, path.with_suffix(".bin")):
        try:
            found.append(identity_of(one.stat()) if one.is_file() else None)
        except OSError:
            found.append(None)
    return found


def _source(model: str, configuration: VersionConfiguration, *, allow_pickle: bool) -> Source:
    """What the backend is given, but for the path of the file, which needs the backend's default names."""
    settings, folder, declared = configuration.settings, configuration.folder, configuration.declared
    batch = (-1,) if declared is not None and declared.max_batch_size else ()

    def tensors(role: str) -> list[Tensor]:
        return [
            Tensor(own.name, _datatype_name(own.datatype), (*batch, *own.shape), own.optional)
            for own in (getattr(declared, role) if declared is not None else ())
        ]

    return Source(
        model,
        folder.number,
        folder.path,
        folder.path,
        batch_size=settings.batch_size if settings.batching else 1,
        instances=settings.num_executors,
        inputs=tensors("inputs"),
        outputs=tensors("outputs"),
        configuration=configuration.source,
        parameters=settings.parameters,
        sequences=settings.sequences is not None,
        allow_pickle=allow_pickle,
    )


def _datatype_name(config_name: str) -> str:
    return "BYTES" if config_name == "TYPE_STRING" else config_name.removeprefix("TYPE_")


def _find(backend: type[Backend], named: str, directory: Path) -> Path:
    """The model's file.

    Raises:
        ModelLoadError: it is not there, or cannot be read.
    """
    names = [named] if named else list(backend.filenames)
    if not names:
        return directory
    path = next((directory / name for name in names if (directory / name).exists()), directory / names[0])
    try:
        if path.is_dir():
            return path
        with path.open("rb"):
            return path
    except OSError as error:
        others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
        remedy = "put the model there, or name its file in default_model_filename or model_filename"
        raise ModelLoadError(f"unable to find '{path}'{others}: {error.strerror}; {remedy}") from error


def _specs(name: str, tensors: object) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """What a backend says of its tensors, checked.

    Raises:
        ModelLoadError: it is not what ``Backend.load`` has to return.
    """
    if not isinstance(tensors, Tensors):
        raise ModelLoadError(
            f"the backend '{name}' returned {type(tensors).__name__} from load, expected "
            "toutates.backends.interface.Tensors; its author has to correct that"
        )
    return _specs_of(name, "input", tensors.inputs), _specs_of(name, "output", tensors.outputs)


def _specs_of(name: str, role: str, tensors: Sequence[Any]) -> list[TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ModelLoadError(f"the backend '{name}' has an {role} that is {type(tensor).__name__}, expected Tensor")
        whole: Sequence[object] = tensor.shape
        shape = tuple(size for size in whole if isinstance(size, int) and size >= -1)
        problem = ""
        if not tensor.name or tensor.name in specs:
            problem = "needs a name of its own"
        elif tensor.datatype not in BY_NAME:
            problem = f"has the datatype {tensor.datatype!r}, expected one of {', '.join(BY_NAME)}"
        elif len(shape) < len(whole):
            problem = f"has the shape {list(whole)}, expected sizes, and -1 for any size"
        if problem:
            raise ModelLoadError(f"the backend '{name}' has an {role} {tensor.name!r} that {problem}")
        specs[tensor.name] = TensorSpec(tensor.name, BY_NAME[tensor.datatype], shape, tensor.optional)
    if not specs:
        raise ModelLoadError(f"the backend '{name}' has no {role} for this model, and a model needs one at least")
    return list(specs.values())


def _runners(
    name: str,
    model: str,
    backend: Backend,
    signature: Signature,
    instances: Sequence[Any],
    tensors: Tensors,
) -> Sequence[PluginRunner | DecoupledRunner]:
    open_runners, lock = len(instances), threading.Lock()

    def close() -> None:
        nonlocal open_runners
        with lock:
            open_runners -= 1
            is_last = open_runners == 0
        if is_last:
            _free(backend, name, model)

    failures, other_sizes = PluginFailures(name, model), OtherSizes(model)
    if tensors.decoupled:
        return [DecoupledRunner(instance, signature, model, failures, close) for instance in instances]
    return [
        PluginRunner(
            instance,
            signature,
            model,
            failures,
            other_sizes,
            quick=backend.quick,
            keeps_state=tensors.keeps_state,
            on_close=close,
        )
        for instance in instances
    ]


def _free(backend: Backend, name: str, model: str) -> None:
    try:
        backend.free()
    except (Exception, SystemExit):
        logger.exception("the backend '%s' failed to free model '%s'", name, model)


def _described(loaded: LoadedVersion) -> BackendName:
    path, directory = loaded.source.path, loaded.source.directory
    filename = "" if path == directory else str(path.relative_to(directory))
    return BackendName(loaded.name, filename=filename)


def _serve(model: str, configuration: VersionConfiguration, loaded: LoadedVersion, *, joins: bool) -> ServedVersion:
    settings, number, tensors = configuration.settings, configuration.folder.number, loaded.sequences
    triton = configuration.folder.triton

    responses = Responses() if loaded.decoupled else None

    def batched(own: ModelSettings, runners: Sequence[PluginRunner | DecoupledRunner]) -> BatchedServable:
        is_triton = configuration.source.name == PBTXT_NAME
        supertensor = batches_of(
            model,
            loaded.signature,
            own,
            is_triton=is_triton,
            grows=tensors is None,
            keeps_whole=loaded.decoupled,
            joins=joins,
        )
        for runner in runners:
            if isinstance(runner, DecoupledRunner) and responses is not None:
                runner.ports, runner.responses = supertensor.ports, responses
        return BatchedServable(number, supertensor, runners, responses=responses)

    servable: Servable
    if tensors is None:
        servable = batched(settings, loaded.runners)
    else:
        instances = [batched(instance_settings(settings), [one]) for one in loaded.runners]
        servable = sequence_servable(model, number, tensors, settings, instances)
    config = model_config(
        model,
        loaded.seen,
        settings,
        version_policy=triton.version_policy if triton is not None else None,
        given=configuration.given,
        backend=_described(loaded),
    )
    config.model_transaction_policy.decoupled = loaded.decoupled
    return ServedVersion(
        model=model,
        number=number,
        description=config,
        servable=servable,
        labels=loaded.labels,
        # Any request to a decoupled model may be asked what it says beside its tensors.
        takes_parameters=(lambda: True) if loaded.decoupled or tensors is not None else None,
    )
