"""Repositories from what the operator asked for, and the models of all of them together."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from toutates.models.repository import ModelFolder
from toutates.repositories.interface import Repository
from toutates.repositories.local.file import FileRepository
from toutates.repositories.local.repository import LocalRepository
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.store import ObjectStore
from toutates.repositories.specification import (
    ArtifactSpecification,
    BucketSpecification,
    FileSpecification,
    HubSpecification,
    Specification,
)
from toutates.system.errors import ConfigurationError

__all__ = ["double_model", "open_repositories", "refuse_double", "refuse_duplicates", "refuse_unknown"]


def open_repositories(
    specifications: Iterable[Specification],
    *,
    cache_root: Path | None,
    cache_size: int,
    lone_name: str = "",
    patience: Patience = USUAL,
) -> list[Repository]:
    """The repositories, in the order given. What a cloud needs is imported and made only if asked for.

    Args:
        specifications: from ``read_specifications``.
        cache_root: directory for what is downloaded; None for the user's.
        cache_size: bytes it may hold.
        lone_name: of a model whose graph lies alone in a local directory; "" for the directory's name.
        patience: how long downloads are waited for.

    Raises:
        ConfigurationError: the cache cannot be written, a library is missing or cannot be set up.
    """
    repositories: list[Repository] = []
    cache = None
    for one in specifications:
        if isinstance(one, Path):
            repositories.append(LocalRepository(one, lone_name=lone_name))
            continue
        if isinstance(one, FileSpecification):
            repositories.append(FileRepository(one.path, one.model_name))
            continue
        from toutates.repositories.cache.model_cache import ModelCache, default_cache_root

        if cache is None:
            cache = ModelCache(cache_root or default_cache_root(), cache_size)
        if isinstance(one, HubSpecification):
            from toutates.repositories.hub.repository import HubRepository

            repositories.append(HubRepository(one, cache, patience))
            continue
        if isinstance(one, ArtifactSpecification):
            from toutates.repositories.artifacts.archive import ArchiveStore
            from toutates.repositories.artifacts.oci import OciStore
            from toutates.repositories.artifacts.repository import ArtifactRepository

            artifact = OciStore(one, cache, patience) if one.registry else ArchiveStore(one, cache, patience)
            repositories.append(ArtifactRepository(one, cache, artifact, patience))
            continue
        from toutates.repositories.s3.repository import S3Repository

        repositories.append(S3Repository(one, cache, _store(one, cache.stopping, patience), patience))
    return repositories


def _store(specification: BucketSpecification, stopping: threading.Event, patience: Patience) -> ObjectStore:
    """What lists and reads a bucket, a container or a web server."""
    if specification.scheme == "gs":
        from toutates.repositories.web.gs import GoogleStore

        return GoogleStore(specification, stopping, patience)
    if specification.scheme == "as":
        from toutates.repositories.web.azure import AzureStore

        return AzureStore(specification, stopping, patience)
    if specification.scheme == "https":
        from toutates.repositories.web.files import WebStore

        return WebStore(specification, stopping, patience)
    from toutates.repositories.s3.client import S3Client
    from toutates.repositories.s3.download import THREADS

    return S3Client(specification, THREADS, stopping, patience)


def refuse_unknown(only: Collection[str], names: Sequence[str], asked_by: Mapping[str, str]) -> None:
    """See that every model asked for is there.

    Args:
        only: the models asked for.
        names: those there are, sorted.
        asked_by: the flag that wants a model, by its name; --load-models those that are left out.

    Raises:
        ConfigurationError: one is not there.
    """
    for name in sorted(only):
        if name not in names:
            near = get_close_matches(name, names, n=1)
            known = f"the repository has: {', '.join(names)}" if names else "the repository has no models"
            remedy = f"did you mean {near[0]!r}? {known}" if near else known
            flag = asked_by.get(name, "--load-models")
            raise ConfigurationError("no such model in the repository", key=flag, value=name, remedy=remedy)


def refuse_duplicates(folders: Iterable[ModelFolder]) -> None:
    """See that no two models have the same name.

    Raises:
        ConfigurationError: two do; names both.
    """
    known: dict[str, ModelFolder] = {}
    for folder in folders:
        other = known.setdefault(folder.name, folder)
        if other is not folder:
            refuse_double(folder.name, other.source, folder.source)


def double_model(name: str, one: str, other: str, path: Path | None = None) -> ModelFolder:
    """A model that cannot be served, because two repositories have one of its name.

    Args:
        name: of both.
        one, other: where they are.
        path: of the first one's directory, where it is known.
    """
    problem = f"it is in two repositories: '{one}' and '{other}'; rename or remove one of them"
    return ModelFolder(name, path or Path(name), problem=problem, source=one)


def refuse_double(name: str, one: str, other: str) -> NoReturn:
    """Refuse two models of one name.

    Args:
        name: of both.
        one, other: where they are.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"model '{name}' is in two repositories: '{one}' and '{other}'",
        key="--model-repository",
        remedy="rename or remove one of them",
    )
