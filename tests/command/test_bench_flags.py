"""What the flags of ``toutates bench`` come to, those of perf_analyzer among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toutates.bench.endpoint import GRPC, HTTP, Endpoint, Tls
from toutates.bench.sequences import Sequences
from toutates.command.bench.parser import bench_parser
from toutates.command.bench.reading import Wanted, read_flags
from toutates.system.errors import ConfigurationError


def read(*arguments: str) -> Wanted:
    return read_flags(bench_parser().parse_args(arguments))


def test_perf_analyzer_asks_over_http_unless_it_is_told_otherwise() -> None:
    assert read("-m", "a", "-u", "host:1").endpoint == Endpoint(HTTP, "host", 1)
    assert read("-m", "a", "-u", "host:1", "-i", "gRPC").endpoint == Endpoint(GRPC, "host", 1)
    assert read("-m", "a", "-i", "grpc").endpoint == Endpoint(GRPC, "localhost", 8001)
    assert read("-m", "a", "host:1").endpoint == Endpoint(GRPC, "host", 1)


def test_ranges_have_their_ends() -> None:
    assert [one.under_way for one in read("host", "-m", "a", "--concurrency-range", "2:8:3").loads] == [2, 5, 8]
    assert [one.under_way for one in read("host", "-m", "a", "--concurrency-range", "1:3").loads] == [1, 2, 3]
    loads = read("host", "-m", "a", "--request-rate-range", "100:300:100").loads
    assert [one.rate for one in loads] == [100, 200, 300]
    assert loads[0].arrivals.variation == 0
    (load,) = read("host", "-m", "a", "--request-rate-range", "5", "--request-distribution", "poisson").loads
    assert load.arrivals.variation == 1


@pytest.mark.parametrize(
    ("arguments", "connections"),
    [
        (["host", "--concurrency", "32"], 4),
        (["host", "--concurrency", "2"], 2),
        (["http://host", "--concurrency", "32"], 32),
        (["http://host", "--rate", "5"], 64),
        (["host", "--rate", "5"], 4),
        (["http://host", "--rate", "5", "--connections", "7"], 7),
    ],
)
def test_a_load_has_connections_for_what_is_under_way(arguments: list[str], connections: int) -> None:
    assert read("-m", "a", *arguments).loads[0].connections == connections


def test_a_measurement_interval_is_seconds_and_trials_are_repeats() -> None:
    wanted = read("host", "-m", "a", "-p", "500", "-r", "4")
    assert (wanted.loads[0].seconds, wanted.repeats) == (0.5, 4)
    assert read("host", "-m", "a", "--compare", "other").repeats == 6


def test_a_binary_search_is_a_target_and_a_threshold_ends_a_range() -> None:
    wanted = read("host", "-m", "a", "--request-rate-range", "1:9", "-l", "10", "--binary-search", "--percentile", "99")
    assert [(one.figure, one.bound) for one in wanted.targets] == [("p99", 10e6)]
    others = [read("host", "-m", "a", "--slo", "p99=10ms", *more) for more in ([], ["--rate", "50"])]
    assert [one.within for one in (wanted, *others)] == [(1, 9), None, (50, 50)]
    threshold = read("host", "-m", "a", "-l", "10").threshold
    assert threshold is not None
    assert (threshold.figure, threshold.bound) == ("p50", 10e6)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--concurrency-range", "0:4"], "--concurrency-range: is no number above 0 and at most 1000000, and no range"),
        (["--concurrency-range", "1:2:0.5"], "--concurrency-range: must be whole numbers (got '1:2:0.5')"),
        (["--concurrency", "0:4"], "--concurrency: is no number"),
        (["--concurrency-range", "2", "--concurrency", "3"], "--concurrency-range: says what --concurrency says"),
        (["--concurrency-range", "2", "--num-of-sequences", "3"], "--num-of-sequences: says what --concurrency-range"),
        (
            ["--request-rate-range", "x"],
            "--request-rate-range: is no number above 0 and at most 10000000, and no range",
        ),
        (
            ["--request-rate-range", "9", "--concurrency-range", "2"],
            "--concurrency-range: is of a closed loop, and --request-rate-range of an open one",
        ),
        (["--request-rate-range", "9", "--request-distribution", "even"], "--request-distribution: is no kind of arri"),
        (
            ["--request-intervals", "no/file"],
            "--request-intervals: cannot be read: No such file or directory (got 'no/",
        ),
        (["-p", "0"], "-p: must be above 0"),
        (["--measurement-interval", "0"], "--measurement-interval: must be above 0"),
    ],
)
def test_errors_name_flags_as_they_were_written(arguments: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match="^" + re.escape(told)):
        read("host", "-m", "a", *arguments)


def test_sequences_formats_and_services_are_taken() -> None:
    wanted = read("host", "-m", "a", "--num-of-sequences", "3", "--sequence-length", "9", "--start-sequence-id", "5")
    assert wanted.questions.sequences == Sequences(9, 0.2, 5)
    assert wanted.loads[0].under_way == 3
    questions = read("http://host", "-m", "a", "--output-tensor-format", "json", "-z").questions
    assert (questions.inputs, questions.outputs, questions.data.source) == ("binary", "json", "zero")
    wanted = read("-m", "a", "-u", "host", "--service-kind", "openai", "--endpoint", "v1/embeddings")
    assert (wanted.questions.api, wanted.endpoint.protocol) == ("openai", HTTP)
    assert read("host", "-m", "a", "--api", "tei").endpoint.protocol == HTTP


def test_tls_is_taken_by_both_names() -> None:
    for names in (["--tls-ca", "f"], ["--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", "f"]):
        assert read("host:1", "-m", "a", *names).endpoint == Endpoint(GRPC, "host", 1, Tls(ca="f"))
    tls = read("https://host:1", "-m", "a", "--ssl-https-verify-peer", "0").endpoint.tls
    assert tls == Tls(verify=False)


def test_models_have_weights_or_zipfs() -> None:
    assert [one.weight for one in read("host", "-m", "a=2", "-m", "b").questions.targets] == [2, 1]
    weights = [one.weight for one in read("host", "-m", "a", "-m", "b", "-m", "c", "--zipf", "2").questions.targets]
    assert weights == [1, 0.25, 1 / 9]


def test_a_trace_is_a_load_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("100\n300\n")
    (load,) = read("host", "-m", "a", "--request-intervals", str(file)).loads
    assert load.arrivals.gaps_ns == (100_000, 300_000)
    assert load.rate == pytest.approx(5_000)


def test_metrics_are_where_their_url_says() -> None:
    assert read("host", "-m", "a", "--metrics-url", "http://host:2/x/metrics").metrics == (
        Endpoint(HTTP, "host", 2),
        "/x/metrics",
    )
    assert read("host", "-m", "a", "--metrics-url", "host:2").metrics == (Endpoint(HTTP, "host", 2), "/metrics")


def test_a_range_that_a_knee_is_searched_in_has_no_steps() -> None:
    wanted = [read("host", "-m", "a", "--slo", "p99=10ms", "--rate", f"100:2000{step}") for step in ("", ":1500")]
    assert [one.within for one in wanted] == [(100, 2_000)] * 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--arrivals", "trace:FILE", "--rate", "5"], "--arrivals: says when requests are sent, and --rate too"),
        (["--arrivals", "trace:FILE", "--concurrency", "5"], "--arrivals: says when requests are sent, and --concurr"),
        (
            ["--request-intervals", "FILE", "--concurrency-range", "5"],
            "--request-intervals: says when requests are sent, and --concurrency-range too",
        ),
        (["--arrivals", "trace:FILE", "--slo", "p99=1ms"], "--arrivals: has a rate of its own, and --slo searches"),
        (["--arrivals", "ramp:9", "--slo", "p99=1ms", "--rate", "1:5"], "--arrivals: has a rate of its own"),
        (["--arrivals", "gamma:4"], "--arrivals: is of an open loop, and there is no rate"),
        (["--arrivals", "burst:4", "--concurrency", "8"], "--arrivals: is of an open loop, and there is no rate"),
    ],
)
def test_arrivals_that_have_a_rate_get_no_other_one(tmp_path: Path, arguments: list[str], told: str) -> None:
    file = tmp_path / "gaps"
    file.write_text("100\n300\n")
    with pytest.raises(ConfigurationError, match="^" + re.escape(told)):
        read("host", "-m", "a", *(one.replace("FILE", str(file)) for one in arguments))


@pytest.mark.parametrize("gap", ["inf", "1e999", "nan"])
def test_a_gap_of_a_trace_without_an_end_is_refused(tmp_path: Path, gap: str) -> None:
    file = tmp_path / "gaps"
    file.write_text(f"100\n{gap}\n")
    with pytest.raises(ConfigurationError, match="the gaps of a trace must be finite"):
        read("host", "-m", "a", "--arrivals", f"trace:{file}")


def test_no_arrivals_are_more_than_a_rate_may_be(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("0.01\n")
    for arrivals in (f"trace:{file}", "ramp:1e12"):
        with pytest.raises(ConfigurationError, match="at most 10000000 can be sent"):
            read("host", "-m", "a", "--arrivals", arrivals)


@pytest.mark.parametrize(("name", "why"), [("none.json", "No such file or directory"), ("", "Is a directory")])
def test_data_that_cannot_be_read_is_told_before_a_server_is_asked(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--data: cannot be read: {why}"):
        read("host", "-m", "a", "--input-data", str(tmp_path / name))
