"""A repository in a bucket, or under a prefix of one: its listing is the scan, the cache has its files."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.triton_configuration import read_triton_configuration
from toutates.models.repository import ModelFolder
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.interface import Progress, Recalled, RepositoryStatistics, fingerprint_of
from toutates.repositories.obtaining import as_found
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import Downloads
from toutates.repositories.s3.keys import ModelFiles, S3Object, file_among, models_among
from toutates.repositories.s3.listings import KeptListing, Listings
from toutates.repositories.s3.misplaced import empty_prefix, wrong_prefix
from toutates.repositories.s3.store import ObjectChanged, ObjectStore
from toutates.repositories.specification import RemoteSpecification
from toutates.system.errors import ConfigurationError, RepositoryError, ToutatesError
from toutates.system.logs.limit import Told, few

__all__ = ["S3Repository"]

logger = logging.getLogger(__name__)

#: Downloads of one model that are tried while its objects change.
_ATTEMPTS: Final = 5


class S3Repository:
    """A repository in a bucket. A new object under any key of a model is a new fingerprint, and another directory.

    Args:
        specification: the bucket and prefix.
        cache: gets its files; may be shared with other repositories.
        client: lists and reads it.
        patience: how long is waited while a model's objects change.
    """

    def __init__(
        self,
        specification: RemoteSpecification,
        cache: ModelCache,
        client: ObjectStore,
        patience: Patience = USUAL,
    ) -> None:
        self.name = specification.url
        self._asked_by = specification.flag
        self._bucket_url = specification.bucket_url
        self._prefix = specification.prefix
        #: the graph and the name of the only model, where the repository is one file
        self._file, self._model = specification.file, specification.model_name
        self._cache = cache
        self._client = client
        self._patience = patience
        self._place = f"{specification.bucket_url} at {client.endpoint}"
        self._downloads = Downloads(self._client, cache, self._place)
        self._listings = Listings(cache.root, self._place)
        self._answers: bool | None = None
        self._listed_s: float | None = None
        #: why nothing is downloaded, while models are served as they were last listed; "" otherwise
        self._unreachable = ""
        #: what the last scan saw; replaced as a whole
        self._seen: dict[str, ModelFiles] = {}
        #: odd keys that the log has named, so that it is told once
        self._told = Told()

    def scan(self, only: Collection[str] | None = None) -> list[ModelFolder]:
        """See ``Repository.scan``: one listing of everything, or one for each of the models wanted."""
        listed: dict[str, list[S3Object]] = {}
        for prefix in self._prefixes(only):
            self._answers = self._answers or False
            try:
                listed[prefix] = list(self._client.objects(prefix))
            except ToutatesError:
                self._answers = False
                raise
        models = self._models_in([found for objects in listed.values() for found in objects], only)
        if only is None and not self._file:
            problem, _, remedy = wrong_prefix(models, self.name).partition("; ")
        elif self._file and self._model not in models and (only is None or self._model in only):
            problem, remedy = "there is no such object", "correct the path"
        else:
            problem = remedy = ""
        if problem:
            self._answers = False
            raise ConfigurationError(problem, key=self._asked_by, value=self.name, remedy=remedy)
        for prefix, objects in listed.items():
            self._listings.keep(prefix, objects, if_empty=only is None)
            self._answers, self._unreachable, self._listed_s = True, "", time.time()
        return [self._describe(files) for files in models.values()]

    def index(self) -> Mapping[str, ModelFolder | None]:
        """See ``Repository.index``: a listing, or the last one where the service does not answer."""
        try:
            folders = self.scan()
        except RepositoryError as error:
            recalled = self.recall(None, str(error))
            if recalled is None:
                raise
            folders = recalled.folders
        return {folder.name: folder for folder in folders if not folder.passed_over}

    def recall(self, only: Collection[str] | None, reason: str) -> Recalled | None:
        """See ``Repository.recall``: from the listing of the whole repository, or those of the models wanted."""
        whole = self._listings.recall(self._prefixes(None)[0])
        if only is None:
            kept = [] if whole is None else [whole]
        else:
            kept = []
            for prefix in self._prefixes(only):
                own = self._listings.recall(prefix)
                if whole is not None and (own is None or own.time_s < whole.time_s):
                    own = KeptListing(tuple(one for one in whole.objects if one.key.startswith(prefix)), whole.time_s)
                kept += [] if own is None else [own]
        if not kept:
            return None
        listed_s = min(one.time_s for one in kept)
        self._unreachable, self._listed_s = reason, listed_s
        models = self._models_in([found for one in kept for found in one.objects], only)
        return Recalled([self._describe(files) for files in models.values()], listed_s)

    def _prefixes(self, only: Collection[str] | None) -> list[str]:
        """What the keys begin with of everything, or of each of the models wanted."""
        if self._file:
            stem, dot, _ = self._file.rpartition(".")
            return [self._prefix + (stem + dot or self._file)]
        return [self._prefix] if only is None else [f"{self._prefix}{name}/" for name in sorted(only)]

    def _models_in(self, objects: Iterable[S3Object], only: Collection[str] | None) -> Mapping[str, ModelFiles]:
        """The models that these objects make up. ``fetch`` uses them from now on."""
        models, odd = self._models_among(objects)
        if only is not None:
            # A name with a slash in it would have been looked for in another model.
            models = {name: files for name, files in models.items() if name in only}
        if only is None:
            for problem in few(self._told.news("oddities", odd)):
                logger.warning("%s", problem)
        self._seen = models if only is None else {**self._seen, **models}
        return models

    def _models_among(self, objects: Iterable[S3Object]) -> tuple[dict[str, ModelFiles], list[str]]:
        if self._file:
            return file_among(objects, self.name, self._prefix, self._file, self._model), []
        return models_among(objects, self.name, self._prefix)

    def advice(self) -> str:
        """See ``Repository.advice``."""
        return empty_prefix(self._client.objects, self._bucket_url, self._prefix)

    def fetch(
        self,
        folder: ModelFolder,
        on_progress: Progress,
        versions: Collection[int] | None = None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        """See ``Repository.fetch``. Only what the cache does not have is downloaded."""
        if folder.problem:
            return folder
        files = self._seen.get(folder.name)
        if files is None or files.fingerprint != folder.fingerprint:
            files = self._list(folder)
        problem = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                logger.info("model '%s' is listed again: %s", folder.name, problem)
                self._cache.stopping.wait(self._patience.wait_s(attempt))
                files = self._list(folder)
            try:
                if versions is not None:
                    return self._fetch(files, on_progress, versions, beside)
                return self._checked(self._fetch(files, on_progress, *self._chosen(files)))
            except ObjectChanged as error:
                problem = str(error)
        raise RepositoryError(
            f"model '{folder.name}' in '{self.name}' kept changing while it was downloaded, {_ATTEMPTS} times: "
            f"{problem}; wait until its upload is complete"
        )

    def release(self, folder: ModelFolder) -> None:
        """See ``Repository.release``."""
        self._cache.release(_fingerprint_in(folder))

    def statistics(self) -> RepositoryStatistics:
        """See ``Repository.statistics``."""
        done, cache = self._downloads.counters, self._cache
        return RepositoryStatistics(
            done.objects,
            done.bytes,
            done.failures,
            done.duration_ns,
            (str(cache.root), cache.used_bytes, cache.bound),
            self._answers,
            self._listed_s,
        )

    def stop(self) -> None:
        """See ``Repository.stop``. Other repositories with the same cache stop too."""
        self._cache.stop()
        self._downloads.close()
        self._client.close()

    def _list(self, folder: ModelFolder) -> ModelFiles:
        """What the model is made of now.

        Raises:
            RepositoryError: it is gone; and as ``scan``.
        """
        [prefix] = self._prefixes([folder.name])
        listed, _ = self._models_among(self._client.objects(prefix))
        if folder.name not in listed:
            raise RepositoryError(f"model '{folder.name}' is no longer in '{self.name}'")
        return listed[folder.name]

    def _chosen(self, files: ModelFiles) -> tuple[Collection[int] | None, Collection[str]]:
        """The versions that the model's config.pbtxt asks for, and files; None without one, or if it cannot be read.

        Only the model's own files are fetched for it, and kept no longer than that.
        """
        if PBTXT_NAME not in files.files or not files.versions or files.is_flat:
            return None, ()
        folder = self._fetch(files, lambda done, total: None, ())
        try:
            triton = read_triton_configuration(folder.path)
        except Exception:
            return None, ()  # said once all is here, as of any other directory
        finally:
            self.release(folder)
        if triton is None:
            return None, ()
        return triton.chosen(files.versions)[0], tuple(triton.settings.labels.values())

    def _checked(self, folder: ModelFolder) -> ModelFolder:
        """A model that was fetched, as its config.pbtxt has it; no longer held if it has a problem."""
        if folder.problem:
            return folder
        found = as_found(folder)
        if found.problem:
            self.release(folder)
        return found

    def _fetch(
        self,
        files: ModelFiles,
        on_progress: Progress,
        versions: Collection[int] | None,
        beside: Collection[str] = (),
    ) -> ModelFolder:
        folder = self._describe(files, versions, beside)
        if folder.problem:
            return folder
        wanted = files.wanted(versions, beside)
        fingerprint = _fingerprint_in(folder)
        inside = {f"{files.name}/{name}": found for name, found in wanted.items()}
        downloaded = self._downloads.bring(fingerprint, files.name, inside, on_progress, self._unreachable)
        try:
            # A file may have been replaced after it was read and before the last one was: two uploads would mix.
            if downloaded and self._list(folder).fingerprint != files.fingerprint:
                raise ObjectChanged(f"'{files.source}' has changed while it was downloaded")
        except BaseException:
            self._cache.release(fingerprint)
            raise
        if downloaded:
            logger.info("model '%s': %d bytes downloaded from %s", folder.name, downloaded, files.source)
        return folder

    def _describe(
        self, files: ModelFiles, versions: Collection[int] | None = None, beside: Collection[str] = ()
    ) -> ModelFolder:
        """The model, with the paths that its files have or will have.

        The directory is another one for any other files, so that nothing in it is ever changed under a server.
        """
        wanted = files.wanted(versions, beside)
        lines = [f"{name}\0{found.etag}\0{found.size}" for name, found in sorted(wanted.items())]
        fingerprint = fingerprint_of((self._place, self._prefix, files.name, *lines))
        return files.describe(self._cache.path(fingerprint, files.name), versions)


def _fingerprint_in(folder: ModelFolder) -> str:
    """The name of the directory of the cache that a model's files are in, or are going to be."""
    return folder.path.parent.parent.name
