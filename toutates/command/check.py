"""``toutates check REPOSITORY``: finds everything that is wrong with a repository, without serving it.

Models are read one after the other, on the CPU and without optimising their graphs, so that a check needs no more
memory than the largest of them. Where a model asks for a GPU, a graph of one operator is loaded there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime

from toutates.backends.onnx.inspection import ALL_DEVICES
from toutates.backends.onnx.opening import OPERATORS_REMEDY, SessionOptions, provider_problem
from toutates.backends.onnx.provider_names import CUDA, ON_CPU, Provider
from toutates.backends.onnx.providers import choose_providers
from toutates.models.config.misplaced import loose_graphs
from toutates.models.dependencies import member_problems
from toutates.models.inspection import InspectedVersion
from toutates.models.kinds import Kind, inspect_version
from toutates.models.repository import ModelFolder, VersionFolder, say_passed_over, unexpected
from toutates.repositories.interface import Repository
from toutates.repositories.local.repository import LocalRepository
from toutates.repositories.opening import open_repositories
from toutates.repositories.specification import FileSpecification, RemoteSpecification
from toutates.server.kinds import kinds_of_models
from toutates.server.options import DEFAULT_CACHE_SIZE, Options
from toutates.system.errors import ConfigurationError, ModelLoadError, ToutatesError
from toutates.system.memory import available_memory
from toutates.system.spelling import composed
from toutates.system.text import one_line

__all__ = ["Report", "check", "check_repository"]


@dataclass(slots=True)
class Report:
    """What a check has found.

    Attributes:
        problems: one line each, with file, key, value and remedy. With any of them some model is not served.
        warnings: what may be a mistake, in lines of the same form.
        facts: one line for each version that can be served.
        buffer_bytes: what the buffers of all models take when they are full.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    buffer_bytes: int = 0


def check(options: Options, *, assume_gpu: bool = False) -> Report:
    """Look through a repository for a server with these options on this machine.

    Args:
        options: with one repository.
        assume_gpu: whether the GPUs that models ask for are taken to be there.

    Raises:
        ConfigurationError, RepositoryError: as ``check_repository``; also where an execution provider is not offered.
    """
    offered = onnxruntime.get_available_providers()
    providers = ALL_DEVICES
    if not assume_gpu:
        providers = choose_providers(options.execution_providers, options.tensorrt, offered)
    [root] = options.model_repositories
    assert not isinstance(root, FileSpecification)  # which `toutates serve` alone makes
    return check_repository(
        root,
        options.custom_op_libraries,
        providers=providers,
        device_problem=(lambda providers: "") if assume_gpu else provider_problem,
        has_gpu_build=CUDA in offered,
        cache_root=options.model_cache_dir,
        allow_pickle=options.allow_pickle,
    )


def check_repository(
    root: Path | RemoteSpecification,
    custom_op_libraries: Sequence[Path] = (),
    *,
    providers: Sequence[Provider] = (ON_CPU,),
    device_problem: Callable[[Sequence[Provider]], str] = lambda providers: "",
    has_gpu_build: bool = False,
    memory: Callable[[], int] = available_memory,
    cache_root: Path | None = None,
    asked_by: str = "REPOSITORY",
    allow_pickle: bool = False,
) -> Report:
    """Look through a repository.

    Args:
        root: the directory, or what is elsewhere, whose models are downloaded one after the other.
        custom_op_libraries: as for the server.
        providers: execution providers of the server that the models are for.
        device_problem: tells why there can be no session with given providers; "" if there can.
        has_gpu_build: whether this build of ONNX Runtime has CUDA.
        memory: returns the bytes of memory that a server may use.
        cache_root: directory for downloads; None for the user's cache directory.
        asked_by: what the command line calls ``root``, for errors.
        allow_pickle: as for the server.

    Raises:
        ConfigurationError: it is no repository, or cannot be read.
        RepositoryError: it cannot be reached now.
    """
    report = Report()
    server = SessionOptions(tuple(providers), tuple(custom_op_libraries))
    remembered: dict[str, str] = {}

    def remembered_problem(wanted: Sequence[Provider]) -> str:
        key = repr(wanted)
        if key not in remembered:
            remembered[key] = "" if tuple(wanted) == (ON_CPU,) else device_problem(wanted)
        return remembered[key]

    kinds = kinds_of_models(server, device_problem=remembered_problem, allow_pickle=allow_pickle)
    repository = _open(root, cache_root, asked_by)
    folders = repository.scan()
    if isinstance(root, Path):
        _check_links(root, report)
        if not any(folder.is_lone for folder in folders):
            report.problems += loose_graphs(root)
    if all(folder.passed_over for folder in folders):
        advice = "" if report.problems else repository.advice()
        here = os.path.abspath(root) if isinstance(root, Path) else str(root)
        example = f"put one directory there for each model, such as '{here}/NAME/1/model.onnx'"
        report.problems.append(f"{root}: has no models; {advice or example}")
    checks = _Checks(kinds, has_gpu_build)
    for folder in folders:
        if folder.passed_over:
            report.warnings.append(one_line(say_passed_over(folder)))
            continue
        _check_model(repository, folder, checks, report)
    _check_spellings([folder for folder in folders if not folder.passed_over], report)
    _check_members(checks, report)
    limit = memory()
    if report.buffer_bytes > limit:
        report.problems.append(
            f"{root}: capacity: the buffers of all models take {_size(report.buffer_bytes)} when they are full, the "
            f"machine or its control group has {_size(limit)}; lower capacity or batch_size of the largest above"
        )
    return report


