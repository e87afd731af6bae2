"""One model of the Hub as a repository: its listing is the scan, the cache has its files."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toutates.models.repository import ModelFolder
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.hub.client import HubClient
from toutates.repositories.hub.layout import hub_model
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.keys import ModelFiles, S3Object
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import HubSpecification
from toutates.system.errors import ConfigurationError

__all__ = ["HubRepository"]


class HubRepository(S3Repository):
    """A repository with one model. A commit that changes one of its files is a new fingerprint, and another directory.

    Args:
        specification: the model.
        cache: gets its files; may be shared with other repositories.
        patience: how long is waited.

    Raises:
        ConfigurationError: huggingface_hub is missing.
    """

    def __init__(self, specification: HubSpecification, cache: ModelCache, patience: Patience = USUAL) -> None:
        super().__init__(specification, cache, HubClient(specification, cache.stopping, patience), patience)
        self._asked = specification

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        """See ``Repository.scan``. The Hub is not asked for models of other names."""
        return [] if only is not None and self._asked.model_name not in only else super().scan(only)

    def _prefixes(self, only: Collection[str] | None) -> list[str]:
        return [""]

    def _models_among(self, objects: Iterable[S3Object]) -> tuple[dict[str, ModelFiles], list[str]]:
        asked = self._asked
        found = hub_model(objects, asked.bucket_url, asked.model_name, asked.file)
        if isinstance(found, str):
            problem, _, remedy = found.partition("; ")
            raise ConfigurationError(problem, key=asked.flag, value=asked.url, remedy=remedy)
        return {found.name: found}, []
