"""What the status page shows of aliases and traffic."""

from __future__ import annotations

from typing import Any, Final

from toutates.infer.traffic.counting import TrafficCounts
from toutates.models.table import ModelTable
from toutates.models.traffic.rules import Route, Target

__all__ = ["names_shown"]

#: Most names that are listed, those with traffic first.
MAX_NAMES: Final = 100
MAX_TEXT: Final = 400


def names_shown(table: ModelTable, counts: TrafficCounts) -> dict[str, Any]:
    """The names, what they stand for, and what became of their requests.

    Args:
        table: has the rules.
        counts: of requests.
    """
    rules = table.traffic
    routes = {name: route for name, route in rules.routes.items() if name == route.name}
    aliases = [name for name in rules.aliases if name not in routes]
    shown = [_route(route, counts) for route in list(routes.values())[:MAX_NAMES]]
    for name in aliases[: MAX_NAMES - len(shown)]:
        own = rules.routes.get(name)
        text = f"{own.name}, with its traffic" if own is not None else _text(rules.aliases[name])
        shown.append({"name": name, "targets": [{"target": text}]})
    return {
        "shown": shown,
        "left_out": len(routes) + len(aliases) - len(shown),
        "problem": table.traffic_problem[:MAX_TEXT],
    }


def _route(route: Route, counts: TrafficCounts) -> dict[str, Any]:
    total = sum(route.weights)
    shown: dict[str, Any] = {
        "name": route.name,
        "sticky": route.sticky,
        "targets": [
            {
                "target": _text(arm),
                "share": round(weight / total, 6),
                "requests": counts.requests.get(_key(route.name, arm), 0),
            }
            for arm, weight in zip(route.arms, route.weights, strict=True)
        ],
    }
    shadow = route.shadow
    if shadow is not None:
        shown["shadow"] = {"target": _text(shadow.target), "share": shadow.share}
        found = counts.shadows.get(_key(route.name, shadow.target))
        if found is not None:
            names = ("equal", "different", "failed", "skipped", "slower")
            shown["shadow"] |= {name: getattr(found, name) for name in names}
            shown["shadow"]["last"] = found.last
    return shown


def _key(name: str, target: Target) -> tuple[str, str, str]:
    return name, target.model, "" if target.version is None else str(target.version)


def _text(target: Target) -> str:
    return target.model if target.version is None else f"{target.model} version {target.version}"
