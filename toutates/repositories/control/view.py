"""Looks into the repositories: which models they have now, and which of them cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from toutates.models.repository import ModelFolder
from toutates.repositories.control.passed_over import PassedOver
from toutates.repositories.control.threads import LOOKS, in_thread
from toutates.repositories.interface import Repository
from toutates.system.errors import ToutatesError
from toutates.system.logs.limit import Told
from toutates.system.text import described

__all__ = ["Found", "Looks", "View"]

logger = logging.getLogger(__name__)

#: How often the log hears again of a repository that stays as unusable as it was. Seconds.
_REMIND_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Found:
    """A model in a repository."""

    repository: Repository
    folder: ModelFolder

    @property
    def identity(self) -> tuple[str, str]:
        return self.repository.name, self.folder.fingerprint


@dataclass(slots=True)
class View:
    """What a look at the repositories has shown.

    Attributes:
        models: by name; None for a name that two repositories have.
        unreadable: names of repositories that could not be looked at.
        read: names of those that could.
    """

    models: dict[str, Found | None] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Look:
    """One look for the models that were asked for while the one before went on.

    Attributes:
        names: of the models.
        view: what it has shown; None before.
    """

    names: set[str] = field(default_factory=set)
    view: View | None = None


class Looks:
    """Looks into repositories, and tells the log what is wrong with them.

    Args:
        repositories: in which to look.
        passed_over: which has told the log of directories that are no models, at the start.
        cpus: where threads run, see ``placement.running_on``.

    Attributes:
        told: what the log was last told, by what it is about.
        stopping: once it is set, the log is told of no error any more.
    """

    def __init__(self, repositories: Sequence[Repository], passed_over: PassedOver, cpus: tuple[int, ...]) -> None:
        self.told = Told(_REMIND_S)
        self.stopping = False
        self._repositories = repositories
        self._passed_over = passed_over
        self._cpus = cpus
        #: looks for models that were asked for are made one after the other, because each keeps the interpreter busy
        self._turn = trio.Lock()
        self._next = _Look()
        self._names_turn = trio.Lock()
        self._names: Collection[str] = ()
        self._names_seen = 0.0

    async def look_for(self, name: str, came_from: Callable[[str], Collection[str]]) -> View:
        """Look for one model. Whoever asks while others are looked for is answered by one look together with others.

        Args:
            name: of the model.
            came_from: as of ``look``.
        """
        look = self._next
        look.names.add(name)
        async with self._turn:
            if look.view is None:
                if look is self._next:
                    self._next = _Look()
                look.view = await self.look(look.names, came_from)
            return look.view

    async def names(self) -> Collection[str]:
        """Names of the models in the repositories, without a look at any model; none of one that cannot be read."""

        def names_of() -> list[str]:
            found: list[str] = []
            for repository in self._repositories:
                try:
                    found += repository.index()
                except ToutatesError as error:
                    logger.debug("the names of repository '%s' cannot be read: %s", repository.name, error)
            return found

        asked = trio.current_time()
        async with self._names_turn:
            if self._names_seen < asked:  # else somebody has looked while this one waited
                started = trio.current_time()
                self._names = await in_thread(self._cpus, LOOKS, names_of, abandon_on_cancel=True)
                self._names_seen = started
            return self._names

    async def look(
        self,
        only: Collection[str] | None,
        came_from: Callable[[str], Collection[str]],
        repositories: Sequence[Repository] | None = None,
    ) -> View:
        """Look into all repositories, or some. What is wrong with one is logged, and costs the others nothing.

        Args:
            only: names of the models wanted; None for all.
            came_from: for a repository's name, those of the models that were loaded from it.
            repositories: those to look into; None for all.
        """
        if repositories is None:
            repositories = self._repositories
        view = View()
        found: dict[Repository, list[ModelFolder]] = {}

        async def look_into(repository: Repository) -> None:
            try:
                work = partial(repository.scan, only)
                found[repository] = await in_thread(self._cpus, LOOKS, work, abandon_on_cancel=True)
                view.read.add(repository.name)
            except ToutatesError as error:
                view.unreadable.add(repository.name)
                self.say(
                    f"repository {repository.name}", str(error), f"{error}; what is served from there is served on"
                )
            except Exception as error:  # a bug of ours, which is to cost the other repositories nothing
                view.unreadable.add(repository.name)
                problem = f"the model repository '{repository.name}' cannot be read: {described(error)}"
                logger.debug("%s", problem, exc_info=True)
                self.say(f"repository {repository.name}", problem, f"{problem}; what is served from there is served on")

        async with trio.open_nursery() as nursery:
            for repository in repositories:
                nursery.start_soon(look_into, repository)
        for repository in repositories:
            if repository not in found:
                continue
            if self.told.forget(f"repository {repository.name}"):
                logger.info("the model repository '%s' can be read again", repository.name)
            known = came_from(repository.name)
            for folder in self._passed_over.models(repository.name, found[repository], only=only, known=known):
                self._enter(view, Found(repository, folder))
        return view

    def _enter(self, view: View, one: Found) -> None:
        name = one.folder.name
        other = view.models.get(name)
        if name not in view.models:
            view.models[name] = one
        elif other is not None:
            view.models[name] = None
            self.say_two_have_it(name, other.folder.source, one.folder.source)

    def say_two_have_it(self, name: str, one: str, other: str) -> None:
        """Log that a model is in two places, and is left as it is."""
        text = f"it is in two repositories: '{one}' and '{other}'"
        self.say(f"model {name}", text, f"model '{name}' is left as it is: {text}; rename or remove one of them")

    def say(self, about: str, text: str, line: str = "") -> None:
        """Log an error that may come again and again: once, and when it changes, and once in a while."""
        if self.stopping:
            return
        if self.told.news(about, [text]):
            logger.error("%s", line or text)
