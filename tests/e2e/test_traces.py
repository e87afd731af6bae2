"""Traces of a server, from real clients to a collector on a real socket."""

from __future__ import annotations

import random
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.held import Runs
from tests.e2e.process import PYTHON, ServerProcess, environment, running
from tests.e2e.support import (
    INFER,
    SERVICE,
    Tensor,
    call,
    channel_to,
    grpc,
    infer,
    pb,
    refused,
    request,
    triton,
)
from tests.e2e.wire import client_of, framed
from tests.infer.tracing.collector import Collector, attributes_of, children_of, collecting, wait_until
from tests.ports import dead_port
from tests.waiting import DEADLINES_S

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e47{:02x}"
PARENT: Final = "00f067aa0ba902b7"
SETTING: Final = SERVICE + "TraceSetting"
UNKNOWN: Final = "Request for unknown model : nobody"
#: What TraceSetting tells of a server without a trace flag.
DEFAULTS: Final[Mapping[str, Sequence[str]]] = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["opentelemetry"],
}


def mlp(rows: int = 1, **fields: Any) -> Any:
    return request("mlp", Tensor.of("INPUT", "FP32", np.zeros((rows, 64))), **fields)


def parent(number: int, flags: str = "01") -> tuple[str, str]:
    """The metadata of a caller's trace."""
    return ("traceparent", f"00-{TRACE.format(number)}-{PARENT}-{flags}")


@contextmanager
def tracing(
    repository: Path,
    folder: Path,
    *flags: str,
    models: str = "mlp,slow,versions",
    module: Sequence[str] = ("toutates",),
) -> Iterator[tuple[ServerProcess, Collector]]:
    """A server that sends its traces to a collector, both for the block; ``module`` as ``running`` has it."""
    with (
        collecting() as collector,
        running(
            repository,
            folder,
            ["--load-models", models, "--trace-endpoint", collector.url, *flags],
            module=module,
        ) as server,
    ):
        yield server, collector
        if server.process.poll() is None:
            assert server.stop() == 0
        assert "Traceback" not in server.log
        assert_ran_without_gil(server)


def settings_of(client: Any, model: str = "", **changes: Any) -> dict[str, list[str]]:
    """What TraceSetting answers; tritonclient takes None for a setting that is to be taken back."""
    answer = client.update_trace_settings(model_name=model, settings=changes)
    return {key: list(value.value) for key, value in answer.settings.items()}


# --- spans


def test_caller_s_trace_gets_the_server_s_spans(repository: Path, tmp_path: Path) -> None:
    with tracing(repository, tmp_path, "--trace-rate", "0") as (server, collector):
        before_ns = time.time_ns()
        with triton.InferenceServerClient(server.address) as client:
            tensor = triton.InferInput("INPUT", [3, 1], "INT64")
            tensor.set_data_from_numpy(np.full((3, 1), 20, np.int64))
            headers = dict([parent(1)], tracestate="rojo=1,congo=2")
            client.infer("slow", [tensor], request_id="r-1", headers=headers)
            client.infer("slow", [tensor], request_id="r-2")
            client.infer("slow", [tensor], request_id="r-3", headers=dict([parent(2, "00")]))
            client.infer("slow", [tensor], request_id="r-4", headers=dict([parent(3, "03")]))
        after_ns = time.time_ns()
        wait_until(lambda: len(collector.servers()) == 2, "no spans came")
        assert server.stop() == 0
    first, second = sorted(collector.servers(), key=lambda span: span.start_time_unix_nano)
    assert attributes_of(first)["triton.request_id"] == "r-1"
    assert attributes_of(second)["triton.request_id"] == "r-4"
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE.format(1), PARENT)
    assert first.trace_state == "rojo=1,congo=2"
    attributes = attributes_of(first)
    assert attributes.pop("client.port") > 0
    assert attributes == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
        "triton.model_name": "slow",
        "triton.model_version": "1",
        "triton.request_id": "r-1",
        "toutates.request.rows": 3,
        # Of batches of two rows, the last.
        "toutates.batch.rows": 1,
        "client.address": "127.0.0.1",
    }
    steps = children_of(collector, second)
    assert list(steps) == ["batch assembly", "queue", "execution", "response"]
    times = [second.start_time_unix_nano]
    for step in steps.values():
        assert step.trace_id == second.trace_id
        times += (step.start_time_unix_nano, step.end_time_unix_nano)
    times.append(second.end_time_unix_nano)
    assert times == sorted(times)
    assert before_ns < times[0] < times[-1] < after_ns
    execution = steps["execution"]
    assert execution.end_time_unix_nano - execution.start_time_unix_nano > 100_000


