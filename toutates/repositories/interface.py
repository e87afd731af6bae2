"""The interface of a model repository, wherever its models are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.repository import ModelFolder, is_version

__all__ = [
    "Progress",
    "Recalled",
    "Repository",
    "RepositoryStatistics",
    "fingerprint_of",
    "version_fingerprints",
]

#: Called, in any thread, with the bytes of a model that have been fetched, and with the bytes that it has in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RepositoryStatistics:
    """What is known of a repository, and what it has downloaded since the start: zero for one that downloads nothing.

    Attributes:
        objects: downloaded.
        bytes: of these objects.
        failures: downloads of a model that ended with an error.
        duration_ns: time that all downloads of models took, failed ones too.
        cache: the directory where the objects are kept, what it holds and what it may, in bytes; None without one.
            Repositories that share a cache say the same of it.
        answers: whether it could be read when it was last asked for its models; None if it never was.
        listed_s: Unix time of the listing that its models are known by; None before there is one.
    """

    objects: int = 0
    bytes: int = 0
    failures: int = 0
    duration_ns: int = 0
    cache: tuple[str, int, int] | None = None
    answers: bool | None = None
    listed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a repository that does not answer had when it last did.

    Attributes:
        folders: as ``Repository.scan`` gave them.
        listed_s: Unix time of that answer.
    """

    folders: list[ModelFolder]
    listed_s: float


class Repository(Protocol):
    """A place with models. Its methods block, and may be called in any thread, ``stop`` while others run.

    Attributes:
        name: what the operator calls it: a path, or an s3:// URL.
    """

    name: str

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        """List the models, sorted by name, with fingerprints. Their files need not be here yet.

        Args:
            only: names of the models wanted; None for all. Names that the repository does not have are left out.

        Raises:
            ConfigurationError: the repository cannot be used until an operator mends something.
            RepositoryError: it cannot be reached now.
        """
        ...

    def index(self) -> Mapping[str, ModelFolder | None]:
        """The names of the models, without a look at any of them, as far as that can be.

        Returns:
            By name what a scan would say of the model; None for one that is to be looked at when it is needed, and may
            turn out to be no model.

        Raises:
            ConfigurationError, RepositoryError: as ``scan``.
        """
        ...

    def recall(self, only: Collection[str] | None, reason: str) -> Recalled | None:
        """The models that a repository had when it last answered, if it does not answer now; None if that is not known.

        Until ``scan`` succeeds, their files are taken from what is here, and nothing is downloaded.

        Args:
            only: as for ``scan``.
            reason: why it does not answer; said of models whose files are not here.
        """
        ...

    def advice(self) -> str:
        """What may be wrong with a repository that has no models, and what to do; "" if that is not known.

        Raises:
            ConfigurationError, RepositoryError: as ``scan``.
        """
        ...

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        """Make the files of a model local, and keep them there until ``release``, unless the result has a problem.

        What is fetched is the model as it is now, which may no longer be what ``scan`` saw: the result's fingerprints
        tell. A folder that has a problem comes back as it is.

        Args:
            folder: one that ``scan`` has returned.
            on_progress: see Progress.
            versions: numbers of the versions wanted, beside the files that belong to the whole model; None for those
                that the model's own configuration chooses. With numbers, that configuration is not looked at.
            beside: paths in the model's directory of other files that are wanted, with numbers of versions alone.

        Returns:
            The model with paths at which its files are, and with the versions that were wanted.

        Raises:
            ConfigurationError, RepositoryError: as ``scan``; also where there is no room for the files.
        """
        ...

    def release(self, folder: ModelFolder) -> None:
        """Say that the files of a folder from ``fetch`` are no longer in use; once for each that has no problem."""
        ...

    def statistics(self) -> RepositoryStatistics:
        """What is known of the repository, and what it has downloaded so far. Does not block."""
        ...

    def stop(self) -> None:
        """Make every call under way end soon, with RepositoryError, and later ones at once."""
        ...


def fingerprint_of(lines: Iterable[str]) -> str:
    """A short text that is another one for any other lines."""
    digest = hashlib.sha256()
    for line in lines:
        data = line.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:32]


def version_fingerprints(lines: Iterable[tuple[str, str]], numbers: Iterable[int]) -> dict[int, str]:
    """For each version a text that changes with every file that the version is made of.

    Files that belong to the whole model count too, such as those of labels. What config.pbtxt says is compared apart.

    Args:
        lines: of each file and directory its path in the model's directory, with slashes, and a line that changes when
            it does.
        numbers: of the versions.
    """
    beside: list[str] = []
    own: dict[str, list[str]] = {}
    for path, line in lines:
        first = path.partition("/")[0]
        if is_version(first):
            own.setdefault(first, []).append(line)
        elif path != PBTXT_NAME:
            beside.append(line)
    return {number: fingerprint_of([*beside, *own.get(str(number), ())]) for number in numbers}