def _open(root: Path | RemoteSpecification, cache_root: Path | None, asked_by: str) -> Repository:
    if isinstance(root, Path):
        return LocalRepository(root, asked_by, tells_log=False)
    [repository] = open_repositories([root], cache_root=cache_root, cache_size=DEFAULT_CACHE_SIZE)
    return repository


@dataclass(frozen=True, slots=True)
class _Checks:
    """What every version is checked with; see ``check_repository``.

    Attributes:
        inspected: what was found of versions that can be served, by model and number.
    """

    kinds: Sequence[Kind]
    has_gpu_build: bool
    inspected: dict[str, dict[int, InspectedVersion]] = field(default_factory=dict)


def _check_model(repository: Repository, found: ModelFolder, checks: _Checks, report: Report) -> None:
    """Check one model; lines name its files by the place where it comes from, not by that of the download."""
    own = Report()
    checks.inspected[found.name] = {}
    folder = found
    try:
        folder = repository.fetch(found, lambda done, total: None)
    except ToutatesError as error:
        own.problems += [one_line(line) for line in str(error).splitlines()]
    except Exception as error:
        own.problems.append(one_line(unexpected(found.name, found.path, error)))
    else:
        _check_links(folder.path, own)
        own.warnings += [one_line(warning) for warning in folder.warnings]
        if folder.problem:
            remedy = "make it readable" if "Permission denied" in folder.problem else "mend it, or remove the directory"
            own.problems += _lines(folder.path, folder.problem, remedy)
        for version in folder.versions:
            _check_version(folder, version, checks, own)
        if not folder.problem:
            repository.release(folder)
    source = folder.source or str(folder.path)
    report.problems += [line.replace(str(folder.path), source) for line in own.problems]
    report.warnings += [line.replace(str(folder.path), source) for line in own.warnings]
    report.facts += own.facts
    report.buffer_bytes += own.buffer_bytes


def _check_spellings(folders: Sequence[ModelFolder], report: Report) -> None:
    """Report folders whose names differ in how their letters are composed alone, which look alike."""
    first: dict[str, ModelFolder] = {}
    for folder in folders:
        other = first.setdefault(composed(folder.name), folder)
        if other is not folder:
            report.warnings.append(
                f"{folder.source or folder.path}: {folder.name!a} has the name of model {other.name!a} but for "
                "how its letters are composed (Unicode NFC); callers that compose them in a third way get the latter; "
                "rename one of them"
            )


