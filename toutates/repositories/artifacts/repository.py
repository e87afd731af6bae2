"""An artifact as a repository: its files are the scan, the cache has them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toutates.repositories.artifacts.layout import artifact_models
from toutates.repositories.artifacts.store import ArtifactStore
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.keys import ModelFiles, S3Object
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import ArtifactSpecification
from toutates.system.errors import ConfigurationError

__all__ = ["ArtifactRepository"]


class ArtifactRepository(S3Repository):
    """The models of an artifact. Another digest or ETag is another artifact.

    Args:
        specification: what the operator asked for.
        cache: gets its files; may be shared with other repositories.
        store: that reads it.
        patience: see S3Repository.
    """

    def __init__(
        self,
        specification: ArtifactSpecification,
        cache: ModelCache,
        store: ArtifactStore,
        patience: Patience = USUAL,
    ) -> None:
        super().__init__(specification, cache, store, patience)
        self._asked = specification

    def advice(self) -> str:
        """See ``Repository.advice``."""
        return ""

    def _prefixes(self, only: Collection[str] | None) -> list[str]:
        return [""]

    def _models_among(self, objects: Iterable[S3Object]) -> tuple[dict[str, ModelFiles], list[str]]:
        asked = self._asked
        found = artifact_models(objects, asked.url, asked.model_name)
        if isinstance(found, str):
            problem, _, _ = found.partition("; ")
            raise ConfigurationError(
                problem, key=asked.flag, value=asked.url, remedy="put NAME/VERSION/model.onnx, or one graph, into it"
            )
        return found
