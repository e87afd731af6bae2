"""Reads the rules of aliases and traffic, from a file or from a request. docs/traffic.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final

from toutates.models.config.problems import Problems
from toutates.models.config.yaml_reader import NULL, read_mapping
from toutates.models.config.yaml_section import Section
from toutates.models.traffic.rules import BY_ID, NO_TRAFFIC, Route, Shadow, Target, TrafficRules
from toutates.system.spelling import composed
from toutates.system.text import printable

__all__ = ["MAX_ROUTES", "merged", "read_document", "read_rules_file"]

MAX_WEIGHT: Final = 1_000_000_000
MAX_VERSION: Final = 2**63 - 1
#: Versions that one name is split between, and names with traffic: each has series of metrics.
MAX_ARMS: Final = 64
MAX_ROUTES: Final = 1_000
MAX_ALIASES: Final = 100_000
MAX_NAME: Final = 256
MAX_TOLERANCE: Final = 1e30
_PARAMETER: Final = "parameter:"
#: Of numbers that were computed in another order, as by another execution provider.
DEFAULT_RTOL: Final = 1e-3
DEFAULT_ATOL: Final = 1e-5

_TARGET_EXAMPLE: Final = "{model: ranker, version: 3}"
_SPLIT_EXAMPLE: Final = "split: [{version: 1, weight: 90}, {version: 2, weight: 10}]"


def read_rules_file(source: Path) -> TrafficRules:
    """The rules of a file; none where there is no such file.

    Raises:
        ConfigurationError: it cannot be read or used; a line for each mistake.
    """
    values = read_mapping(source)
    return NO_TRAFFIC if values is None else read_document(values, source)


def read_document(values: Mapping[str, Any], source: Path) -> TrafficRules:
    """Rules as YAML or JSON has them.

    Args:
        values: the document.
        source: where it is from, for errors.

    Raises:
        ConfigurationError: it cannot be used; a line for each mistake.
    """
    problems = Problems(source)
    values, doubles = _composed(values)
    top = Section(values, problems)
    for key, name in doubles:
        top.refuse(key, f"has '{printable(name, 64)}' twice: its letters are composed otherwise", None, "leave one out")
    aliases = top.mapping("aliases", "aliases: {NAME: MODEL}")
    given = {} if aliases is None else _aliases(aliases, values["aliases"])
    traffic = top.mapping("traffic", "traffic: {NAME: {" + _SPLIT_EXAMPLE + "}}")
    top.refuse_unknown_keys()
    resolved = {} if aliases is None else _resolved(given, aliases)
    routes: dict[str, Route] = {}
    if traffic is not None:
        for name, section in traffic.subsections("{" + _SPLIT_EXAMPLE + "}"):
            route = _route(name, section, resolved)
            if route is not None:
                routes[name] = route
        for name, route in routes.items():
            for arm in route.targets:
                if arm.model in routes and arm.model != name and arm.version is None:
                    remedy = "name the version of a model that is meant"
                    traffic.refuse(
                        name, f"names '{printable(arm.model, 64)}', which has traffic of its own", None, remedy
                    )
        if len(routes) > MAX_ROUTES:
            top.refuse("traffic", f"has more than {MAX_ROUTES} names", None, "leave some out")
    if len(given) > MAX_ALIASES:
        top.refuse("aliases", f"has more than {MAX_ALIASES} names", None, "leave some out")
    problems.raise_all(10)
    # An alias of a name with traffic has that traffic; one that names a version means this one.
    routes |= _inherited(given, routes)
    return TrafficRules(resolved, routes, _plain(values))


def _composed(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A document whose names are in NFC, in which callers' names are looked up; and the names that are so alike."""
    found: dict[str, Any] = dict(values)
    doubles: list[tuple[str, str]] = []
    for key in ("aliases", "traffic"):
        names = values.get(key)
        if isinstance(names, Mapping) and not all(map(_is_plain, names)):
            own: dict[Any, Any] = {}
            for name, value in names.items():
                normal = composed(name) if isinstance(name, str) else name
                if normal in own:
                    doubles.append((key, normal))
                own[normal] = value
            found[key] = own
    return found, doubles


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and name.isascii()


