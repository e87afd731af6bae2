"""A model made local, with its own configuration or with another one in its place, and what its files say of it."""

from __future__ import annotations

from dataclasses import replace

from toutates.models.config.triton_configuration import TritonConfiguration, read_triton_configuration
from toutates.models.repository import ModelFolder, VersionFolder, file_model, lone_model, scan_model
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.repositories.interface import Progress, Repository
from toutates.system.errors import ConfigurationError

__all__ = ["as_found", "obtain", "own_configuration"]


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


def own_configuration(repository: Repository, folder: ModelFolder) -> ModelConfig | None:
    """What a model's config.pbtxt says; None without one that can be read. Blocks, where it has to be fetched.

    Args:
        repository: that has the model.
        folder: from its scan, which has not read what lies elsewhere.

    Raises:
        ConfigurationError, RepositoryError: as ``Repository.fetch``.
    """
    for version in folder.versions:
        if version.triton is not None:
            return version.triton.given
    fetched = repository.fetch(replace(folder, problem=""), lambda done, total: None, ())
    if fetched.problem:
        return None
    try:
        found = read_triton_configuration(fetched.path)
    except ConfigurationError:
        return None
    finally:
        repository.release(fetched)
    return None if found is None else found.given


def as_found(fetched: ModelFolder, override: TritonConfiguration | None = None) -> ModelFolder:
    """Look at the files of a model from ``Repository.fetch``: its configuration says what else to look for.

    Args:
        fetched: with fingerprints, and with the versions that cannot be had, for what reason.
        override: holds in place of the model's config.pbtxt.

    Returns:
        What ``scan_model`` has found, with these. What is wrong is said of the place where the operator finds it.
    """
    if any(version.is_file for version in fetched.versions):
        found = file_model(fetched.versions[0].model_path, fetched.name, override)
    elif fetched.is_lone:
        found = lone_model(fetched.path, fetched.name, override)
    else:
        found = scan_model(fetched.path, override)
    known = {version.number: version for version in fetched.versions}
    # What was fetched may yet have its graph under the name that the configuration gives it.
    versions = {n: version for n, version in known.items() if version.problem and not version.path.exists()}

    def said(text: str) -> str:
        return text.replace(str(fetched.path), fetched.source) if fetched.source else text

    def completed(version: VersionFolder) -> VersionFolder:
        fingerprint = known[version.number].fingerprint if version.number in known else ""
        return replace(version, problem=said(version.problem), fingerprint=fingerprint)

    problem = "" if versions else said(found.problem)
    versions |= {version.number: completed(version) for version in found.versions}
    return replace(
        fetched,
        versions=tuple(versions[number] for number in sorted(versions)),
        warnings=tuple(dict.fromkeys((*fetched.warnings, *map(said, found.warnings)))),
        problem=problem,
        has_no_version=found.has_no_version and bool(problem),
    )
