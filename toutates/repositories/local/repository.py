"""A repository in a local directory: ``toutates.models.repository``, with fingerprints of what was found."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from toutates.models.config.misplaced import loose_graphs
from toutates.models.repository import ModelFolder, model_names, scan
from toutates.repositories.interface import (
    Progress,
    Recalled,
    RepositoryStatistics,
    fingerprint_of,
    version_fingerprints,
)
from toutates.system.errors import ToutatesError
from toutates.system.logs.limit import Told

__all__ = ["LocalRepository", "file_line", "with_fingerprints"]

logger = logging.getLogger(__name__)


class LocalRepository:
    """A repository in a local directory. Files are used where they are: nothing is fetched, and others may change them.

    Args:
        root: the directory.
        asked_by: the flag or argument that names it, for errors.
        tells_log: whether the log is told of graphs that lie in no model's directory.
        lone_name: of the model whose graph lies alone in the directory; "" for the directory's own name.
    """

    def __init__(
        self, root: Path, asked_by: str = "--model-repository", *, tells_log: bool = True, lone_name: str = ""
    ) -> None:
        self.name = str(root)
        self._root = root
        self._asked_by = asked_by
        self._tells_log = tells_log
        self._lone_name = lone_name
        #: graphs outside of models that the log has named, so that it is told once
        self._told = Told()
        self._statistics = RepositoryStatistics()

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        """See ``Repository.scan``. Graphs that lie in no model's directory are said in the log, once."""
        try:
            found = self._scan(only)
        except ToutatesError:
            self._statistics = replace(self._statistics, answers=False)
            raise
        self._statistics = RepositoryStatistics(answers=True, listed_s=time.time())
        if only is None and self._tells_log and not any(folder.is_lone for folder in found):
            for problem in self._told.news("loose graphs", loose_graphs(self._root)):
                logger.warning("%s", problem)
        return found

    def index(self) -> Mapping[str, ModelFolder | None]:
        """See ``Repository.index``: the names of the directories."""
        names = None
        try:
            names = model_names(self._root, self._asked_by)
        finally:
            self._statistics = RepositoryStatistics(answers=names is not None, listed_s=time.time())
        if names:
            return dict.fromkeys(names)
        return {folder.name: None for folder in self.scan() if not folder.passed_over}

    def _scan(self, only: Collection[str] | None) -> list[ModelFolder]:
        folders = scan(self._root, only, asked_by=self._asked_by, lone_name=self._lone_name)
        return [_described(folder) for folder in folders]

    def recall(self, only: Collection[str] | None, reason: str) -> Recalled | None:
        """See ``Repository.recall``: what cannot be read now is not here."""
        return None

    def advice(self) -> str:
        """See ``Repository.advice``."""
        return "; ".join(loose_graphs(self._root))

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        """See ``Repository.fetch``: the folder itself, with these versions alone."""
        if versions is None:
            return folder
        return replace(folder, versions=tuple(version for version in folder.versions if version.number in versions))

    def release(self, folder: ModelFolder) -> None:
        """See ``Repository.release``."""

    def statistics(self) -> RepositoryStatistics:
        """See ``Repository.statistics``: nothing is downloaded."""
        return self._statistics

    def stop(self) -> None:
        """See ``Repository.stop``."""


def _described(folder: ModelFolder) -> ModelFolder:
    if folder.passed_over:  # it may hold any number of files, and none of them matters
        return replace(folder, source=str(folder.path))
    return with_fingerprints(folder, sorted(_entries(folder.path, "", set())), source=folder.source or str(folder.path))


def with_fingerprints(folder: ModelFolder, lines: Sequence[tuple[str, str]], source: str) -> ModelFolder:
    """A model with the fingerprints of its files.

    Args:
        folder: the model.
        lines: of each file, as ``version_fingerprints`` wants them.
        source: where the operator finds it.
    """
    own = version_fingerprints(lines, [version.number for version in folder.versions])
    versions = [replace(version, fingerprint=own[version.number]) for version in folder.versions]
    return replace(
        folder, versions=tuple(versions), fingerprint=fingerprint_of(line for _, line in lines), source=source
    )


def file_line(path: Path | str, name: str) -> str:
    """A line that changes when a file does.

    A file that is written over keeps its inode and changes its time or size; one that is put in its place has another
    inode.

    Args:
        path: of the file.
        name: its path in the model.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{name}\0cannot be read: {error.errno}"
    return f"{name}\0{status.st_size} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"


def _entries(directory: Path | str, start: str, above: set[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """Every file and directory: its path in the model, and a line that changes when the file does.

    Links are followed, since deployments swap models by them, but never in a circle.
    """
    try:
        status = os.stat(directory)
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError as error:
        yield start, f"{start} cannot be read: {error.errno}"
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        yield start, f"{start} leads to a directory above it"
        return
    yield start, f"{start} a directory"
    for entry in found:
        name = entry.name
        if not start and name.startswith("."):  # passed over by the scan as well
            continue
        if _is_directory(entry):
            yield from _entries(entry.path, f"{start}{name}/", above | {identity})
            continue
        yield f"{start}{name}", file_line(entry.path, f"{start}{name}")


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False
