"""Versions that are made of other models' versions: what connects the two, whenever the table of models changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toutates.models.table import Member, ModelEntry, ModelState, Need, ServedVersion

__all__ = ["Dependencies"]


class Dependencies:
    """Binds versions to those that they are made of. It belongs to the manager's thread."""

    def __init__(self) -> None:
        #: names of models that have versions made of others
        self._names: set[str] = set()

    def note(self, model: ModelEntry) -> None:
        """A model's entry is new, or another."""
        if any(version.dependent is not None for version in model.served()):
            self._names.add(model.name)
        else:
            self._names.discard(model.name)

    def forget(self, name: str) -> None:
        """A model is not known any more."""
        self._names.discard(name)

    def __bool__(self) -> bool:
        return bool(self._names)

    def bind(self, models: Mapping[str, ModelEntry]) -> dict[ServedVersion, str]:
        """Bind every such version to the versions that are there now; returns what is wrong with each, "" for nothing.

        Args:
            models: all that are known.
        """
        look = _Look(models)
        for name in sorted(self._names):
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
                reasons.insert(
                    0,
                    f"ensemble {version.model} contains models that are not available or ambiguous: "
                    + ", ".join(absent),
                )
            found = {need: one for need, one in members.items() if isinstance(one, ServedVersion)}
            # Both, so that all there is to mend is told at once.
            members_found = {need: Member(one.signature, one.config.max_batch_size) for need, one in found.items()}
            reasons += dependent.disagreements(members_found)
            self.problems[version] = "; ".join(reasons)
            if not self._is_trial:
                dependent.bind(found if not reasons else None)
        return self.problems[version]

    def _find(self, ensemble: str, need: Need) -> ServedVersion | str | None:
        """The version that is needed, or why it cannot be had; None where there is no model of its name."""
        if need.model in self._way:
            circle = [*self._way[self._way.index(need.model) :], need.model]
            return f"circular dependency between ensembles: {' -> '.join(circle)}"
        model = self._models.get(need.model)
        if model is None:
            return None
        served = {version.number: version for version in model.served()}
        if not served:
            return f"ensemble '{ensemble}' depends on '{need.model}' which has no loaded version.{_why(model)}"
        number = max(served) if need.version is None else need.version
        if number not in served:
            return f"ensemble '{ensemble}' depends on '{need.model}' whose required version {number} is not loaded."
        version = served[number]
        problem = self.problem_of(version)
        if problem.startswith("circular dependency"):
            return problem
        if problem:
            return (
                f"ensemble '{ensemble}' depends on '{need.model}' which has no loaded version. "
                f"Model '{need.model}' loading failed with error: {problem}"
            )
        if not version.servable.ready and version.dependent is None:
            return f"ensemble '{ensemble}' depends on '{need.model}' which has no loaded version."
        return version


def _why(model: ModelEntry) -> str:
    """Why nothing of a model is served, as the sentence goes on; "" if it was not asked for."""
    reasons: Sequence[str] = [
        entry.reason for entry in model.versions.values() if model.fails and entry.state is ModelState.UNAVAILABLE
    ]
    reason = model.problem or next(iter(reasons), "")
    return f" Model '{model.name}' loading failed with error: {reason}" if reason and model.fails else ""
