"""Reports as files: perf_analyzer's columns, and a page that stands alone and is well-formed."""

from __future__ import annotations

import csv
import html.parser
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from toutates.bench.comparison import Difference
from toutates.bench.knee import Knee, Trial
from toutates.bench.latencies import Latencies
from toutates.bench.load import Load
from toutates.bench.measured import Measured, read_target
from toutates.bench.outcome import Outcome, OutcomeOfRequest, Slice
from toutates.bench.report import Point, Report
from toutates.bench.report_csv import write_csv
from toutates.bench.report_files import check_report_file
from toutates.bench.report_html import write_html
from toutates.bench.server_figures import ServerFigures
from toutates.bench.svg import shown
from toutates.system.errors import ConfigurationError

#: Elements of HTML without an end.
VOID = {"meta", "br"}


def point(under_way: int, rate: float | None = None, name: str = "grpc://host:1") -> Point:
    took, sent, lag = Latencies(), Latencies(), Latencies()
    took.record(np.random.default_rng(under_way).lognormal(14, 1, 1_000).astype(np.int64))
    sent.record(np.full(1_000, 10**6))
    lag.record(np.array([1_000]))
    one = OutcomeOfRequest(1_000, 1_000, 1_000, Counter(OK=1_000), took, sent)
    outcomes = [
        Outcome(1.0, [one], lag, 0.5, timeline=[Slice(20, 10**6, 5 * 10**6) for _ in range(50)]) for _ in range(2)
    ]
    figures = [ServerFigures(10.0, 100.0, 4.0, 200.0, 5.0, 50.0, 5.0)] * 2
    load = Load("host", 1, (), 4, rate, 1.0, under_way=under_way)
    return Point(name, load, Measured(outcomes, rate is not None, server=figures), batch=2)


class Checker(html.parser.HTMLParser):
    """Checks that elements end in their order, and collects what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ["one", "range", "knee", "compared"])
def test_the_page_is_well_formed_and_needs_no_other_file(kind: str) -> None:
    report = Report("<models> & more", "2026-11-23T04:00:00+00:00", [point(4)])
    if kind == "range":
        report.points += [point(8), point(16)]
    if kind == "knee":
        report.targets = [read_target("p99=10ms")]
        trials = [Trial(rate, point(4, rate).measured, "") for rate in (100.0, 200.0)]
        report.knee = Knee(200, trials, measured=trials[-1].measured)
    if kind == "compared":
        report.points.append(point(4, name="grpc://host:2"))
        report.differences = [Difference("rate", 1.2, 1.1, 1.3, True)]
    page = write_html(report)
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == []
    assert checker.seen["svg"] == {"one": 3, "range": 10, "knee": 4, "compared": 6}[kind]
    assert "&lt;models&gt; &amp; more" in page
    assert "prefers-color-scheme: dark" in page
    assert ("DIFFERENT in rate" in page) is (kind == "compared")
    assert ("KNEE: 200" in page) is (kind == "knee")


def test_the_csv_has_perf_analyzers_columns() -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(Report("", "", [point(4), point(8)])))))
    assert [row["Concurrency"] for row in rows] == ["4", "8"]
    assert rows[0]["Inferences/Second"] == "2000"
    assert rows[0]["Server Queue"] == "200"
    assert 0 < int(rows[0]["p50 latency"]) <= int(rows[0]["p99 latency"])
    rows = list(csv.DictReader(io.StringIO(write_csv(Report("", "", [point(4, 250.0)])))))
    assert rows[0]["Request Rate"] == "250"


def test_a_file_that_is_checked_is_left_as_it_is(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.write_text("mine")
    link.symlink_to(tmp_path / "target")
    for path in (there, link, tmp_path / "new"):
        check_report_file("--csv", str(path))
    assert {one.name for one in tmp_path.iterdir()} == {"there", "link"}
    assert there.read_text() == "mine"
    with pytest.raises(ConfigurationError, match=r"^--csv: cannot be written: Is a directory"):
        check_report_file("--csv", str(tmp_path))


def test_numbers_are_shown_with_three_digits() -> None:
    assert [shown(value) for value in (0, 0.01234, 1.5, 12.34, 1_234.5, 123_456)] == [
        *("0", "0.0123", "1.5", "12.3", "1,234", "123,456"),
    ]
