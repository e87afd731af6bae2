"""Flags and environment variables of traces."""

from __future__ import annotations

from typing import Any

import pytest

from toutates.infer.tracing.configuration import read_trace_options
from toutates.infer.tracing.settings import TraceSetting
from toutates.system.errors import ConfigurationError

ON = ("TIMESTAMPS",)
BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/v1/traces", "https://collector/v1/traces"),
        ("http://[::1]:4318/otlp/v1/traces", "http://[::1]:4318/otlp/v1/traces"),
    ],
)
def test_endpoint_of_the_flag_gets_its_path_where_it_has_none(endpoint: str, url: str) -> None:
    assert read_trace_options({}, endpoint=endpoint).endpoint == url


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        (BASE, "http://collector:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector/otlp/"}, "http://collector/otlp/v1/traces"),
        ({**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:1/"}, "http://traces:1/"),
        ({**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""}, "http://collector:4318/v1/traces"),
        ({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://collector:4318/v1/traces"),
        (
            {**BASE, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "http://collector:4318/v1/traces",
        ),
        ({}, None),
    ],
)
def test_endpoint_of_the_environment_is_read_as_opentelemetry_says(
    environment: dict[str, str], url: str | None
) -> None:
    options = read_trace_options(environment)
    assert options.endpoint == url
    assert bool(options.unavailable) == (url is None)
    # It is there, and nothing is traced yet.
    assert options.defaults == TraceSetting()
    assert not options.asked_for


def test_flag_goes_before_the_environment() -> None:
    options = read_trace_options({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, endpoint="http://mine:1")
    assert options.endpoint == "http://mine:1/v1/traces"
    assert options.warnings == (
        "OTEL_EXPORTER_OTLP_PROTOCOL=grpc has no effect: traces are sent by http/protobuf to the endpoint that "
        "--trace-endpoint names",
    )


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER"])
def test_variables_that_are_not_heeded_are_warned_of_where_there_is_a_collector(variable: str) -> None:
    [warning] = read_trace_options({**BASE, variable: "x"}).warnings
    assert warning.startswith(f"{variable}=x has no effect: ")
    assert read_trace_options({variable: "x"}).warnings == ()
    assert read_trace_options({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}).warnings == ()


@pytest.mark.parametrize(
    ("flags", "defaults", "asked_for"),
    [
        ({"endpoint": "http://c"}, TraceSetting(ON), "--trace-endpoint"),
        ({"rate": 5}, TraceSetting(ON, 5), "--trace-rate"),
        ({"rate": 0}, TraceSetting(ON, 0), "--trace-rate"),
        ({"count": 0}, TraceSetting(ON, 1000, 0), "--trace-count"),
        ({"levels": ["TENSORS", "TIMESTAMPS"]}, TraceSetting(("TIMESTAMPS", "TENSORS")), "--trace-level"),
        ({"endpoint": "http://c", "rate": 7, "levels": ["OFF"]}, TraceSetting((), 7), ""),
        ({}, TraceSetting(), ""),
    ],
)
def test_any_flag_but_off_turns_traces_on(flags: dict[str, Any], defaults: TraceSetting, asked_for: str) -> None:
    options = read_trace_options(BASE, **flags)
    assert (options.defaults, options.asked_for) == (defaults, asked_for)


@pytest.mark.parametrize("flag", ["rate", "count", "levels"])
def test_traces_without_a_collector_are_a_warning_with_flag_and_remedy(flag: str) -> None:
    value: Any = ["TIMESTAMPS"] if flag == "levels" else 1
    options = read_trace_options({}, **{flag: value})
    [warning] = options.warnings
    assert warning.startswith(f"--trace-{flag.removesuffix('s')}: nothing is traced")
    assert "--trace-endpoint" in warning
    assert (options.endpoint, options.asked_for) == (None, "")


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "collector:4318",
        "grpc://collector",
        "http://",
        "http://c:port",
        "http://c:99999",
        "http://c:0",
        "http://ä",
        "h",
    ],
)
def test_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--trace-endpoint: .*URL"):
        read_trace_options({}, endpoint=endpoint)


def test_password_in_the_endpoint_is_refused_and_not_shown() -> None:
    for endpoint in ("http://me:secret@collector", "http://me:secret@collector:port"):
        with pytest.raises(ConfigurationError) as caught:
            read_trace_options({}, endpoint=endpoint)
        assert "secret" not in str(caught.value)


def test_off_stands_alone() -> None:
    with pytest.raises(ConfigurationError, match="OFF stands alone"):
        read_trace_options(BASE, levels=["OFF", "TIMESTAMPS"])


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({**BASE, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_environment_that_cannot_be_used_matters_to_who_asks_for_traces(environment: dict[str, str], key: str) -> None:
    options = read_trace_options(environment)
    assert options.endpoint is None
    assert key in options.unavailable
    assert options.warnings == (f"nothing can be traced: {options.unavailable}",)
    with pytest.raises(ConfigurationError) as caught:
        read_trace_options(environment, rate=1)
    assert caught.value.key == key
