"""Settings come from flags, variables, a file and defaults, and everything that is wrong is said at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.command.test_cli import EFFECTS
from toutates.command.flags import ALIASES, FLAGS, LIMITS, variable
from toutates.command.main import main, parse_options
from toutates.h2grpc import Limits
from toutates.repositories.specification import BucketSpecification
from toutates.server.options import Options
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError

#: Set somewhere on machines where this server is built, tested or deployed, by these names.
OTHERS: Final = {
    "TOUTATES_SERVER_PYTHON": "python3.14t",
    "TOUTATES_PAGE_HOURS": "3",
    "TOUTATES_MODELS": "/models",
    "TOUTATES_PORT": "tcp://10.0.0.1:8001",
    "TOUTATES_SERVICE_HOST": "10.0.0.1",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.yaml"


def read(file: Path, text: str, *flags: str) -> Options:
    file.write_text(text)
    return parse_options(["--config", str(file), *flags])


def lines(file: Path, text: str, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    """What is said of a file that cannot be used, without what every line begins with."""
    file.write_text(text)
    assert main(["--config", str(file), *flags]) == 2
    said = capsys.readouterr()
    assert not said.out
    found = said.err.splitlines()
    assert all(line.startswith("toutates: error: ") for line in found)
    return [line.removeprefix("toutates: error: ").replace(f"{file}", "FILE") for line in found]


@pytest.mark.parametrize(("flag", "value", "name", "expected"), EFFECTS, ids=[effect[0] for effect in EFFECTS])
def test_a_variable_and_a_key_do_what_the_flag_does(
    flag: str, value: str, name: str, expected: object, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = [] if flag == "--model-repository" else ["--model-repository", "models"]
    by_flag = parse_options([*needed, flag, value])
    assert read(file, f"{flag[2:]}: {json.dumps(value)}", *needed) == by_flag
    monkeypatch.setenv(variable(flag[2:]), value)
    assert parse_options(needed) == by_flag
    if flag != "--model-repository":
        assert getattr(by_flag, name) == expected


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_and_its_old_flag_are_the_same(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, needed = LIMITS[name].old, ["--model-repository", "models"]
    by_flag = parse_options([*needed, f"--{old}", "16385"])
    assert by_flag != parse_options(needed)
    assert parse_options([*needed, "--limit", f"{name}=16385"]) == by_flag
    assert read(file, f"limit: {{{name}: 16385}}", *needed) == by_flag
    monkeypatch.setenv("TOUTATES_LIMIT", f"{name}=16385")
    assert parse_options(needed) == by_flag


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "model-repository: models\nserver-id: file\nshutdown-grace: 5\n"
    assert read(file, text).server_id == "file"
    monkeypatch.setenv("TOUTATES_SERVER_ID", "variable")
    assert read(file, text).server_id == "variable"
    options = read(file, text, "--server-id", "flag")
    assert (options.server_id, options.shutdown_grace_s, options.ort_intra_threads) == ("flag", 5.0, 1)


def test_what_may_be_repeated_is_replaced_as_a_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model-repository:\n  - a\n  - s3://bucket/c\n"
    assert read(file, text).model_repositories == (Path("a"), BucketSpecification("s3", "bucket", "c/"))
    monkeypatch.setenv("TOUTATES_MODEL_REPOSITORY", "one, two\nthree\n")
    assert read(file, text).model_repositories == (Path("one, two"), Path("three"))
    assert read(file, text, "--model-repository", "x").model_repositories == (Path("x"),)


def test_each_limit_is_a_setting_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model-repository: m\nlimit:\n  frame_size: 16384\n  message_size: 1\n  streams: 1\n"
    monkeypatch.setenv("TOUTATES_LIMIT", "message_size=2\nstreams=2")
    options = read(file, text, "--limit", "streams=3", "--limit=streams=4")
    assert options.limits == Limits(max_frame_size=16_384, max_message_size=2, max_concurrent_streams=4)


def test_executor_cores_is_both_of_what_it_was_but_where_these_are_given(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*flags: str) -> tuple[int, int]:
        options = read(file, "model-repository: m\n", *flags)
        return options.parallel_loads, options.executor_cpus

    assert parsed() == (1, 1)
    assert parsed("--executor-cores", "3") == (3, 3)
    assert parsed("--executor-cores", "3", "--executor-cpus", "2") == (3, 2)
    assert parsed("--model-load-thread-count=4", "--executor-cores=3") == (4, 3)
    monkeypatch.setenv("TOUTATES_EXECUTOR_CPUS", "7")
    assert parsed("--executor-cores", "3") == (3, 3)
    monkeypatch.setenv("TOUTATES_EXECUTOR_CORES", "6")
    assert parsed("--model-load-thread-count", "5") == (5, 7)


def test_variables_of_other_names_and_empty_ones_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = parse_options(["--model-repository", "models"])
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOUTATES_GRPC_ADDR", "")
    assert parse_options(["--model-repository", "models"]) == plain
    assert not set(OTHERS) & {variable(name) for name in (*FLAGS, *ALIASES)}


def test_values_of_a_file_are_written_as_on_the_command_line(file: Path) -> None:
    options = read(
        file,
        "model-repository: /models\nmetrics-addr: off\ntrace-level: OFF\nserver-id: 007\nload-models: a, b\n"
        "debug-endpoints: true\ncpu-pinning: all\nhandshake-timeout: 1.50\n",
    )
    assert options.metrics_addr is None
    assert options.tracing.defaults.levels == ()
    assert (options.server_id, options.load_models) == ("007", ("a", "b"))
    assert options.debug_endpoints
    assert options.cpu_pinning == ()
    assert options.limits == Limits(handshake_timeout_s=1.5)


def test_everything_that_is_wrong_with_a_file_is_said_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """\
model-repository: [/m, [nested]]
grpc-addr: 8001
processing-cores: two
server-id:
limit:
  frame-size: 1
  max-message-size: 3
  zzz: 4
  streams: 0
  streams: 1
