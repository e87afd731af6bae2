"""What a repository of objects needs of the service that has them: S3's bucket, or another that lists and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from toutates.repositories.s3.keys import S3Object

__all__ = ["ObjectChanged", "ObjectStore"]


class ObjectChanged(Exception):
    """An object is no longer what a listing showed: it has other content, or is gone. Says what, with the URL."""


class ObjectStore(Protocol):
    """A place with objects. Its methods may be called in several threads at once."""

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        ...

    def objects(self, prefix: str) -> Iterable[S3Object]:
        """Every object whose key begins with the prefix.

        Raises:
            ConfigurationError: an operator has to mend something.
            RepositoryError: they cannot be listed now.
        """
        ...

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """Write an object's content to a file. Blocks.

        Args:
            found: as a listing showed it.
            target: a seekable file, which one thread at a time writes to.
            on_bytes: called in any thread with the bytes that have come; with a negative number for those that begin
                anew.

        Raises:
            ObjectChanged: it is not what it was.
            ConfigurationError, RepositoryError: it cannot be read.
        """
        ...

    def is_encrypted(self, found: S3Object) -> bool:
        """Whether an ETag that looks like an MD5 is none."""
        ...

    def close(self) -> None:
        """Let the connections go. Contents that are being read in other threads end early."""
        ...
