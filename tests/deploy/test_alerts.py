"""The alert rules, judged by promtool (Debian's prometheus), and what they tell."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.support import DEPLOY, ROOT, Expression, alerts, read_yaml, series_labels

FOLDER = DEPLOY / "prometheus"
ALERTS = alerts()


def promtool(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool: tests/peers.sh")
    command = ["promtool", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml")], ids=["rules", "config"]
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    done = promtool("test", "rules", "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cases_notice_alerts_that_do_not_fire(tmp_path: Path) -> None:
    text = (FOLDER / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(re.sub(r"alert: (\w+)", r"alert: Not\1", text))
    shutil.copy(FOLDER / "alerts_test.yml", tmp_path)
    done = promtool("test", "rules", "alerts_test.yml", folder=tmp_path)
    assert done.returncode != 0
    assert set(re.findall(r'exp:\s*{alertname="(\w+)"', done.stdout + done.stderr)) == set(ALERTS)


def test_every_alert_has_a_time_at_which_it_fires_and_one_at_which_it_does_not() -> None:
    fires, rests = set(), set()
    for case in read_yaml(FOLDER / "alerts_test.yml")["tests"]:
        metrics = {re.split("[{ ]", series["series"])[0] for series in case["input_series"]}
        for check in case["promql_expr_test"]:
            names = {re.findall('alertname="(.*?)"', sample["labels"])[0] for sample in check["exp_samples"]}
            fires |= names
            rests |= {
                name for name, rule in ALERTS.items() if Expression("", rule["expr"]).metrics() <= metrics
            } - names
    assert fires == rests == set(ALERTS)


@pytest.mark.parametrize("rule", ALERTS.values(), ids=lambda rule: rule["alert"])
def test_an_alert_says_of_whom_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    summary = rule["annotations"]["summary"]
    assert summary.startswith("{{ $labels.instance }}: ")
    assert summary.endswith(".")
    assert (ROOT / rule["annotations"]["runbook"]).is_file()
    one = Expression(rule["alert"], rule["expr"])
    named = set(re.findall(r"\$labels\.(\w+)", summary))
    for metric in one.metrics():
        assert named <= (one.grouping() or series_labels(metric)), metric


def test_the_documentation_lists_every_alert_in_order() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text.split("## Alerts")[1], re.MULTILINE) == list(ALERTS)
