"""The first look into the repositories, at the start: which models there are, and which repositories to ask again.

All repositories are asked at once, in threads of their own, so that one that does not answer holds up no other. What
becomes of one that

    answers                             its models are served
    cannot be reached, but once could   its models are served from the cache, as they were last listed
    cannot be reached, or is refused    the others are served without it, and the server is not ready; or, where a model
                                        that cannot be loaded ends the server, the start ends
    is a directory that is not there    the start ends: its path is wrong, or its volume is not mounted

A repository that refuses has answered: credentials that are no longer accepted, or a bucket that is gone, are for an
operator to mend, and what it once had is not served. Each that has not answered is asked again until it has, by
``ModelControl``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from toutates.models.repository import ModelFolder
from toutates.repositories.control.passed_over import PassedOver
from toutates.repositories.control.threads import FIRST_LOOKS, in_thread
from toutates.repositories.control.waiting import Waiting
from toutates.repositories.interface import Recalled, Repository
from toutates.repositories.opening import double_model, refuse_duplicates, refuse_unknown
from toutates.system.errors import ConfigurationError, MissingRepository, RepositoryError, ToutatesError
from toutates.system.text import described

__all__ = ["PATIENCE_S", "FirstLook", "Late", "look_first"]

logger = logging.getLogger(__name__)

#: Seconds that the start waits for repositories that do not answer, if it has models to serve without them.
PATIENCE_S: Final = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Late:
    """A repository that did not answer the first look, and is asked again until it has.

    Attributes:
        problem: why it did not.
        listed_s: Unix time of the listing that its models are served from; None if nothing is known of what it has.
    """

    repository: Repository
    problem: str
    listed_s: float | None = None


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What there is to serve at the start.

    Attributes:
        found: the models, sorted by name, each with its repository.
        late: repositories that did not answer.
    """

    found: Sequence[tuple[Repository, ModelFolder]]
    late: Sequence[Late]


async def look_first(
    repositories: Sequence[Repository],
    only: Collection[str] | None = None,
    asked_by: Mapping[str, str] = {},
    *,
    all_must_answer: bool = False,
    waiting: Waiting | None = None,
    passed_over: PassedOver | None = None,
    cpus: tuple[int, ...] = (),
) -> FirstLook:
    """Find the models of all repositories. Cancelled, it leaves the threads to themselves.

    Args:
        repositories: where to look.
        only: names of the models wanted; None for all.
        asked_by: the flag that wants a model, by its name; --load-models those that are left out.
        all_must_answer: whether a repository of which nothing is known is an error.
        waiting: is told who has answered; the log is the caller's business, see ``Waiting.logged``.
        passed_over: tells the log of what is no model.
        cpus: where threads run, see ``placement.running_on``.

    Raises:
        ConfigurationError: a local directory is not there; none has one that was asked for, and all have answered; or
            all must answer, and one has not, or two have a model of one name.
    """
    asking = _Asking(repositories, only, waiting or Waiting(), cpus, all_must_answer=all_must_answer)
    await asking.ask()
    passed_over = passed_over or PassedOver()
    late = asking.late()
    found = [
        (repository, folder)
        for repository in repositories
        for folder in passed_over.models(repository.name, asking.found.get(repository, ()), only=only, known=())
    ]
    missing = set(only or ()) - {folder.name for _, folder in found}
    if missing and not late:
        names: set[str] = set()
        for repository in repositories:
            try:
                everything = await _ask_in_thread(cpus, partial(repository.scan, None))
            except ToutatesError:
                continue  # it has answered for the models themselves, which are not there
            names |= {folder.name for folder in everything if not folder.passed_over}
        refuse_unknown(missing, sorted(names), asked_by)
    for name in missing if late else ():
        said = ", ".join(f"'{one.repository.name}'" for one in late)
        problem = f"no model repository that answers has it; {said} could not be asked"
        found.append((late[0].repository, ModelFolder(name, Path(name), problem=problem, source=name)))
    found.sort(key=lambda pair: pair[1].name)
    if all_must_answer:
        refuse_duplicates(folder for _, folder in found)
    return FirstLook(_without_doubles(found), late)


def _without_doubles(found: Sequence[tuple[Repository, ModelFolder]]) -> list[tuple[Repository, ModelFolder]]:
    """The models, with one that cannot be served in place of two of the same name."""
    by_name: dict[str, tuple[Repository, ModelFolder]] = {}
    for repository, folder in found:
        first, other = by_name.setdefault(folder.name, (repository, folder))
        if other is not folder:
            places = other.source or str(other.path), folder.source or str(folder.path)
            by_name[folder.name] = (first, double_model(folder.name, *places, other.path))
    return list(by_name.values())


