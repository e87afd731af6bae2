"""The text of /metrics, held against prometheus_client's writers and parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import exposition as plain
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from tests.observe.metrics.support import PARSERS
from toutates.observe.metrics.catalogue import CATALOGUE
from toutates.observe.metrics.exposition import PIECE_SERIES, Format, choose_format, write_family
from toutates.observe.metrics.families import Distribution, Family, bucket_bounds, named_labels

#: prometheus_client's, one of which has no annotations.
WRITERS: dict[Format, Callable[[Any], bytes]] = {
    Format.TEXT: plain.generate_latest,
    Format.OPENMETRICS: openmetrics.generate_latest,
}

BOUNDS = bucket_bounds([0.0000125, 0.5, 1])
AWKWARD = 'a "quoted" \\ back\nslash, {curly} = ü ☃'

FAMILIES = [
    Family(CATALOGUE["inference_requests_total"], [(("m", "ok"), 2**60), ((AWKWARD, "error"), 0)]),
    Family(CATALOGUE["nv_inference_count"], [(("m", "1"), 12), ((AWKWARD, "2"), 0)]),
    Family(CATALOGUE["inference_batch_duration_seconds"], [((AWKWARD,), Distribution(BOUNDS, [1, 0, 2, 3], 7.25))]),
    Family(CATALOGUE["nv_cpu_utilization"], [((), 1e-07)]),
    Family(CATALOGUE["toutates_info"], [(("1.2", "3.11.2", "on"), 1)]),
    Family(CATALOGUE["toutates_model_load_seconds_total"], [((), 0.1 + 0.2)]),
    Family(
        CATALOGUE["nv_inference_request_failure"],
        [((("_Team", "a"), ("_region", AWKWARD), "m", "OTHER", "1"), 3), (("m", "OTHER", "2"), 4)],
    ),
]


class Registry:
    """What prometheus_client writes."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return [as_metric(family) for family in self._families]


def as_metric(family: Family) -> Metric:
    """A family as prometheus_client has it."""
    name = family.spec.name
    metric = Metric(family.openmetrics_name, family.spec.help, family.openmetrics_type)
    for values, value in family.series:
        labels = dict(named_labels(family.spec.labels, values))
        if isinstance(value, Distribution):
            cumulated = value.cumulated()
            for bound, count in zip(value.bounds, cumulated, strict=True):
                metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{name}_count", labels, cumulated[-1])
            metric.add_sample(f"{name}_sum", labels, value.total)
        else:
            metric.add_sample(name, labels, value)
    return metric


def text_of(families: Iterable[Family], form: Format) -> str:
    end = "# EOF\n" if form is Format.OPENMETRICS else ""
    return b"".join(piece for family in families for piece in write_family(family, form)).decode() + end


def parsed(families: Iterable[Any]) -> list[Any]:
    return [(one.name, one.type, one.documentation, one.samples) for one in families]


def test_openmetrics_says_what_prometheus_client_would_say() -> None:
    ours = parsed(PARSERS[Format.OPENMETRICS](text_of(FAMILIES, Format.OPENMETRICS)))
    theirs = parsed(PARSERS[Format.OPENMETRICS](WRITERS[Format.OPENMETRICS](Registry(FAMILIES)).decode()))
    assert ours == theirs
    assert len(ours) == len(FAMILIES)


def test_the_text_format_says_the_same_but_that_tritons_counters_are_counters() -> None:
    ours = parsed(PARSERS[Format.TEXT](text_of(FAMILIES, Format.TEXT)))
    theirs = parsed(PARSERS[Format.TEXT](WRITERS[Format.TEXT](Registry(FAMILIES)).decode()))
    assert [one[0] for one in ours] == [one[0] for one in theirs]
    for (name, kind, help_text, samples), (_, their_kind, their_help, their_samples) in zip(ours, theirs, strict=True):
        assert help_text == their_help
        if name.startswith("nv_inference"):
            assert (kind, their_kind) == ("counter", "unknown")
            # This parser, unlike Prometheus, gives counters the suffix that they lack.
            samples = [sample._replace(name=sample.name.removesuffix("_total")) for sample in samples]
        else:
            assert kind == their_kind
        assert samples == their_samples


def test_label_values_come_back_as_they_were() -> None:
    for form, parse in PARSERS.items():
        [family] = parse(text_of(FAMILIES[:1], form))
        assert [sample.labels["model"] for sample in family.samples] == ["m", AWKWARD]
        assert [sample.value for sample in family.samples] == [2**60, 0]


def test_tritons_counters_keep_their_names_in_both_formats() -> None:
    family = Family(CATALOGUE["nv_inference_request_success"], [(("m", "1"), 3)])
    line = 'nv_inference_request_success{model="m",version="1"} 3\n'
    help_line = f"# HELP nv_inference_request_success {family.spec.help}\n"
    assert text_of([family], Format.TEXT) == f"{help_line}# TYPE nv_inference_request_success counter\n{line}"
    assert (
        text_of([family], Format.OPENMETRICS)
        == f"{help_line}# TYPE nv_inference_request_success unknown\n{line}# EOF\n"
    )


def test_a_histogram_has_cumulated_buckets() -> None:
    lines = text_of([FAMILIES[2]], Format.TEXT).splitlines()[2:]
    assert [(line.split('le="')[1].split('"')[0], line.split()[-1]) for line in lines[:4]] == [
        ("1.25e-05", "1"),
        ("0.5", "1"),
        ("1.0", "3"),
        ("+Inf", "6"),
    ]
    assert [line.split()[-1] for line in lines[4:]] == ["6", "7.25"]


def test_a_name_that_is_not_unicode_does_not_spoil_the_text() -> None:
    family = Family(CATALOGUE["inference_batches_total"], [(("caf\udce9",), 1)])
    assert r'model="caf\\xe9"' in text_of([family], Format.TEXT)


def test_large_families_come_in_pieces_under_one_head() -> None:
    count = 2 * PIECE_SERIES + 1
    family = Family(CATALOGUE["inference_batches_total"], [((f"m{number}",), number) for number in range(count)])
    pieces = list(write_family(family, Format.OPENMETRICS))
    assert [piece.count(b"\n") for piece in pieces] == [PIECE_SERIES + 2, PIECE_SERIES, 1]
    [read] = PARSERS[Format.OPENMETRICS](b"".join(pieces).decode() + "# EOF\n")
    assert [sample.value for sample in read.samples] == list(range(count))


def test_a_family_without_series_is_left_out() -> None:
    assert text_of([Family(CATALOGUE["inference_batches_total"], [])], Format.TEXT) == ""


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Format.TEXT),
        ("text/plain;version=0.0.4", Format.TEXT),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", Format.TEXT),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", Format.TEXT),
        # What Prometheus 2.42 and 3 send.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format.OPENMETRICS,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            Format.OPENMETRICS,
        ),
        ("application/openmetrics-text;version=nonsense", Format.TEXT),
        ("application/openmetrics-text;version=", Format.OPENMETRICS),
        (";;;,,,=;q=", Format.TEXT),
    ],
)
def test_the_format_is_the_one_that_was_asked_for(accept: str, form: Format) -> None:
    assert choose_format(accept) is form


def test_formats_have_the_media_types_that_scrapers_expect() -> None:
    assert Format.TEXT.value == "text/plain; version=0.0.4; charset=utf-8"
    assert Format.OPENMETRICS.value == "application/openmetrics-text; version=1.0.0; charset=utf-8"
