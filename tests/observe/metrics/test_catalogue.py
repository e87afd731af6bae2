"""The table of metrics, and the page that is made of it."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.families import Family
from toutates.observe.metrics.spec import Kind, MetricSpec

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_in_the_docs_is_made_of_the_table() -> None:
    made = runpy.run_path(str(DOCS / "metrics.py"))
    assert (DOCS / "metrics.md").read_text() == made["page"](), "run python docs/metrics.py"


def test_every_metric_has_one_line_in_the_docs() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(CATALOGUE)


def test_the_queries_in_the_docs_are_understood_and_ask_for_what_there_is(tmp_path: Path) -> None:
    queries = runpy.run_path(str(DOCS / "metrics.py"))["QUERIES"]
    for query in queries.values():
        names = re.findall(r"(?:inference|toutates|nv|process)_\w+", query)
        assert names
        assert all(re.sub(r"_(bucket|sum|count)$", "", name) in CATALOGUE for name in names)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (tests/peers.sh)")
    rules = [{"record": f"record_{at}", "expr": query} for at, query in enumerate(queries.values())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "docs", "rules": rules}]}))
    ended = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_every_metric_says_what_it_is_and_what_to_do(spec: MetricSpec) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", spec.name)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) and label != "le" for label in spec.labels)
    assert spec.unit
    for text in (spec.help, spec.action):
        assert text.endswith(".")
        assert text[0].isupper() or text[0] in "`0["
        assert "|" not in text
    if spec.name.startswith(("inference_", "toutates_", "process_")) and spec.kind is Kind.COUNTER:
        assert spec.name.endswith("_total")


def test_no_two_families_have_one_name_in_openmetrics() -> None:
    # There, the family of a counter has no `_total`, and may so be another metric's.
    names = [Family(spec, ()).openmetrics_name for spec in CATALOGUE.values()]
    assert len(set(names)) == len(names)
