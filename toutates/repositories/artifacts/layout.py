"""Which models the files of an artifact make: a repository, one model's directory, or one graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from toutates.repositories.hub.layout import hub_model
from toutates.repositories.s3.keys import ModelFiles, S3Object, models_among

__all__ = ["artifact_models"]

#: Folders that hold nothing but one folder, as archives of folders begin with.
_MAX_DEPTH: Final = 4


def artifact_models(objects: Iterable[S3Object], url: str, name: str) -> tuple[dict[str, ModelFiles], list[str]] | str:
    """The models by name, and what is wrong with files of none.

    Args:
        objects: every file.
        url: of the artifact.
        name: of the model, where there is one and its files do not say.

    Returns:
        The models of a repository, which may lie some folders below; or the one model. Otherwise problem and remedy,
        joined by a semicolon.
    """
    files = list(objects)
    prefix = ""
    for _ in range(_MAX_DEPTH):
        models, odd = models_among(files, url, prefix)
        if any(model.versions for model in models.values()):
            return models, odd
        own = [found.key[len(prefix) :] for found in files if found.key.startswith(prefix)]
        folders = {path.partition("/")[0] for path in own if "/" in path}
        if len(folders) != 1 or any("/" not in path for path in own) or folders & {".", ".."}:
            break
        [folder] = folders
        if folder.isdigit():
            break  # a version
        prefix += f"{folder}/"
    inside = {found.key[len(prefix) :]: found for found in files if found.key.startswith(prefix)}
    model = hub_model([replace(found, key=path) for path, found in inside.items()], url, name)
    if isinstance(model, str):
        return model
    model.files = {path: inside[found.key] for path, found in model.files.items()}
    return {name: model}, []
