"""What the management API does, on the main thread: registers archives as models, scales, describes, unregisters them.

A registered model is a folder of the repository that was made of an archive. Its workers are instances: with some it is
loaded, with none it is not. All of it is written into the folder's config.pbtxt, so it holds for the next start.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from toutates.api.dataplane.plane import DataPlane
from toutates.api.torchserve.answers import Problem, method_not_allowed, no_model, no_version
from toutates.api.torchserve.description import description
from toutates.api.torchserve.downloads import FOLDERS, Downloads
from toutates.api.torchserve.predictions import Defaults
from toutates.api.torchserve.turns import IMPORTS, Turns
from toutates.models.table import ServedVersion
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.repositories.torchserve.imported import (
    default_of,
    number_of,
    read_config,
    set_default,
    set_versions,
    urls_of,
    versions_of,
    write_config,
)
from toutates.repositories.torchserve.importing import AlreadyThere, Imported, Wanted, import_archive
from toutates.repositories.torchserve.manifest import is_model_name
from toutates.repositories.torchserve.settings import MAX_WORKERS, set_workers, workers_of
from toutates.system.errors import ConfigurationError, RequestError

__all__ = ["NOTE", "Models", "Registration"]

logger = logging.getLogger(__name__)

#: Status and JSON.
Outcome = tuple[int, Any]

#: The call by which processes tell each other what requests for a model mean.
NOTE: Final = "TorchServeModel"
_PROCESSING: Final[Outcome] = 202, {"status": "Processing worker updates..."}


@dataclass(frozen=True, slots=True)
class Registration:
    """What is to be registered; None and "" for what the archive says.

    Attributes:
        url: the archive's name in the store, or where it is to be had.
        model_name, handler: in place of the manifest's.
        batch_size, max_batch_delay_ms: in place of those of model-config.yaml.
        workers: to begin with; 0 for none yet, None for what model-config.yaml says, and none where it does not.
        synchronous: whether the answer waits for them.
    """

    url: str
    model_name: str = ""
    handler: str = ""
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    workers: int | None = None
    synchronous: bool = True


@dataclass(slots=True)
class Models:
    """The models of one repository, for the management API. All of it runs on the main thread.

    Args:
        plane: loads and unloads.
        repository: the directory in which models are made; None where there is none.
        downloads: finds archives.
        defaults: told which version is meant by requests that name none.
        begin: has a function run beside what is going on, until the server stops.
    """

    plane: DataPlane
    repository: Path | None
    downloads: Downloads
    defaults: Defaults
    begin: Callable[..., None]
    _turns: Turns = field(default_factory=Turns)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def register(self, wanted: Registration) -> Outcome:
        """Make a model of an archive, and begin with some workers.

        Raises:
            Problem: it cannot be registered.
        """
        repository = self._writable()
        async with self.downloads.archive(wanted.url) as archive:
            imported = await IMPORTS.run(self._import, repository, wanted, archive, abandon_on_cancel=True)
        for note in imported.notes:
            logger.warning("model '%s' version %s: %s", imported.model, imported.version, note)
        name, version = imported.model, imported.version
        workers = (imported.workers or 0) if wanted.workers is None else wanted.workers
        which = f'Model "{name}" Version: {version} registered with {workers} initial workers'
        if not workers:
            await self._note(name, idle=not self._loaded(name))
            return 200, {"status": f"{which}. Use scale workers API to add workers for the model."}
        load = partial(self._load_new, imported)
        if not wanted.synchronous:
            self.begin(self._in_background, load)
            return _PROCESSING
        await load()
        return 200, {"status": which}

    def _import(self, repository: Path, wanted: Registration, archive: Path) -> Imported:
        own = Wanted(
            wanted.model_name,
            wanted.handler,
            wanted.batch_size,
            wanted.max_batch_delay_ms,
            wanted.workers or None,
            wanted.url,
        )
        try:
            return import_archive(archive, repository, own, turn=self._turns.of_in_thread)
        except AlreadyThere as error:
            text = f"Model version {error.version} is already registered for model {error.model}"
            raise Problem(409, "ConflictStatusException", text) from error
        except ConfigurationError as error:
            if error.problem == "is there already":
                raise Problem(500, "InternalServerException", f"Model file already exists {wanted.url}") from error
            raise Problem(400, "BadRequestException", f"{error.problem}; {error.remedy}") from error

    async def _load_new(self, imported: Imported) -> None:
        """Load a version that was just made; it is removed again if it cannot be served."""
        async with self._turns.of(imported.model):
            try:
                await self._load(imported.model)
                await self._note(imported.model, idle=False)
            except RequestError as error:
                logger.warning("model '%s' version %s: %s", imported.model, imported.version, error)
                await FOLDERS.run(self._remove, imported.path.parent, imported.number)
                text = f"Failed to start workers for model {imported.model} version: {imported.version}"
                raise Problem(500, "InternalServerException", text) from error

    async def scale(self, model: str, version: str, least: int, most: int | None, *, synchronous: bool) -> Outcome:
        """Have a model run by so many workers.

        Raises:
            Problem: there is no such model, or it cannot be run by so many.
        """
        self._writable()
        if most is not None and most < least:
            raise Problem(400, "BadRequestException", "max_worker cannot be less than min_worker.")
        if not 0 <= least <= MAX_WORKERS:
            raise Problem(400, "BadRequestException", f"min_worker is a number from 0 to {MAX_WORKERS}.")
        config = await self._config(model)
        self._number(config, model, version)
        work = partial(self._scale, model, version, least)
        if not synchronous:
            self.begin(self._in_background, work)
            return _PROCESSING
        await work()
        of_version = f", version: {version}" if version else ""
        return 200, {"status": f"Workers scaled to {least} for model: {model}{of_version}"}

    async def _scale(self, model: str, version: str, workers: int) -> None:
        async with self._turns.of(model):
            config = await self._config(model)
            before = ModelConfig()
            before.CopyFrom(config)
            if workers and workers_of(config) != workers:
                set_workers(config, workers)
                await FOLDERS.run(write_config, self._folder(model), config)
            try:
                await (self._load(model) if workers else self._unload(model))
                await self._note(model, idle=not workers)
            except RequestError as error:
                logger.warning("model '%s': %s", model, error)
                await FOLDERS.run(write_config, self._folder(model), before)
                text = f"Failed to start workers for model {model} version: {version or 'default'}"
                raise Problem(500, "InternalServerException", text) from error

    async def unregister(self, model: str, version: str) -> Outcome:
        """Stop serving a model or one of its versions, and remove what was made of its archives.

        Raises:
            Problem: there is no such model, or it must not be removed.
        """
        self._writable()
        async with self._turns.of(model):
            config = await self._config(model)
            versions, urls = versions_of(config), urls_of(config)
            chosen = [self._number(config, model, version)] if version else list(versions)
            if version and len(versions) > 1 and chosen[0] == self._default(model, config):
                text = f"Cannot remove default version for model {model}"
                raise Problem(403, "InvalidModelVersionException", text)
            lost = [number for number in chosen if not self.downloads.has(urls.get(number, ""))]
            if lost:
                text = (
                    f"the archive of version {versions[lost[0]]} is not in the model store, so that removing the "
                    "model's folder would lose it: remove it yourself"
                )
                raise Problem(403, "InvalidModelVersionException", text)
            folder = self._folder(model)
            loaded = self._loaded(model)
            if len(chosen) == len(versions):
                await self._unload(model)
                await FOLDERS.run(partial(shutil.rmtree, folder, ignore_errors=True))
                await self._note(model, idle=False, default=0)
            else:
                await FOLDERS.run(self._remove, folder, chosen[0])
                if loaded:
                    await self._load(model)
        return 200, {"status": f'Model "{model}" unregistered'}

    async def set_default(self, model: str, version: str) -> Outcome:
        """Have requests that name no version answered by this one.

        Raises:
            Problem: there is no such version.
        """
        self._writable()
        async with self._turns.of(model):
            config = await self._config(model)
            number = number_of(version, versions_of(config))
            if number is None or number not in versions_of(config):
                text = f"Model version {version} does not exist for model {model}"
                raise Problem(404, "ModelVersionNotFoundException", text)
            set_default(config, number)
            await FOLDERS.run(write_config, self._folder(model), config)
            await self._note(model, idle=model in self.defaults.idle, default=number)
        return 200, {"status": f'Default version successfully updated for model "{model}" to "{version}"'}

    # --- what there is -----------------------------------------------------------------------------------------------

    async def index(self, limit: int, page: int) -> Outcome:
        """Names of the models, sorted, some at a time.

        Args:
            limit: how many.
            page: where to begin.
        """
        names = await FOLDERS.run(self._names)
        shown = sorted({**names, **dict.fromkeys(self.plane.get_table().models, "")}.items())
        some = [{"modelName": name, "modelUrl": url or names.get(name, "")} for name, url in shown[page : page + limit]]
        document: dict[str, Any] = {}
        if len(some) == limit:  # and so also where nothing follows, as by TorchServe
            document["nextPageToken"] = str(page + limit)
        return 200, {**document, "models": some}

    def _names(self) -> dict[str, str]:
        """The models of the repository that were made of archives, each with the name of an archive."""
        found: dict[str, str] = {}
        if self.repository is None:
            return found
        for folder in self.repository.iterdir():
            if not folder.name.startswith(".") and folder.is_dir():
                try:
                    config = read_config(folder)
                except ConfigurationError:
                    continue
                if config is not None:
                    urls = urls_of(config)
                    found[folder.name] = urls.get(default_of(config) or 0, "") or next(iter(urls.values()), "")
        return found

    async def describe(self, model: str, version: str) -> Outcome:
        """What there is to say of a model's default version, of one version, or of "all".

        Raises:
            Problem: there is no such model or version.
        """
        served = {one.number: one for one in self._served(model)}
        try:
            config = await self._config(model)
        except Problem:
            if not served:
                raise
            config = served[max(served)].config
        versions = dict(versions_of(config)) or {number: str(number) for number in served}
        if version == "all":
            chosen = sorted(versions)
        elif version:
            number = number_of(version, versions)
            if number not in versions:
                raise no_version(model, version)
            chosen = [number]
        else:
            chosen = [self._default(model, config) or max(versions)]
        return 200, [
            description(
                model, versions.get(number, str(number)), urls_of(config).get(number, ""), config, served.get(number)
            )
            for number in chosen
        ]

    # --- parts -------------------------------------------------------------------------------------------------------

    def _writable(self) -> Path:
        """The directory of the repository, where models may be changed.

        Raises:
            Problem: they may not.
        """
        if self.repository is None or not self.plane.loads_on_request:
            raise method_not_allowed(())
        return self.repository

    def _folder(self, model: str) -> Path:
        assert self.repository is not None
        return self.repository / model

    async def _config(self, model: str) -> ModelConfig:
        if not is_model_name(model) or self.repository is None:
            raise no_model(model)
        try:
            config = await FOLDERS.run(read_config, self._folder(model))
        except ConfigurationError as error:
            raise Problem(400, "BadRequestException", f"model '{model}' {error.problem}") from error
        if config is None:
            raise no_model(model)
        return config

    def _number(self, config: ModelConfig, model: str, version: str) -> int:
        versions = versions_of(config)
        number = number_of(version, versions) if version else None
        if version and number not in versions:
            raise no_version(model, version)
        return number or 0

    def _default(self, model: str, config: ModelConfig) -> int | None:
        return self.defaults.numbers.get(model, default_of(config))

    async def _note(self, model: str, *, idle: bool, default: int | None = None) -> None:
        """Tell all processes what requests for a model mean.

        Args:
            model: its name.
            idle: whether it is registered and has no workers.
            default: the version that answers requests which name none, as far as a request has said; None as before.
        """
        said = pb.RepositoryModelLoadRequest(model_name=model)
        before = self.defaults.numbers.get(model, 0)
        said.parameters["default"].int64_param = before if default is None else default
        said.parameters["idle"].bool_param = idle
        await self.plane.note_everywhere(NOTE, said, self.defaults.note)

    def _served(self, model: str) -> list[ServedVersion]:
        entry = self.plane.get_table().models.get(model)
        return [] if entry is None else entry.served()

    def _loaded(self, model: str) -> bool:
        return bool(self._served(model))

    async def _load(self, model: str) -> None:
        await self.plane.load(pb.RepositoryModelLoadRequest(model_name=model))

    async def _unload(self, model: str) -> None:
        await self.plane.unload(pb.RepositoryModelUnloadRequest(model_name=model))

    def _remove(self, folder: Path, number: int) -> None:
        """Remove a version's folder; the model's, if it was the last one. Blocks."""
        config = read_config(folder)
        if config is None:  # removed by somebody else
            return
        versions, urls = dict(versions_of(config)), dict(urls_of(config))
        versions.pop(number, None)
        urls.pop(number, None)
        if not versions:
            shutil.rmtree(folder, ignore_errors=True)
            return
        set_versions(config, versions, urls)
        if default_of(config) == number:
            set_default(config, max(versions))
        write_config(folder, config)
        shutil.rmtree(folder / str(number), ignore_errors=True)

    async def _in_background(self, work: Callable[[], Any]) -> None:
        """Do what the caller does not wait for."""
        try:
            await work()
        except Problem as problem:
            logger.error("management API: %s", problem.message)
        except Exception:
            logger.exception("a change by the management API failed")
