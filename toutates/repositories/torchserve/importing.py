"""Turning a model archive of TorchServe into a folder of a model repository.

    <repository>/<model>/config.pbtxt               a Python model, with the archive's batching and workers
    <repository>/<model>/<version>/model.py         runs the handler, copied from ``runtime``
    <repository>/<model>/<version>/ts/              what handlers import of TorchServe, copied from ``runtime``
    <repository>/<model>/<version>/torchserve.json  which handler, and how
    <repository>/<model>/<version>/archive/         what the archive held

Everything is made in a hidden directory of the repository, and renamed into place. A refused archive leaves nothing.
Nothing of the archive is run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.repositories.making import work_directory
from toutates.repositories.torchserve.imported import (
    DESCRIPTION,
    default_of,
    read_config,
    set_default,
    set_versions,
    urls_of,
    versions_of,
    wanted_number,
    write_config,
)
from toutates.repositories.torchserve.manifest import MANIFEST, Handler, Manifest, find_handler, read_manifest
from toutates.repositories.torchserve.settings import WorkerSettings, model_config, read_settings, workers_of
from toutates.repositories.unpacking import Bounds, unpack
from toutates.system.errors import ConfigurationError

__all__ = ["AlreadyThere", "Imported", "Wanted", "import_archive"]

ARCHIVE: Final = "archive"
_RUNTIME: Final = Path(__file__).parent / "runtime"
#: Characters of the manifest and of model-config.yaml, in JSON.
_MAX_DESCRIPTION: Final = 8 * 2**20
_TS_MODULE: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+(ts(?:\.\w+)+)", re.MULTILINE)
#: Bytes of a handler that are looked through for what is told of it.
_MAX_SOURCE: Final = 2**20


class AlreadyThere(ConfigurationError):
    """The repository has this version of the model already.

    Attributes:
        model, version: which, by TorchServe's names.
    """

    model: str
    version: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What holds in place of what an archive says; "" and None for that.

    Attributes:
        name: of the model.
        handler: as the manifest would name it.
        batch_size, max_batch_delay_ms, workers: see ``WorkerSettings``.
        url: what the archive is called in descriptions; "" for its file name.
    """

    name: str = ""
    handler: str = ""
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    workers: int | None = None
    url: str = ""

    def over(self, settings: WorkerSettings) -> WorkerSettings:
        """Settings of an archive, with what is wanted in their place."""
        delay_ms = self.max_batch_delay_ms
        return replace(
            settings,
            batch_size=settings.batch_size if self.batch_size is None else self.batch_size,
            max_batch_delay_ms=settings.max_batch_delay_ms if delay_ms is None else delay_ms,
            workers=settings.workers if self.workers is None else self.workers,
        )


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported.

    Attributes:
        model: its name.
        version: by TorchServe's name.
        number: the version's number.
        path: its directory.
        workers: how many the archive or the caller wants; None where neither says so.
        notes: what the operator has to know or to do, a sentence each.
    """

    model: str
    version: str
    number: int
    path: Path
    workers: int | None
    notes: tuple[str, ...]


def import_archive(
    archive: Path,
    repository: Path,
    wanted: Wanted | None = None,
    *,
    bounds: Bounds | None = None,
    turn: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Imported:
    """Import an archive. Blocks.

    Args:
        archive: a ``.mar``, a ``.tar.gz``, or a folder with the same content.
        repository: the model repository's directory, which is made if it is not there.
        wanted: in place of what the archive says; None for that.
        bounds: what the archive may come to; None for the usual ones.
        turn: a block in which nobody else changes the model of a name.

    Raises:
        AlreadyThere: the repository has this version already.
        ConfigurationError: the archive cannot be imported, or the repository not written.
    """
    archive, repository = Path(os.path.abspath(archive)), Path(os.path.abspath(repository))
    with work_directory(repository, archive, "the archive") as work:
        return _import(archive, repository, work, wanted or Wanted(), bounds, turn)


def _import(
    archive: Path,
    repository: Path,
    work: Path,
    wanted: Wanted,
    bounds: Bounds | None,
    turn: Callable[[str], AbstractContextManager[object]],
) -> Imported:
    unpacked = work / "unpacked"
    unpacked.mkdir()
    unpack(archive, unpacked, bounds)
    content = _content(unpacked)
    manifest = read_manifest(content, archive, wanted.name, wanted.handler)
    handler = find_handler(manifest, content, archive)
    settings, notes, document = read_settings(content, manifest.config_file)
    settings = wanted.over(settings)
    with turn(manifest.name):
        model_dir = repository / manifest.name
        old = read_config(model_dir)
        versions = {} if old is None else dict(versions_of(old))
        urls = {} if old is None else dict(urls_of(old))
        if manifest.version in versions.values():
            error = AlreadyThere(
                f"version {manifest.version} of model '{manifest.name}' is in the repository already",
                source=archive,
                remedy="remove it there, or make the archive with another --version",
            )
            error.model, error.version = manifest.name, manifest.version
            raise error
        number = wanted_number(manifest.version, versions)
        if (model_dir / str(number)).exists():
            raise ConfigurationError("is there already", source=model_dir / str(number), remedy="remove it first")
        versions[number], urls[number] = manifest.version, wanted.url or archive.name
        config = model_config(manifest.name, settings, settings.workers or (1 if old is None else workers_of(old)))
        set_versions(config, versions, urls)
        default = number if old is None else default_of(old)
        if default is not None:
            set_default(config, default)
        new = work / manifest.name
        try:
            _fill(new / str(number), content, manifest, handler, document)
        except (ValueError, RecursionError) as error:
            problem = f"its model-config.yaml cannot be kept as JSON: {error}"
            raise ConfigurationError(
                problem, source=archive, remedy="write it without names for repeated parts"
            ) from error
        if old is None:
            write_config(new, config)
            new.rename(model_dir)
        else:
            (new / str(number)).rename(model_dir / str(number))
            write_config(model_dir, config)
            if len(versions) > 1:
                notes.append(
                    f"{PBTXT_NAME} holds for all versions of the model: the batching and the workers are the new one's"
                )
        path = model_dir / str(number)
        return Imported(
            manifest.name, manifest.version, number, path, settings.workers, (*notes, *_notes(path, manifest, handler))
        )


def _content(unpacked: Path) -> Path:
    """The directory that is the archive's own: archives of the format ``tgz`` may have one named after the model."""
    if not (unpacked / MANIFEST).exists():
        entries = list(unpacked.iterdir())
        if len(entries) == 1 and (entries[0] / MANIFEST).is_file():
            return entries[0]
    return unpacked


