"""The dashboards say what they ask for, and ask for what there is."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from tests.deploy.support import (
    DASHBOARDS,
    DEPLOY,
    Expression,
    alerts,
    dashboard,
    expressions,
    panels,
    read_yaml,
    series_labels,
    spec_of,
    variables,
)
from toutates.observe.metrics.spec import Kind

#: Every query of the dashboards and the alert rules.
EVERY = [one for name in DASHBOARDS for one in expressions(name)] + [
    Expression(name, rule["expr"]) for name, rule in alerts().items()
]


def test_what_an_expression_reads_is_found() -> None:
    text = 'sum by (a, le) (rate(x_total{k=~"y{z", l!="$v"}[5m])) / on (b) (up > 0.5 or 2 * c:d[1h:1m] offset 1d)'
    one = Expression("", text)
    assert sorted(one.selectors()) == [("c:d", frozenset()), ("up", frozenset()), ("x_total", frozenset({"k", "l"}))]
    assert one.grouping() == {"a", "b", "le"}


def test_there_are_two_dashboards() -> None:
    assert DASHBOARDS == ("toutates.json", "triton.json")


def test_every_metric_is_in_the_catalogue() -> None:
    assert all(one.metrics() for one in EVERY)
    assert [(one.where, name) for one in EVERY for name in one.metrics() - {"up"} if spec_of(name) is None] == []


def test_every_label_is_one_of_the_metrics() -> None:
    for one in EVERY:
        for metric, labels in one.selectors():
            used = labels | one.grouping() | named_by(one.legend)
            assert used <= series_labels(metric), (one.where, metric)


def named_by(legend: str) -> set[str]:
    return set(re.findall(r"{{(\w+)}}", legend))


def test_series_have_the_labels_that_their_legend_names() -> None:
    for one in EVERY:
        if re.search(r"\b(?:sum|min|max|histogram_quantile)\b", one.text):
            assert named_by(one.legend) <= one.grouping(), one.where


def test_counters_are_looked_at_by_their_rate_and_gauges_are_not() -> None:
    for one in EVERY:
        rated = set(re.findall(r"\b(?:rate|increase)\((\w+)", one.text))
        # what changes at times, a start or a load; and what is there to be chosen from
        other = set(re.findall(r"(?:\bchanges|^count by \(\w+\) )\((\w+)", one.text)) | {"up"}
        for metric in one.metrics() - other:
            spec = spec_of(metric)
            assert spec is not None
            assert (metric in rated) == (spec.kind in (Kind.COUNTER, Kind.HISTOGRAM)), (one.where, metric)


def test_what_other_clients_of_prometheus_have_too_is_chosen_by_the_job() -> None:
    for one in EVERY:
        for metric, labels in one.selectors():
            assert "job" in labels or not metric.startswith(("process_", "up")), (one.where, metric)


def test_the_dashboard_for_tritons_names_has_no_others() -> None:
    metrics = set().union(*(one.metrics() for one in expressions("triton.json")))
    assert metrics
    assert all(name.startswith("nv_") for name in metrics), metrics


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries_name_only_variables_that_there_are(name: str) -> None:
    known = {*variables(dashboard(name)), "__rate_interval"}
    for one in expressions(name):
        assert set(re.findall(r"\$(\w+)", one.text)) <= known, one.where


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap_and_stay_within_the_page(name: str) -> None:
    board = dashboard(name)
    # Those of a collapsed row are shown below it, in the place of what comes next.
    for group in [board["panels"], *(panel["panels"] for panel in board["panels"] if panel.get("panels"))]:
        for one in group:
            place = one["gridPos"]
            assert 0 <= place["x"] < place["x"] + place["w"] <= 24, one["title"]
        for one, other in combinations(group, 2):
            assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_say_what_they_show_and_where_it_is_from(name: str) -> None:
    board = dashboard(name)
    every = list(panels(board))
    assert len({panel["id"] for panel in every}) == len(every)
    for panel in every:
        if panel["type"] == "row":
            assert panel["collapsed"] == bool(panel["panels"])
            continue
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        for one in [panel, *panel["targets"]]:
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_times_and_bytes_are_shown_in_their_unit(name: str) -> None:
    units = {"s": {"s", "percentunit"}, "bytes": {"bytes", "Bps"}, "µs": {"µs"}, "0 to 1": {"percentunit", "none"}}
    for panel in panels(dashboard(name)):
        if panel["type"] not in {"timeseries", "stat"}:
            continue
        shown = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert _is_in(shown, target, units), panel["title"]


def _is_in(shown: str, target: Any, units: dict[str, set[str]]) -> bool:
    """Whether a query's values may have the unit that is shown, by that of the first metric it reads."""
    metric = Expression("", target["expr"]).selectors()[0][0]
    spec = spec_of(metric)
    assert spec is not None
    if metric.endswith("_count") or spec.unit not in units:
        return True
    if "process_cpu_seconds_total" in metric and shown == "none":  # CPUs: seconds per second
        return True
    return shown in units[spec.unit]


def test_dashboards_are_provisioned_with_uids_of_their_own() -> None:
    boards = [dashboard(name) for name in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)
    [source] = read_yaml(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert source["isDefault"]
    for board in boards:
        assert variables(board)["datasource"]["query"] == source["type"]
