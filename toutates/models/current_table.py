"""The table of models as it is now: what changes it, and what it remembers of versions that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from toutates.models.table import ModelEntry, ModelState, ModelTable, VersionEntry

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
        self._make(complete=False)

    def get(self, name: str) -> ModelEntry | None:
        """A model's entry; None for a model that is not known."""
        return self._models.get(name)

    def begin(self, models: Mapping[str, ModelEntry]) -> None:
        """Show the models of the initial load."""
        self._models = dict(models)
        self._show_all()
        self._make()

    def enter(self, model: ModelEntry) -> None:
        """Replace a model's entry, or add one."""
        self._models[model.name] = model
        self._shown[model.name] = _as_it_is(model)
        self._removed = {name: gone for name, gone in self._removed.items() if name != model.name}
        self._change()

    def remove(self, name: str) -> None:
        """Drop a model that is in no repository any more. The numbers of its versions are remembered for callers."""
        model = self._models.pop(name)
        del self._shown[name]
        if numbers := latest({*model.versions, *model.gone}):
            oldest = len(self._removed) - MAX_REMOVED + 1
            self._removed = dict(list(self._removed.items())[max(oldest, 0) :]) | {name: numbers}
        self._change()

    def note_ready_change(self) -> None:
        """Show that a version has lost its executors, or has some again."""
        if self._complete:
            self._show_all()
            self._change()

    def _show_all(self) -> None:
        self._shown = {name: _as_it_is(model) for name, model in self._models.items()}

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


def _as_it_is(model: ModelEntry) -> ModelEntry:
    return replace(model, versions={number: _version_as_it_is(entry) for number, entry in model.versions.items()})


def _version_as_it_is(entry: VersionEntry) -> VersionEntry:
    if entry.served is None or entry.served.servable.ready:
        return entry
    return replace(entry, state=ModelState.UNAVAILABLE, reason="Internal: its executors died and are replaced")