def _fill(version_dir: Path, content: Path, manifest: Manifest, handler: Handler, document: Mapping[str, Any]) -> None:
    """Make the directory of a version. The content is moved there."""
    shutil.copytree(_RUNTIME, version_dir, ignore=shutil.ignore_patterns("__pycache__"))
    content.rename(version_dir / ARCHIVE)
    description = {
        "model": manifest.name,
        "version": manifest.version,
        "module": handler.module,
        "function": handler.function,
        "manifest": manifest.document,
        # Here, so that an environment of the model's own needs no YAML. Dates become texts.
        "config": document,
    }
    (version_dir / DESCRIPTION).write_text(_as_json(description) + "\n", encoding="utf-8")


def _as_json(description: Mapping[str, Any]) -> str:
    """JSON of bounded length: a few lines of YAML can stand for gigabytes, by names for what they repeat."""
    written: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, default=str, skipkeys=True).iterencode(description):
        size += len(part)
        if size > _MAX_DESCRIPTION:
            raise ValueError("it is too long")
        written.append(part)
    return "".join(written)


def _notes(path: Path, manifest: Manifest, handler: Handler) -> list[str]:
    notes = []
    if manifest.requirements_file:
        file = path / ARCHIVE / manifest.requirements_file
        notes.append(
            f"its requirements are not installed: run 'pip install -r {file}' in the server's environment, or pack one "
            f"and name it as EXECUTION_ENV_PATH in {path.parent / PBTXT_NAME}"
        )
    if (handler.is_base and not manifest.serialized_file.endswith(".onnx")) or manifest.serialized_file.endswith(
        (".pt", ".pth", ".so")
    ):
        notes.append(f"'{manifest.serialized_file or manifest.handler}' needs torch in the environment that runs it")
    source = _source(path / ARCHIVE, handler)
    missing = sorted(module for module in set(_TS_MODULE.findall(source)) if not _is_here(module))
    if missing:
        notes.append(f"the handler imports {', '.join(missing)}, which is not here: it cannot be loaded as it is")
    if "send_intermediate_predict_response" in source:
        notes.append(
            "the handler sends answers in parts (send_intermediate_predict_response), which is not offered: such calls "
            "raise"
        )
    return notes


def _source(archive: Path, handler: Handler) -> str:
    file = archive / f"{handler.module}.py"
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        return opened.read(_MAX_SOURCE).decode(errors="replace")


def _is_here(module: str) -> bool:
    """Whether a module of TorchServe, as an import names it, is copied beside the handler."""
    path = _RUNTIME.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
