"""What a registry says of an artifact: its manifest, by OCI's image specification. Anybody may have written it."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TYPES", "Layer", "Manifest", "chosen_manifest", "read_manifest"]

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_LAYERS: Final = 500
_MAX_MANIFESTS: Final = 200

_IMAGES: Final = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
#: Manifests, and lists of those of several machines, as they are asked for.
TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TITLE: Final = "org.opencontainers.image.title"
#: What ORAS writes of a folder that it has packed.
_UNPACK: Final = "io.deis.oras.content.unpack"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Layer:
    """A content of an artifact.

    Attributes:
        digest: sha256:, and 64 digits in hexadecimal.
        size: bytes.
        path: of the file that it is; "" for an archive.
        kind: its media type.
    """

    digest: str
    size: int
    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artifact is made of.

    Attributes:
        layers: in their order.
        is_image: whether its archives are layers of a container's file system.
    """

    layers: tuple[Layer, ...]
    is_image: bool


def chosen_manifest(body: bytes) -> str:
    """Of a list of manifests the digest of the one for this machine, or of the first; "" for what is no list.

    Raises:
        ValueError: it is neither list nor manifest.
    """
    found = _document(body)
    listed = found.get("manifests")
    if listed is None:
        return ""
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_MANIFESTS:
        raise ValueError("its manifests are no list of some")
    own = _MACHINES.get(platform.machine(), platform.machine())
    for one in listed:
        of = one.get("platform") if isinstance(one, dict) else None
        if isinstance(of, dict) and (of.get("os"), of.get("architecture")) == ("linux", own):
            return _digest(one)
    return _digest(listed[0])


def read_manifest(body: bytes) -> Manifest:
    """A manifest.

    Raises:
        ValueError: it is none.
    """
    found = _document(body)
    layers, config = found.get("layers"), found.get("config", {})
    if not isinstance(layers, list) or len(layers) > _MAX_LAYERS or not isinstance(config, dict):
        raise ValueError("it has no layers")
    read = tuple(map(_layer, layers))
    is_image = config.get("mediaType") in _IMAGES and not any(layer.path for layer in read)
    return Manifest(read, is_image)


def _layer(given: Any) -> Layer:
    digest = _digest(given)
    size, kind, notes = given.get("size"), given.get("mediaType", ""), given.get("annotations") or {}
    if type(size) is not int or size < 0 or not isinstance(kind, str) or not isinstance(notes, dict):
        raise ValueError("a layer has no size or kind")
    title = notes.get(_TITLE, "")
    if not isinstance(title, str):
        raise ValueError("a layer's title is no text")
    return Layer(digest, size, "" if notes.get(_UNPACK) == "true" else title, kind)


def _digest(given: Any) -> str:
    digest = given.get("digest") if isinstance(given, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a digest is none of sha256")
    return digest


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no JSON") from error
    if not isinstance(found, dict):
        raise ValueError("it is no manifest")
    return found
