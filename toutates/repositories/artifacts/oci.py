"""An artifact or image of an OCI registry, by OCI's distribution specification.

Every content is compared with its digest: the manifest with the one that was asked for, and layers with the manifest's.
"""

from __future__ import annotations

import hashlib
from typing import Final

from toutates.repositories.artifacts.manifests import TYPES, Manifest, chosen_manifest, read_manifest
from toutates.repositories.artifacts.registry_login import LOGIN, RegistryLogin
from toutates.repositories.artifacts.store import ArtifactStore, Part
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.specification import ArtifactSpecification
from toutates.repositories.web.client import Asked, HttpClient, Refused
from toutates.system.errors import ConfigurationError

__all__ = ["OciStore"]

_MAX_MANIFEST: Final = 4 * 2**20  # bytes, as registries have it
_PROBLEM: Final = "its manifest cannot be read"
#: The folder of an image that has the models, as of KServe's modelcars.
_MODELS: Final = "models/"
_ACCEPT: Final = {"Accept": ", ".join(TYPES)}


class OciStore(ArtifactStore):
    """See ``ObjectStore``.

    Args:
        specification: what the operator asked for.
        cache: see ArtifactStore.
        patience: how long is waited.
    """

    def __init__(self, specification: ArtifactSpecification, cache: ModelCache, patience: Patience = USUAL) -> None:
        asked = Asked(
            specification.flag, specification.url, "an OCI registry", "the registry's name, the network and HTTPS_PROXY"
        )
        scheme, _, rest = specification.request_url.partition("://")
        host, _, self._name = rest.partition("/")
        url = f"{scheme}://{host}"
        self._login = RegistryLogin(asked, specification.registry, url)
        client = HttpClient(asked, _explained, cache.stopping, THREADS + 2, self._login, patience=patience)
        super().__init__(asked, client, cache, url)
        self._reference = specification.reference
        #: the digest of the last manifest, and what it says
        self._last: tuple[str, Manifest] | None = None

    def parts(self) -> list[Part]:
        """See ``ArtifactStore.parts``. A registry is asked for no more than the digest where that has not changed."""
        manifest = self._manifest()
        parts = []
        for layer in manifest.layers:
            found = S3Object(layer.path or layer.digest, layer.digest, layer.size)
            url = f"{self._endpoint}/v2/{self._name}/blobs/{layer.digest}"
            if not layer.path and "tar" not in layer.kind:
                raise self._asked.unusable(
                    f"a layer of it is neither a named file nor a tar, but {layer.kind[:80]!r}",
                    "push the files with 'oras push', or an image with a folder /models",
                )
            if not layer.path and layer.kind.endswith("zstd"):
                raise self._asked.unusable("its layers are compressed with zstd", "push it with gzip")
            below = _MODELS if manifest.is_image else ""
            parts.append(Part(url, found, layer.path, below, layer.digest.removeprefix("sha256:")))
        return parts

    def _manifest(self) -> Manifest:
        reference = self._reference
        if self._last is not None and (reference.startswith("sha256:") or self._digest_now() == self._last[0]):
            return self._last[1]
        body, digest = self._get(reference)
        try:
            chosen = chosen_manifest(body)
            if chosen:
                body, _ = self._get(chosen)
            manifest = read_manifest(body)
        except ValueError as error:
            raise self._asked.unusable(
                f"what answers at {self._endpoint} is no registry, or this is no artifact: {error}",
                "correct the registry's name",
            ) from error
        self._last = (digest, manifest)
        return manifest

    def _digest_now(self) -> str:
        """What a registry says that the digest of the manifest is; "" if it does not."""
        return self._asked_for(self._reference, "HEAD")[0]

    def _get(self, reference: str) -> tuple[bytes, str]:
        """A manifest, and its digest.

        Raises:
            ConfigurationError: it has another digest than was asked for; and others.
        """
        _, body = self._asked_for(reference, "GET")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise self._asked.unusable(
                f"what came for the manifest {reference} has another digest, {digest}",
                "do not use it before you know why: check the registry, and what lies between",
            )
        return body, digest

    def _asked_for(self, reference: str, method: str) -> tuple[str, bytes]:
        """What a registry says that a manifest's digest is, and the manifest."""
        url = f"{self._endpoint}/v2/{self._name}/manifests/{reference}"
        for _ in range(3):
            try:
                headers, body, _ = self._client.read(url, _MAX_MANIFEST, _PROBLEM, _ACCEPT, method)
                return headers.get("Docker-Content-Digest", ""), body
            except Refused as error:
                if error.status == 404:
                    raise self._asked.unusable(
                        f"there is no such repository, tag or digest at {self._endpoint} (404)",
                        "correct the name, or push the artifact",
                    ) from error
                if error.status != 401:
                    raise self._asked.unreachable(_PROBLEM, error) from error
                if not self._login.answer(error, self._client):
                    break
        raise self._denied(401)

    def _denied(self, status: int) -> ConfigurationError:
        return self._asked.unusable(f"the registry wants a login, or does not accept the one it got ({status})", LOGIN)


def _explained(refused: Refused) -> tuple[str, str] | None:
    if refused.status == 403:
        return "the registry denies access (403)", LOGIN
    return None
