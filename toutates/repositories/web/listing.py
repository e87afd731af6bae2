"""Listings of buckets that come in pages, whatever the service: how they go on, and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from toutates.repositories.s3.keys import S3Object
from toutates.repositories.web.client import Asked
from toutates.system.errors import RepositoryError

__all__ = ["MAX_PAGE", "listed", "listed_object"]

MAX_PAGE: Final = 16 * 2**20  # bytes of one page, which has some thousand objects
_MAX_PAGES: Final = 1_000
_MAX_OBJECTS: Final = 200_000
#: Bytes of a name and of what its content is known by. No service has more, and as many as there may be fit memory.
_MAX_NAME: Final = 4_096
_MAX_ETAG: Final = 256
_MAX_SIZE: Final = 2**62


def listed(asked: Asked, what: str, page: Callable[[str], tuple[list[S3Object], str]]) -> Iterator[S3Object]:
    """All objects of a listing.

    Args:
        asked: for messages.
        what: what the service calls its objects, in the plural.
        page: from the mark where a page begins, "" for the first one, its objects and the mark of the next page; "" for
            the last one.

    Raises:
        ConfigurationError: there are too many.
        RepositoryError: it never ends; and as ``page``.
    """
    mark, count = "", 0
    for _ in range(_MAX_PAGES):
        found, following = page(mark)
        yield from found
        count += len(found)
        if count > _MAX_OBJECTS:
            raise asked.unusable(
                f"there are more than {_MAX_OBJECTS} {what}", "keep the models under a prefix of their own, and name it"
            )
        if not following:
            return
        if following == mark:
            break
        mark = following
    raise RepositoryError(f"{asked.flag} {asked.url}: its listing never ends; check the service")


def listed_object(name: object, etag: str, size: int) -> S3Object:
    """An object as a page has it.

    Args:
        name: of it.
        etag: what its content is known by.
        size: bytes.

    Raises:
        ValueError: no object is like that.
    """
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > _MAX_NAME:
        raise ValueError("a name is none of an object")
    if not etag or len(etag) > _MAX_ETAG or not etag.isascii() or not etag.isprintable():
        raise ValueError("a content is known by nothing that an object's could be")
    if not 0 <= size <= _MAX_SIZE:
        raise ValueError("a size is none of an object")
    return S3Object(name, etag, size)