def test_every_request_of_a_connection_is_found_by_its_own_traceparent(repository: Path, tmp_path: Path) -> None:
    """As header blocks are remembered, and a client's differ from call to call."""
    with tracing(repository, tmp_path, "--trace-rate", "0") as (server, collector):
        with channel_to(server.address) as channel:
            for _ in range(3):
                for number in range(16):
                    infer(channel, mlp(), metadata=[parent(number, "01" if number % 2 else "00")])
                    infer(channel, mlp())
        assert server.stop() == 0
        traced = sorted(span.trace_id.hex() for span in collector.servers())
        assert traced == sorted(TRACE.format(number) for number in range(1, 16, 2) for _ in range(3))


def test_malformed_traceparent_is_ignored_and_the_rate_decides(repository: Path, tmp_path: Path) -> None:
    good = parent(1)[1]
    malformed = [good.upper(), good + "-more", "ff" + good[2:], "x", good[:-3], "00" + "-0" * 40]
    with tracing(repository, tmp_path, "--trace-rate", "1") as (server, collector):
        with channel_to(server.address) as channel:
            for value in malformed:
                infer(channel, mlp(), metadata=[("traceparent", value), ("tracestate", "a=1")])
            infer(channel, mlp(), metadata=[parent(1, "00")])
        # Two of them, which grpcio does not send.
        with client_of(server.port) as client:
            stream = client.start(INFER, [parent(1), parent(2)])
            client.send(stream, framed(mlp().SerializeToString()))
            assert client.answer(stream).status[0] == "0"
        assert server.stop() == 0
        spans = collector.servers()
        assert len(spans) == len(malformed) + 1
        assert {span.parent_span_id for span in spans} == {b""}
        assert {span.trace_state for span in spans} == {""}
        assert len({span.trace_id for span in spans}) == len(spans)


