"""Sees that a version's sessions are made of the same files, where each of them opens these by itself.

A file may be replaced at any time. Executors of one version would then serve different graphs, or one graph with the
weights of another. To make all sessions of one copy in memory would cost the memory of the weights, which ONNX Runtime
maps from their file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from toutates.models.repository import VersionFolder, belongs_to_graph
from toutates.system.errors import ModelLoadError

__all__ = ["FilesOfSessions"]

#: How many files of a version are looked at, some milliseconds' worth. Exporters write a file for each large tensor.
_MAX_FILES: Final = 2_000

#: What tells a file from another one at the same path: where it is, its size, and when it was written.
_Identity = tuple[int, int, int, int]


class FilesOfSessions:
    """The files of a version as they were before its first session was made. Blocks.

    Args:
        version: whose graph is about to be opened.
    """

    def __init__(self, version: VersionFolder) -> None:
        self._version = version
        self._before = self._look()

    def check(self) -> None:
        """Check that they are the same. Call when the last session is made.

        Raises:
            ModelLoadError: the graph, or a file that it has weights in, is another one by now, or has been written.
        """
        now = self._look()
        graph = str(self._version.model_path)
        for path, identity in self._before.items():  # the graph first
            if now.get(path) != identity and (path == graph or _names(graph, os.path.basename(path))):
                raise ModelLoadError(
                    f"'{path}' has changed while the version was loaded, and its executors would not compute the same; "
                    "load it again when all of its files are written"
                )

    def _look(self) -> dict[str, _Identity]:
        found: dict[str, _Identity] = {}
        for path in islice(_files(self._version), _MAX_FILES):
            try:
                status = os.stat(path)
            except OSError:  # it has just been removed
                continue
            found[path] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return found


def _names(graph: str, name: str) -> bool:
    """Whether a graph says that a file of this name has weights of it. Other files beside it may come and go."""
    try:
        with open(graph, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(os.fsencode(name)) >= 0
    except (OSError, ValueError):  # it has just been removed, or emptied
        return True


def _files(version: VersionFolder) -> Iterator[str]:
    """The graph's file, and those that may have its weights. Hidden ones are not a model's."""
    graph = version.model_path
    yield str(graph)
    for folder, folders, names in os.walk(graph.parent if version.is_file else version.path):
        folders[:] = [] if version.is_file else [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and (not version.is_file or belongs_to_graph(name, graph.name)):
                yield str(Path(folder, name))
