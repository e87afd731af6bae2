"""A model made local with what its own configuration asks for: the versions of its policy, and no others."""

from __future__ import annotations

from dataclasses import replace

from toutates.errors import ConfigurationError
from toutates.models.repository import ModelFolder, VersionFolder, scan_model
from toutates.models.triton_configuration import TritonConfiguration, read_triton_configuration
from toutates.repositories.interface import Progress, Repository

__all__ = ["obtain"]


def obtain(
    repository: Repository, folder: ModelFolder, on_progress: Progress, override: TritonConfiguration | None = None
) -> ModelFolder:
    """Fetch a model, its config.pbtxt first, and look at what has come. Blocks.

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
    if folder.problem and override is None:
        return folder
    triton = override
    if triton is None:
        common = repository.fetch(folder, on_progress, versions=())
        if common.problem:
            return common
        try:
            triton = read_triton_configuration(common.path)
        except ConfigurationError as error:
            return replace(folder, versions=(), problem=str(error))
        finally:
            repository.release(common)
    chosen = None if triton is None else triton.chosen([version.number for version in folder.versions])[0]
    # Where the override does not mind what is wrong, the fetch should not either.
    fetched = repository.fetch(replace(folder, problem=""), on_progress, chosen)
    if fetched.problem:
        return fetched
    whole = _as_it_has_come(fetched, scan_model(fetched.path, override))
    if whole.problem:
        repository.release(fetched)
    return whole


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