def _check_links(folder: Path, report: Report) -> None:
    """Report links to what does not exist, to themselves, and back to a directory that holds them."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # the scan has reported it
    for name in names:
        path = folder / name
        if not path.is_symlink():
            continue
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a loop, before Python 3.13
            report.problems.append(
                f"{path}: is a link to itself or to what does not exist (to '{os.readlink(path)}'); mend or remove it"
            )
            continue
        if target in (path.parent.resolve(), *path.parent.resolve().parents):
            report.problems.append(f"{path}: is a link back to '{target}', which holds it; remove it")


def _check_version(folder: ModelFolder, version: VersionFolder, checks: _Checks, report: Report) -> None:
    if version.path.resolve() != folder.path.resolve():  # as a link back would be, which is a problem already
        _check_links(version.path, report)
    try:
        inspected = inspect_version(checks.kinds, folder.name, version, try_warmup=True)
    except ConfigurationError as error:
        report.problems += [one_line(line) for line in str(error).splitlines()]
        return
    except ModelLoadError as error:
        said = one_line(str(error))
        if "NOT_IMPLEMENTED" in said and checks.has_gpu_build:
            report.warnings.append(f"{version.model_path}: cannot be read on the CPU: {said}; try it on the GPU")
        else:
            report.problems += _lines(version.model_path, said, _remedy(said, version.path))
        return
    checks.inspected[folder.name][version.number] = inspected
    _note(folder, version, inspected, report)


def _check_members(checks: _Checks, report: Report) -> None:
    """Check versions that are made of other models, against these as they were found."""
    found = {
        name: {number: (one.member, one.dependent) for number, one in versions.items()}
        for name, versions in checks.inspected.items()
    }
    for (name, number), problems in member_problems(found).items():
        source = checks.inspected[name][number].configuration.source
        for problem in problems:
            remedy = "correct the step, or the model that it names"
            report.problems.append(one_line(f"{source}: ensemble_scheduling: {problem}; {remedy}"))


def _note(folder: ModelFolder, version: VersionFolder, inspected: InspectedVersion, report: Report) -> None:
    """Report a version that can be served, with warnings of what may be a mistake."""
    configuration, signature = inspected.configuration, inspected.signature
    settings, source = configuration.settings, configuration.source
    report.warnings += [one_line(text) for text in (configuration.notice, *inspected.warnings) if text]
    if inspected.dependent is not None:
        members = ", ".join(dict.fromkeys(need.model for need in inspected.dependent.needs))
        kind = "batched" if signature.batched else "unbatched"
        report.facts.append(f"{folder.name} {version.number}: {kind}, made of {members}")
        return
    if not signature.batched and settings.batching and settings.batch_size > 1 and source.exists():
        fixed = [
            f"{tensor.name} {list(tensor.shape)}"
            for tensor in (*signature.inputs, *signature.outputs)
            if tensor.shape[:1] != (-1,) or tensor.optional
        ]
        report.warnings.append(
            f"{source}: batch_size: the model is not batched, because not every tensor has an open first dimension "
            f"({', '.join(fixed)}) (got {settings.batch_size}); export it with one, or write 1"
        )
    batch = inspected.batch
    if batch is None:
        shown = f"SuperTensor of rows of open size, at most 64 MiB a batch and {_size(inspected.capacity_bytes)} in all"
    else:
        size = min(batch[1] * settings.capacity, inspected.capacity_bytes)
        report.buffer_bytes += size
        shown = f"SuperTensor {_size(size)} ({size} bytes, {settings.capacity} batches of {batch[0]})"
    if settings.padding is not None:
        lengths = ", ".join(map(str, settings.padding.buckets)) or "four lengths to each doubling"
        most = f"at most {settings.padding.max_batch_tokens} padded elements a batch"
        shown = f"rows padded to {lengths}, {most} and {_size(inspected.capacity_bytes)} in all"
    if settings.ragged is not None:
        most = f"at most {settings.ragged.max_batch_elements} elements a batch"
        shown = f"rows of any shape end to end, {most} and {_size(inspected.capacity_bytes)} in all"
    report.facts.append(f"{folder.name} {version.number}: {'batched' if signature.batched else 'unbatched'}, {shown}")
    for said in filter(None, (inspected.advice, *inspected.notices)):
        report.facts.append(f"{folder.name} {version.number}: {one_line(said)}")


#: What to do, by a pattern in ONNX Runtime's error.
_REMEDIES = (
    (r"opset|IR version", "export the model for an older opset, or install a newer onnxruntime"),
    (r"Unrecognized", OPERATORS_REMEDY),
    (
        r"[Ee]xternal (data|initializer)|external_data|file size|filesystem error|open file|GetFileLength",
        "put the file with the weights beside the model, under the name that the graph gives it",
    ),
    (r"protobuf|INVALID_PROTOBUF", "export or copy the model again: the file is no ONNX graph, or is cut short"),
    (r"could not start|CUDA|TensorRT|device", "mend the device or its libraries, or let the model run on the CPU"),
    (r"^failed to run warmup sample", "correct the sample, or the graph that it is for"),
    (r"^unable to find", "put the graph there, or say its name in default_model_filename or model_filename"),
)


def _remedy(said: str, path: Path) -> str:
    if said.endswith(OPERATORS_REMEDY):
        return ""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, said):
            return remedy
    return f"correct the model in '{path}'"


def _lines(path: Path, problem: str, remedy: str) -> list[str]:
    """A problem of one or several lines, each with a path and a remedy."""
    lines = [line for line in problem.splitlines() if line.strip()]
    behind = f"; {remedy}" if remedy else ""
    return [one_line(line if str(path) in line and "; " in line else f"{path}: {line}{behind}") for line in lines]


def _size(count: int) -> str:
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1_024 and len(units) > 1:
        size /= 1_024
        units.pop(0)
    return f"{count} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
