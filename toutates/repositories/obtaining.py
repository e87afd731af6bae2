"""A model made local, with its own configuration or with another one in its place."""

from __future__ import annotations

from dataclasses import replace

from toutates.models.config.triton_configuration import TritonConfiguration
from toutates.models.repository import ModelFolder
from toutates.repositories.interface import Progress, Repository
from toutates.repositories.looking import as_found

__all__ = ["obtain"]


def obtain(
    repository: Repository, folder: ModelFolder, on_progress: Progress, override: TritonConfiguration | None = None
) -> ModelFolder:
    """Fetch a model, with the versions that its configuration asks for. Blocks.

    Args:
        repository: that has it.
        folder: from its scan.
        on_progress: see Progress.
        override: holds in place of the model's config.pbtxt.

    Returns:
        The model as it can be loaded. If it has no ``problem``, its files are kept until ``repository.release``.

    Raises:
        ConfigurationError, RepositoryError: as ``Repository.fetch``.
    """
    if override is None:
        return repository.fetch(folder, on_progress)
    chosen, _ = override.chosen([version.number for version in folder.versions])
    # The override does not mind what is wrong with the file that it takes the place of.
    beside = override.settings.labels.values()
    fetched = repository.fetch(replace(folder, problem=""), on_progress, chosen, tuple(beside))
    if fetched.problem:
        return fetched
    found = as_found(fetched, override)
    if found.problem:
        repository.release(fetched)
    return found
