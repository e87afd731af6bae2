"""A model made local, with its own configuration or with another one in its place."""

from __future__ import annotations

from dataclasses import replace

from toutates.models.repository import ModelFolder, VersionFolder, scan_model
from toutates.models.triton_configuration import TritonConfiguration
from toutates.repositories.interface import Progress, Repository

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
        return _held_if_good(repository, folder, repository.fetch(folder, on_progress))
    chosen, _ = override.chosen([version.number for version in folder.versions])
    # The override does not mind what is wrong with the file that it takes the place of.
    asked = replace(folder, problem="") if folder.versions else folder
    fetched = repository.fetch(asked, on_progress, chosen)
    if not fetched.problem:
        fetched = _as_it_has_come(fetched, scan_model(fetched.path, override))
    return _held_if_good(repository, asked, fetched)


def _held_if_good(repository: Repository, asked: ModelFolder, fetched: ModelFolder) -> ModelFolder:
    """What was fetched; its files are let go of if it cannot be loaded. A folder with a problem is none to fetch."""
    if fetched.problem and not asked.problem:
        repository.release(fetched)
    return fetched


def _as_it_has_come(fetched: ModelFolder, found: ModelFolder) -> ModelFolder:
    """What a look at the files says, with what only the repository knows."""
    known = {version.number: version for version in fetched.versions}
    versions: dict[int, VersionFolder] = known | {
        version.number: replace(
            version, fingerprint=known[version.number].fingerprint if version.number in known else ""
        )
        for version in found.versions
    }
    return replace(
        fetched,
        versions=tuple(versions[number] for number in sorted(versions)),
        warnings=tuple(dict.fromkeys((*fetched.warnings, *found.warnings))),
        problem="" if versions else found.problem,
    )
