"""The table of models as it is now: what changes it, and what it remembers of versions that are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from toutates.models.dependencies import Dependencies
from toutates.models.entry_map import EntryMap
from toutates.models.near_names import NearNames
from toutates.models.table import UNLOADED, Changes, ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.models.traffic.rules import NO_TRAFFIC, TrafficRules
from toutates.system.spelling import composed, spellings_of

__all__ = ["CurrentTable", "latest"]

logger = logging.getLogger(__name__)

#: Versions of a model, and models, that are remembered though they are not served any more: the latest ones.
MAX_GONE: Final = 100
MAX_REMOVED: Final = 1_000


class CurrentTable:
    """Replaces the table of models whenever an entry changes. It belongs to the manager's thread.

    Args:
        publish: called with each new table, and with the first one by the constructor.
        on_change: called after ``publish``, but not for the tables of the constructor and of ``begin``.
        may_be_empty, suggests_names, failures_count: see ModelTable.

    A change costs a copy of a small part of a map (``EntryMap``), and nothing else that grows with the number of
    models.
    """

    def __init__(
        self,
        publish: Callable[[ModelTable], None],
        on_change: Callable[[], None],
        *,
        may_be_empty: bool,
        suggests_names: bool,
        failures_count: bool = True,
    ) -> None:
        self._publish = publish
        self._on_change = on_change
        self._may_be_empty = may_be_empty
        self._suggests_names = suggests_names
        self._failures_count = failures_count
        #: models that are loaded on demand
        self._loadable: Collection[str] = ()
        #: of the models' names, or of those that can be loaded; None until it is made of them as they are now
        self._names: NearNames | None = None
        #: of the shown models those of which something fails
        self._failed: set[str] = set()
        self._changes = Changes()
        self._models: dict[str, ModelEntry] = {}
        #: the same models as the table shows them: a version whose executors have died is unavailable there
        self._shown: EntryMap[ModelEntry] = EntryMap()
        #: models that were served and are in no repository any more: numbers of their versions
        self._removed: dict[str, tuple[int, ...]] = {}
        self._dependencies = Dependencies()
        #: by their NFC form, names of models, and of those that can be loaded; replaced, never changed
        self._spellings: Mapping[str, str] = {}
        self._loadable_spellings: Mapping[str, str] = {}
        self._traffic = NO_TRAFFIC
        self._traffic_problem = ""
        self._complete = False
        self._make(complete=False)

    def get(self, name: str) -> ModelEntry | None:
        """A model's entry; None for a model that is not known."""
        return self._models.get(name)

    def set_loadable(self, names: Collection[str]) -> None:
        """Show that these models are loaded when a request needs them, in place of those from before.

        Args:
            names: of which nobody changes anything any more; quick to look names up in.
        """
        self._loadable = names
        self._names = None
        self._loadable_spellings = spellings_of(names)
        _tell_doubles(names, self._loadable_spellings)
        self._make(complete=self._complete)
        if self._complete:
            self._on_change()

    def begin(self, models: Mapping[str, ModelEntry]) -> None:
        """Show the models of the initial load."""
        self._models = dict(models)
        for model in models.values():
            self._dependencies.note(model)
        self._spellings = spellings_of(models)
        _tell_doubles(models, self._spellings)
        self._names = None
        self._show_all()
        self._make()

    def enter(self, *models: ModelEntry) -> None:
        """Replace the entries of models, or add some."""
        changed: set[str] = set()
        for model in models:
            before = self._models.get(model.name)
            if before is None:
                self._forget_names()
                if not model.name.isascii():
                    self._spellings = {composed(model.name): model.name, **self._spellings}
                    _tell_doubles([model.name], self._spellings)
            elif before.served():
                changed.add(model.name)
            self._models[model.name] = model
            changed |= self._note(model)
            if model.name in self._removed:
                self._removed = {name: gone for name, gone in self._removed.items() if name != model.name}
        self._change(changed)

    def remove(self, *names: str, remember: bool = True) -> None:
        """Drop models.

        Args:
            names: of models that are in no repository any more, or may be loaded again on demand.
            remember: whether the numbers of their versions are remembered for callers.
        """
        changed: set[str] = set()
        for name in names:
            model = self._models.pop(name)
            if not name.isascii():
                self._spellings = spellings_of(self._models)
            self._shown = self._shown.without(name)
            self._failed.discard(name)
            if model.served():
                changed.add(name)
            changed |= self._show_affected(name, was_dependent=self._dependencies.forget(name))
            numbers = latest({*model.versions, *model.gone}) if remember else ()
            if numbers:
                oldest = len(self._removed) - MAX_REMOVED + 1
                self._removed = dict(list(self._removed.items())[max(oldest, 0) :]) | {name: numbers}
        self._forget_names()
        self._change(changed)

    def set_traffic(self, traffic: TrafficRules, problem: str) -> None:
        """Replace what names stand for; see ``ModelTable``."""
        self._traffic, self._traffic_problem = traffic, problem
        if self._complete:
            self._change(None)

    def note_ready_change(self) -> None:
        """Show that a version has lost its executors, or has some again."""
        if self._complete:
            self._show_all()
            self._change(None)

    def problem_of(self, version: ServedVersion) -> str:
        """What would be wrong with the versions of others that a version is made of, if it were served; "" for nothing.

        Args:
            version: that may not be in the table.
        """
        return self._dependencies.problem_of(version, self._models)

    def missing(self, versions: Iterable[ServedVersion]) -> tuple[str, ...]:
        """Names of models that versions are made of, and of which nothing is served."""
        names = {need.model for one in versions if one.dependent is not None for need in one.dependent.needs}
        absent = []
        for name in names:
            model = self._models.get(name) or self._models.get(self._spellings.get(composed(name), ""))
            if model is None or not model.served():
                absent.append(name)
        return tuple(sorted(absent))

    def _forget_names(self) -> None:
        if not self._loadable:
            self._names = None

    def _show_all(self) -> None:
        shown = {name: _as_it_is(model, {}) for name, model in self._models.items()}
        self._shown = EntryMap.of(shown)
        self._failed = {name for name, model in shown.items() if self._is_lacking(model)}
        self._show_dependent(None)

    def _show(self, model: ModelEntry, problems: Mapping[ServedVersion, str]) -> None:
        shown = _as_it_is(model, problems)
        self._shown = self._shown.having(model.name, shown)
        if self._is_lacking(shown):
            self._failed.add(model.name)
        else:
            self._failed.discard(model.name)

    def _is_lacking(self, shown: ModelEntry) -> bool:
        """Whether a model keeps the server from being ready: not where a model that it is made of was unloaded, as was
        asked for."""
        return shown.is_lacking and not self._was_taken_from(shown.name, set())

    def _was_taken_from(self, name: str, seen: set[str]) -> bool:
        model = self._models.get(name)
        if model is None or name in seen:
            return False
        seen.add(name)
        needed = {need.model for one in model.served() if one.dependent is not None for need in one.dependent.needs}
        return any(self._is_unloaded(other) or self._was_taken_from(other, seen) for other in needed)

    def _is_unloaded(self, name: str) -> bool:
        model = self._models.get(name)
        return (
            model is not None
            and bool(model.versions)
            and all(
                entry.state is ModelState.UNLOADING or entry.reason == UNLOADED for entry in model.versions.values()
            )
        )

    def _note(self, model: ModelEntry) -> set[str]:
        """A model's entry is new, or another; returns names of others that are shown anew for it."""
        was_dependent = self._dependencies.note(model)
        self._show(model, {})
        return self._show_affected(model.name, was_dependent=was_dependent)

    def _show_affected(self, name: str, *, was_dependent: bool) -> set[str]:
        affected = self._dependencies.affected(name)
        return self._show_dependent(affected) if affected or was_dependent else set()

    def _show_dependent(self, names: Collection[str] | None) -> set[str]:
        """Bind versions that are made of others to those that there are now, before anybody sees the new table.

        Args:
            names: of the models whose versions these are; None for all.

        Returns:
            Names of the models that were looked at.
        """
        if not self._dependencies:
            return set()
        problems = self._dependencies.bind(self._models, names)
        looked_at = {version.model for version in problems}
        for name in looked_at:
            self._show(self._models[name], problems)
        return looked_at

    def _change(self, names: Collection[str] | None) -> None:
        """Publish the table.

        Args:
            names: of models of which somebody may remember something; None for all.
        """
        if names is None or names:
            self._changes = self._changes.and_then(None if names is None else frozenset(names))
        self._make()
        self._on_change()

    def _make(self, *, complete: bool = True) -> None:
        self._complete = complete
        if self._names is None:
            self._names = NearNames((self._loadable or sorted(self._models)) if self._suggests_names else ())
        self._publish(
            ModelTable(
                self._shown,
                removed=self._removed,
                complete=complete,
                may_be_empty=self._may_be_empty,
                suggests_names=self._suggests_names,
                loadable=self._loadable,
                spellings={**self._loadable_spellings, **self._spellings},
                names=self._names,
                failed=frozenset(self._failed),
                failures_count=self._failures_count,
                changes=self._changes,
                traffic=self._traffic,
                traffic_problem=self._traffic_problem,
            )
        )


