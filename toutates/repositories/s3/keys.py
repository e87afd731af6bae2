"""From the keys of a bucket to models, versions and files: what ``toutates.models.repository`` does for a directory.

Keys are any text, file names are not. A key whose parts cannot be names in a directory is never used as a path: it is
a problem of the version it lies in, or a warning where it lies in none. The same rules hold as for a local repository:
directories that are no model or no version are passed over, and so is what is hidden in a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.repository import (
    MODEL_FILENAME,
    RESERVED,
    ModelFolder,
    VersionFolder,
    belongs_to_graph,
    found_instead,
    is_version,
    may_be_meant_as_version,
    not_a_model_name,
)
from toutates.models.text_folder import is_text_folder
from toutates.repositories.interface import fingerprint_of, version_fingerprints
from toutates.system.logs.limit import few

__all__ = ["ModelFiles", "S3Object", "file_among", "models_among"]

_MAX_NAME: Final = 255  # bytes of one name in most file systems
_MAX_PATH: Final = 2_048  # bytes; keys are 1024 at most, but not those of every implementation


@dataclass(frozen=True, slots=True)
class S3Object:
    """One object as a listing shows it.

    Attributes:
        key: its name in the bucket.
        etag: as the service writes it, with its quotes.
        size: bytes.
    """

    key: str
    etag: str
    size: int


@dataclass(slots=True)
class ModelFiles:
    """What a listing holds of one model.

    Attributes:
        name: of the model.
        source: its s3:// URL.
        files: by path in the model, with slashes.
        directories: every directory of the model that has an entry, without a slash at the end.
        odd: what is wrong with a key, by the part of it that is a path, or would be.
    """

    name: str
    source: str
    files: dict[str, S3Object] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    odd: dict[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Another one after any change that ``describe`` or ``wanted`` could show."""
        return fingerprint_of(line for _, line in self._lines())

    def describe(self, path: Path, versions: Collection[int] | None = None) -> ModelFolder:
        """The model's folder.

        Args:
            path: where its files are, or are going to be.
            versions: those to describe; None for all.
        """
        reason = not_a_model_name(self.name)
        if reason:
            return ModelFolder(self.name, path, problem=reason, source=self.source, passed_over=True)
        entries = sorted({name.partition("/")[0] for name in self.directories} - {""})
        numbers = self.versions
        warnings = [
            f"'{self.source}/{entry}/' is passed over: a version is named by a positive integer without leading zeros"
            for entry in entries
            if not is_version(entry)
            and entry not in RESERVED
            and not entry.startswith(".")
            and not self.is_flat
            and (not numbers or may_be_meant_as_version(entry))
        ]
        chosen = [number for number in numbers if versions is None or number in versions]
        fingerprints = version_fingerprints(self._lines(), chosen)
        odd = [problem for name, problem in sorted(self.odd.items()) if not is_version(name.partition("/")[0])]
        warnings += [] if self.is_flat else few(odd)
        return ModelFolder(
            self.name,
            path,
            tuple(self._version(path, number, own) for number, own in fingerprints.items()),
            tuple(warnings),
            "" if numbers else f"no version directory in '{self.source}/', such as '{self.source}/1/'",
            self.fingerprint,
            self.source,
            passed_over=not numbers and PBTXT_NAME not in self.files,
            has_no_version=not numbers,
            is_lone=self.is_flat,
        )

    def add(self, inside: str, found: S3Object) -> None:
        """Take an object as a file, or as a directory; note what is wrong with the path that it is to have.

        Args:
            inside: path in the model.
            found: the object.
        """
        # What ends in a slash stands for a directory, as consoles and s3fs write it.
        parts = inside.removesuffix("/").split("/")
        problem = next(filter(None, map(_oddity, parts)), "")
        if len(inside.encode(errors="replace")) > _MAX_PATH:
            problem = f"its path has more than {_MAX_PATH} bytes"
        if problem:
            shown = f"the key {found.key!r} cannot be a file: {problem}; rename or remove it in '{self.source}'"
            self.odd[inside] = shown
            if is_version(parts[0]):
                self.directories.add(parts[0])
            return
        if inside.endswith("/"):
            self.directories.add("/".join(parts))
        else:
            self.files[inside] = found
        for depth in range(1, len(parts)):
            self.directories.add("/".join(parts[:depth]))

    @property
    def is_flat(self) -> bool:
        """Whether the model's directory is the folder of a text model, and so its only version."""
        if any(is_version(name.partition("/")[0]) for name in self.directories):
            return False
        return is_text_folder({name for name in self.files if "/" not in name})

    @property
    def versions(self) -> list[int]:
        """The versions that are there, ascending."""
        if self.is_flat:
            return [1]
        first = {name.partition("/")[0] for name in self.directories}
        return sorted(int(entry) for entry in first if is_version(entry))

    def wanted(self, versions: Collection[int] | None = None, beside: Collection[str] = ()) -> Mapping[str, S3Object]:
        """The files to fetch, by path in the model: of these versions (all, for None), of the model, and others."""
        if self.is_flat:
            return {} if self._problem("") else self.files
        return {name: found for name, found in self.files.items() if self._is_wanted(name, versions, beside)}

    def _is_wanted(self, name: str, versions: Collection[int] | None, beside: Collection[str]) -> bool:
        first, slash, _ = name.partition("/")
        if not slash:
            return first not in self.directories
        if is_version(first):
            return (versions is None or int(first) in versions or name in beside) and not self._problem(first + "/")
        return first in RESERVED or (name in beside and name not in self.directories)

    def _version(self, path: Path, number: int, fingerprint: str) -> VersionFolder:
        flat = self.is_flat
        start = "" if flat else f"{number}/"
        graph = start + MODEL_FILENAME
        if graph in self.directories:
            graph = f"{graph}/{MODEL_FILENAME}"
        problem = self._problem(start)
        if not problem and graph not in self.files:
            names = (*self.files, *self.directories)
            own = [name.removeprefix(start) for name in names if name.startswith(start)]
            problem = f"unable to find '{self.source}/{graph}': no such object{found_instead(own)}"
        return VersionFolder(number, path / start, path / graph, problem, fingerprint=fingerprint, is_lone=flat)

    def _problem(self, start: str) -> str:
        """What is wrong with the files of a version, whose paths begin so; "" if nothing is."""
        for name, problem in sorted(self.odd.items()):
            if name.startswith(start):
                return problem
        both = sorted(name for name in self.files if name.startswith(start) and name in self.directories)
        if start[:-1] in self.files:
            both.insert(0, start[:-1])
        if both:
            key = f"{self.source}/{both[0]}"
            return f"'{key}' and '{key}/...' are both objects, but no name is a file and a directory; remove one"
        return ""

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Every path, with a line that changes when what it stands for does."""
        for name, found in sorted(self.files.items()):
            yield name, f"{name}\0{found.etag}\0{found.size}"
        yield from ((name, f"{name}/") for name in sorted(self.directories))
        yield from ((name, f"{name}\0{problem}") for name, problem in sorted(self.odd.items()))


def models_among(objects: Iterable[S3Object], url: str, prefix: str) -> tuple[dict[str, ModelFiles], list[str]]:
    """Sort objects by the models they belong to.

    Args:
        objects: all whose keys begin with the prefix, or those of some models.
        url: of the repository, without a slash at the end.
        prefix: of every key; "" or ending in a slash.

    Returns:
        The models by name, sorted; and what is wrong with keys that belong to none, one sentence each.
    """
    models: dict[str, ModelFiles] = {}
    odd: list[str] = []
    for found in objects:
        name, slash, inside = found.key[len(prefix) :].partition("/")
        if not slash:
            continue  # a file beside the models, or the prefix itself
        if not_a_model_name(name) and name not in (".", ".."):
            models.setdefault(name, ModelFiles(name, f"{url}/{name}"))  # what is in it does not matter
            continue
        problem = _oddity(name)
        if problem:
            odd.append(f"the object {found.key!r} in '{url}' is passed over: {problem}")
            continue
        model = models.setdefault(name, ModelFiles(name, f"{url}/{name}"))
        if inside and not _is_hidden(inside.partition("/")[0]):
            model.add(inside, found)
    return dict(sorted(models.items())), odd


def file_among(objects: Iterable[S3Object], url: str, prefix: str, graph: str, name: str) -> dict[str, ModelFiles]:
    """The model whose graph is an object, by its name, as version 1; nothing if there is no such object.

    Args:
        objects: those whose keys begin as the graph's.
        url: of the graph.
        prefix: of the graph's key and of its weights'; "" or ending in a slash.
        graph: the rest of the key.
        name: of the model.
    """
    model = ModelFiles(name, url, directories={"1"})
    for found in objects:
        own = found.key[len(prefix) :]
        if own == graph:
            model.files[f"1/{MODEL_FILENAME}"] = found
        elif belongs_to_graph(own, graph) and "/" not in own and not _oddity(own):
            model.files[f"1/{own}"] = found
    return {name: model} if f"1/{MODEL_FILENAME}" in model.files else {}


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and name not in (".", "..")


def _oddity(name: str) -> str:
    """Why a part of a key cannot be a name in a directory; "" if it can."""
    if not name:
        return "a part of it between slashes is empty"
    if name in (".", ".."):
        return f"a part of it is {name!r}"
    if "\0" in name:
        return "it has a zero byte"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not size or "\N{REPLACEMENT CHARACTER}" in name:  # which boto3 writes for what it could not decode
        return "it is not UTF-8"
    return f"a part of it has more than {_MAX_NAME} bytes" if size > _MAX_NAME else ""
