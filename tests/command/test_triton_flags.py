"""Flags of tritonserver: each is a setting, a warning or an error."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from toutates.command.flags import FLAGS, LIMIT, LIMITS
from toutates.command.main import main, parse_options
from toutates.command.triton_flags import TRITON_FLAGS, Verdict, effect
from toutates.command.triton_translation import Translation
from toutates.h2grpc import Limits
from toutates.infer.tracing.settings import TraceSetting
from toutates.server.options import Options, TlsFiles
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError

STORE: Final = "--model-store=/mnt/models"
#: The container's arguments in KServe's ServingRuntime for Triton.
KSERVE: Final = (
    "tritonserver",
    STORE,
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)

#: Flags, the option that they change, and its value. Of what is not named here nothing changes.
EFFECTS: Final[list[tuple[str, str, object]]] = [
    ("--id=me", "server_id", "me"),
    ("--exit-timeout-secs=5", "shutdown_grace_s", 5.0),
    ("--exit-on-error=TRUE", "exit_on_error", True),
    ("--strict-readiness=0", "strict_readiness", False),
    ("--model-control-mode=POLL", "model_control_mode", "poll"),
    ("--repository-poll-secs=3", "repository_poll_s", 3),
    ("--model-load-thread-count=4", "parallel_loads", 4),
    ("--grpc-port=9000", "grpc_addr", Address("0.0.0.0", 9000)),
    ("--grpc-address=127.0.0.1", "grpc_addr", Address("127.0.0.1", 8001)),
    ("--grpc-address=::1 --grpc-port=0", "grpc_addr", Address("::1", 0)),
    ("--grpc-address=[::1]", "grpc_addr", Address("::1", 8001)),
    ("--reuse-grpc-port=true", "shared_ports", ("grpc",)),
    ("--reuse-grpc-port=false --reuse-http-port=1", "shared_ports", ("http",)),
    ("--reuse-grpc-port=true --reuse-http-port=1", "shared_ports", ("grpc", "http")),
    ("--http-port=9000", "http_addr", Address("0.0.0.0", 9000)),
    ("--http-address=127.0.0.1", "http_addr", Address("127.0.0.1", 8000)),
    ("--http-address=::1 --http-port=0", "http_addr", Address("::1", 0)),
    ("--allow-http=false --http-port=9000", "http_addr", None),
    ("--metrics-port=9999", "metrics_addr", Address("0.0.0.0", 9999)),
    ("--metrics-address=localhost", "metrics_addr", Address("localhost", 8002)),
    ("--allow-metrics=false", "metrics_addr", None),
    ("--allow-metrics=off --metrics-port=9999", "metrics_addr", None),
    ("--allow-metrics=off --metrics-port=-1 --metrics-address=nowhere", "metrics_addr", None),
    ("--http-port=70000 --allow-http=false", "http_addr", None),
    ("--grpc-infer-response-compression-level=High", "grpc_compression", "gzip"),
    ("--grpc-keepalive-time=1500", "limits", Limits(keepalive_time_s=1.5)),
    ("--grpc-keepalive-time=2147483647", "limits", Limits(keepalive_time_s=float("inf"))),
    ("--grpc-keepalive-timeout=7000", "limits", Limits(keepalive_timeout_s=7)),
    ("--grpc-max-connection-age=60000", "limits", Limits(max_age_s=60)),
    ("--grpc-max-connection-age-grace=60000", "limits", Limits(max_age_grace_s=60)),
    ("--log-verbose=1", "log_level", "debug"),
    ("--log-verbose=true --log-info=false", "log_level", "debug"),
    ("--log-verbose=0 --log-info=false", "log_level", "warning"),
    ("--log-info=0 --log-warning=0", "log_level", "error"),
    ("--log-format=ISO8601", "log_format", "ISO8601"),
    ("--backend-config=onnxruntime,intra_op_thread_count=2", "ort_intra_threads", 2),
    ("--backend-config=onnxruntime,inter_op_thread_count=2", "ort_inter_threads", 2),
]

#: Flags that ask for what is done anyway.
HARMLESS: Final = [
    "--allow-grpc=true",
    "--allow-http=true",
    "--allow-metrics=true",
    "--allow-gpu-metrics=1",
    "--grpc-infer-response-compression-level=none",
    "--grpc-use-ssl=false",
    "--log-file=",
    "--log-format=default",
    "--log-info=true",
    "--model-load-retry-count=0",
    "--rate-limit=OFF",
    "--reuse-grpc-port=false",
    "--strict-model-config=false",
    "--trace-config=level=OFF",
    "--trace-config=mode=opentelemetry",
]

#: Flags that have no effect, and what the one warning says of each.
WARNED: Final = [
    ("--disable-auto-complete-config", "--disable-auto-complete-config has no effect: configurations are always "),
    ("--strict-model-config=true", "write max_batch_size where you mean it"),
    ("--log-error=false", "errors are always logged"),
    ("--log-file=x", "write 2> FILE"),
    ("--model-namespacing=true", "unique over all repositories"),
    ("--trace-file=x", "see tracing.md"),
    ("--trace-config=level=TIMESTAMPS --trace-config=triton,file=x", "no trace file is written"),
    (
        "--trace-config=mode=opentelemetry --trace-config=opentelemetry,resource=a=b",
        "--trace-config has no effect for opentelemetry,resource",
    ),
    ("--backend-config=default-max-batch-size=8", "no effect for default-max-batch-size: write it in the models'"),
    (
        "--backend-config=onnxruntime,intra_op_thread_count=0 --backend-config=python,a=hidden",
        "no effect for onnxruntime,intra_op_thread_count, python,a:",
    ),
    ("--grpc-server-cert=c", "connections are not encrypted"),
    ("--sagemaker-port=1", "SageMaker"),
]

#: Flags that cannot be used, and the line about each.
REFUSED: Final = [
    ("--allow-grpc=false", "--allow-grpc: gRPC is always served; leave the flag out; --grpc-address=127.0.0.1 keeps "),
    (
        "--model-config-name=x",
        "--model-config-name: files in configs/ are not read, only config.pbtxt and config.yaml; ",
    ),
    ("--allow-sagemaker=true", "--allow-sagemaker: the endpoints of SageMaker are not offered; leave the flag out"),
    ("--grpc-use-ssl=true", "--grpc-use-ssl: needs --grpc-server-cert and --grpc-server-key too; "),
    (
        "--grpc-use-ssl-mutual=1 --grpc-server-cert=c --grpc-server-key=k",
        "--grpc-use-ssl-mutual: needs --grpc-root-cert too; add --grpc-root-cert",
    ),
    ("--grpc-port=x", "argument --grpc-port: 'x' is not a whole number from 0 to 65535; "),
    ("--grpc-address=", "--grpc-address: is not an address (got ':8001'); "),
    ("--grpc-keepalive-time=-1", "argument --grpc-keepalive-time: '-1' is not a whole number"),
    ("--allow-http=maybe", "argument --allow-http: 'maybe' is neither true nor false; "),
    ("--log-verbose=x", "argument --log-verbose: 'x' is neither true nor false; "),
    (
        "--cache-config=redis,password=hidden",
        "--cache-config: unable to find 'libtritoncache_redis.so' for cache. There is only 'local'; write local,size=",
    ),
    (
        "--cache-config=local,size=99999 --cache-config=redis,host=a",
        "--cache-config: found multiple cache configurations, but only a single cache is currently supported",
    ),
    (
        "--cache-config=local",
        "--cache-config: --cache-config option format is <cache name>,<setting>=<value>. Got local",
    ),
    ("--cache-config=,size=5", "--cache-config: No cache specified. --cache-config option format is"),
    (
        "--cache-config=local,a=hidden",
        "--cache-config: Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
    ),
    ("--cache-config=local,size=many", "argument --cache-config: 'many' is not a whole number from 0 up"),
    ("--response-cache-byte-size=500", "argument --response-cache-byte-size: 500 bytes hold no answer"),
    ("--rate-limit=x", "argument --rate-limit: invalid choice: 'x'"),
    ("--rate-limit-resource=R1", "argument --rate-limit-resource: 'R1' is not NAME:COUNT or NAME:COUNT:DEVICE"),
    ("--rate-limit-resource=R1:1:2:3", "argument --rate-limit-resource: 'R1:1:2:3' is not NAME:COUNT"),
    ("--rate-limit-resource=R1:-1", "argument --rate-limit-resource: '-1' is not a whole number from 0 to"),
    ("--rate-limit-resource=R1:1:gpu", "argument --rate-limit-resource: 'gpu' is not a whole number"),
    ("--exit-timeout-secs=x", "argument --exit-timeout-secs: 'x' is not a number of seconds"),
    ("--repository-poll-secs=0", "argument --repository-poll-secs: '0' is not a number of seconds from 0.1 to 86400"),
    ("--backend-config=onnxruntime,intra_op_thread_count=x", "argument --backend-config: 'x' is not a whole number"),
    ("--trace-config=rate", "--trace-config: is not [MODE,]SETTING=VALUE; "),
    ("--grpc-port=1 --grpc-addr=a:1", "--grpc-port: is the same as --grpc-addr; leave one of them out"),
    ("--id=a --server-id=b", "--id: is the same as --server-id; leave one of them out"),
    (
        "--grpc-keepalive-time=1000 --limit=keepalive_time=1",
        "--grpc-keepalive-time: is the same as --limit keepalive_time; ",
    ),
]


def parse(flags: str = "", *, command: tuple[str, ...] = ("serve",)) -> Options:
    return parse_options([*command, STORE, *flags.split()])


def changed(options: Options, since: Options) -> dict[str, Any]:
    return {
        name: getattr(options, name) for name in Options.__slots__ if getattr(options, name) != getattr(since, name)
    }


def errors(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 2
    return [line.removeprefix("toutates: error: ") for line in capsys.readouterr().err.splitlines()]


def test_the_store_is_the_repository() -> None:
    assert parse() == Options((Path("/mnt/models"),))


@pytest.mark.parametrize(("flags", "name", "value"), EFFECTS, ids=[flags for flags, _, _ in EFFECTS])
def test_a_flag_changes_its_option_and_no_other(flags: str, name: str, value: object) -> None:
    assert changed(parse(flags), parse()) == {name: value}
    # "--flag value" is the same as "--flag=value", and the command need not be named.
    assert parse(flags.replace("=", " ", flags.count("--")) if "," not in flags else flags, command=()) == parse(flags)


@pytest.mark.parametrize(
    ("flags", "client_ca"),
    [
        ("--grpc-use-ssl=true --grpc-server-cert=c --grpc-server-key=k", None),
        ("--grpc-use-ssl-mutual=true --grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r", Path("r")),
        ("--grpc-use-ssl-mutual=false --grpc-server-cert=c --grpc-server-key=k", None),
    ],
)
def test_tritons_certificate_is_for_grpc_alone_and_a_warning_names_what_is_in_clear(
    flags: str, client_ca: Path | None
) -> None:
    options = parse(flags)
    assert changed(options, parse()).keys() == {"tls", "warnings"}
    assert options.tls == TlsFiles(Path("c"), Path("k"), client_ca, for_rest=False)
    [warning] = options.warnings
    assert warning.startswith(
        "--grpc-use-ssl is for gRPC alone, as with Triton: --http-addr 0.0.0.0:8000 speaks no TLS; --tls-cert and "
    )
    assert parse(f"{flags} --allow-http=false").warnings == ()
    [warning] = parse(f"{flags} --torchserve-api").warnings
    assert "--http-addr 0.0.0.0:8000 and --torchserve-management-addr 127.0.0.1:8081 speak no TLS" in warning


@pytest.mark.parametrize(
    ("flags", "ports"),
    [
        ("", "--grpc-addr 0.0.0.0:8001, --http-addr 0.0.0.0:8000 and --metrics-addr 0.0.0.0:9090"),
        ("--tls-cert=c --tls-key=k", "--metrics-addr 0.0.0.0:9090"),
        ("--tls-cert=c --tls-key=k --metrics-tls=true", ""),
        ("--grpc-use-ssl=1 --grpc-server-cert=c --grpc-server-key=k --allow-metrics=0", "--http-addr 0.0.0.0:8000"),
        ("--grpc-addr=127.0.0.1:1 --http-addr=[::1]:2 --metrics-addr=localhost:3", ""),
    ],
)
def test_keys_and_tokens_in_clear_are_a_warning_that_names_the_ports(flags: str, ports: str) -> None:
    warnings = [one for one in parse(f"{flags} --access-file=a").warnings if one.startswith("--access-file")]
    assert bool(warnings) is bool(ports)
    for warning in warnings:
        assert warning.startswith(f"--access-file: keys and tokens come in clear to {ports}, unless a proxy before ")


@pytest.mark.parametrize("flags", HARMLESS)
def test_a_flag_for_what_is_done_anyway_changes_and_says_nothing(flags: str) -> None:
    assert parse(flags) == parse()


@pytest.mark.parametrize(("flags", "words"), WARNED, ids=[flags for flags, _ in WARNED])
def test_a_flag_without_effect_is_one_warning(flags: str, words: str) -> None:
    options = parse(flags)
    [warning] = options.warnings
    assert words in warning
    assert "hidden" not in warning
    assert "`" not in warning
    assert set(changed(options, parse())) == {"warnings"}


@pytest.mark.parametrize(("flags", "line"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_a_flag_that_cannot_be_used_is_one_line(flags: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    [said] = errors(capsys, "serve", STORE, *flags.split())
    assert said.startswith(line)
    assert "hidden" not in said


def test_everything_that_is_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--grpc-port=x --allow-grpc=false --exit-timeout-secs=y --processing-cores=z --trace-config=q"
    said = errors(capsys, "tritonserver", STORE, *flags.split())
    assert sorted(re.findall(r"--[a-z-]+", line)[0] for line in said) == sorted(re.findall(r"--[a-z-]+", flags))


def test_stores_and_repositories_are_served_together() -> None:
    options = parse("--model-repository a --model-store=b")
    assert options.model_repositories == (Path("a"), Path("/mnt/models"), Path("b"))


def test_traces_go_to_the_collector_of_opentelemetry() -> None:
    config = [f"--trace-config={text}" for text in ("mode=opentelemetry", "rate=3", "count=9", "level=TENSORS")]
    tracing = parse(" ".join([*config, "--trace-config opentelemetry,url=http://c:4318/v1/traces"])).tracing
    assert tracing.endpoint == "http://c:4318/v1/traces"
    assert tracing.defaults == TraceSetting(("TENSORS",), 3, 9)
    [warning] = parse(" ".join(config)).tracing.warnings
    assert "there is no collector to send traces to" in warning


def test_arguments_of_kserve_are_taken_as_they_are() -> None:
    options = parse_options(KSERVE)
    assert changed(options, parse()) == {
        "grpc_addr": Address("0.0.0.0", 9000),
        "http_addr": Address("0.0.0.0", 8080),
        "metrics_addr": Address("0.0.0.0", 8002),
    }


@pytest.mark.parametrize(
    ("command", "flags", "address"),
    [
        ("serve", "", Address("0.0.0.0", 9090)),
        ("tritonserver", "", Address("0.0.0.0", 8002)),
        ("tritonserver", "--http-address=127.0.0.1", Address("127.0.0.1", 8002)),
        ("tritonserver", "--metrics-port=1", Address("0.0.0.0", 1)),
        ("tritonserver", "--metrics-addr=localhost:1", Address("localhost", 1)),
        ("tritonserver", "--allow-metrics=false", None),
    ],
)
def test_tritonserver_has_metrics_where_triton_has_them(command: str, flags: str, address: Address | None) -> None:
    assert parse(flags, command=(command,)).metrics_addr == address


def test_a_flag_goes_before_a_variable_a_variable_before_the_file_and_the_file_before_the_commands_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("grpc-addr: file:1\nserver-id: file\nmetrics-addr: file:1\nmodel-repository: elsewhere\n")
    monkeypatch.setenv("TOUTATES_GRPC_ADDR", "variable:1")
    options = parse(f"--config={file} --id=flag", command=("tritonserver",))
    assert options.model_repositories == (Path("/mnt/models"),)
    assert (options.grpc_addr, options.server_id) == (Address("variable", 1), "flag")
    assert options.metrics_addr == Address("file", 1)
    assert parse(f"--config={file} --grpc-port=9").grpc_addr == Address("0.0.0.0", 9)


def test_config_show_tells_which_flags_a_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*KSERVE, "--grpc-address=::1", "--grpc-keepalive-time=7000", "--http-thread-count=8"]
    assert main(["config", "show", *arguments]) == 0
    said = capsys.readouterr()
    rows = {line.split()[0]: re.split(r" {2,}", line)[1:] for line in said.out.splitlines()}
    assert rows["model-repository"] == ["/mnt/models", "flag --model-store"]
    assert rows["grpc-addr"] == ["[::1]:9000", "flag --grpc-address --grpc-port"]
    assert rows["limit.keepalive_time"] == ["7.0", "flag --grpc-keepalive-time"]
    assert rows["metrics-addr"] == ["0.0.0.0:8002", "default of tritonserver"]
    [warning] = said.err.splitlines()
    assert warning.startswith("toutates: warning: --http-thread-count has no effect: ")


def test_a_misspelt_flag_of_triton_is_told_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    [said] = errors(capsys, "tritonserver", "--model_store=/m")
    assert "did you mean '--model-store'?" in said


def test_the_console_script_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = project["project"]["scripts"]["tritonserver"].partition(":")
    monkeypatch.setattr(sys, "argv", ["tritonserver", "--allow-grpc=false"])
    assert getattr(importlib.import_module(module), name)() == 2
    assert "--allow-grpc: gRPC is always served" in capsys.readouterr().err


def test_every_row_leads_somewhere() -> None:
    settings = {*FLAGS, *(LIMIT + name for name in LIMITS)}
    for flag in TRITON_FLAGS.values():
        verdict, note = effect(flag, FLAGS)
        assert note, flag.name
        assert not flag.setting or flag.setting in settings, flag.name
        assert bool(flag.remedy) == (flag.verdict is Verdict.REFUSED), flag.name
        assert (verdict is Verdict.SAME) == (flag.name in FLAGS), flag.name


@pytest.mark.parametrize("name", [name for name in TRITON_FLAGS if name not in FLAGS])
def test_no_value_of_a_flag_is_a_traceback(name: str) -> None:
    for text in ("", "x", "0", "1", "true", "a,b=c", "9" * 5_000):
        translation = Translation({name: [text]})
        assert all(isinstance(problem, ConfigurationError) for problem in translation.problems)
