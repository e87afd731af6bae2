"""Versions that are made of other models' versions: what connects the two, whenever the table of models changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from toutates.models.table import Dependent, Member, ModelEntry, ModelState, Need, ServedVersion
from toutates.system.spelling import composed

__all__ = ["Dependencies", "member_problems"]


class Dependencies:
    """Binds versions to those that they are made of. It belongs to the manager's thread."""

    def __init__(self) -> None:
        #: names of models that have versions made of others
        self._names: set[str] = set()
        #: by model, the names of those that it is made of, in their NFC form
        self._needs: dict[str, frozenset[str]] = {}
        #: by a model's name in that form, the names of those that are made of it
        self._users: dict[str, set[str]] = {}

    def note(self, model: ModelEntry) -> bool:
        """A model's entry is new, or another; returns whether it was made of others before."""
        was_dependent = self.forget(model.name)
        dependents = [version.dependent for version in model.served() if version.dependent is not None]
        if dependents:
            self._names.add(model.name)
            needs = frozenset(composed(need.model) for one in dependents for need in one.needs)
            self._needs[model.name] = needs
            for name in needs:
                self._users.setdefault(name, set()).add(model.name)
        return was_dependent

    def forget(self, name: str) -> bool:
        """A model is not known any more; returns whether it was made of others."""
        was_dependent = name in self._names
        self._names.discard(name)
        for need in self._needs.pop(name, ()):
            users = self._users[need]
            users.discard(name)
            if not users:
                del self._users[need]
        return was_dependent

    def __bool__(self) -> bool:
        return bool(self._names)

    def users(self, name: str) -> Collection[str]:
        """Names of the served models that are made of a model, none of those that are made of these."""
        return self._users.get(composed(name), ())

    def affected(self, name: str) -> set[str]:
        """Names of the models that are made of others and are bound anew when a model changes: it, and its users."""
        found: set[str] = set()
        left = [name]
        while left:
            one = left.pop()
            if one in found:
                continue
            if one in self._names or one == name:
                found.add(one)
                left += self._users.get(composed(one), ())
        return found & self._names

    def bind(self, models: Mapping[str, ModelEntry], names: Collection[str] | None = None) -> dict[ServedVersion, str]:
        """Bind every such version to the versions that are there now; returns what is wrong with each, "" for nothing.

        Args:
            models: all that are known.
            names: of the models whose versions are bound; None for all. What these are made of is bound with them.
        """
        look = _Look(models)
        for name in sorted(self._names if names is None else self._names.intersection(names)):
            for version in models[name].served():
                look.problem_of(version)
        return look.problems

    @staticmethod
    def problem_of(version: ServedVersion, models: Mapping[str, ModelEntry]) -> str:
        """What would be wrong with a version that is not bound yet; "" for nothing. It is not bound by this."""
        if version.dependent is None:
            return ""
        return _Look(models, is_trial=True).problem_of(version)


class _Look:
    """One look at all of them.

    Attributes:
        problems: by version that was looked at.
    """

    def __init__(self, models: Mapping[str, ModelEntry], *, is_trial: bool = False) -> None:
        self.problems: dict[ServedVersion, str] = {}
        self._models = models
        self._is_trial = is_trial
        #: models on the way to the version that is looked at
        self._way: list[str] = []

    def problem_of(self, version: ServedVersion) -> str:
        dependent = version.dependent
        if dependent is None:
            return ""
        if version not in self.problems:
            self._way.append(version.model)
            members = {need: self._find(version.model, need) for need in dependent.needs}
            self._way.pop()
            reasons = list(dict.fromkeys(one for one in members.values() if isinstance(one, str)))
            absent = sorted({need.model for need, one in members.items() if one is None})
            if absent:
                reasons.insert(0, _not_available(version.model, absent))
            found = {need: one for need, one in members.items() if isinstance(one, ServedVersion)}
            # Both, so that all there is to mend is told at once.
            members_found = {need: one.member for need, one in found.items()}
            reasons += dependent.disagreements(members_found)
            self.problems[version] = "; ".join(reasons)
            if not self._is_trial:
                dependent.bind(found if not reasons else None)
        return self.problems[version]

    def _find(self, ensemble: str, need: Need) -> ServedVersion | str | None:
        """The version that is needed, or why it cannot be had; None where there is no model of its name."""
        model = self._models.get(need.model)
        if model is None and not need.model.isascii():
            form = composed(need.model)
            model = next((one for name, one in self._models.items() if composed(name) == form), None)
        name = need.model if model is None else model.name
        if name in self._way:
            return _circular([*self._way[self._way.index(name) :], name])
        if model is None:
            return None
        served = {version.number: version for version in model.served()}
        if not served:
            return _not_loaded(ensemble, need.model, None) + _why(model)
        number = max(served) if need.version is None else need.version
        if number not in served:
            return _not_loaded(ensemble, need.model, number)
        version = served[number]
        problem = self.problem_of(version)
        if problem.startswith("circular dependency"):
            return problem
        if problem:
            said = _not_loaded(ensemble, need.model, None)
            return f"{said} Model '{need.model}' loading failed with error: {problem}"
        if not version.servable.ready and version.dependent is None:
            return _not_loaded(ensemble, need.model, None)
        return version