def _tell_doubles(names: Iterable[str], spellings: Mapping[str, str]) -> None:
    """Warn of names that differ from another one in how their letters are composed alone."""
    for name in names if spellings else ():
        first = name if name.isascii() else spellings[composed(name)]
        if first != name:
            logger.warning(
                "model %s has the name of model %s but for how its letters are composed (Unicode NFC); callers that "
                "compose them in a third way get the latter",
                ascii(name),
                ascii(first),
            )


def latest(numbers: Iterable[int]) -> tuple[int, ...]:
    """The greatest of the numbers of versions that are gone, ascending: as many as are remembered."""
    return tuple(sorted(numbers)[-MAX_GONE:])


def _as_it_is(model: ModelEntry, problems: Mapping[ServedVersion, str]) -> ModelEntry:
    """A model's entry, with those of its versions as unavailable that cannot answer.

    Args:
        model: as it is known.
        problems: what is wrong with what versions are made of; "" for nothing.
    """
    versions = {number: _version_as_it_is(entry, problems) for number, entry in model.versions.items()}
    if all([versions[number] is entry for number, entry in model.versions.items()]):
        return model
    return replace(model, versions=versions)


def _version_as_it_is(entry: VersionEntry, problems: Mapping[ServedVersion, str]) -> VersionEntry:
    served = entry.served
    if served is None:
        return entry
    if problem := problems.get(served):
        return replace(entry, state=ModelState.UNAVAILABLE, reason=f"Invalid argument: {problem}")
    if served.servable.ready:
        return entry
    return replace(entry, state=ModelState.UNAVAILABLE, reason="Internal: its executors died and are replaced")
