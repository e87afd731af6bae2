"""What the clients print is read as it is meant, and doubtful output is refused. The outputs are recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tritonclient.grpc")

from bench import h2load, perf_analyzer
from bench.client import percentile, run_client
from bench.errors import NoFigure
from bench.options import h2load_shape, perf_analyzer_shape, stream_shape

DATA = Path(__file__).parent / "data"
REPORT = (DATA / "h2load.txt").read_text()


def test_h2loads_report_gives_the_seconds_of_the_load() -> None:
    assert h2load.check_report(REPORT, 100_000, 67) == 1.62


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("100000 succeeded, 0 failed", "99999 succeeded, 1 failed", "99999 succeeded"),
        ("100000 done", "99999 done", "99999 done"),
        ("100000 2xx, 0 3xx, 0 4xx", "99998 2xx, 0 3xx, 2 4xx", "99998 2xx"),
        ("(6700000) data", "(6699933) data", "6699933 bytes instead of 100000 x 67"),
        ("requests: ", "", "not understood"),
    ],
    ids=["failed", "missing", "status", "short", "unknown"],
)
def test_h2loads_report_of_a_load_that_went_wrong_is_refused(old: str, new: str, why: str) -> None:
    assert old in REPORT
    with pytest.raises(NoFigure, match=why.replace("(", r"\(")):
        h2load.check_report(REPORT.replace(old, new), 100_000, 67)


def test_the_json_of_answers_may_differ_in_its_last_digits() -> None:
    assert h2load.check_report(REPORT, 100_000, 60, tolerance=0.25) == 1.62
    with pytest.raises(NoFigure, match="instead of 100000 x 40"):
        h2load.check_report(REPORT, 100_000, 40, tolerance=0.25)


def test_h2loads_report_of_a_server_that_refuses_connections_is_refused() -> None:
    with pytest.raises(NoFigure, match="0 done"):
        h2load.check_report((DATA / "h2load-refused.txt").read_text(), 30, 67)


def test_h2loads_log_gives_latencies() -> None:
    times = h2load.latencies((DATA / "h2load.log").read_bytes())
    assert len(times) == 200
    assert times[:3] == [764, 779, 780]


@pytest.mark.parametrize("log", [b"", b"1795200968134169\t200\t764\n1795200968134171\t-1\t9\n", b"1 200\n"])
def test_h2loads_log_with_failed_or_unknown_lines_is_refused(log: bytes) -> None:
    with pytest.raises(NoFigure):
        h2load.latencies(log)


def test_perf_analyzers_report_gives_count_rate_and_percentiles() -> None:
    outcome = perf_analyzer.parse_report((DATA / "perf-analyzer.txt").read_text())
    assert (outcome.requests, outcome.requests_per_second) == (119_195, 29_090.6)
    assert (outcome.p50_us, outcome.p99_us) == (511, 1139)


def test_perf_analyzers_report_without_a_percentile_is_refused() -> None:
    report = (DATA / "perf-analyzer.txt").read_text().replace("p99", "p98")
    with pytest.raises(NoFigure, match="not understood"):
        perf_analyzer.parse_report(report)


def test_a_client_that_fails_or_is_missing_gives_no_figure() -> None:
    with pytest.raises(NoFigure, match="ended with status 3: no such model"):
        run_client(["/bin/sh", "-c", "echo no such model >&2; exit 3"])
    with pytest.raises(NoFigure, match="cannot be started"):
        run_client(["/nonexistent/h2load"])


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_names_of_loads_tell_their_shape() -> None:
    assert h2load_shape("16x8") == (16, 8, "grpc")
    assert h2load_shape("binary16x1") == (16, 1, "binary")
    assert h2load_shape("json64x1") == (64, 1, "json")
    assert h2load_shape("json16x8") is None
    assert perf_analyzer_shape("pa64-own") == (64, True)
    assert perf_analyzer_shape("pa1") == (1, False)
    assert h2load_shape("pa1") is None
    assert h2load_shape("0x8") is None
    assert perf_analyzer_shape("16x8") is None
    assert stream_shape("stream16x8") == (16, 8)
    assert stream_shape("16x8") is None
