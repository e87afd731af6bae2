"""Flags become options, and what cannot be used is said in one line."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from toutates.api.rest.handler import RestSettings
from toutates.api.restrictions import RestrictedProtocol
from toutates.command import main as cli
from toutates.command.flags import ALIASES, FLAGS, GROUPS, LIMITS, REFUSED
from toutates.command.main import main, parse_options
from toutates.command.parser import server_parser
from toutates.command.values import byte_size
from toutates.h2grpc import Allowance, Limits
from toutates.h2grpc.limits import LIMIT_NAMES
from toutates.infer.tracing.configuration import read_trace_options
from toutates.infer.tracing.settings import TraceSetting
from toutates.models.turns import Limit
from toutates.repositories.specification import BucketSpecification
from toutates.server.options import Options, TlsFiles, TorchServeOptions
from toutates.system.address import Address, parse_address
from toutates.system.errors import ConfigurationError
from toutates.system.topology import format_cpu_list

ROOT: Final = Path(__file__).parents[2]
REQUIRED = ("--model-repository", "models")
#: One that this process may use.
CPU: Final = min(os.sched_getaffinity(0))


def parse(*flags: str) -> Options:
    return parse_options([*REQUIRED, *flags])


def test_defaults_of_the_flags_are_the_defaults_of_the_options() -> None:
    assert parse() == Options((Path("models"),))


# Flag, value, where it goes, and as what.
EFFECTS: Final[list[tuple[str, str, str, object]]] = [
    ("--model-repository", "/elsewhere", "model_repositories", (Path("models"), Path("/elsewhere"))),
    ("--s3-bucket", "bucket", "model_repositories", (Path("models"), BucketSpecification("s3", "bucket"))),
    ("--model-name", "resnet", "model_name", "resnet"),
    ("--model-cache-dir", "/elsewhere", "model_cache_dir", Path("/elsewhere")),
    ("--map-weights", "true", "map_weights", True),
    ("--model-cache-size", "7", "model_cache_size", 7),
    ("--wait-for-repository", "90", "wait_for_repository_s", 90.0),
    ("--download-min-rate", "2K", "download_min_rate", 2_048),
    ("--response-cache-byte-size", "65536", "response_cache_bytes", 65_536),
    ("--rate-limit", "Execution_Count", "rate_limit", "execution_count"),
    ("--rate-limit-resource", "R1:10", "rate_limit_resources", (Limit("R1", 10),)),
    ("--load-models", "a, b", "load_models", ("a", "b")),
    ("--model-control-mode", "poll", "model_control_mode", "poll"),
    ("--repository-poll-secs", "0.3", "repository_poll_s", 0.3),
    ("--model-min-stay", "3", "model_min_stay_s", 3.0),
    ("--traffic-file", "t.yaml", "traffic_file", Path("t.yaml")),
    ("--strict-readiness", "false", "strict_readiness", False),
    ("--exit-on-error", "true", "exit_on_error", True),
    ("--execution-providers", "trt,CUDA,cpu,tensorrt", "execution_providers", ("tensorrt", "cuda", "cpu")),
    ("--custom-op-libraries", __file__, "custom_op_libraries", (Path(__file__),)),
    ("--allow-pickle", "true", "allow_pickle", True),
    ("--trt-op-types-to-exclude", "Mul,Add", "trt_op_types_to_exclude", "Mul,Add"),
    ("--trt-min-subgraph-size", "7", "trt_min_subgraph_size", 7),
    ("--ort-intra-threads", "3", "ort_intra_threads", 3),
    ("--ort-inter-threads", "4", "ort_inter_threads", 4),
    ("--torchserve-api", "true", "torchserve", TorchServeOptions(Address("127.0.0.1", 8081))),
    ("--grpc-addr", "[::1]:99", "grpc_addr", Address("::1", 99)),
    ("--processing-cores", "5", "processing_cores", 5),
    ("--model-load-thread-count", "5", "parallel_loads", 5),
    ("--model-load-retry-count", "2", "load_retries", 2),
    ("--executor-cpus", "5", "executor_cpus", 5),
    ("--executor-threads", "3", "executor_threads", 3),
    ("--metrics-models", "7", "metrics_models", 7),
    ("--cpu-pinning", f"{CPU},{CPU}-{CPU}", "cpu_pinning", (CPU,)),
    ("--reuse-port", "true", "shared_ports", ("grpc", "http")),
    ("--processes", "3", "processes", 3),
    ("--max-concurrent-connections", "6", "max_concurrent_connections", 6),
    ("--max-concurrent-streams", "8", "limits", Limits(max_concurrent_streams=8)),
    ("--max-frame-size", "16384", "limits", Limits(max_frame_size=16_384)),
    ("--max-message-size", "9", "limits", Limits(max_message_size=9)),
    ("--max-decompressed-size", "9", "limits", Limits(max_decompressed_size=9)),
    ("--max-connection-buffered-bytes", "9", "limits", Limits(max_buffered_bytes=9)),
    ("--max-buffered-bytes", "9", "max_buffered_bytes", 9),
    ("--max-resets-per-second", "7", "limits", Limits(resets=Allowance(35, 7, 0.5))),
    ("--handshake-timeout", "5", "limits", Limits(handshake_timeout_s=5)),
    ("--stall-timeout", "0", "limits", Limits(stall_timeout_s=math.inf)),
    ("--max-connection-idle", "5", "limits", Limits(max_idle_s=5)),
    ("--max-connection-age", "5", "limits", Limits(max_age_s=5)),
    ("--max-connection-age-grace", "5", "limits", Limits(max_age_grace_s=5)),
    ("--keepalive-time", "0", "limits", Limits(keepalive_time_s=math.inf)),
    ("--keepalive-timeout", "5", "limits", Limits(keepalive_timeout_s=5)),
    ("--max-inflight-requests", "10", "max_inflight_requests", 10),
    (
        "--grpc-restricted-protocol",
        "inference, trace:k=s=:",
        "restricted_protocols",
        (RestrictedProtocol(("inference", "trace"), "triton-grpc-protocol-k", "s=:"),),
    ),
    ("--allow-client-shm", "true", "allow_client_shm", True),
    ("--grpc-reflection", "false", "grpc_reflection", False),
    ("--grpc-compression", "gzip", "grpc_compression", "gzip"),
    ("--trace-endpoint", "http://c", "tracing", read_trace_options({}, endpoint="http://c")),
    ("--http-addr", "[::1]:98", "http_addr", Address("::1", 98)),
    ("--http-max-input-size", "5", "rest", RestSettings(5)),
    (
        "--http-restricted-api",
        "inference, trace:X-Key=s=:",
        "rest",
        RestSettings(restrictions=(RestrictedProtocol(("inference", "trace"), "X-Key", "s=:"),)),
    ),
    (
        "--cors-origin",
        "https://App.example:443,http://localhost:80,http://[::1]:3000",
        "rest",
        RestSettings(cross_origin=("https://app.example", "http://localhost", "http://[::1]:3000")),
    ),
    ("--http-half-close", "true", "rest", RestSettings(half_close=True)),
    ("--http-header-forward-pattern", "^x-", "rest", RestSettings(forwarded=re.compile("^x-", re.IGNORECASE))),
    ("--grpc-header-forward-pattern", "^x-", "grpc_forwarded", re.compile("^x-", re.IGNORECASE)),
    ("--metrics-addr", "[::1]:99", "metrics_addr", Address("::1", 99)),
    ("--allowed-hosts", "A.example., proxy", "allowed_hosts", ("a.example", "proxy")),
    ("--traffic-file", "traffic.yaml", "traffic_file", Path("traffic.yaml")),
    ("--server-id", "mine", "server_id", "mine"),
    ("--shutdown-delay", "0.5", "shutdown_delay_s", 0.5),
    ("--shutdown-grace", "0.5", "shutdown_grace_s", 0.5),
    ("--log-level", "debug", "log_level", "debug"),
    ("--log-format", "json", "log_format", "json"),
    ("--access-log-rate", "0.01", "access_log_rate", 0.01),
]


@pytest.mark.parametrize(("flag", "value", "name", "expected"), EFFECTS, ids=[effect[0] for effect in EFFECTS])
def test_a_flag_changes_its_option_and_no_other(flag: str, value: str, name: str, expected: object) -> None:
    before, options = parse(), parse(flag, value)
    assert getattr(before, name) != expected
    assert getattr(options, name) == expected
    others = [field for field in Options.__slots__ if field != name]
    assert [getattr(options, field) for field in others] == [getattr(before, field) for field in others]


def test_an_access_file_beside_ports_in_clear_is_a_warning_and_changes_nothing_else() -> None:
    before, options = parse(), parse("--access-file", "access.yaml")
    assert (before.access_file, options.access_file) == (None, Path("access.yaml"))
    [warning] = options.warnings
    assert warning.startswith("--access-file: keys and tokens come in clear to --grpc-addr 0.0.0.0:8001, ")
    assert replace(options, access_file=None, warnings=()) == before


def test_every_flag_is_in_the_table_above() -> None:
    flags = {f"--{name}" for name in (*FLAGS, *ALIASES)}
    together = {"--tls-cert", "--tls-key", "--tls-client-ca", "--s3-endpoint", "--s3-prefix", "--s3-region"}
    together |= {"--load-model", "--trace-level", "--trace-rate", "--trace-count", "--debug-endpoints"}
    together |= {"--torchserve-management-addr", "--torchserve-model-store", "--torchserve-allowed-urls"}
    together |= {"--model-memory", "--access-file"}
    together |= {"--limit", "--config", "--executor-cores", "--api-key-file", "--metrics-tls"}
    assert flags - {effect[0] for effect in EFFECTS} == together


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--trace-level", "TENSORS"], TraceSetting(("TENSORS",))),
        (["--trace-level", "TENSORS", "--trace-level=TIMESTAMPS"], TraceSetting(("TIMESTAMPS", "TENSORS"))),
        (["--trace-level", "OFF"], TraceSetting()),
        (["--trace-rate", "0"], TraceSetting(("TIMESTAMPS",), 0)),
        (["--trace-rate", "4294967295"], TraceSetting(("TIMESTAMPS",), 4_294_967_295)),
        (["--trace-count", "-1", "--trace-rate=5"], TraceSetting(("TIMESTAMPS",), 5)),
        (["--trace-count=7"], TraceSetting(("TIMESTAMPS",), 1000, 7)),
    ],
)
def test_trace_flags_are_the_first_settings(arguments: Sequence[str], setting: TraceSetting) -> None:
    assert parse("--trace-endpoint", "http://c", *arguments).tracing.defaults == setting


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trace-level", "MAX"],
        ["--trace-rate", "-1"],
        ["--trace-rate", "4294967296"],
        ["--trace-rate", "1e3"],
        ["--trace-rate", "٣"],
        ["--trace-count", "-2"],
        ["--trace-count", "9" * 5_000],
        ["--trace-endpoint", "collector:4318"],
    ],
)
def test_trace_flags_that_cannot_be_used_are_named(arguments: Sequence[str]) -> None:
    with pytest.raises(ConfigurationError, match=arguments[0]):
        parse("--trace-endpoint", "http://c", *arguments)


def test_the_http_side_can_be_left_out_and_debugging_opened() -> None:
    assert parse("--metrics-addr", "off").metrics_addr is None
    assert parse("--debug-endpoints").debug_endpoints
    with pytest.raises(ConfigurationError, match=r"^--metrics-addr: is not an address \(got '9090'\)"):
        parse("--metrics-addr", "9090")


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("3k", 3 << 10), ("512M", 512 << 20), ("4GiB", 4 << 30), ("2 ", 2), ("1TB", 1 << 40)]
)
def test_memory_is_given_in_bytes_or_with_a_letter(text: str, size: int) -> None:
    options = parse("--model-control-mode", "on-demand", "--model-memory", text)
    assert options.model_memory == size


@pytest.mark.parametrize("text", ["0", "-1", "4X", "1.5G", "", "G", "9" * 16])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 1073741824, 512M or 4G"):
        byte_size(text)


EXPLICIT: Final = ("--model-control-mode", "explicit")


@pytest.mark.parametrize(
    ("arguments", "models"),
    [
        (EXPLICIT, ()),
        ((*EXPLICIT, "--load-model", "b", "--load-model", "a", "--load-model", "b"), ("b", "a")),
        ((*EXPLICIT, "--load-model", "b", "--load-models", "a"), ("a", "b")),
        ((*EXPLICIT, "--load-model", "*"), None),
        (("--model-control-mode", "poll"), None),
        (("--model-control-mode", "poll", "--load-models", "a"), ("a",)),
    ],
)
def test_what_is_loaded_at_the_start(arguments: tuple[str, ...], models: tuple[str, ...] | None) -> None:
    options = parse(*arguments)
    assert options.load_models == models
    if models is not None:
        assert set(options.load_model) == {name for flag, name in pairwise(arguments) if flag == "--load-model"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--load-model", "a"),
        ("--model-control-mode", "poll", "--load-model", "a"),
        (*EXPLICIT, "--load-model", "*", "--load-model", "a"),
        (*EXPLICIT, "--load-model", "*", "--load-models", "a"),
        (*EXPLICIT, "--load-model", ""),
    ],
)
def test_models_to_load_that_make_no_sense_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="--load-model"):
        parse(*arguments)


def test_tls_takes_its_files_together() -> None:
    both = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert parse(*both).tls == TlsFiles(Path("cert.pem"), Path("key.pem"))
    assert parse(*both, "--tls-client-ca", "ca.pem").tls == TlsFiles(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
    for flags in (both[:2], both[2:], ("--tls-client-ca", "ca.pem")):
        with pytest.raises(ConfigurationError, match="--tls-"):
            parse(*flags)


@pytest.mark.parametrize(
    "flags", [["--cpu-pinning"], ["--cpu-pinning", "--ort-intra-threads=1"], ["--cpu-pinning=all"]]
)
def test_pinning_without_a_list_takes_every_cpu(flags: list[str]) -> None:
    assert parse(*flags).cpu_pinning == ()


def test_no_compression_is_none() -> None:
    assert parse("--grpc-compression", "none").grpc_compression == ""


ALLOWED: Final = f"name CPUs that the process may use, which are {format_cpu_list(os.sched_getaffinity(0))}"

RESTRICT: Final = "--grpc-restricted-protocol"
FORM: Final = "write PROTOCOLS:KEY=VALUE, such as"
TWICE: Final = "restricted protocol 'trace' can not be specified in multiple config groups"


def restrict(value: str) -> list[str]:
    return [*REQUIRED, RESTRICT, value]


# Flags, then what the error has to name: flag, value, remedy or bound. What is "hidden" must never be shown.
MISTAKES: Final[dict[str, tuple[list[str], list[str]]]] = {
    "no repository": ([], ["--model-repository", "required", "toutates --help"]),
    "misspelt flag": (
        [*REQUIRED, "--grcp-addr", "x"],
        ["--grcp-addr", "did you mean '--grpc-addr'?", "toutates --help"],
    ),
    "unknown flag": ([*REQUIRED, "--zzz", "x"], ["--zzz", "see 'toutates --help'"]),
    "misspelt command": (["chek", "models"], ["chek models", "did you mean 'check'?"]),
    "a command's misspelt flag": (["check", "models", "--asume-gpu"], ["did you mean '--assume-gpu'?", "check --help"]),
    "no command": (["models"], ["name a repository by --model-repository", "probe, check, config, import"]),
    "abbreviated flag": ([*REQUIRED, "--load", "x"], ["--load", "toutates --help"]),
    "positional": ([*REQUIRED, "serve"], ["serve"]),
    "no worker": (
        [*REQUIRED, "--processing-cores", "0"],
        ["--processing-cores", "'0'", "a whole number from 1 up"],
    ),
    "no executor": ([*REQUIRED, "--executor-cores", "0"], ["--executor-cores", "'0'", "from 1 up"]),
    "no list of CPUs": ([*REQUIRED, "--cpu-pinning", "0-x"], ["--cpu-pinning", "'0-x'", "0-3", ALLOWED]),
    "empty list of CPUs": ([*REQUIRED, "--cpu-pinning="], ["--cpu-pinning", "''", ALLOWED]),
    "CPUs backwards": ([*REQUIRED, "--cpu-pinning=3-1"], ["--cpu-pinning", "'3-1' ends before it begins"]),
    "CPUs of others": (
        [*REQUIRED, f"--cpu-pinning={CPU},8000-8002,8010"],
        ["--cpu-pinning", "may not use CPU 8000-8002,8010", ALLOWED],
    ),
    "time too short": ([*REQUIRED, "--max-connection-age=0.0001"], ["--max-connection-age", "0.0001", "0.001..inf"]),
    "no number": ([*REQUIRED, "--processing-cores", "two"], ["--processing-cores", "'two'", "a whole number"]),
    "zero": ([*REQUIRED, "--ort-intra-threads", "0"], ["--ort-intra-threads", "'0'", "from 1 up"]),
    "negative": ([*REQUIRED, "--ort-inter-threads=-1"], ["--ort-inter-threads", "'-1'", "from 1 up"]),
    "fraction": ([*REQUIRED, "--max-concurrent-streams", "1.5"], ["--max-concurrent-streams", "'1.5'"]),
    "other digits": (
        [*REQUIRED, "--max-concurrent-connections", "\u0661"],
        ["--max-concurrent-connections", "'\u0661'"],
    ),
    "endless number": ([*REQUIRED, "--trt-min-subgraph-size", "9" * 5_000], ["--trt-min-subgraph-size", "from 1 up"]),
    "small frames": ([*REQUIRED, "--max-frame-size", "16383"], ["--max-frame-size", "16383", "16384..16777215"]),
    "large frames": ([*REQUIRED, "--max-frame-size", "16777216"], ["--max-frame-size", "16777216"]),
    "large messages": ([*REQUIRED, "--max-message-size", str(2**31)], ["--max-message-size", "2147483647"]),
    "no time": ([*REQUIRED, "--shutdown-grace", "soon"], ["--shutdown-grace", "'soon'", "from 0 to 86400"]),
    "not a number of seconds": ([*REQUIRED, "--shutdown-grace", "nan"], ["--shutdown-grace", "'nan'"]),
    "endless grace": ([*REQUIRED, "--shutdown-grace", "inf"], ["--shutdown-grace", "'inf'"]),
    "log level": ([*REQUIRED, "--log-level", "loud"], ["--log-level", "'loud'", "warning"]),
    "compression": ([*REQUIRED, "--grpc-compression", "br"], ["--grpc-compression", "'br'", "deflate"]),
    "provider": ([*REQUIRED, "--execution-providers", "cpu,rocm"], ["--execution-providers", "'rocm'", "tensorrt"]),
    "auto and more": (
        [*REQUIRED, "--execution-providers", "auto,cpu"],
        ["--execution-providers", "names auto and others"],
    ),
    "empty model name": ([*REQUIRED, "--load-models", "a,,b"], ["--load-models", "'a,,b'", "single commas"]),
    "a model's name that is a path": ([*REQUIRED, "--model-name", "a/b"], ["--model-name", "'a/b'", "without slashes"]),
    "no model name": ([*REQUIRED, "--load-models", ""], ["--load-models", "empty name"]),
    "no such library": (
        [*REQUIRED, "--custom-op-libraries", "/no/such.so"],
        ["--custom-op-libraries", "'/no/such.so'", "correct the path"],
    ),
    "address": ([*REQUIRED, "--grpc-addr", "8001"], ["--grpc-addr", "'8001'", "HOST:PORT"]),
    "no request": ([*REQUIRED, "--max-inflight-requests", "0"], ["--max-inflight-requests", "'0'", "from 1 up"]),
    "no restriction": (restrict("inference"), [RESTRICT, "is not PROTOCOLS:KEY=VALUE", "'inference'", FORM]),
    "restriction without a key": (restrict("inference:hidden"), [RESTRICT, "'inference:***'", FORM]),
    "restriction without protocols": (restrict("key=hidden"), [RESTRICT, "'key=***'", FORM]),
    "restriction in another order": (restrict("key=hid:den"), [RESTRICT, "'key=***'", FORM]),
    "nothing but a secret": (restrict("hidden"), [RESTRICT, "'***'", FORM]),
    "empty restriction": (restrict(""), [RESTRICT, "'***'", FORM]),
    "restriction's empty key": (restrict("health:=hidden"), [RESTRICT, "has an empty key", "'health:=***'", FORM]),
    "restriction's empty value": (restrict("health:key="), [RESTRICT, "has an empty value", "'health:key=***'", FORM]),
    "restriction's key": (restrict("health:Key=hidden"), [RESTRICT, "'Key'", "'health:Key=***'", "make it of a-z"]),
    "restriction's binary key": (restrict("health:k-bin=hidden"), [RESTRICT, "'k-bin'", "without '-bin'"]),
    "restriction's value": (restrict("health:key= hidden"), [RESTRICT, "'health:key=***'", "printable ASCII"]),
    "restriction's strange value": (restrict("health:key=hidden\u00e9"), [RESTRICT, "printable ASCII"]),
    "unknown protocol": (
        restrict("health,infer:key=hidden"),
        [RESTRICT, "unknown restricted protocol 'infer'", "'health,infer:key=***'", "shared-memory, model-config"],
    ),
    "empty protocol": (restrict("health,:key=hidden"), [RESTRICT, "unknown restricted protocol ''"]),
    "protocol twice": (restrict("trace,trace:key=hidden"), [RESTRICT, TWICE, "'trace,trace:key=***'", "once"]),
    "protocol in two flags": (
        [*restrict("trace,health:key=hidden"), RESTRICT, "logging,trace:other=hidden"],
        [RESTRICT, TWICE, "'logging,trace:other=***'", "once"],
    ),
    "misspelt restriction": (
        [*REQUIRED, "--grpc-restricted-protocols=health:key=hidden", "--x", "health:key=hid den"],
        [
            "unrecognized arguments: --grpc-restricted-protocols --x health:key;",
            "did you mean '--grpc-restricted-protocol'?",
        ],
    ),
    "kernel polling": ([*REQUIRED, "--sqpoll-enabled"], ["--sqpoll-enabled", "io_uring", "leave"]),
    "kernel polling's time": ([*REQUIRED, "--sqpoll-idle-ms", "5"], ["--sqpoll", "io_uring", "leave"]),
    "model store that is not there": (
        [*REQUIRED, "--torchserve-model-store", "/no/such"],
        ["--torchserve-model-store", "is no directory", "'/no/such'"],
    ),
    "model store without its API": (
        [*REQUIRED, "--torchserve-model-store", "/"],
        ["--torchserve-model-store", "is of use only with --torchserve-api", "leave this one out"],
    ),
    "origin": ([*REQUIRED, "--cors-origin", "https://a/b"], ["--cors-origin", "is not an origin", "'https://a/b'"]),
    "no origin": ([*REQUIRED, "--cors-origin", "null"], ["--cors-origin", "is not an origin", "'null'"]),
    "all origins and one": ([*REQUIRED, "--cors-origin", "*,https://a"], ["--cors-origin", "means all origins"]),
    "ports that are shared": ([*REQUIRED, "--reuse-port", "metrics"], ["--reuse-port", "'metrics'", "grpc, http"]),
    "probe without address": (["probe"], ["ADDR", "toutates probe --help"]),
    "probe's time": (["probe", "localhost:1", "--timeout", "x"], ["--timeout", "'x'"]),
    "probe's address": (["probe", "localhost"], ["ADDR", "'localhost'", "HOST:PORT"]),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_that_names_flag_value_and_remedy(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("toutates: error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert "hid" not in said.err


@pytest.mark.parametrize("form", [["--log-format", "json"], ["--log-format=json"]])
def test_a_mistake_is_an_object_where_the_log_is_json(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*form, *REQUIRED, "--grcp-addr", "x"]) == 2
    said = json.loads(capsys.readouterr().err)
    assert (said["level"], said["area"]) == ("error", "server")
    assert said["event"].startswith("unrecognized arguments: --grcp-addr x; did you mean '--grpc-addr'?")


def test_the_secret_of_a_restriction_is_not_in_the_options_text() -> None:
    options = parse(RESTRICT, "health:key=hidden")
    assert options.restricted_protocols[0].value == "hidden"
    assert "triton-grpc-protocol-key" in repr(options)
    assert "hidden" not in repr(options)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:8001", Address("0.0.0.0", 8001)),
        ("localhost:0", Address("localhost", 0)),
        ("[::]:65535", Address("::", 65_535)),
    ],
)
def test_addresses_are_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text, "--x") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", ":", ":80", "host:", "host:65536", "host:-1", "::1:80", "[]:80", "host:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--x: is not an address"):
        parse_address(text, "--x")


@pytest.mark.parametrize("arguments", [["--help"], ["probe", "--help"], ["--version"]])
def test_help_and_version_need_no_repository(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "toutates" in capsys.readouterr().out


def test_help_explains_every_flag_and_tells_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    lines = server_parser().format_help().splitlines()
    for name, flag in FLAGS.items():
        [at] = [at for at, line in enumerate(lines) if re.match(rf"  --{name}[ \[]", line)]
        said = lines[at] + lines[at + 1]
        assert flag.help in said
        if flag.default is not None:
            assert f"(default: {flag.default})" in said
    for name in (*ALIASES, *REFUSED):
        assert not re.search(rf"--{name}\b(?!-)", "\n".join(lines)), name
    with pytest.raises(SystemExit) as caught:
        main(["--help-limits"])
    assert caught.value.code == 0
    limits = capsys.readouterr().out
    for name, limit in LIMITS.items():
        assert re.search(rf"^  {name} .*{re.escape(limit.help)} \(default: {limit.default or ''}", limits, re.MULTILINE)


def test_each_line_of_help_is_short_and_of_one_sentence() -> None:
    for flag in (*FLAGS.values(), *LIMITS.values()):
        assert len(flag.help) <= 100, flag.name
        assert not flag.help.endswith("."), flag.name
        assert flag.help[0] not in "'\"(", flag.name
    assert sum(map(len, GROUPS.values())) == len(FLAGS)


def test_names_of_limits_are_those_that_are_counted() -> None:
    assert set(LIMITS) - {"keepalive_time"} <= set(LIMIT_NAMES)


def test_an_interrupt_before_the_server_runs_is_a_failure_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(options: Options) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_serve", interrupt)
    assert main(REQUIRED) == 1


@pytest.mark.parametrize("command", ["bench", "check"])
def test_an_interrupt_before_a_command_has_anything_to_say_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupt(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, f"_{command}", interrupt)
    assert main([command]) == 130


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("trio", ["bench", "127.0.0.1:1", "--model", "m"]),  # imported by every command
        ("toutates_bench_is_imported", ["bench", "127.0.0.1:1", "--model", "m"]),
        ("onnxruntime", ["tune", "models/m"]),
    ],
)
@pytest.mark.parametrize("is_ignored", [False, True])
def test_an_interrupt_during_the_imports_ends_a_command_without_a_word(
    tmp_path: Path, module: str, arguments: list[str], is_ignored: bool
) -> None:
    """Unless interrupts are ignored, as in the background of a shell."""
    interrupted = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / f"{module}.py").write_text(f"{interrupted}; raise SystemExit(7)")
    # The tests themselves may run in the background of a shell.
    before = f"signal.signal(signal.SIGINT, signal.{'SIG_IGN' if is_ignored else 'default_int_handler'})"
    code = (
        "import runpy, signal, sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'toutates.bench.knee': import toutates_bench_is_imported\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"{before}\n"
        "runpy.run_module('toutates', run_name='__main__', alter_sys=True)"
    )
    done = run_python(code, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (7 if is_ignored else 130, "", "")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


MAIN = "import sys; from toutates.command.main import main; sys.exit(main())"


def test_without_onnxruntime_the_extras_are_named() -> None:
    done = run_python(f"import sys; sys.modules['onnxruntime'] = None; {MAIN}", *REQUIRED)
    assert done.returncode == 2
    assert done.stderr.startswith("toutates: error: onnxruntime ")
    assert "toutates[cpu]" in done.stderr
    assert "toutates[gpu]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open')",
            "onnxruntime cannot be imported: libcudart.so.13: cannot",
        ),
        ("import not_there", "onnxruntime cannot be imported: No module named 'not_there'"),
        ("", "only remains of onnxruntime are installed"),
    ],
    ids=["library", "dependency", "remains"],
)
def test_an_onnxruntime_that_does_not_work_is_said_so(tmp_path: Path, code: str, problem: str) -> None:
    (tmp_path / "onnxruntime.py").write_text(code)
    done = run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {MAIN}", *REQUIRED)
    assert done.returncode == 2
    assert done.stderr.startswith(f"toutates: error: {problem}")
    assert "toutates[cpu]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--exit-on-error", "true")])
def test_a_missing_repository_is_one_line_and_exit_code_2(more: tuple[str, ...]) -> None:
    addresses = ("--grpc-addr", "127.0.0.1:0", "--http-addr", "off", "--metrics-addr", "off")
    done = run_python(MAIN, "--model-repository", "/no/such/folder", *addresses, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "toutates: error: --model-repository: there is no such directory (got '/no/such/folder'); "
        "create it, or correct the path\n"
    )


def test_neither_help_nor_a_mistake_imports_onnxruntime() -> None:
    for arguments in (["--help"], ["--nonsense"], ["probe", "127.0.0.1:1", "--timeout", "1"]):
        code = (
            "import sys; from toutates.command.main import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "sys.exit('onnxruntime' in sys.modules)"
        )
        assert run_python(code, *arguments).returncode == 0


def test_probe_prints_its_finding_and_exits_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import toutates.command.probe

    asked: list[Any] = []

    def probe(address: Address, timeout_s: float, tls: None) -> tuple[bool, str]:
        asked.append((address, timeout_s))
        return address.port == 1, "a finding"

    monkeypatch.setattr(toutates.command.probe, "probe", probe)
    assert main(["probe", "localhost:1"]) == 0
    assert capsys.readouterr() == ("a finding\n", "")
    assert main(["probe", "localhost:2", "--timeout", "0.5"]) == 1
    assert capsys.readouterr() == ("", "a finding\n")
    assert asked == [(Address("localhost", 1), 3.0), (Address("localhost", 2), 0.5)]


def test_urls_are_allowed_by_whole_hosts() -> None:
    flags = ["--torchserve-api", "--torchserve-allowed-urls"]
    options = parse(*flags, "https://models.example/a/, file:///archives/")
    assert options.torchserve is not None
    assert options.torchserve.allowed_urls == ("https://models.example/a/", "file:///archives/")
    for wrong in ("https://models.example", "models.example/", "https://user@models.example/", "ftp://x/"):
        with pytest.raises(ConfigurationError, match="is not the beginning of a URL"):
            parse(*flags, wrong)