def merged(document: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the names of a change in place of its own; a name whose value is null is left out."""
    result = {key: dict(value) for key, value in document.items()}
    own, doubles = _composed(change)
    for key, names in (change if doubles else own).items():  # ``read_document`` refuses the former
        if not isinstance(names, dict):
            result[key] = names  # which ``read_document`` refuses
            continue
        part = result.setdefault(key, {})
        for name, value in names.items():
            if value is None:
                part.pop(name, None)
            else:
                part[name] = value
    return result


# --- aliases ---------------------------------------------------------------------------------------------------------


def _aliases(section: Section, values: Mapping[str, Any]) -> dict[str, Target]:
    given: dict[str, Target] = {}
    for name in values:
        _check_name(section, name)
        if isinstance(values[name], str):
            target = Target(composed(section.text(name, "ranker")))
        else:
            inner = section.mapping(name, _TARGET_EXAMPLE)
            if inner is None:
                continue
            target = _target(inner, None)
            inner.refuse_unknown_keys()
        given[name] = target
    return given


def _resolved(given: Mapping[str, Target], section: Section) -> dict[str, Target]:
    """What each alias comes to: what it names, or what that stands for where it is an alias too, and so on.

    Takes as long as there are aliases, however many of them follow each other.
    """
    resolved: dict[str, Target] = {}
    for name in given:
        way: dict[str, None] = {}
        at = name
        while at not in resolved:
            way[at] = None
            target = given[at]
            if target.model not in given:
                break
            if target.model in way:
                chain = " -> ".join(printable(one, 64) for one in (*list(way)[:8], target.model))
                section.refuse(name, f"comes back to itself: {chain}", None, "let one of them name a model")
                break
            if target.version is not None:
                problem = f"names a version of '{printable(target.model, 64)}', which is an alias"
                section.refuse(at, problem, None, "name the model itself, or leave `version` out")
                break
            at = target.model
        else:
            target = resolved[at]
        resolved |= dict.fromkeys(way, target)
    return resolved


def _inherited(given: Mapping[str, Target], routes: Mapping[str, Route]) -> dict[str, Route]:
    """The traffic of aliases that have none of their own: that of the first name with some which they lead to."""
    found: dict[str, Route | None] = {}
    for name in given:
        way: list[str] = []
        at: str | None = name
        route: Route | None = None
        while at is not None and at in given and at not in found:
            way.append(at)
            target = given[at]
            at = target.model if target.version is None else None
            route = None if at is None else routes.get(at)
            if route is not None:
                break
        else:
            route = None if at is None else found.get(at)
        found |= dict.fromkeys(way, route)
    return {name: route for name, route in found.items() if route is not None and name not in routes}


def _target(section: Section, default: str | None) -> Target:
    """``model`` and ``version`` of a section."""
    name = section.required_text("model", "ranker") if default is None else section.text("model", default)
    return Target(
        composed(name),
        section.optional_integer("version", MAX_VERSION, example=3),
    )


def _check_name(section: Section, name: str) -> None:
    if not name or len(name) > MAX_NAME or "/" in name or not name.isprintable():
        section.refuse(name, "is no name that requests can have", None, f"use up to {MAX_NAME} characters without '/'")


# --- traffic ---------------------------------------------------------------------------------------------------------


def _route(name: str, section: Section, aliases: Mapping[str, Target]) -> Route | None:
    _check_name(section, name)
    alias = aliases.get(name)
    arms: list[Target] = []
    weights: list[int] = []
    base = Target(name) if alias is None else alias
    for part in section.sections("split", _SPLIT_EXAMPLE):
        arms.append(_through(_target(part, base.model), aliases, part))
        weights.append(part.integer("weight", MAX_WEIGHT, 10))
        part.refuse_unknown_keys()
    if len(set(arms)) < len(arms):
        section.refuse("split", "names a version twice", None, "give each version one weight")
    if len(arms) > MAX_ARMS:
        section.refuse("split", f"has more than {MAX_ARMS} versions", None, "leave some out")
    if arms and alias is not None and alias.version is not None:
        section.refuse("split", "is of an alias that names a version", None, "leave `version` out of the alias")
    sticky = section.text("sticky", BY_ID) if section.has("sticky") else ""
    if sticky and sticky != BY_ID and not (sticky.startswith(_PARAMETER) and sticky != _PARAMETER):
        remedy = f"write `sticky: {BY_ID}` or `sticky: {_PARAMETER}NAME`, or leave the key out"
        section.refuse("sticky", f"is neither `{BY_ID}` nor `{_PARAMETER}NAME`", sticky, remedy)
    inner = section.mapping("shadow", "shadow: {version: 2, share: 0.1}")
    shadow = None if inner is None else _shadow(inner, base.model, aliases)
    if not arms and shadow is None:
        section.refuse("split", "there is neither `split` nor `shadow`", None, f"write `{_SPLIT_EXAMPLE}`")
        return None
    if sticky and not arms:
        section.refuse("sticky", "there is no `split`", None, "leave the key out")
    section.refuse_unknown_keys()
    return Route(name, tuple(arms) or (base,), tuple(weights) or (1,), sticky, shadow)


def _shadow(section: Section, default: str, aliases: Mapping[str, Target]) -> Shadow:
    target = _through(_target(section, default), aliases, section)
    share = section.number("share", 1.0)
    if not 0 < share <= 1 or not isfinite(share):
        section.refuse("share", "is not a number above 0 and up to 1", share, "write such as `share: 0.1`")
    rtol = section.optional_number("rtol", MAX_TOLERANCE, DEFAULT_RTOL)
    atol = section.optional_number("atol", MAX_TOLERANCE, DEFAULT_ATOL)
    section.refuse_unknown_keys()
    return Shadow(target, share, DEFAULT_RTOL if rtol is None else rtol, DEFAULT_ATOL if atol is None else atol)


def _through(target: Target, aliases: Mapping[str, Target], section: Section) -> Target:
    """A target that may be an alias, as the model that it stands for."""
    alias = aliases.get(target.model)
    if alias is None:
        return target
    if target.version is not None and alias.version is not None:
        remedy = "name the model itself, or leave `version` out"
        section.refuse("model", f"'{printable(target.model, 64)}' is an alias that names a version", None, remedy)
    return Target(alias.model, target.version if alias.version is None else alias.version)


def _plain(values: Any) -> Any:
    """A copy that JSON can be made of."""
    if isinstance(values, dict):
        return {key: _plain(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return None if values is NULL else values
