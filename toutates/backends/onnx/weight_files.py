"""Which files the weights of a graph are in, and which of them may be read.

A graph names them by paths below its own folder. Links are followed into the repository and into caches of models,
whose files are links: whoever may write a model's folder must not have the server read other files of the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toutates.models.repository import VersionFolder
from toutates.system.errors import ModelLoadError

__all__ = ["WeightFiles", "find_weights", "folders_of"]

#: Files of a model in a cache, wherever that is: of the Hugging Face Hub, whose snapshots are links to them; our own.
_CACHED: Final = re.compile(r"/models--[^/]+/blobs/[^/]+$|/models/[0-9a-f]{32}/files/")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Where the weights of a graph are.

    Attributes:
        paths: the files without any link, by their locations as the graph gives them. None where one is missing or
            may not be read: ONNX Runtime says so then.
        linked: whether one of them is in another folder than the graph, from where ONNX Runtime reads none.
    """

    paths: dict[str, Path] = field(default_factory=dict)
    linked: bool = False


def folders_of(version: VersionFolder) -> list[str]:
    """Folders that the links of a version's weights may lead into: its model's, and the repository's."""
    own = os.path.realpath(version.model_dir)
    found = [own] if version.is_lone or version.is_file else [own, os.path.realpath(version.model_dir.parent)]
    return [folder for folder in found if folder != os.path.sep]


def find_weights(graph: Path, locations: Iterable[str], folders: Sequence[str]) -> WeightFiles:
    """Find the files with the weights of a graph. Blocks.

    Args:
        graph: its file.
        locations: of the files, as the graph gives them.
        folders: that links may lead into, beside the graph's own.

    Raises:
        ModelLoadError: a path or a link leads elsewhere; it names the path or the link.
    """
    found: dict[str, Path] = {}
    own = os.path.realpath(graph.parent), os.path.dirname(os.path.realpath(graph))
    linked = False
    for location in dict.fromkeys(locations):
        if not location or "\0" in location:
            return WeightFiles()
        if os.path.isabs(location) or os.path.normpath(location).split(os.path.sep)[0] == os.path.pardir:
            raise ModelLoadError(
                f"'{graph}' has its weights in '{location}', outside of its own folder, from where nothing is read; "
                "save the model again with its weights beside it"
            )
        path = graph.parent / location
        real = os.path.realpath(path)
        if not _is_in(real, own):
            linked = True
            link = f"'{_link_of(path)}' is a link to '{real}'"
            if not (_is_in(real, folders) or _CACHED.search(real)):
                raise ModelLoadError(
                    f"{link}, which is neither in the repository nor in a cache of models, and is not read; put the "
                    "file itself, or a hard link to it, in its place"
                )
            try:
                os.close(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                raise ModelLoadError(f"{link}, which cannot be read: {error.strerror}") from error
        if not (os.access(real, os.R_OK) and os.path.isfile(real)):
            return WeightFiles()
        found[location] = Path(real)
    return WeightFiles(found, linked)


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _link_of(path: Path) -> Path:
    """The link on a path, which may be a folder that the file is in."""
    return next((one for one in (path, *path.parents) if one.is_symlink()), path)
