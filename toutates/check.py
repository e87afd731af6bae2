"""``toutates check REPOSITORY``: everything that is wrong with a repository, without serving it.

Models are read one after the other, on the CPU and without optimising their graphs, so that a check needs neither a GPU
nor more memory than the largest of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toutates.errors import ConfigurationError, ModelLoadError
from toutates.memory import available_memory
from toutates.models.inspection import InspectedVersion, inspect_version
from toutates.models.repository import ModelFolder, VersionFolder, say_passed_over, scan

__all__ = ["Report", "check_repository"]


@dataclass(slots=True)
class Report:
    """What a check has found.

    Attributes:
        problems: one line each: file, key, value and remedy; with any of them the repository is not served whole.
        warnings: what may not be meant so, likewise.
        facts: one line for each version that can be served.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    buffer_bytes: int = 0


def check_repository(
    root: Path,
    custom_op_libraries: Sequence[Path] = (),
    *,
    has_gpu_build: bool = False,
    memory: Callable[[], int] = available_memory,
) -> Report:
    """Look through a repository.

    Args:
        root: the directory.
        custom_op_libraries: as for the server.
        has_gpu_build: whether this ONNX Runtime could run on a GPU what it cannot on the CPU.
        memory: tells the bytes that a server may use.

    Raises:
        ConfigurationError: there is no such directory, or it cannot be read.
    """
    report = Report()
    folders = scan(root)
    _check_links(root, report)
    if all(folder.passed_over for folder in folders):
        report.warnings.append(f"{root}: has no models; put one directory there for each")
    for folder in folders:
        if folder.passed_over:
            report.warnings.append(_one_line(say_passed_over(folder)))
            continue
        _check_links(folder.path, report)
        report.warnings += [_one_line(warning) for warning in folder.warnings]
        if folder.problem:
            report.problems += _lines(folder.path, folder.problem, "mend it, or remove the directory")
        for version in folder.versions:
            _check_version(folder, version, custom_op_libraries, report, has_gpu_build)
    limit = memory()
    if report.buffer_bytes > limit:
        report.problems.append(
            f"{root}: capacity: the buffers of all models take {_size(report.buffer_bytes)} when they are full, the "
            f"machine or its control group has {_size(limit)}; lower capacity or batch_size of the largest above"
        )
    return report


def _check_links(folder: Path, report: Report) -> None:
    """Links that lead nowhere, to themselves, or back to a directory that holds them."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # which the scan has noted
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


def _check_version(
    folder: ModelFolder,
    version: VersionFolder,
    custom_op_libraries: Sequence[Path],
    report: Report,
    has_gpu_build: bool,
) -> None:
    if version.path.resolve() != folder.path.resolve():  # as a link back would be, which is a problem already
        _check_links(version.path, report)
    try:
        inspected = inspect_version(version, custom_op_libraries)
    except ConfigurationError as error:
        report.problems += [_one_line(line) for line in str(error).splitlines()]
        return
    except ModelLoadError as error:
        said = _one_line(str(error))
        if "NOT_IMPLEMENTED" in said and has_gpu_build:
            report.warnings.append(f"{version.model_path}: cannot be read on the CPU: {said}; try it on the GPU")
        else:
            report.problems += _lines(version.model_path, said, _remedy(said, version.path))
        return
    _note(folder, version, inspected, report)


def _note(folder: ModelFolder, version: VersionFolder, inspected: InspectedVersion, report: Report) -> None:
    """What a version that can be served is, and what of it may not be meant so."""
    configuration, signature = inspected.configuration, inspected.signature
    settings, source = configuration.settings, configuration.source
    if configuration.notice:
        report.warnings.append(_one_line(configuration.notice))
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
        shown = "SuperTensor of rows of open size, at most 64 MiB a batch"
    else:
        size = batch[1] * settings.capacity
        report.buffer_bytes += size
        shown = f"SuperTensor {_size(size)} ({size} bytes, {settings.capacity} batches of {batch[0]})"
    report.facts.append(f"{folder.name} {version.number}: {'batched' if signature.batched else 'unbatched'}, {shown}")


#: What ONNX Runtime's reasons mean, and what to do.
_REMEDIES = (
    (r"opset|IR version", "export the model for an older opset, or install a newer onnxruntime"),
    (
        r"is not a registered function/op|No opset import for domain|is not registered|Unrecognized",
        "name the library of its custom operators in --custom-op-libraries",
    ),
    (
        r"[Ee]xternal (data|initializer)|external_data|file size|filesystem error|open file|GetFileLength",
        "put the file with the weights beside the model, under the name that the graph gives it",
    ),
    (r"protobuf|INVALID_PROTOBUF", "export or copy the model again: the file is no ONNX graph, or is cut short"),
    (r"^unable to find", "put the graph there, or say its name in default_model_filename or model_filename"),
)


def _remedy(said: str, path: Path) -> str:
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, said):
            return remedy
    return f"see what it says, and correct the model in '{path}'"


def _lines(path: Path, problem: str, remedy: str) -> list[str]:
    """Problems that may have several lines, each complete with a path and a remedy."""
    lines = [line for line in problem.splitlines() if line.strip()]
    return [_one_line(line if str(path) in line and "; " in line else f"{path}: {line}; {remedy}") for line in lines]


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in joined)


def _size(count: int) -> str:
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1_024 and len(units) > 1:
        size /= 1_024
        units.pop(0)
    return f"{count} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
