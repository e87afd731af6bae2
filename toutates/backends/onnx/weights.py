"""Weights beside a graph, which ONNX Runtime maps from their files: those of a served version are copies.

A file that is written while it is mapped changes what is computed, and one that is cut short ends the process. So
sessions are made of copies, which nobody else can change. Where there is no room for these, the weights are read into
memory, once for all sessions of a version. Weights inside the graph's file are read by ONNX Runtime itself.

What changes while it is read is read again.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import onnxruntime

from toutates.backends.onnx.graph_file import External, GraphFile
from toutates.backends.onnx.weight_files import WeightFiles, find_weights, folders_of
from toutates.models.repository import VersionFolder
from toutates.protocol.wire_format import read_varint
from toutates.system.errors import ModelLoadError
from toutates.system.private_copies import (
    TRIES,
    FileChanged,
    Identity,
    NoRoom,
    PrivateCopies,
    PrivateCopy,
    identity_of,
    read_whole,
)

__all__ = ["GraphFiles", "GraphSource", "Weights"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: NumPy's types by the numbers of ONNX's. The second: of those that NumPy lacks, which are lent as these.
_TYPES: Final = {
    1: "f4",
    2: "u1",
    3: "i1",
    4: "u2",
    5: "i2",
    6: "i4",
    7: "i8",
    9: "?",
    10: "f2",
    11: "f8",
    12: "u4",
    13: "u8",
}
_LENT_TYPES: Final = {16: "u2", 17: "u1", 18: "u1", 19: "u1", 20: "u1"}
_REMEDY: Final = (
    "name a folder with room in --model-cache-dir, or start the server with --map-weights if nobody writes to the "
    "files of models that are served"
)


class Weights(Protocol):
    """What a session is made with beside the graph's file. A session has to hold it as long as it lives."""

    def give(self, options: onnxruntime.SessionOptions) -> None:
        """Give it to a session that is about to be made."""
        ...


@dataclass(frozen=True, slots=True)
class GraphSource:
    """What the sessions of a version are made of.

    Attributes:
        path: the graph's file, or its copy.
        graph_file: what is known of it.
        weights: what the sessions are made with; None for nothing but the file.
    """

    path: Path
    graph_file: GraphFile
    weights: Weights | None = None


class GraphFiles:
    """Opens graphs for a server.

    Args:
        copies: makes copies of weights; None: they are mapped from their own files.
    """

    def __init__(self, copies: PrivateCopies | None = None) -> None:
        self._copies = copies

    def read(
        self,
        version: VersionFolder,
        graph: Path,
        what: str,
        make: Callable[[GraphSource], T],
        *,
        several: bool = False,
    ) -> T:
        """Make sessions of a graph. Blocks.

        Args:
            version: whose it is.
            graph: its file.
            what: whose it is, for the log.
            make: makes all sessions; called again if a file has changed meanwhile.
            several: whether it makes more than one session.

        Raises:
            ModelLoadError: weights are outside of the repository; a file has changed each time that it was read; or as
                by ``make``.
        """
        if self._copies is not None:
            self._copies.clean()
        changed = ""
        for _ in range(TRIES):
            graph_file = GraphFile(graph)
            before = graph_file.identity
            found = _find(version, graph, graph_file)
            files = found.paths
            try:
                if files and self._copies is not None:
                    return self._read_copied(graph, before, graph_file, found, what, make)
                if files and found.linked:
                    return _read_in_memory(graph, before, graph_file, found, make)
                watched = {graph: before, **({path: _identity(path) for path in files.values()} if several else {})}
                try:
                    made = make(GraphSource(graph, graph_file))
                except ModelLoadError:
                    _check(watched, replaced=True)
                    raise
                _check(watched, replaced=several)
                is_missing = graph_file.external and not files and self._copies is not None
                if is_missing and _find(version, graph, graph_file).paths:
                    raise FileChanged(str(graph.parent))  # what was missing is there now, and is mapped
                return made
            except FileChanged as error:
                changed = str(error)
        raise ModelLoadError(
            f"'{changed}' has changed while it was read, {TRIES} times; load the version again when all of its files "
            "are written"
        )

    def _read_copied(
        self,
        graph: Path,
        before: Identity | None,
        graph_file: GraphFile,
        found: WeightFiles,
        what: str,
        make: Callable[[GraphSource], T],
    ) -> T:
        assert self._copies is not None
        copy, files = None, found.paths
        watched = {graph: before, **{path: _identity(path) for path in files.values()}}
        try:
            copy = self._copies.make({graph.name: Path(os.path.realpath(graph)), **files})
            _check({graph: before}, replaced=True)
        except FileNotFoundError as error:
            raise FileChanged(str(error.filename)) from None
        except OSError as error:
            raise ModelLoadError(f"cannot read '{error.filename}': {error.strerror}") from error
        except NoRoom as error:
            size = sum(one[2] for one in watched.values() if one is not None)
            said = "%s: %.1f MB of weights are read into memory, because they cannot be copied to %s"
            logger.warning(said, what, size / 1e6, error)
        except FileChanged:
            if copy is not None:
                copy.close()
            raise
        if copy is None:
            return _read_in_memory(graph, before, graph_file, found, make)
        held = _Copied(copy) if self._copies.shared else None
        is_made = False
        try:
            with _told_of(copy.folder, graph):
                made = make(GraphSource(copy.folder / graph.name, graph_file, held))
            is_made = True
            return made
        except ModelLoadError:
            _check(watched, replaced=True)  # else it was half written
            raise
        finally:
            if held is None or not is_made:
                copy.close()