class _Asking:
    """The repositories while they are asked for the first time.

    Attributes:
        found: the models of each repository that has answered, or was last listed.
    """

    def __init__(
        self,
        repositories: Sequence[Repository],
        only: Collection[str] | None,
        waiting: Waiting,
        cpus: tuple[int, ...],
        *,
        all_must_answer: bool,
    ) -> None:
        self.found: dict[Repository, list[ModelFolder]] = {}
        self._repositories = repositories
        self._only = only
        self._waiting = waiting
        self._cpus = cpus
        self._all_must_answer = all_must_answer
        self._late: dict[Repository, Late] = {}
        self._answered = trio.Event()

    def late(self) -> list[Late]:
        """Those that have not answered, in order."""
        return [self._late[repository] for repository in self._repositories if repository in self._late]

    async def ask(self) -> None:
        """Ask all of them, until there is nothing to wait for.

        Raises:
            ConfigurationError: one that must answer does not, or is not there.
        """
        self._waiting.begin([repository.name for repository in self._repositories])
        failures: list[ConfigurationError] = []
        async with trio.open_nursery() as nursery:

            async def ask(repository: Repository) -> None:
                try:
                    await self._ask(repository)
                except ConfigurationError as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()
                self._waiting.end(repository.name)
                self._answered.set()
                self._answered = trio.Event()

            for repository in self._repositories:
                nursery.start_soon(ask, repository)
            with trio.move_on_after(PATIENCE_S):
                await self._wait_for_all()
            if self._open():
                await self._go_on_without()
            nursery.cancel_scope.cancel()
        self._waiting.end()
        if failures:
            raise failures[0]

    def _open(self) -> list[Repository]:
        """Repositories that have neither answered nor been given up."""
        return [one for one in self._repositories if one not in self.found and one not in self._late]

    async def _wait_for_all(self) -> None:
        while self._open():
            await self._answered.wait()

    async def _go_on_without(self) -> None:
        """After PATIENCE_S, serve what silent repositories had when last listed; wait on if nothing can be served."""
        problem = f"it has not answered for {PATIENCE_S:.0f} s"
        for repository in self._open():
            recalled = await _ask_in_thread(self._cpus, partial(repository.recall, self._only, problem))
            if recalled is not None and repository in self._open():
                self._serve_recalled(repository, recalled, problem)
        while self._open() and (self._all_must_answer or not any(self.found.values())):
            await self._answered.wait()
        for repository in self._open():
            self._give_up(repository, problem)

    async def _ask(self, repository: Repository) -> None:
        try:
            folders = await _ask_in_thread(self._cpus, partial(repository.scan, self._only))
        except ConfigurationError as error:
            if repository in self._open():
                if self._all_must_answer or isinstance(error, MissingRepository):
                    raise
                self._give_up(repository, str(error))
        except RepositoryError as error:
            problem = str(error)
            recalled = await _ask_in_thread(self._cpus, partial(repository.recall, self._only, problem))
            if repository in self._open():
                if recalled is not None:
                    self._serve_recalled(repository, recalled, problem)
                elif self._all_must_answer:
                    raise ConfigurationError(problem) from error
                else:
                    self._give_up(repository, problem)
        except Exception as error:  # a bug of ours, which is to cost the other repositories nothing
            logger.debug("the model repository '%s' cannot be read", repository.name, exc_info=True)
            if repository in self._open():
                if self._all_must_answer:
                    raise ConfigurationError(f"'{repository.name}' cannot be read: {described(error)}") from error
                self._give_up(repository, described(error))
        else:
            if repository in self._late:  # it answers after all, before its last listing was used
                del self._late[repository]
            self.found[repository] = folders

    def _serve_recalled(self, repository: Repository, recalled: Recalled, problem: str) -> None:
        self.found[repository] = recalled.folders
        self._late[repository] = Late(repository, problem, recalled.listed_s)
        listed = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(recalled.listed_s))
        logger.warning(
            "the model repository '%s' does not answer: %s; its %d models are served from the cache as they were "
            "listed %s ago (%s), and it is asked again until it answers",
            repository.name,
            problem,
            len([folder for folder in recalled.folders if not folder.passed_over]),
            _duration(time.time() - recalled.listed_s),
            listed,
            extra={"repository": repository.name},
        )

    def _give_up(self, repository: Repository, problem: str) -> None:
        self._late[repository] = Late(repository, problem)
        logger.error(
            "the model repository '%s' cannot be read: %s; nothing is served from there until it can, and it is asked "
            "again and again",
            repository.name,
            problem,
            extra={"repository": repository.name},
        )


async def _ask_in_thread(cpus: tuple[int, ...], work: Callable[[], T]) -> T:
    """Run what may block for long, however many others do. Cancelled, it leaves the thread to end with the process."""
    return await in_thread(cpus, FIRST_LOOKS, work, abandon_on_cancel=True)


def _duration(seconds: float) -> str:
    """A time in words of two units at most."""
    minutes, hours, days = seconds / 60, seconds / 3_600, seconds / 86_400
    if days >= 2:
        return f"{days:.1f} days"
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 2 else f"{seconds:.0f} s"
