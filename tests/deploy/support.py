"""Readers of the files in ``deploy``, and of the PromQL in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.spec import Kind, MetricSpec

__all__ = [
    "DASHBOARDS",
    "DEPLOY",
    "ROOT",
    "TARGET_LABELS",
    "Expression",
    "alerts",
    "dashboard",
    "expressions",
    "panels",
    "read_yaml",
    "series_labels",
    "spec_of",
    "variables",
]

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
DASHBOARDS: Final = tuple(sorted(path.name for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")))
#: What Prometheus adds to each series.
TARGET_LABELS: Final = frozenset({"instance", "job"})

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
#: A name that is no function.
_NAME: Final = re.compile(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()")
_OPERATORS: Final = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class Expression:
    """A query of a dashboard, or an alert rule's.

    Attributes:
        where: for people.
        text: PromQL, with Grafana's variables.
        legend: what each of its series is called.
    """

    where: str
    text: str
    legend: str = ""

    def selectors(self) -> list[tuple[str, frozenset[str]]]:
        """Every metric that it reads, and the labels that it is chosen by."""
        text = _STRING.sub('""', self.text)
        found = [(name, frozenset(_MATCHER.findall(inner))) for name, inner in _SELECTOR.findall(text)]
        text = re.sub(r"\[[^]]*\]", "", _GROUPING.sub("", _SELECTOR.sub("", text)))
        return found + [(name, frozenset()) for name in _NAME.findall(text) if name not in _OPERATORS]

    def metrics(self) -> set[str]:
        """Names of the metrics that it reads."""
        return {name for name, _ in self.selectors()}

    def grouping(self) -> set[str]:
        """Labels that it groups, joins or leaves out by."""
        return {
            label.strip() for group in _GROUPING.findall(_STRING.sub('""', self.text)) for label in group.split(",")
        }

    def filled(self, window: str) -> str:
        """With everything in place of Grafana's variables that choose, and a window for rates."""
        text = self.text.replace("$__rate_interval", window)
        return re.sub(r"\$\w+", ".*", text)


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def dashboard(name: str) -> Any:
    return json.loads((DEPLOY / "grafana" / "dashboards" / name).read_text())


def panels(board: Mapping[str, Any]) -> Iterator[Any]:
    """Every panel, those of collapsed rows too, and the rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def variables(board: Mapping[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def expressions(name: str) -> list[Expression]:
    """Every query of a dashboard: those of its panels, its annotations and its variables."""
    board = dashboard(name)
    found = [
        Expression(f"{name}, {panel['title']}", target["expr"], target["legendFormat"])
        for panel in panels(board)
        for target in panel.get("targets", ())
    ]
    found += [Expression(f"{name}, {one['name']}", one["expr"]) for one in board["annotations"]["list"]]
    for variable in variables(board).values():
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\(([^,{]*(?:{.*})?), (\w+)\)", variable["query"]["query"])
            assert inner is not None, variable["name"]
            found.append(Expression(f"{name}, ${variable['name']}", f"count by ({inner[2]}) ({inner[1]})"))
    return found


def alerts() -> dict[str, Any]:
    """The alert rules by name."""
    groups = read_yaml(DEPLOY / "prometheus" / "alerts.yml")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    return {rule["alert"]: rule for rule in rules}


def spec_of(metric: str) -> MetricSpec | None:
    """What the catalogue says of a metric by the name of one of its series; None where it does not know it."""
    spec = CATALOGUE.get(metric)
    if spec is not None:
        return None if spec.kind is Kind.HISTOGRAM else spec
    spec = CATALOGUE.get(re.sub("_(bucket|sum|count)$", "", metric))
    return spec if spec is not None and spec.kind is Kind.HISTOGRAM else None


def series_labels(metric: str) -> frozenset[str]:
    """Labels of the series of that name."""
    if metric == "up":  # Prometheus's own
        return TARGET_LABELS
    spec = spec_of(metric)
    assert spec is not None, metric
    le = {"le"} if spec.kind is Kind.HISTOGRAM and metric.endswith("_bucket") else set()
    return TARGET_LABELS | frozenset(spec.labels) | le