def _find(version: VersionFolder, graph: Path, graph_file: GraphFile) -> WeightFiles:
    if not graph_file.external:
        return WeightFiles()
    return find_weights(graph, (one.location for one in graph_file.external), folders_of(version))


def _read_in_memory(
    graph: Path,
    before: Identity | None,
    graph_file: GraphFile,
    found: WeightFiles,
    make: Callable[[GraphSource], T],
) -> T:
    watched = {graph: before, **{path: _identity(path) for path in found.paths.values()}}
    weights = _in_memory(graph_file.external, found.paths)
    try:
        if found.linked:
            return _make_apart(graph, graph_file, found, weights, make)
        return make(GraphSource(graph, graph_file, weights))
    finally:
        _check(watched, replaced=True)


def _make_apart(
    graph: Path, graph_file: GraphFile, found: WeightFiles, weights: Weights, make: Callable[[GraphSource], T]
) -> T:
    """Make sessions of a copy of the graph, beside files without content.

    ONNX Runtime looks where weights are before it takes those from memory, and refuses links that leave the folder.

    Raises:
        FileChanged: the graph.
        ModelLoadError: there is no room for the graph, or as by ``make``.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="toutates-graph-") as name:
            folder = Path(name)
            for location, path in found.paths.items():
                (folder / location).parent.mkdir(parents=True, exist_ok=True)
                (folder / location).touch()
                os.truncate(folder / location, path.stat().st_size)
            (folder / graph.name).write_bytes(read_whole(Path(os.path.realpath(graph))))
            with _told_of(folder, graph):
                return make(GraphSource(folder / graph.name, graph_file, weights))
    except OSError as error:
        raise ModelLoadError(f"'{graph}' cannot be read, or copied to TMPDIR: {error.strerror}") from error


@contextmanager
def _told_of(folder: Path, graph: Path) -> Iterator[None]:
    """A block that makes sessions of copies in a folder; its errors name the folder of the graph."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(str(error).replace(str(folder), str(graph.parent))) from error.__cause__


def _identity(path: Path) -> Identity | None:
    try:
        return identity_of(path.stat())
    except OSError:  # ONNX Runtime says what is wrong
        return None


def _check(watched: dict[Path, Identity | None], *, replaced: bool) -> None:
    """Check that files are what they were.

    Args:
        watched: what they were.
        replaced: whether another file in the place of one counts too. One session opens its file once.

    Raises:
        FileChanged: one is not.
    """
    for path, before in watched.items():
        now = _identity(path)
        if now != before and (replaced or now is None or before is None or now[:2] == before[:2]):
            raise FileChanged(str(path))


