"""A repository in a local directory: ``toutates.models.repository``, with fingerprints of what was found."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toutates.models.config.misplaced import loose_graphs
from toutates.models.repository import ModelFolder, VersionFolder, is_plain_name, model_names, scan, unexpected
from toutates.repositories.interface import (
    Progress,
    Recalled,
    RepositoryStatistics,
    fingerprint_of,
    version_fingerprints,
)
from toutates.system.errors import RepositoryError, ToutatesError
from toutates.system.logs.limit import Told
from toutates.system.remembered import Remembered

__all__ = ["LocalRepository", "file_line", "with_fingerprints"]

logger = logging.getLogger(__name__)

#: Models of which it is remembered what a look has found; one of a few files takes about 3 KiB.
MOST_SEEN: Final = 8_192
#: Files and directories of such a model.
MOST_FILES_SEEN: Final = 32
#: Directories of a model in each other.
MOST_DEEP: Final = 128
#: For how long nothing of it has been changed, nanoseconds: what is written twice within one tick of the file system's
#: clock, which is up to two seconds, looks the same.
SETTLED_NS: Final = 3_000_000_000


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
        #: models that were looked at by their name, and what their files were before: the same files need no other look
        self._seen = Remembered[str, tuple[str, ModelFolder]](MOST_SEEN)

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
        name = next(iter(only)) if only is not None and len(only) == 1 else ""
        files = _files_of(os.path.join(self._root, name)) if is_plain_name(name) else None
        if files is not None:
            known = self._seen.get(name)
            if known is not None and known[0] == files.whole:
                return [known[1]]
        folders = scan(self._root, only, asked_by=self._asked_by, lone_name=self._lone_name)
        if [folder.path for folder in folders] != [self._root / name]:
            files = None  # the repository itself is the model
        found = [_described(folder, files.entries if files is not None else None) for folder in folders]
        # What was written meanwhile makes the next look another one.
        is_settled = files is not None and time.time_ns() - files.changed_ns >= SETTLED_NS
        if files is not None and is_settled and not (found[0].passed_over or found[0].problem):
            self._seen.put(name, (files.whole, found[0]))
        return found

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


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a model.

    Attributes:
        whole: a text that is another one when anything in the directory has changed.
        changed_ns: when something was last changed, Unix time in nanoseconds.
        entries: as those of ``_entries``, in any order.
    """

    whole: str
    changed_ns: int
    entries: Sequence[tuple[str, str, int]]


def _described(folder: ModelFolder, entries: Sequence[tuple[str, str, int]] | None = None) -> ModelFolder:
    """A model with what its files say.

    Args:
        folder: the model.
        entries: its files, where they are known.
    """
    if folder.passed_over:  # it may hold any number of files, and none of them matters
        return replace(folder, source=str(folder.path))
    path = str(folder.path)
    try:
        if entries is None:
            files = _files_of(path)
            entries = files.entries if files is not None else list(_entries(path, "", set()))
        return with_fingerprints(folder, sorted(entries), source=folder.source or path)
    except RepositoryError as error:
        return replace(folder, versions=(), problem=f"'{path}': {error}", source=folder.source or path)
    except Exception as error:
        problem = unexpected(folder.name, folder.path, error)
        return replace(folder, versions=(), problem=problem, source=folder.source or path)


def _size(version: VersionFolder, found: Sequence[tuple[str, str, int]]) -> int | None:
    """The bytes of a version's files."""
    if version.is_file or version.is_lone:
        return None
    start = f"{version.number}/"
    return sum([size for name, _, size in found if name.startswith(start)])


def with_fingerprints(folder: ModelFolder, found: Sequence[tuple[str, str, int]], source: str) -> ModelFolder:
    """A model with the fingerprints of its files, and what these take.

    Args:
        folder: the model.
        found: its files, as those of ``_entries``, sorted.
        source: where the operator finds it.
    """
    lines = [entry[:2] for entry in found]
    own = version_fingerprints(lines, [version.number for version in folder.versions])
    versions = [
        replace(version, fingerprint=own[version.number], size=_size(version, found)) for version in folder.versions
    ]
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
    return _line_and_size(path, name)[0]


def _line_and_size(path: Path | str, name: str) -> tuple[str, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{name}\0cannot be read: {error.errno}", 0
    return _line_of(name, status), status.st_size


def _line_of(name: str, status: os.stat_result) -> str:
    return f"{name}\0{status.st_size} {status.st_mtime_ns} {status.st_dev} {status.st_ino}"


def _entries(directory: Path | str, start: str, above: set[tuple[int, int]]) -> Iterator[tuple[str, str, int]]:
    """Every file and directory: its path in the model, a line that changes when the file does, and its bytes.

    Links are followed, since deployments swap models by them, but never in a circle.
    """
    try:
        status = os.stat(directory)
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError as error:
        yield start, f"{start} cannot be read: {error.errno}", 0
        return
    if len(above) > MOST_DEEP:
        raise RepositoryError(
            f"there are more than {MOST_DEEP} directories in each other, from '{start.partition('/')[0]}' on; move "
            "what belongs to no model elsewhere"
        )
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        yield start, f"{start} leads to a directory above it", 0
        return
    yield start, f"{start} a directory", 0
    for entry in found:
        name = entry.name
        if not start and name.startswith("."):  # passed over by the scan as well
            continue
        if _is_directory(entry):
            yield from _entries(entry.path, f"{start}{name}/", above | {identity})
            continue
        yield f"{start}{name}", *_line_and_size(entry.path, f"{start}{name}")


def _files_of(directory: str) -> _Files | None:
    """Every file and directory of a model, where none of them is a link to a directory; else None."""
    whole: list[str] = []
    entries = [("", " a directory", 0)]
    changed_ns = 0
    waiting = [(directory, "")]
    try:
        while waiting:
            path, start = waiting.pop()
            with os.scandir(path) as found:
                for entry in found:
                    if len(whole) == MOST_FILES_SEEN:
                        return None
                    name = start + entry.name
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if not is_directory and entry.is_symlink() and entry.is_dir():
                        return None  # which may lead back
                    status = entry.stat()
                    line = _line_of(name, status)
                    whole.append(f"{line} {status.st_mode} {status.st_ctime_ns}")
                    changed_ns = max(changed_ns, status.st_ctime_ns)
                    if is_directory:
                        waiting.append((entry.path, f"{name}/"))
                    if name.startswith("."):  # passed over by the scan as well, with what is in it
                        continue
                    if is_directory:
                        entries.append((f"{name}/", f"{name}/ a directory", 0))
                    else:
                        entries.append((name, line, status.st_size))
    except OSError:
        return None
    return _Files("\n".join(sorted(whole)), changed_ns, entries)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False
