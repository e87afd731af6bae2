"""The table of models as it is now: what changes it, and what it remembers of versions that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from toutates.models.dependencies import Dependencies
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry

__all__ = ["CurrentTable", "latest"]

#: Versions of a model, and models, that are remembered though they are not served any more: the latest ones.
MAX_GONE: Final = 100
MAX_REMOVED: Final = 1_000


class CurrentTable:
    """Replaces the table of models whenever an entry changes. It belongs to the manager's thread.

    Args:
        publish: called with each new table, and with the first one by the constructor.
        on_change: called after ``publish``, but not for the tables of the constructor and of ``begin``.
        may_be_empty, suggests_names: see ModelTable.
    """

    def __init__(
        self,
        publish: Callable[[ModelTable], None],
        on_change: Callable[[], None],
        *,
        may_be_empty: bool,
        suggests_names: bool,
    ) -> None:
        self._publish = publish
        self._on_change = on_change
        self._may_be_empty = may_be_empty
        self._suggests_names = suggests_names
        self._models: dict[str, ModelEntry] = {}
        #: the same models as the table shows them: a version whose executors have died is unavailable there
        self._shown: dict[str, ModelEntry] = {}
        #: models that were served and are in no repository any more: numbers of their versions
        self._removed: dict[str, tuple[int, ...]] = {}
        self._dependencies = Dependencies()
        self._make(complete=False)

    def get(self, name: str) -> ModelEntry | None:
        """A model's entry; None for a model that is not known."""
        return self._models.get(name)

    def begin(self, models: Mapping[str, ModelEntry]) -> None:
        """Show the models of the initial load."""
        self._models = dict(models)
        for model in models.values():
            self._dependencies.note(model)
        self._show_all()
        self._make()

    def enter(self, model: ModelEntry) -> None:
        """Replace a model's entry, or add one."""
        self._models[model.name] = model
        self._dependencies.note(model)
        self._show(model)
        self._removed = {name: gone for name, gone in self._removed.items() if name != model.name}
        self._change()

    def remove(self, name: str) -> None:
        """Drop a model that is in no repository any more. The numbers of its versions are remembered for callers."""
        model = self._models.pop(name)
        del self._shown[name]
        self._dependencies.forget(name)
        self._show_dependent()
        if numbers := latest({*model.versions, *model.gone}):
            oldest = len(self._removed) - MAX_REMOVED + 1
            self._removed = dict(list(self._removed.items())[max(oldest, 0) :]) | {name: numbers}
        self._change()

    def note_ready_change(self) -> None:
        """Show that a version has lost its executors, or has some again."""
        if self._complete:
            self._show_all()
            self._change()

    def problem_of(self, version: ServedVersion) -> str:
        """What would be wrong with the versions of others that a version is made of, if it were served; "" for nothing.

        Args:
            version: that may not be in the table.
        """
        return self._dependencies.problem_of(version, self._models)

    def missing(self, versions: Iterable[ServedVersion]) -> tuple[str, ...]:
        """Names of models that versions are made of, and of which nothing is served."""
        names = {need.model for one in versions if one.dependent is not None for need in one.dependent.needs}
        return tuple(sorted(name for name in names if name not in self._models or not self._models[name].served()))

    def _show_all(self) -> None:
        self._shown = {name: _as_it_is(model, {}) for name, model in self._models.items()}
        self._show_dependent()

    def _show(self, model: ModelEntry) -> None:
        self._shown[model.name] = _as_it_is(model, {})
        self._show_dependent()

    def _show_dependent(self) -> None:
        """Bind versions that are made of others to those that there are now, before anybody sees the new table."""
        if self._dependencies:
            problems = self._dependencies.bind(self._models)
            for name in {version.model for version in problems}:
                self._shown[name] = _as_it_is(self._models[name], problems)

    def _change(self) -> None:
        self._make()
        self._on_change()

    def _make(self, *, complete: bool = True) -> None:
        self._complete = complete
        self._publish(
            ModelTable(
                self._shown,
                removed=self._removed,
                complete=complete,
                may_be_empty=self._may_be_empty,
                suggests_names=self._suggests_names,
            )
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