def test_requests_that_fail_are_traced_with_their_status(repository: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs")
    module = ("tests.e2e.held", str(runs.path), "slow")
    with tracing(repository, tmp_path, module=module) as (server, collector):
        with channel_to(server.address) as channel:
            text = refused(channel, request("nobody"), metadata=[parent(1)])[1]
            refused(channel, mlp(1, model_version="9"), metadata=[parent(2)])
            slow = request("slow", Tensor.of("INPUT", "INT64", [[1]])).SerializeToString()
            for number, deadline_s in enumerate(DEADLINES_S, start=3):
                with runs.held():
                    call_ = channel.unary_unary(INFER).future(slow, metadata=[parent(number)], timeout=deadline_s)
                    wait_until(lambda: runs.begun > 0 or bool(call_.done()), "nothing happened")  # noqa: B023
                    passed_s = (
                        time.monotonic() + 1.1 * deadline_s
                    )  # by the server's clock too, and rounded as gRPC does
                    assert call_.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    wait_until(lambda: time.monotonic() > passed_s, "the clock stands still")  # noqa: B023
                if runs.begun:
                    break
        wait_until(lambda: len(collector.servers()) >= number, "no spans came")
        assert server.stop() == 0
        spans = {span.trace_id.hex(): span for span in collector.servers()}
    unknown, late = spans[TRACE.format(1)], spans[TRACE.format(number)]
    assert attributes_of(unknown)["rpc.grpc.status_code"] == 5
    assert attributes_of(unknown)["error.message"] == text
    assert unknown.status.code == 0  # the caller's mistake, not the server's
    assert not children_of(collector, unknown)
    assert attributes_of(late)["rpc.grpc.status_code"] == 4
    assert late.status.code == 2


# --- the rate


def send(address: str, message: Any, count: int, metadata: Sequence[tuple[str, str]] = ()) -> None:
    """So many requests, up to 200 at once."""
    send_all(address, [message] * count, metadata)


def send_all(address: str, messages: Iterable[Any], metadata: Sequence[tuple[str, str]] = ()) -> None:
    """All of these requests, up to 200 at once."""
    with channel_to(address) as channel:
        method = channel.unary_unary(INFER)
        under_way: list[Any] = []
        for message in messages:
            under_way.append(method.future(message.SerializeToString(), metadata=metadata, timeout=120))
            if len(under_way) == 200:
                for future in under_way:
                    future.result()
                under_way.clear()
        for future in under_way:
            future.result()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_of_so_many_requests_is_traced(repository: Path, tmp_path: Path, workers: str) -> None:
    with tracing(repository, tmp_path, "--trace-rate", "100", "--processing-cores", workers) as (server, collector):
        for _ in range(4):
            send(server.address, mlp(), 500)
        assert server.stop() == 0
        # Each worker's first one, and then every hundredth.
        assert 20 <= len(collector.servers()) <= 20 + int(workers)


def test_each_model_has_a_rate_of_its_own_and_the_count_ends_it(repository: Path, tmp_path: Path) -> None:
    with tracing(repository, tmp_path, "--trace-rate", "200") as (server, collector):
        with triton.InferenceServerClient(server.address) as client:
            settings_of(client, "mlp", trace_rate="10")
            settings_of(client, "versions", trace_rate="20", trace_count="5")
        versions = request("versions", Tensor.of("INPUT", "INT32", [[1, 2, 3, 4]]))
        shuffled = [mlp(), versions] * 1_000
        random.Random(1).shuffle(shuffled)
        send_all(server.address, shuffled)
        with triton.InferenceServerClient(server.address) as client:
            assert settings_of(client, "versions")["trace_count"] == ["0"]
            assert settings_of(client, "mlp")["trace_count"] == ["-1"]
        assert server.stop() == 0
        names = [attributes_of(span)["triton.model_name"] for span in collector.servers()]
        assert names.count("versions") == 5
        # One of ten requests is looked at, of either model.
        assert 70 <= names.count("mlp") <= 130


def test_more_traces_than_can_be_sent_cost_the_server_nothing_but_those(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the requests take here: what the collector holds is not given up, and then counted as lost.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    flags = ("--trace-rate", "1", "--metrics-addr", "127.0.0.1:0")
    with tracing(repository, tmp_path, *flags) as (server, collector):
        collector.answering.clear()
        send(server.address, mlp(), 6_000)
        collector.answering.set()
        wait_until(lambda: "were dropped" in server.log, "nothing was dropped")
        send(server.address, mlp(), 1)
        wait_until(lambda: len(collector.servers()) > 0, "nothing was sent")
        wait_until(lambda: sum(counted_of(server)) == 6_001, "the metrics lack some")
        sent, lost = counted_of(server)
        assert sent > 0
        assert lost > 0
        assert server.stop() == 0
        assert len(collector.servers()) == sent


def counted_of(server: ServerProcess) -> tuple[int, int]:
    """Requests whose spans were sent, and whose spans were lost, as the server's metrics say."""
    found = re.search(r"http://[^ ]+/metrics", server.log)
    assert found is not None
    with urllib.request.urlopen(found[0], timeout=120) as answer:
        text = answer.read().decode()
    counts = dict(re.findall(r"^toutates_traces_(sent|lost)_total (\d+)", text, re.MULTILINE))
    return int(counts["sent"]), int(counts["lost"])


# --- the collector's troubles


def test_collector_that_is_down_is_a_warning_and_no_more(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "mlp", "--trace-rate", "1", "--trace-endpoint"]
    with dead_port() as port, running(repository, tmp_path, [*flags, f"http://127.0.0.1:{port}"]) as server:
        send(server.address, mlp(), 500)
        wait_until(lambda: "could not be sent" in server.log, "no warning came")
        send(server.address, mlp(), 500)
        assert server.stop() == 0
        assert server.log.count("could not be sent") <= 2
        assert "were not sent before the end" in server.log
        assert "opentelemetry" not in server.log
        assert "Traceback" not in server.log


def test_collector_that_hangs_does_not_keep_the_server_from_ending(repository: Path, tmp_path: Path) -> None:
    with tracing(repository, tmp_path, "--trace-rate", "1") as (server, collector):
        collector.answering.clear()
        send(server.address, mlp(), 100)
        wait_until(lambda: collector.begun > 0, "nothing was sent")
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s > 4  # and not for ever, as the collector does
        assert "were not sent before the end" in server.log


def test_what_was_traced_last_is_sent_when_the_server_ends(repository: Path, tmp_path: Path) -> None:
    with tracing(repository, tmp_path, "--trace-rate", "1") as (server, collector):
        send(server.address, mlp(), 300)
        assert server.stop() == 0
        assert len(collector.servers()) == 300
    assert "not sent" not in server.log


# --- settings


def test_trace_settings_are_told_changed_and_taken_back(repository: Path, tmp_path: Path) -> None:
    flags = ("--trace-level", "OFF", "--trace-count", "70")
    with (
        tracing(repository, tmp_path, *flags) as (server, collector),
        triton.InferenceServerClient(server.address) as client,
    ):
        assert "trace" in client.get_server_metadata().extensions
        defaults = {**DEFAULTS, "trace_count": ["70"]}
        told = {key: list(value.value) for key, value in client.get_trace_settings().settings.items()}
        assert told == settings_of(client) == settings_of(client, "mlp") == defaults
        infer_all(server, 1)
        changed = settings_of(client, "mlp", trace_level=["TENSORS", "TIMESTAMPS"], trace_rate="1")
        assert changed == {**defaults, "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["1"]}
        assert settings_of(client) == defaults
        infer_all(server, 2)
        assert settings_of(client, trace_rate="3", log_frequency="4", trace_mode="triton", unknown="x") == {
            **defaults,
            "trace_rate": ["3"],
            "log_frequency": ["4"],
        }
        assert settings_of(client, "mlp")["log_frequency"] == ["4"]
        assert settings_of(client, "mlp")["trace_rate"] == ["1"]
        assert settings_of(client, "mlp", trace_level=None)["trace_level"] == ["OFF"]
        infer_all(server, 3)
        assert settings_of(client, "mlp", trace_rate=None)["trace_rate"] == ["3"]
        assert settings_of(client, trace_rate=None, log_frequency=None) == {**defaults, "trace_count": ["70"]}
        assert server.stop() == 0
        assert [span.trace_id.hex() for span in collector.servers()] == [TRACE.format(2)]


def infer_all(server: ServerProcess, number: int) -> None:
    """A request of each of two models, in a trace of the caller's."""
    with channel_to(server.address) as channel:
        infer(channel, mlp(), metadata=[parent(number)])
        infer(channel, request("versions", Tensor.of("INPUT", "INT32", [[1, 2, 3, 4]])), metadata=[parent(number)])


@pytest.mark.parametrize(
    ("settings", "status", "text"),
    [
        ({"trace_level": ["OFF", "TENSORS"]}, "INVALID_ARGUMENT", "Expect only one trace level 'OFF' is specified"),
        ({"trace_rate": ["x"]}, "INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: x"),
        (
            {"trace_rate": ["4294967296"]},
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
        ),
        ({"trace_rate": ["1", "2"]}, "INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'"),
        (
            {"trace_count": ["-2"]},
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
        ),
        ({"log_frequency": ["x"]}, "INVALID_ARGUMENT", "Unable to parse 'log_frequency', got: x"),
        (
            {"trace_file": ["/tmp/x"]},
            "UNIMPLEMENTED",
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_level": ["TIMESTAMPS"]},
            "INVALID_ARGUMENT",
            "Attempting to set invalid trace setting :there is no collector to send to; start the server with "
            "--trace-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_and_nothing_is_changed(
    server: ServerProcess, settings: dict[str, list[str]], status: str, text: str
) -> None:
    with channel_to(server.address) as channel:
        message = pb.TraceSettingRequest()
        for key, values in {"log_frequency": ["7"], **settings}.items():
            message.settings[key].value.extend(values)
        assert refused(channel, message, SETTING) == (status, text)
        answer = pb.TraceSettingResponse.FromString(call(channel, SETTING, b""))
    assert {key: list(value.value) for key, value in answer.settings.items()} == DEFAULTS


def test_settings_of_a_model_that_cannot_answer_are_refused(server: ServerProcess) -> None:
    with channel_to(server.address) as channel:
        for settings in ({}, {"trace_rate": pb.TraceSettingRequest.SettingValue(value=["1"])}):
            message = pb.TraceSettingRequest(model_name="nobody", settings=settings)
            assert refused(channel, message, SETTING) == ("INVALID_ARGUMENT", UNKNOWN)


def test_collector_of_the_environment_is_there_for_who_turns_traces_on(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with running(repository, tmp_path, ["--load-models", "mlp"]) as server:
            send(server.address, mlp(), 10, [parent(1)])
            with triton.InferenceServerClient(server.address) as client:
                assert settings_of(client, trace_level="TIMESTAMPS")["trace_level"] == ["TIMESTAMPS"]
            send(server.address, mlp(), 10, [parent(2)])
            assert server.stop() == 0
            assert "Traceback" not in server.log
        assert collector.paths[0] == "/v1/traces"
        assert [span.trace_id.hex() for span in collector.servers()] == [TRACE.format(2)] * 10


def test_server_without_opentelemetry_says_what_to_install_where_it_is_asked_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What stands before the real packages is found first, and says that there is none.
    package = tmp_path / "without" / "opentelemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module', name='opentelemetry')\n")
    path = f"{package.parent}:{environment()['PYTHONPATH']}"
    start = [
        "-c",
        f"import sys; sys.path[:0] = {path.split(':')!r}; from toutates.command.main import main; sys.exit(main())",
    ]
    flags = ["--model-repository", str(repository), "--trace-endpoint", "http://127.0.0.1:1"]
    ended = subprocess.run([PYTHON, *start, *flags], env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.endswith(
        "toutates: error: --trace-endpoint: opentelemetry is not installed; install toutates[otel]\n"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        running(repository, folder, ["--load-models", "mlp"], start) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        message = pb.TraceSettingRequest()
        message.settings["trace_level"].value.append("TIMESTAMPS")
        with channel_to(server.address) as channel:
            status, text = refused(channel, message, SETTING)
        assert status == "INVALID_ARGUMENT"
        assert text.endswith(":opentelemetry is not installed; install toutates[otel]")
        assert settings_of(client) == DEFAULTS
        assert server.stop() == 0
