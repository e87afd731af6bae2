"""Model control: which of the repositories' models are served, and when that changes.

    none        what is there at the start, for good
    poll        what is there: every few seconds the repositories are looked at, and what has changed is loaded
    explicit    what was asked for, by a flag or by RepositoryModelLoad
    on-demand   what requests need, see ``on_demand``; and what was asked for, as with explicit

A poll looks twice, a moment apart, and leaves what differs in the two for the next one: somebody is writing there.
What failed to load is tried again when it has changed, or when its repository could not be reached. A repository that
cannot be read changes nothing of what is served from it.

A repository that did not answer at the start is asked again in every mode until it has; then what is served is what it
has, as if it had answered at once.

All methods are for the thread of the manager; whatever blocks is done in others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from toutates.models.config.triton_configuration import TritonConfiguration
from toutates.models.manager import ModelManager
from toutates.models.repository import ModelFolder, unexpected
from toutates.models.running import Outcome
from toutates.models.turn import ModelTurn
from toutates.repositories.control.first_look import Late
from toutates.repositories.control.load_request import check_paths, failed, override_of
from toutates.repositories.control.modes import ControlMode
from toutates.repositories.control.passed_over import PassedOver
from toutates.repositories.control.threads import fetches_of, in_thread
from toutates.repositories.control.view import Found, Looks, View
from toutates.repositories.interface import Repository
from toutates.repositories.local.uploads import misplaced, uploaded
from toutates.repositories.obtaining import obtain, own_configuration
from toutates.system.client_text import without_paths
from toutates.system.errors import (
    InvalidRequest,
    ModelLoadError,
    NotInRepository,
    NotPolled,
    PartlyLoaded,
    ToutatesError,
    UnknownModel,
)
from toutates.system.placement import running_on
from toutates.system.spelling import composed, spellings_of
from toutates.system.text import described
from toutates.system.thread_pools import ThreadPool

__all__ = ["MAX_SETTLE_S", "Demand", "ModelControl"]

logger = logging.getLogger(__name__)

#: Seconds between the two looks of a poll, at most.
MAX_SETTLE_S: Final = 1.0
#: What writes the files of requests, and removes them.
_UPLOADS: Final = ThreadPool("uploads", 8)


class Demand(Protocol):
    """What loads models on demand, as far as it has to know of other changes."""

    @property
    def names(self) -> Collection[str]:
        """Names of the models in the repositories, in any order; nobody changes what is returned."""
        ...

    @property
    def unready_reason(self) -> str:
        """Why it keeps the server from being ready; "" if it does not."""
        ...

    def note_changes(self, asked_for: str = "") -> None:
        """Models were loaded or unloaded.

        Args:
            asked_for: the one that was loaded on request; "" for none.
        """
        ...

    def note_unloaded(self, model: str) -> None:
        """A model was unloaded on request."""
        ...


#: Waits until there is room in memory for a model whose files are here. It may raise RequestError.
MakeRoom = Callable[[ModelFolder], Awaitable[None]]
#: Does the rest of a load, once it may.
Rest = Callable[[MakeRoom], Awaitable[None]]


@dataclass(slots=True)
class _Known:
    """What control knows of a model.

    Attributes:
        tried: repository and fingerprint of what was last loaded, or could not be loaded. Without a fingerprint the
            next poll tries again, even if the files are the same.
        held: the model whose files are kept.
        override: a configuration from RepositoryModelLoad, and the state of the model's files that it was for.
        uploaded: whether the files that are served came with the request.
        asked_for: whether somebody has asked for the model itself, and not for another that is made of it.
    """

    tried: tuple[str, str] | None = None
    held: Found | None = None
    override: tuple[TritonConfiguration, tuple[str, str]] | None = None
    uploaded: bool = False
    asked_for: bool = False


@dataclass(frozen=True, slots=True)
class _Looked:
    """A model that a thread has looked at, and may have loaded."""

    found: Found
    fetched: ModelFolder
    outcome: Outcome | None


class ModelControl:
    """Loads and unloads models as the mode says, from what the repositories have.

    Args:
        repositories: that are looked into.
        manager: loads and unloads the models.
        mode: see ControlMode.
        only: names of the models to poll for; None for all.
        poll_s: seconds between two polls, and between two questions to a repository that has not answered.
        cpus: where threads run, see ``placement.running_on``.
        passed_over: which has told the log of directories that are no models, at the start.
        on_change: called when ``unready_reason`` may have changed.

    Attributes:
        demand: what loads models on demand; None in the other modes.
    """

    def __init__(
        self,
        repositories: Sequence[Repository],
        manager: ModelManager,
        mode: ControlMode,
        *,
        only: Collection[str] | None = None,
        poll_s: float = 15.0,
        cpus: tuple[int, ...] = (),
        passed_over: PassedOver | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.demand: Demand | None = None
        self._on_change = on_change
        #: repositories that have not answered since the start, by name; replaced as a whole, since others read it
        self._late: Mapping[str, Late] = {}
        #: models that were loaded or unloaded on request, which a late repository leaves as they are
        self._requested: set[str] = set()
        self._repositories = repositories
        self._manager = manager
        self._mode = mode
        self._only = only
        self._poll_s = poll_s
        self._cpus = cpus
        self._known: dict[str, _Known] = {}
        self._index_turn = trio.Lock()
        self._names: list[str] = []
        self._names_seen = 0.0
        self._looks = Looks(repositories, passed_over or PassedOver(), cpus)

    @property
    def explicit(self) -> bool:
        """Whether models are loaded and unloaded by request."""
        return self._mode in ("explicit", "on-demand")

    @property
    def late(self) -> Collection[str]:
        """Names of the repositories that have not answered since the start."""
        return self._late.keys()

    @property
    def unready_reason(self) -> str:
        """Why the repositories keep the server from being ready, a sentence without a full stop; "" if they do not."""
        if self.demand is not None and (reason := self.demand.unready_reason):
            return reason
        unknown = [one for one in self._late.values() if one.listed_s is None]
        if not unknown:
            return ""
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        return f"the model repository '{unknown[0].repository.name}' cannot be read: {unknown[0].problem}{more}"

    def begin(
        self,
        found: Sequence[tuple[Repository, ModelFolder]],
        fetched: Sequence[ModelFolder],
        late: Sequence[Late] = (),
    ) -> None:
        """Take note of what the initial load has loaded.

        Args:
            found: what was to be loaded, from a scan.
            fetched: the same models in the same order, as they were loaded.
            late: repositories that have not answered.
        """
        self._late = {one.repository.name: one for one in late}
        for one in late:
            self._looks.told.news(f"repository {one.repository.name}", [one.problem])  # the log has it from the start
        self._names = sorted(folder.name for _, folder in found)
        for (repository, folder), own in zip(found, fetched, strict=True):
            if own.problem:
                # What a scan could not see may have been the repository's fault, and worth another try.
                self._known[folder.name] = _Known((repository.name, folder.fingerprint if folder.problem else ""))
            else:
                identity = Found(repository, folder).identity
                self._known[folder.name] = _Known(identity, Found(repository, own), asked_for=True)

    def stop(self) -> None:
        """Let threads that look into repositories or fetch from them end soon. Whoever waits for them is cancelled."""
        self._looks.stopping = True
        for repository in self._repositories:
            repository.stop()

    # --- poll --------------------------------------------------------------------------------------------------------

    async def poll_for_ever(self) -> None:
        """Poll again and again; in the other modes, until every repository has answered once. No failure ends it."""
        while self._mode == "poll" or self._late:
            await trio.sleep(self._poll_s)
            await self.poll_once()

    async def poll_once(self) -> None:
        """Poll; in the other modes, ask the repositories that have not answered. It does not fail."""
        try:
            await (self.poll() if self._mode == "poll" else self.catch_up())
        except Exception:
            logger.exception("a poll of the model repositories failed; the next one comes as usual")

    async def poll(self) -> None:
        """Look for changes, and load or unload what has changed and is the same in a second look."""
        first = await self._looks.look(self._only, self._came_from)
        await self._follow(first)
        self._have_answered(first)

    async def _follow(self, first: View) -> None:
        suspects = {name for name, one in first.models.items() if self._differs(name, one)}
        suspects |= {name for name in self._known if self._is_gone(name, first)}
        if not suspects:
            return
        await trio.sleep(min(MAX_SETTLE_S, self._poll_s / 2))
        second = await self._looks.look(suspects, self._came_from)
        async with trio.open_nursery() as nursery:
            for name in sorted(suspects):
                was, now = first.models.get(name), second.models.get(name)
                if was is not None and now is not None and was.identity == now.identity:
                    nursery.start_soon(self._apply, name, now)
                elif name not in first.models and self._is_gone(name, second):
                    nursery.start_soon(self._remove, name)
                else:
                    logger.debug("model '%s' is still changing; it is looked at again with the next poll", name)

    async def catch_up(self) -> None:
        """Ask the repositories that have not answered since the start, and serve what those have that do now."""
        view = await self._looks.look(self._only, self._came_from, [one.repository for one in self._late.values()])
        async with trio.open_nursery() as nursery:
            for name, one in view.models.items():
                known = self._known.get(name)
                if one is None or name in self._requested or not self._differs(name, one):
                    continue
                if known is not None and known.tried is not None and known.tried[0] not in self._late:
                    self._looks.say_two_have_it(name, f"{known.tried[0]}/{name}", one.folder.source)
                else:
                    nursery.start_soon(self._apply, name, one)
            for name, known in self._known.items():
                is_gone = known.tried is not None and known.tried[0] in view.read and name not in view.models
                if is_gone and name not in self._requested:
                    nursery.start_soon(self._remove, name)
        self._have_answered(view)

    def _have_answered(self, view: View) -> None:
        """Note that these repositories have answered."""
        if view.read & self._late.keys():
            self._late = {name: one for name, one in self._late.items() if name not in view.read}
            if not self._late:
                self._requested.clear()
            self._on_change()

    def _differs(self, name: str, one: Found | None) -> bool:
        return one is not None and (name not in self._known or self._known[name].tried != one.identity)

    def _is_gone(self, name: str, view: View) -> bool:
        """Whether a model is not in the repository any more that it came from."""
        tried = self._known[name].tried
        return name not in view.models and (tried is None or tried[0] not in view.unreadable)

    async def _apply(self, name: str, found: Found) -> None:
        async with self._manager.turn(name) as turn:
            if name in self._requested:  # while this one waited
                return
            known = self._known.setdefault(name, _Known())
            known.tried = found.identity
            try:
                await self._load_found(turn, name, found, known, None, all_or_none=False)
            except ModelLoadError:
                pass  # which the manager has logged, and shows
            except ToutatesError as error:  # its repository could not be read
                known.tried = (found.repository.name, "")
                self._looks.say(f"model {name}", f"model '{name}' cannot be loaded: {error}")
                self._manager.refuse(name, str(error))
            except Exception as error:  # a bug of ours, which is to cost no other model its turn
                problem = described(error)
                logger.exception("loading model '%s' failed unexpectedly: %s", name, problem, extra={"model": name})
                self._manager.refuse(name, problem)
            else:
                self._looks.told.forget(f"model {name}")
                source = found.folder.source
                logger.info("model '%s' has been loaded as '%s' has it now", name, source, extra={"model": name})

    async def _remove(self, name: str) -> None:
        async with self._manager.turn(name) as turn:
            known = self._known.pop(name, None)
            if known is None:  # somebody has unloaded it on request meanwhile
                return
            if known.held is None and name in (self._only or ()):
                self._manager.refuse(name, "no model repository has it")  # and somebody has asked for it
                return
            logger.info("model '%s' is no longer in its repository, and is unloaded", name, extra={"model": name})
            turn.unload(forget=True)
            self._release(known)

    # --- on request --------------------------------------------------------------------------------------------------

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model, or load it anew if it has changed. See RepositoryModelLoad.

        Args:
            name: of the model.
            config: a ModelConfig in JSON that holds in place of its configuration files; None for these.
            files: the model's files by their paths in its directory; none for those of its repository.

        Models that it is made of, and of which nothing is served, are loaded too.

        Raises:
            InvalidRequest: the arguments cannot be used.
            NotInRepository: there is no such model, it cannot be had, or its configuration cannot be used.
            ModelLoadError: it cannot be served; a clause per version. What was served before is served still.
        """
        name = await self._spelling(name)
        try:
            with self._telling_no_paths(name):
                await self._load(name, config, files)
        except ModelLoadError as error:
            if not error.missing:
                raise
            await self._load_members(error.missing, {name})
            if not self._manager.answers(name):
                with self._telling_no_paths(name):
                    await self._load(name, config, files)  # what is wrong now, or at last not any more
        finally:
            if self.demand is not None:
                self.demand.note_changes()
        self._known.setdefault(name, _Known()).asked_for = True
        if self.demand is not None:
            self.demand.note_changes(asked_for=name)

    @contextmanager
    def _telling_no_paths(self, name: str) -> Iterator[None]:
        """A block that loads a model on request. What the repositories say goes into the log with their paths.

        Raises:
            NotInRepository: the block's, without paths of the server.
        """
        try:
            yield
        except NotInRepository as error:
            # A repository that is a directory is named by the last part of its path, and a model in it likewise.
            above = [os.path.dirname(one.name) for one in self._repositories if os.path.isabs(one.name)]
            told = without_paths(str(error), *above)
            if told == str(error):
                raise
            logger.error("model '%s' cannot be loaded: %s", name, error, extra={"model": name})
            raise NotInRepository(told) from error

    async def load_missing(self) -> None:
        """Load what served models are made of, and of which nothing is served."""
        for name in list(self._manager.table.models):
            await self._load_members(self._manager.missing(name), {name})

    async def _spelling(self, name: str) -> str:
        """A name as the repositories spell it, where a caller composes its letters in another way."""
        spelled = self._manager.table.spelling(name)
        if name.isascii() or self._manager.table.has_name(spelled):
            return spelled
        names = await self._looks.names() if self.demand is None else self.demand.names
        return name if name in names else spellings_of(names).get(composed(name), name)

    async def _load_members(self, names: Sequence[str], way: set[str]) -> None:
        """Load what a model is made of. What cannot be loaded is told with the model that needs it.

        Args:
            names: of the models.
            way: names of those that are made of them, which are being loaded.
        """
        for needed in names:
            name = await self._spelling(needed)
            if name in way:
                continue
            logger.info("model '%s' is loaded, because others are made of it", name, extra={"model": name})
            try:
                await self._load(name, None, {})
            except ModelLoadError as error:
                await self._load_members(error.missing, {*way, name})
            except ToutatesError as error:
                logger.warning("model '%s' cannot be loaded: %s", name, error, extra={"model": name})

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        if files and config is None:
            raise InvalidRequest(f"{failed(name)}: override files need the parameter 'config'")
        problem = misplaced(files)
        if problem:
            raise InvalidRequest(f"{failed(name)}: {problem}")
        override = None if config is None else await in_thread(self._cpus, _UPLOADS, partial(override_of, name, config))
        async with self._manager.turn(name) as turn:
            known = self._known.setdefault(name, _Known())
            try:
                if files:
                    assert override is not None
                    await self._load_files(turn, name, known, override, files)
                elif override is not None or not known.uploaded:
                    await self._load_named(turn, name, known, override)
            except NotPolled as error:
                raise NotInRepository(f"{failed(name)}: {error}") from error
            finally:
                if known == _Known():
                    del self._known[name]
            self._note_request(name)
            logger.info("model '%s' is loaded, as was asked for", name, extra={"model": name})

    async def _load_files(
        self, turn: ModelTurn, name: str, known: _Known, override: TritonConfiguration, files: Mapping[str, bytes]
    ) -> None:
        check_paths(name, override.given)
        upload = uploaded(name, files, override)
        try:
            folder = await in_thread(self._cpus, _UPLOADS, upload.__enter__)
        except NotInRepository as error:
            raise NotInRepository(f"{failed(name)}: {error}") from error
        try:
            await turn.load(folder, overridden=True)
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(self._cpus, _UPLOADS, partial(upload.__exit__, None, None, None))
        self._release(known)
        known.held, known.override, known.uploaded = None, None, True

    async def _load_named(
        self, turn: ModelTurn, name: str, known: _Known, override: TritonConfiguration | None
    ) -> None:
        found = await self._find(name)
        if override is None and known.override is not None and known.override[1] == found.identity:
            override = known.override[0]
        elif override is not None:
            await self._check_paths(name, override, found)
        await self._load_found(turn, name, found, known, override, all_or_none=True)
        known.tried = found.identity
        known.override = None if override is None else (override, found.identity)
        known.uploaded = False

    async def _check_paths(self, name: str, override: TritonConfiguration, found: Found) -> None:
        with suppress(InvalidRequest):  # unless the repository says the same
            check_paths(name, override.given)
            return
        read = partial(own_configuration, found.repository, found.folder)
        try:
            own = await in_thread(self._cpus, fetches_of(found.repository), read)
        except ToutatesError as error:
            raise NotInRepository(f"{failed(name)}: {error}") from error
        check_paths(name, override.given, own)

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Stop serving a model; see RepositoryModelUnload. One that is not served is no error.

        Args:
            name: of the model.
            dependents: whether the models that it is made of go too, unless somebody has asked for them, or others
                that are served are made of them.
        """
        name = self._manager.table.spelling(name)
        members = self._manager.members(name) if dependents else set()
        await self._unload(name)
        for member in sorted(members):
            known = self._known.get(member)
            needed = any(member in self._manager.members(other) for other in self._manager.table.models)
            if known is not None and not known.asked_for and not needed:
                await self.unload(member, dependents=True)
        if self.demand is not None:
            self.demand.note_unloaded(name)

    async def _unload(self, name: str) -> None:
        async with self._manager.turn(name) as turn:
            if name in self._known:
                logger.info("model '%s' is unloaded, as was asked for", name, extra={"model": name})
            turn.unload()
            known = self._known.pop(name, None)
            if known is not None:
                self._note_request(name)
                self._release(known)

    def _note_request(self, name: str) -> None:
        if self._late:
            self._requested.add(name)

    async def names(self) -> Collection[str]:
        """Names of the models in the repositories, in any order; of one that cannot be read, those from before."""
        if self.demand is not None:
            return self.demand.names  # of any number of models: nothing is made of them on this thread
        asked = trio.current_time()
        async with self._index_turn:
            if self._names_seen < asked:  # else somebody has looked while this one waited
                started = trio.current_time()
                view = await self._looks.look(None, self._came_from)
                old = self._names if view.unreadable else []
                self._names = sorted({*view.models, *old})
                self._names_seen = started
        return self._names

    async def _find(self, name: str) -> Found:
        view = await self._looks.look_for(name, self._came_from)
        if name not in view.models:
            reason = "no model repository has it"
            if view.unreadable:
                reason += f"; not all could be read: {', '.join(sorted(view.unreadable))}"
            raise NotInRepository(f"{failed(name)}: {reason}")
        found = view.models[name]
        if found is None:
            raise NotInRepository(f"{failed(name)}: {self._looks.told.last(f'model {name}') or 'two have it'}")
        return found

    # --- on demand ---------------------------------------------------------------------------------------------------

    async def load_on_demand(
        self,
        name: str,
        repository: Repository,
        folder: ModelFolder | None,
        make_room: MakeRoom,
        look: Callable[[ModelFolder], object] = lambda fetched: None,
    ) -> None:
        """Load a model because a request needs it, unless it is served by now.

        Args:
            name: of the model.
            repository: that has it.
            folder: what a scan says of it; None if it has to be looked at.
            make_room: waits until there is room for it.
            look: called before, with the model's files at hand, in the thread that has fetched them. It may block.

        Raises:
            ModelLoadError: all or some of it cannot be served.
            RequestError: it is not there, or there is no room.
            ToutatesError: its repository does not have its files ready.
        """
        async with self._manager.turn(name) as turn:
            entry = self._manager.entry(name)
            if entry is not None and not entry.may_be_loaded:
                return
            with self._knowing(name) as known:
                work = partial(_look_and_fetch, repository, name, folder, look)
                found, fetched = await in_thread(self._cpus, fetches_of(repository), work)
                known.tried = found.identity
                await self._load_fetched(turn, repository, fetched, known, all_or_none=False, make_room=make_room)

    def begin_on_demand(
        self,
        name: str,
        repository: Repository,
        fits: Callable[[ModelFolder], bool],
        on_done: Callable[[Rest | None, Exception | None], None],
    ) -> bool:
        """Load a model that is small because a request needs it, without a task, and one change of threads each way.

        Args:
            name: of the model.
            repository: that has it, where it is to be looked at.
            fits: called with the model's files at hand, in the thread that is to load it: whether it may be loaded now.
            on_done: called in this thread: with None and None for a model that is served; with an error of
                ``load_on_demand``; or with what has to be awaited for the rest, where the model is not that simple.

        Returns:
            Whether it has begun; if not, ``on_done`` is not called.
        """
        entry = self._manager.entry(name)
        if entry is not None and not entry.may_be_loaded:
            return False
        turn = self._manager.try_turn(name)
        if turn is None:
            return False

        def load() -> _Looked | Exception:
            try:
                with running_on(self._cpus, self._cpus):
                    found, fetched = _look_and_fetch(repository, name, None, lambda fetched: None)
                    is_simple = fits(fetched) and len(fetched.versions) == 1 and not fetched.problem
                    is_simple = is_simple and not self._manager.tries_again  # which takes a task
                    outcome = self._manager.try_to_load(name, fetched.versions[0]) if is_simple else None
                    return _Looked(found, fetched, outcome)
            except Exception as error:
                return error
            except BaseException as error:  # the code of a model may raise any
                return RuntimeError(described(error))

        def done(looked: _Looked | Exception) -> None:
            if isinstance(looked, Exception):
                self._manager.end_turn(turn)
                on_done(None, looked)
            elif looked.outcome is None:
                on_done(partial(self._load_rest, turn, looked), None)
            else:
                error = self._enter_loaded(turn, looked, looked.outcome)
                self._manager.end_turn(turn)
                on_done(None, error)

        if self._manager.begin_in_loader(load, f"ort {name}", done):
            return True
        self._manager.end_turn(turn)
        return False

    def _enter_loaded(self, turn: ModelTurn, looked: _Looked, outcome: Outcome) -> Exception | None:
        """Serve a model that was loaded; returns why it cannot be, or not all of it."""
        try:
            with self._knowing(turn.name) as known:
                known.tried = looked.found.identity
                with self._keeping(looked.found.repository, looked.fetched, known):
                    turn.enter(looked.fetched, outcome)
        except Exception as error:
            return error
        return None

    async def _load_rest(self, turn: ModelTurn, looked: _Looked, make_room: MakeRoom) -> None:
        """Load a model that was looked at; see ``load_on_demand``."""
        try:
            with self._knowing(turn.name) as known:
                known.tried = looked.found.identity
                repository = looked.found.repository
                await self._load_fetched(
                    turn, repository, looked.fetched, known, all_or_none=False, make_room=make_room
                )
        finally:
            self._manager.end_turn(turn)

    @contextmanager
    def _knowing(self, name: str) -> Iterator[_Known]:
        """What is known of a model, while it is loaded on demand; forgotten, if it fails and no files are kept."""
        known = self._known.setdefault(name, _Known())
        try:
            yield known
        except BaseException:
            if known.held is None:
                self._known.pop(name, None)
            raise

    def forget(self, name: str) -> None:
        """A model has left memory: its files are not in use any more."""
        known = self._known.pop(name, None)
        if known is not None:
            self._release(known)

    def is_made_up(self, name: str) -> bool:
        """Whether a model is served otherwise than its repository has it, so that it cannot be had from there again."""
        known = self._known.get(name)
        return known is not None and (known.uploaded or known.override is not None)

    # --- both --------------------------------------------------------------------------------------------------------

    async def _load_found(
        self,
        turn: ModelTurn,
        name: str,
        found: Found,
        known: _Known,
        override: TritonConfiguration | None,
        *,
        all_or_none: bool,
    ) -> None:
        """Fetch a model and have it loaded; the files are kept if any of it is served, those from before released."""
        fetch = partial(obtain, found.repository, found.folder, lambda done, total: None, override)
        try:
            folder = await in_thread(self._cpus, fetches_of(found.repository), fetch)
        except ToutatesError as error:
            raise NotInRepository(f"{failed(name)}: {error}") from error
        except Exception as error:
            problem = unexpected(name, found.folder.path, error)
            raise NotInRepository(f"{failed(name)}: {problem}") from error
        await self._load_fetched(
            turn, found.repository, folder, known, overridden=override is not None, all_or_none=all_or_none
        )

    async def _load_fetched(
        self,
        turn: ModelTurn,
        repository: Repository,
        folder: ModelFolder,
        known: _Known,
        *,
        overridden: bool = False,
        all_or_none: bool,
        make_room: MakeRoom | None = None,
    ) -> None:
        """The same of a model that was fetched."""
        with self._keeping(repository, folder, known):
            if make_room is not None and not folder.problem:
                await make_room(folder)
            await turn.load(folder, overridden=overridden, all_or_none=all_or_none)

    @contextmanager
    def _keeping(self, repository: Repository, folder: ModelFolder, known: _Known) -> Iterator[None]:
        """A block that serves a fetched model: if any of it is, its files are kept, and those from before released."""
        is_served = False
        try:
            yield
            is_served = True
        except PartlyLoaded:
            is_served = True
            raise
        finally:
            if is_served:
                self._release(known)
                known.held = Found(repository, folder)
            elif not folder.problem:
                repository.release(folder)

    def _came_from(self, repository: str) -> Collection[str]:
        """Names of the models that were last loaded from a repository, or could not be."""
        return [name for name, one in self._known.items() if one.tried and one.tried[0] == repository]

    def _release(self, known: _Known) -> None:
        if known.held is not None:
            known.held.repository.release(known.held.folder)
            known.held = None


def _look_and_fetch(
    repository: Repository, name: str, folder: ModelFolder | None, look: Callable[[ModelFolder], object]
) -> tuple[Found, ModelFolder]:
    """A model as it is in a repository, and with its files at hand. Blocks.

    Args:
        repository: that has it.
        name: of the model.
        folder: what a scan says of it; None if it has to be looked at.
        look: called with its files at hand.

    Raises:
        UnknownModel: it is not there, or is no model.
        ToutatesError: it cannot be read.
    """
    found = Found(repository, folder or _look_for(repository, name))
    fetched = obtain(repository, found.folder, lambda done, total: None)
    look(fetched)
    return found, fetched


def _look_for(repository: Repository, name: str) -> ModelFolder:
    """A model in a repository. Blocks.

    Raises:
        UnknownModel: it is not there, or is no model.
        ToutatesError: the repository cannot be read.
    """
    for folder in repository.scan([name]):
        if folder.name == name and not folder.passed_over:
            return folder
    raise UnknownModel(f"Request for unknown model: '{name}' is not found")