class _Copied:
    """Copies that other processes use too, open as long as a session has them mapped."""

    def __init__(self, copy: PrivateCopy) -> None:
        weakref.finalize(self, copy.close)

    def give(self, options: onnxruntime.SessionOptions) -> None:
        """See ``Weights``."""


class _InMemory:
    """Weights that all sessions of a version read where they are.

    Args:
        values: each by the name of its initializer.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def give(self, options: onnxruntime.SessionOptions) -> None:
        """See ``Weights``."""
        for name, value in self._values.items():
            options.add_initializer(name, value)


class _Files:
    """Files that each session copies its weights from.

    Args:
        contents: by their locations.
    """

    def __init__(self, contents: dict[str, bytearray]) -> None:
        self._contents = contents

    def give(self, options: onnxruntime.SessionOptions) -> None:
        """See ``Weights``."""
        sizes = [len(content) for content in self._contents.values()]
        options.add_external_initializers_from_files_in_memory(
            list(self._contents), list(self._contents.values()), sizes
        )


def _in_memory(external: Sequence[External], files: dict[str, Path]) -> Weights:
    """Read weights into memory.

    Raises:
        FileChanged: one of the files.
        ModelLoadError: a file cannot be read, or ONNX Runtime takes these weights from files alone.
    """
    if not all(one.is_initializer for one in external):
        raise ModelLoadError(
            f"weights of a subgraph or an operator cannot be given to onnxruntime from memory; {_REMEDY}"
        )
    try:
        contents = {location: read_whole(path) for location, path in files.items()}
    except OSError as error:
        raise ModelLoadError(f"cannot read '{error.filename}': {error.strerror}") from error
    values = {}
    for one in external:
        name, value = _value(one, contents[one.location])
        values[name] = value
    if None not in values.values():
        return _InMemory(values)
    if not hasattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory"):
        raise ModelLoadError(
            f"onnxruntime {onnxruntime.__version__} takes weights of such types from files alone; {_REMEDY}"
        )
    return _Files(contents)


def _value(external: External, content: bytearray) -> tuple[str, Any]:
    """An initializer's name and its value, which lies in the file's content; None if that cannot be lent.

    Raises:
        ModelLoadError: the file does not have it.
    """
    name, number, shape = "", 0, []
    offset, length = 0, -1
    for field, value in _fields(external.tensor):
        if field == 1:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif field == 2 and isinstance(value, int):
            number = value
        elif field == 8 and isinstance(value, bytes):
            name = value.decode()
        elif field == 13 and isinstance(value, bytes):
            entry = dict(_fields(value))
            if entry.get(1) == b"offset":
                offset = int(entry.get(2, b"0"))
            elif entry.get(1) == b"length":
                length = int(entry.get(2, b"0"))
    lent = number in _LENT_TYPES
    if not lent and number not in _TYPES:
        return name, None
    dtype = np.dtype(_LENT_TYPES[number] if lent else _TYPES[number])
    count = math.prod(shape)
    size = count * dtype.itemsize
    if length not in (-1, size) or offset < 0 or offset + size > len(content):
        raise ModelLoadError(
            f"initializer '{name}' has {size} bytes from byte {offset} of its external data '{external.location}', "
            f"which has {len(content)}; export or copy the model again"
        )
    if not size:
        return name, None
    array = np.frombuffer(content, dtype, count, offset).reshape(shape)
    try:
        if lent:
            return name, onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
        return name, onnxruntime.OrtValue.ortvalue_from_numpy(array)
    except (RuntimeError, ValueError, AttributeError):
        return name, None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a small message that are numbers or bytes."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = read_varint(message, at)
            yield key >> 3, number
        elif kind == 2:
            size, at = read_varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        else:
            at += 8 if kind == 1 else 4


def _varints(packed: bytes) -> list[int]:
    found, at = [], 0
    while at < len(packed):
        number, at = read_varint(packed, at)
        found.append(number)
    return found
