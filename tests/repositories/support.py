"""Repositories in S3 in this process, as a server makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.repositories.s3_services import Proxy, S3Service
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.pace import Patience
from toutates.repositories.s3.client import S3Client
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import RepositoryError

__all__ = [
    "QUICK",
    "repository",
    "s3_repository",
    "want_all_room",
]


#: The same as a server's, without long pauses before what has failed is tried again.
QUICK: Final = Patience(first_wait_s=0.001)


def s3_repository(place: BucketSpecification, cache: ModelCache, patience: Patience = QUICK) -> S3Repository:
    """What a server makes of a bucket of S3."""
    return S3Repository(place, cache, S3Client(place, THREADS, cache.stopping, patience), patience)


@contextmanager
def repository(
    service: S3Service | Proxy,
    bucket: str,
    cache: Path,
    prefix: str = "",
    size: int = 2**40,
    patience: Patience = QUICK,
) -> Iterator[S3Repository]:
    """A repository with a cache of its own, as another server would have it."""
    place = BucketSpecification("s3", bucket, prefix, service.endpoint, flag="--s3-bucket")
    one = s3_repository(place, ModelCache(cache, size), patience)
    try:
        yield one
    finally:
        one.stop()


def want_all_room(cache: ModelCache) -> None:
    """Ask for as many bytes as a cache may have, so that it loses what no server uses."""
    filling = cache.begin("other", "other")
    assert filling is not None
    with suppress(RepositoryError):
        cache.reserve(filling, {"other/1/model.onnx": cache.bound})
    cache.abandon(filling)
