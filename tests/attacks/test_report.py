"""The table of attacks, and the page that it is written into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fuzz.attacks import report
from fuzz.attacks.bounds import MOST_P99_MS, MOST_WORST_MS, kept_mib, shortcomings
from fuzz.attacks.experiment import Outcome
from fuzz.attacks.honest import Phase
from fuzz.attacks.registry import ATTACKS
from fuzz.attacks.runner import Report

if TYPE_CHECKING:  # mypy finds these modules by what is imported here
    import fuzz.attacks.__main__
    import fuzz.soak.__main__
    import fuzz.soak.soak  # noqa: F401  # not importable where there is no tritonclient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def outcome() -> Outcome:
    phase = Phase(100, 1.0, 2.0, 3.0)
    spent = Report(2.0, 1.0, 4, 0, 8_000_000, 10, 20, {"RST_STREAM CANCEL": 7}, {"GOAWAY ENHANCE_YOUR_CALM": 4})
    return Outcome(phase, phase, phase, spent, 0.1, 0.6, 0.5, 70.0, 90.0, 71.0, 18, 18)


def test_the_table_says_what_an_attack_cost_and_what_stopped_it() -> None:
    row = report.row(ATTACKS["rapid-reset"], outcome())
    assert "| CVE-2023-44487 | 4.00, 2, 50% | 50%, +20 MiB, +1 MiB | 2.0, 2.0, 2.0; 3.0 |" in row
    assert "`GOAWAY ENHANCE_YOUR_CALM`" in row
    assert row.count("|") == report.HEAD.splitlines()[0].count("|")


def test_the_page_has_a_row_for_every_attack() -> None:
    page = PAGE.read_text()
    missing = [name for name in ATTACKS if f"| {name}: " not in page]
    assert not missing, "run `make attacks`"


def test_writing_the_table_leaves_the_rest_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "security.md"
    page.write_text("before\n" + report.BEGIN + "old\n" + report.END + "after\n")
    monkeypatch.setattr(report, "PAGE", page)
    report.write_table({"rapid-reset": outcome()}, 5.0)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| rapid-reset: " in text


def test_an_attack_that_costs_others_more_than_it_may_is_told_by_its_figures() -> None:
    good = outcome()
    assert shortcomings("rapid-reset", good) == []
    slow = replace(good, during=Phase(100, 1.0, MOST_P99_MS + 1, MOST_WORST_MS + 1))
    assert shortcomings("rapid-reset", slow) == [
        "2001.0 ms for 99 of 100 honest requests during it, above 2000",
        "5001.0 ms for the longest honest request during it, above 5000",
    ]
    assert len(shortcomings("gzip-bomb", slow)) == 1
    assert len(shortcomings("rapid-reset", replace(good, after=slow.during))) == 1
    grown = replace(good, after_mib=good.before_mib + kept_mib("rapid-reset") + 1)
    assert shortcomings("rapid-reset", grown) == ["129.0 MiB more after it, above 128"]
    assert shortcomings("rest-bomb", grown) == []
    assert shortcomings("rapid-reset", replace(good, files_after=good.files_before + 1)) == [
        "1.0 files more after it, above 0"
    ]


def test_make_attacks_fails_where_a_figure_is_beyond_its_bound() -> None:
    good = outcome()
    bad = replace(good, after_mib=10_000.0)
    assert report.write_report(["rapid-reset"], 1.0, lambda attack, seconds: good) == 0
    assert report.write_report(["rapid-reset"], 1.0, lambda attack, seconds: bad) == 1
