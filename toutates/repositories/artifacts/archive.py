"""An archive of models behind an https URL."""

from __future__ import annotations

from collections.abc import Mapping

from toutates.repositories.artifacts.store import ArtifactStore, Part
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.specification import ArtifactSpecification
from toutates.repositories.web.client import Asked, HttpClient
from toutates.repositories.web.files import WebFile, explained, netrc_password, state_of

__all__ = ["ArchiveStore"]


class ArchiveStore(ArtifactStore):
    """See ``ObjectStore``.

    Args:
        specification: what the operator asked for.
        cache: see ArtifactStore.
        patience: how long is waited.
    """

    def __init__(self, specification: ArtifactSpecification, cache: ModelCache, patience: Patience = USUAL) -> None:
        asked = Asked(specification.flag, specification.url, "a web server", "the URL, the network and HTTPS_PROXY")
        client = HttpClient(asked, explained, cache.stopping, THREADS + 2, netrc_password(asked), patience=patience)
        super().__init__(asked, client, cache, specification.url)
        self._file = WebFile(asked, client)
        self._url = specification.request_url

    def parts(self) -> list[Part]:
        """See ``ArtifactStore.parts``."""
        state, size = self._file.look(self._url)
        return [Part(self._url, S3Object(self._url.rpartition("/")[2], state, size))]

    def check_part(self, part: Part, headers: Mapping[str, str]) -> None:
        """See ``ArtifactStore.check_part``."""
        state = state_of(headers)
        if state and state != part.found.etag:
            raise ObjectChanged(f"'{self._asked.url}' has changed")
