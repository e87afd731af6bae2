"""Libraries of custom operators that a model's config.pbtxt names (``op_library_filename``).

A library is code of whoever has put it there. So one is loaded only from inside the model's repository, and only where
the operator's ``--custom-op-libraries`` names a directory that holds it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toutates.models.config.configuration import VersionConfiguration
from toutates.models.repository import VersionFolder
from toutates.system.errors import ConfigurationError

__all__ = ["OwnLibraries", "own_libraries"]


@dataclass(frozen=True, slots=True)
class OwnLibraries:
    """What a version's configuration says of libraries.

    Attributes:
        paths: of those that are loaded for it.
        warnings: why others are not, one sentence each.
    """

    paths: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


_NONE = OwnLibraries()


def own_libraries(configuration: VersionConfiguration, allowed: Sequence[Path]) -> OwnLibraries:
    """The libraries that a version's configuration names.

    Args:
        configuration: of the version.
        allowed: what ``--custom-op-libraries`` names: libraries, which all sessions have, and directories.

    Raises:
        ConfigurationError: one is not there, or is outside of the model's repository, where some may be loaded.
    """
    names = () if configuration.given is None else configuration.given.model_operations.op_library_filename
    if not names:
        return _NONE
    loaded = {os.path.realpath(one) for one in allowed if not one.is_dir()}
    folders = [os.path.realpath(one) for one in allowed if one.is_dir()]
    paths: list[Path] = []
    warnings: list[str] = []
    for name in names:
        path = _find(configuration.folder, name)
        if path is not None and str(path) in loaded:
            continue
        if not folders or (path is not None and not any(map(path.is_relative_to, folders))):
            warnings.append(
                f"'{configuration.source}': the library '{name}' (model_operations.op_library_filename) is not loaded; "
                "name it, or a directory of the repository that holds it, in --custom-op-libraries"
            )
            continue
        if path is None or not path.is_relative_to(_repository(configuration.folder)):
            raise ConfigurationError(
                "there is no such library in the model's repository",
                source=configuration.source,
                key="model_operations.op_library_filename",
                value=name,
                remedy="put it into the model's directory, and write its path from there",
            )
        paths.append(path)
    return OwnLibraries(tuple(dict.fromkeys(paths)), tuple(warnings))


def _find(folder: VersionFolder, name: str) -> Path | None:
    """The file that a name means, links followed: from the version's directory, the model's, or the repository's."""
    for base in (folder.path, folder.model_dir, _repository(folder)):
        path = Path(os.path.realpath(base / name))
        if path.is_file():
            return path
    return None


def _repository(folder: VersionFolder) -> Path:
    return Path(os.path.realpath(folder.model_dir if folder.is_lone else folder.model_dir.parent))
