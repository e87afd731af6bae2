"""Which model a request means: the one that it names, or the only one that does what the route is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import ref

from toutates.access.callers import Caller
from toutates.api.text.problems import Kind, Problem
from toutates.backends.text.interface import (
    FoundText,
    Task,
    TextInfo,
    VectorForm,
    find_text_model,
    text_models,
    text_version,
    without_prompt,
)
from toutates.infer.traffic.divided import Divider
from toutates.models.table import ModelTable
from toutates.models.traffic.rules import Route

__all__ = ["ANY", "CLASSIFIER", "EMBEDDER", "RERANKER", "SPARSE", "TOKENS", "LimitedLookup", "Lookup", "Wants"]

#: Names that are remembered: callers may send any.
MAX_REMEMBERED: Final = 256
#: Models that one sentence names.
MAX_NAMES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class Wants:
    """What a route needs of a model.

    Attributes:
        noun: such a model, for sentences.
        fits: whether a model is one.
    """

    noun: str
    fits: Callable[[TextInfo], bool]


EMBEDDER: Final = Wants("an embedding model", lambda info: info.task is Task.EMBED and info.form is VectorForm.DENSE)
TOKENS: Final = Wants(
    "a model with vectors of tokens", lambda info: info.task is Task.EMBED and info.form is not VectorForm.SPARSE
)
SPARSE: Final = Wants(
    "a model of sparse embeddings", lambda info: info.task is Task.EMBED and info.form is VectorForm.SPARSE
)
RERANKER: Final = Wants("a re-ranker model", lambda info: info.task is Task.RERANK)
CLASSIFIER: Final = Wants("a classifier model", lambda info: info.task is Task.CLASSIFY)
ANY: Final = Wants("a text model", lambda info: True)


def _no_table() -> None:
    return None


class Lookup:
    """Finds models for one worker, on its thread.

    What was found is remembered for as long as the table lives, which nothing here keeps.

    Args:
        get_table: returns the table of models as it is now.
        divider: counts requests of names with traffic; None for nobody.
    """

    def __init__(self, get_table: Callable[[], ModelTable], divider: Divider | None = None) -> None:
        self._get_table = get_table
        self._divider = divider or Divider(bytes, None)
        self._table: Callable[[], ModelTable | None] = _no_table
        self._found: dict[tuple[str, Wants], FoundText] = {}
        self._tasks: frozenset[Task] | None = None

    def find(self, name: str, wants: Wants) -> FoundText:
        """The model that a request means; 0.3 us for one that was found before.

        Args:
            name: that the request gives; "" for none.
            wants: what the route needs.

        Raises:
            RequestError: there is no such model, or it cannot answer now, or does something else.
        """
        table = self._get_table()
        if table is not self._table():
            self._forget(table)
        routes = table.traffic.routes
        if name in routes:
            return self._of_route(table, routes[name], name, wants)
        key = name, wants
        model = self._found.get(key)
        if model is None:
            model = _named(table, name, wants) if name else _only(self.all(), wants)
            if len(self._found) >= MAX_REMEMBERED:
                self._found.clear()
            self._found[key] = model
        return model

    def tasks(self) -> frozenset[Task]:
        """What the models do, of those that the caller may use."""
        table = self._get_table()
        if table is not self._table():
            self._forget(table)
        tasks = self._tasks
        if tasks is None:
            tasks = self._tasks = frozenset(found.model.info.task for found in self.all())
        return tasks

    def _forget(self, table: ModelTable) -> None:
        """Remember from now on what is found in another table."""
        found: dict[tuple[str, Wants], FoundText] = {}
        self._table = ref(table, lambda _: found.clear())
        self._found, self._tasks = found, None

    @property
    def table(self) -> ModelTable | None:
        """The table that ``find`` has looked into last; None once nobody has it any more."""
        return self._table()

    def _of_route(self, table: ModelTable, route: Route, name: str, wants: Wants) -> FoundText:
        """One of the versions that the requests of a name are divided between, at random."""
        arm = route.arms[self._divider.chosen(route, b"")]
        found = _fitting(text_version(table.find_target(name, arm)), name, wants)
        self._divider.count_of(route, arm)[0] += 1
        return found

    def all(self) -> list[FoundText]:
        """All text models, by name."""
        return text_models(self._get_table())


class LimitedLookup(Lookup):
    """Finds models for a caller who may use some only.

    Args:
        get_table: returns the table of models as it is now.
        caller: whose requests these are.
        divider: see ``Lookup``.
    """

    def __init__(self, get_table: Callable[[], ModelTable], caller: Caller, divider: Divider | None = None) -> None:
        super().__init__(get_table, divider)
        self._caller = caller

    def find(self, name: str, wants: Wants) -> FoundText:
        """See ``Lookup``. A model that is not the caller's is refused whether there is one or not."""
        if not name:
            return super().find(name, wants)
        table = self._get_table()
        model, _ = without_prompt(table, name)
        self._caller.check_model(model, table.traffic.leads_to(model))
        return super().find(name, wants)

    def all(self) -> list[FoundText]:
        """See ``Lookup``: those that the caller may use."""
        return [found for found in super().all() if self._caller.may_use(found.name)]


def _named(table: ModelTable, name: str, wants: Wants) -> FoundText:
    return _fitting(find_text_model(table, name), name, wants)


def _fitting(found: FoundText, name: str, wants: Wants) -> FoundText:
    if not wants.fits(found.model.info):
        raise Problem(Kind.WRONG_MODEL, f"the model '{name}' is not {wants.noun}", "model")
    return found


def _only(models: list[FoundText], wants: Wants) -> FoundText:
    """The model of those who name none."""
    fitting = [found for found in models if wants.fits(found.model.info)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(f"'{found.name}'" for found in fitting[:MAX_NAMES])
        raise Problem(Kind.VALUE, f"the request has to name its model, by `model`: one of {names}", "model")
    if len(models) == 1:
        raise Problem(Kind.WRONG_MODEL, f"the model '{models[0].name}' is not {wants.noun}", "model")
    raise Problem(Kind.UNKNOWN_MODEL, f"{wants.noun} is not served here", "model")