def _why(model: ModelEntry) -> str:
    """Why nothing of a model is served, as the sentence goes on; "" if it was not asked for."""
    reasons: Sequence[str] = [
        entry.reason for entry in model.versions.values() if model.fails and entry.state is ModelState.UNAVAILABLE
    ]
    reason = model.problem or next(iter(reasons), "")
    return f" Model '{model.name}' loading failed with error: {reason}" if reason and model.fails else ""


def member_problems(
    found: Mapping[str, Mapping[int, tuple[Member, Dependent | None]]],
) -> dict[tuple[str, int], list[str]]:
    """What is wrong between versions that were read, and not loaded, and what they are made of; in Triton's words.

    Args:
        found: by model and number; a model is there without versions if none of it can be served.

    Returns:
        Sentences by model and number, for those that have any.
    """
    problems: dict[tuple[str, int], list[str]] = {}
    for name, versions in found.items():
        for number, (_, dependent) in versions.items():
            if dependent is not None:
                own = _member_problems(name, dependent, found)
                if own:
                    problems[name, number] = own
    return problems


def _member_problems(
    name: str, dependent: Dependent, found: Mapping[str, Mapping[int, tuple[Member, Dependent | None]]]
) -> list[str]:
    absent = sorted({need.model for need in dependent.needs if need.model not in found})
    texts = [_not_available(name, absent)] if absent else []
    members: dict[Need, Member] = {}
    for need in dependent.needs:
        versions = found.get(need.model, {})
        number = max(versions, default=0) if need.version is None else need.version
        if number in versions:
            members[need] = _member(need.model, number, found, (name,))
        elif need.model in found:
            texts.append(_not_loaded(name, need.model, number if versions else None))
    circle = _circle([name], found)
    if circle:
        texts.append(_circular(circle))
    return texts + dependent.disagreements(members)


def _member(
    model: str, number: int, found: Mapping[str, Mapping[int, tuple[Member, Dependent | None]]], way: tuple[str, ...]
) -> Member:
    """What has to be known of a version; whether one that is made of others is decoupled is found by these."""
    member, dependent = found[model][number]
    if dependent is None or model in way:
        return member
    members: dict[Need, Member] = {}
    for need in dependent.needs:
        versions = found.get(need.model, {})
        own = max(versions, default=0) if need.version is None else need.version
        if own in versions:
            members[need] = _member(need.model, own, found, (*way, model))
    return replace(member, decoupled=dependent.decoupled_by(members))


def _circle(way: list[str], found: Mapping[str, Mapping[int, tuple[Member, Dependent | None]]]) -> list[str]:
    """The way from a model back to itself, if it is made of itself; [] if not."""
    for _, dependent in found.get(way[-1], {}).values():
        for need in dependent.needs if dependent is not None else ():
            if need.model == way[0]:
                return [*way, need.model]
            if need.model not in way:
                circle = _circle([*way, need.model], found)
                if circle:
                    return circle
    return []


def _not_available(ensemble: str, names: Sequence[str]) -> str:
    return f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(names)}"


def _not_loaded(ensemble: str, member: str, number: int | None) -> str:
    """A member has no version, or not the one that is needed."""
    if number is None:
        return f"ensemble '{ensemble}' depends on '{member}' which has no loaded version."
    return f"ensemble '{ensemble}' depends on '{member}' whose required version {number} is not loaded."


def _circular(way: Sequence[str]) -> str:
    return f"circular dependency between ensembles: {' -> '.join(way)}"
