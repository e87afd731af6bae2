"""Whether the rules of aliases and traffic fit the models that there are."""

from __future__ import annotations

from collections.abc import Mapping

from toutates.models.table import ModelTable, ServedVersion
from toutates.models.traffic.rules import Route, Target, TrafficRules
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.text import printable

__all__ = ["problems_of"]

#: Problems that one text names.
MAX_PROBLEMS = 10


def problems_of(rules: TrafficRules, table: ModelTable) -> list[str]:
    """What of the rules does not fit the models, a sentence each without a full stop; empty if all does.

    A version that is known and cannot answer now is no problem of the rules.
    """
    found: list[str] = []
    for name, target in rules.aliases.items():
        if table.knows(table.model_spelling(name)):
            found.append(f"aliases.{name}: a model has this name; rename one of them")
        found += _unknown(f"aliases.{name}", target, table)
    for name, route in rules.routes.items():
        if name == route.name:
            found += _of_route(name, route, table)
    return found[:MAX_PROBLEMS] + ([f"and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else [])


def _of_route(name: str, route: Route, table: ModelTable) -> list[str]:
    where = f"traffic.{name}"
    found = [problem for target in route.targets for problem in _unknown(where, target, table)]
    loaded = [(arm, served) for arm in route.arms if (served := _served(arm, table)) is not None]
    for arm, served in loaded[1:]:
        first_arm, first = loaded[0]
        differ = _differences(first.signature, served.signature)
        if first.decoupled != served.decoupled:
            differ.append("one of them answers any number of times")
        if differ:
            found.append(f"{where}: {first_arm} and {arm} do not take the same requests: {'; '.join(differ)}")
    if route.shadow is not None:
        for target in route.targets:
            shown = _served(target, table)
            if shown is not None and shown.decoupled:
                found.append(f"{where}.shadow: {target} answers any number of times, which cannot be compared")
        shadow = _served(route.shadow.target, table)
        if loaded and shadow is not None:
            differ = _of_tensors("input", loaded[0][1].signature.inputs, shadow.signature.inputs)
            if loaded[0][1].signature.batched != shadow.signature.batched:
                differ.append("only one of them is batched")
            if differ:
                target = route.shadow.target
                found.append(
                    f"{where}.shadow: {target} does not take the requests of {loaded[0][0]}: {'; '.join(differ)}"
                )
    return found


def _unknown(where: str, target: Target, table: ModelTable) -> list[str]:
    name = table.model_spelling(target.model)
    model = table.get(name)
    if model is None and table.knows(name):
        return []  # it is loaded when somebody needs it
    if model is None:
        near = table.names.like(target.model)
        meant = f"; did you mean '{near}'?" if near else ""
        return [f"{where}: there is no model '{printable(target.model, 64)}'{meant}"]
    if target.version is not None and target.version not in model.versions and target.version not in model.gone:
        return [f"{where}: model '{printable(target.model, 64)}' has no version {target.version}"]
    return []


def _served(target: Target, table: ModelTable) -> ServedVersion | None:
    """The version, where it is loaded."""
    model = table.get(table.model_spelling(target.model))
    if model is None:
        return None
    if target.version is None:
        served = model.served()
        return served[-1] if served else None
    entry = model.versions.get(target.version)
    return None if entry is None else entry.served


def _differences(first: Signature, second: Signature) -> list[str]:
    differ = _of_tensors("input", first.inputs, second.inputs) + _of_tensors("output", first.outputs, second.outputs)
    if first.batched != second.batched:
        differ.append("only one of them is batched")
    return differ


def _of_tensors(kind: str, first: tuple[TensorSpec, ...], second: tuple[TensorSpec, ...]) -> list[str]:
    ours, others = _by_name(first), _by_name(second)
    differ: list[str] = []
    for name in sorted(ours.keys() | others.keys()):
        one, other = ours.get(name), others.get(name)
        shown = f"{kind} '{printable(name, 64)}'"
        if one is None or other is None:
            differ.append(f"{shown} is of one alone")
        elif one != other:
            differ.append(f"{shown} is {one} and {other}")
    return differ[:4] + (["and more"] if len(differ) > 4 else [])


def _by_name(tensors: tuple[TensorSpec, ...]) -> Mapping[str, str]:
    return {one.name: f"{one.datatype.name} {list(one.shape)}{', optional' if one.optional else ''}" for one in tensors}