processing-cores: 3
stall-timeout: 1
tls-cert: {a: b}
grcp-addr: x
qqq: x
config: other.yaml
grpc-restricted-protocol: [health:key=hidden, {health: hidden}]
load-model: "a\\0"
"""
    found = lines(file, text, capsys)
    expected = [
        "FILE: model-repository: line 1: is not a text or a list of texts; write a text or a list of texts",
        "FILE: grpc-addr: is not an address (got '8001'); write HOST:PORT",
        "FILE: processing-cores: 'two' is not a whole number from 1 up; correct it there",
        "FILE: server-id: line 4: is not one plain value; write one plain value",
        "FILE: limit.frame-size: line 6: unknown key; did you mean 'frame_size'?",
        "FILE: limit.max-message-size: line 7: unknown key; did you mean 'message_size'?",
        "FILE: limit.zzz: line 8: unknown key; choose from connections, streams",
        "FILE: limit.streams: line 10: is given twice, first in line 9; leave one of them",
        "FILE: limit.streams: '0' is not a whole number from 1 up; correct it there",
        "FILE: processing-cores: line 11: is given twice, first in line 3; leave one of them",
        "FILE: tls-cert: line 13: is not one plain value; write one plain value",
        "FILE: grcp-addr: line 14: unknown key; did you mean 'grpc-addr'?",
        "FILE: qqq: line 15: unknown key; see 'toutates --help' for the names, without their dashes",
        "FILE: config: line 16: unknown key; ",
        "FILE: grpc-restricted-protocol: line 17: is not a text or a list of texts; ",
        "FILE: load-model: line 18: is not a text or a list of texts; ",
    ]
    for start in expected:
        assert [line for line in found if line.startswith(start)], start
    assert len(found) == len(expected)
    assert "hid" not in "".join(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "FILE: is empty; write the settings"),
        ("- health:key=hidden", "FILE: is not a mapping; write `key: value` lines"),
        ("a: [", "FILE: line 1, column 5: "),
        ("? [x]\n: 1", "FILE: ?: line 1: unknown key; "),
        ("limit: 5", "FILE: limit: is not NAME=VALUE (got '5'); choose from connections, "),
        ("limit: {frame_size: {a: 1}}", "FILE: limit.frame_size: line 1: is not one plain value; "),
        ("limit: {frame_size: 1}\nmodel-repository: m", "FILE: limit.frame_size: is 1, must lie in 16384..16777215"),
        ("model-repository: m\ntls-cert: c", "FILE: tls-cert: needs --tls-key too (got 'c'); add --tls-key FILE"),
        (
            "model-repository: ''",
            "FILE: model-repository: is empty; name a directory, s3://BUCKET/PREFIX",
        ),
        ("grpc-restricted-protocol: inference:hidden\nmodel-repository: m", "FILE: grpc-restricted-protocol: is not"),
        (
            "max-frame-size: 20000\nlimit: {frame_size: 20000}",
            "FILE: max-frame-size: is the same as limit.frame_size; leave one of them out",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    text: str, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = lines(file, text, capsys)
    assert line.startswith(said)
    assert "hid" not in line


def test_a_file_that_is_not_there_is_named_by_who_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(tmp_path / "no")]) == 2
    assert "error: --config: there is no such file (got '" in capsys.readouterr().err
    monkeypatch.setenv("TOUTATES_CONFIG", str(tmp_path))
    assert main([]) == 2
    assert f"error: {tmp_path}: is not a regular file" in capsys.readouterr().err


def test_what_is_wrong_with_variables_and_flags_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOUTATES_PROCESSING_CORES", "two")
    monkeypatch.setenv("TOUTATES_LIMIT", "frame_siz=1\nstreams=x")
    assert main(["--grpc-addr", "x", "--limit", "resets=0", "--limit", "zzz"]) == 2
    found = capsys.readouterr().err.replace("toutates: error: ", "").splitlines()
    assert [re.split("[;:] ", line)[0] for line in found] == [
        "TOUTATES_LIMIT",
        "--limit",
        "TOUTATES_PROCESSING_CORES",
        "--grpc-addr",
        "TOUTATES_LIMIT streams",
        "argument --limit resets",
    ]
    assert found[0] == "TOUTATES_LIMIT: there is no such limit (got 'frame_siz'); did you mean 'frame_size'?"
    assert found[2] == "TOUTATES_PROCESSING_CORES: 'two' is not a whole number from 1 up; correct or unset it"


def test_what_does_not_go_together_is_named_where_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOUTATES_S3_PREFIX", "x")
    with pytest.raises(ConfigurationError, match=r"^TOUTATES_S3_PREFIX: is of use only with --s3-bucket"):
        parse_options(["--model-repository", "models"])


@pytest.mark.parametrize("source", ["variable", "file"])
def test_mistakes_are_objects_wherever_the_log_is_told_to_be_json(
    source: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("log-format: json\n" if source == "file" else "log-format: text\n")
    if source == "variable":
        monkeypatch.setenv("TOUTATES_LOG_FORMAT", "json")
    assert main(["--config", str(file), "--nonsense"]) == 2
    assert json.loads(capsys.readouterr().err)["event"].startswith("unrecognized arguments: --nonsense")


def shown(capsys: pytest.CaptureFixture[str], *flags: str, code: int = 0) -> dict[str, tuple[str, str]]:
    """By setting, its value and where it comes from."""
    assert main(["config", "show", *flags]) == code
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["SETTING", "VALUE", "FROM"]
    return {row[0]: (row[1], row[2]) for row in (re.split(r" {2,}", line) for line in rest)}


def test_every_setting_is_shown_with_where_it_comes_from(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("server-id: mine\nlimit: {streams: 5}\nload-models: a,b\n")
    monkeypatch.setenv("TOUTATES_CONFIG", str(file))
    monkeypatch.setenv("TOUTATES_METRICS_ADDR", "off")
    monkeypatch.setenv("TOUTATES_LOAD_MODELS", "c")
    found = shown(capsys, "--model-repository", "a", "--model-repository=b", "--executor-cores", "2")
    assert set(found) == {name for name in FLAGS if name != "limit"} | {f"limit.{name}" for name in LIMITS}
    assert found["model-repository"] == ("a, b", "flag --model-repository")
    assert found["executor-cpus"] == ("2", "flag --executor-cores")
    assert found["metrics-addr"] == ("off", "environment TOUTATES_METRICS_ADDR")
    assert found["load-models"] == ("c", "environment TOUTATES_LOAD_MODELS")
    assert found["server-id"] == ("mine", f"file {file}: server-id")
    assert found["limit.streams"] == ("5", f"file {file}: limit.streams")
    assert found["grpc-addr"] == ("0.0.0.0:8001", "default")
    assert found["config"] == (str(file), "environment TOUTATES_CONFIG")


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TOUTATES_GRPC_RESTRICTED_PROTOCOL", "health:key=hidden\ntrace:other=hid den")
    found = shown(capsys, "--model-repository", "m", "--s3-endpoint", "http://me:hidden@s3", code=2)
    assert found["grpc-restricted-protocol"][0] == "health:key=***, trace:other=***"
    assert found["s3-endpoint"][0] == "http://***@s3"


def test_settings_that_cannot_be_used_are_shown_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 2
    said = capsys.readouterr()
    assert "grpc-addr" in said.out
    assert said.err.startswith("toutates: error: a model repository is required")


def test_keys_for_the_apis_for_text_leave_other_ways_open_and_say_so() -> None:
    assert parse_options(["--model-repository", "m"]).api_key_file is None
    options = parse_options(["--model-repository", "m", "--api-key-file", "keys"])
    assert options.api_key_file == Path("keys")
    [warning] = options.warnings
    assert "the v2 protocol runs the same models without a key" in warning
    closed = ["--model-repository", "m", "--api-key-file", "keys", "--grpc-restricted-protocol", "inference:k=v"]
    assert not parse_options(closed).warnings


def test_the_proxys_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_PORT", "8080")
    monkeypatch.setenv("MODEL_NAME", "e5")
    options = parse_options(["--model-repository", "m"])
    assert options.text.proxy.model == "e5"
    assert options.http_addr == Address("0.0.0.0", 8000)
    [warning] = options.warnings
    assert "SERVER_PORT" in warning
    assert "--http-addr" in warning
    assert not parse_options(["--model-repository", "m", "--http-addr", "off"]).warnings


@pytest.mark.parametrize(("name", "value"), [("MODEL_VERSION", "v1.2"), ("EMBEDDING_SIZE", "small")])
def test_variables_that_are_anybodys_do_not_end_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not parse_options(["--model-repository", "m"]).warnings
