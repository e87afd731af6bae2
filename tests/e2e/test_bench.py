"""``toutates bench`` against real servers: each way to ask, and what becomes of servers and figures that go wrong."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import tritonclient.grpc as triton

from tests.certificates import SERVER_NAME, Files, issue
from tests.e2e.models import build_repository
from tests.e2e.process import ROOT, ServerProcess, environment, run, running
from tests.e2e.sequence_models import write_accumulator
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.long

SHORT = ["--seconds=0.15", "--repeats=2", "--connections=2", "--warmup=0", "--concurrency=4"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with REST, clients' shared memory, and a model with sequences."""
    root = tmp_path_factory.mktemp("repository")
    build_repository(root)
    write_accumulator(root, "accumulator")
    flags = ["--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--allow-client-shm=true"]
    flags += ["--load-models", "dynamic,texts,accumulator,addsub"]
    with running(root, tmp_path_factory.mktemp("everything"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(repository: Path, files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ["--load-models", "dynamic", *files.server_flags(), "--http-addr", "127.0.0.1:0"]
    with running(repository, tmp_path_factory.mktemp("secure"), flags) as process:
        yield process


def bench(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was printed as JSON."""
    return asked(*SHORT, *arguments)


def asked(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The same, without the flags that make it short."""
    ended = run("bench", *arguments, "--json")
    return ended.returncode, json.loads(ended.stdout)


def refused(code: int, *arguments: str) -> str:
    """What it says on standard error as it ends with an exit code."""
    ended = run("bench", *arguments)
    assert ended.returncode == code
    return ended.stderr


def assert_fine(code: int, found: dict[str, Any], checked: bool = True) -> None:
    assert found["statuses"] == {"OK": found["statuses"]["OK"]}, found["texts"]
    assert found["statuses"]["OK"] > 0
    assert found["wrong"] == []
    assert bool(found["checked"]) is checked
    assert code == bool(found["doubt"])  # on a busy machine


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--tensors=json"],
        ["--input-tensor-format=binary", "--output-tensor-format=json"],
        ["--shared-memory=system"],
        ["--rate=100", "--arrivals=burst:4"],
        ["--processes=2"],
    ],
    ids=" ".join,
)
def test_rest_is_measured(everything: ServerProcess, arguments: list[str]) -> None:
    if "--rate=100" in arguments:
        arguments = [*arguments, "--seconds=0.5"]
        url = f"http://127.0.0.1:{everything.rest_port}"
        assert_fine(*asked(*SHORT[:-1], *arguments, url, "-m", "dynamic"))
        return
    models = ["-m", "dynamic", "-m", "texts", "--zipf=1.2", "--shape=dynamic.INPUT:2,3"]
    assert_fine(*bench(f"http://127.0.0.1:{everything.rest_port}", *models, *arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--streaming"], marks=pytest.mark.quick),
        ["--streaming", "-m", "texts"],
        ["--shared-memory=system"],
        ["--processes=2", "--string-length=9", "-m", "texts"],
        ["--header=x-name:value", "--request-parameter=any:1:int"],
    ],
    ids=" ".join,
)
def test_grpc_is_measured(everything: ServerProcess, arguments: list[str]) -> None:
    assert_fine(*bench(everything.address, "-m", "dynamic", *arguments))


def test_outputs_go_into_shared_memory_and_nothing_is_left(
    everything: ServerProcess,
) -> None:
    options = ["--shared-memory=system", "--output-shared-memory-size=64"]
    assert_fine(*bench(everything.address, "-m", "dynamic", *options), checked=False)
    assert not list(Path("/dev/shm").glob(f"toutates-bench-{os.getpid()}-*"))


@pytest.mark.parametrize("streaming", [[], ["--streaming"]], ids=["unary", "streaming"])
def test_sequences_are_sent_from_start_to_end(everything: ServerProcess, streaming: list[str]) -> None:
    options = ["--sequence-length=3", "--data=zero", *streaming]
    assert_fine(*bench(everything.address, "-m", "accumulator", *options), checked=False)


def test_tls_is_used_and_certificates_are_checked(
    secure: ServerProcess,
    files: Files,
) -> None:
    trust = ["-m", "dynamic", "--tls-ca", str(files.ca), "--tls-server-name", SERVER_NAME]
    assert_fine(*bench(f"grpcs://{secure.address}", *trust))
    assert_fine(*bench(f"https://127.0.0.1:{secure.rest_port}", *trust))
    assert "certificate is not trusted" in refused(1, *SHORT, f"grpcs://{secure.address}", "-m", "dynamic")
    assert "does it want TLS?" in refused(1, *SHORT, secure.address, "-m", "dynamic")


def test_data_of_a_file_and_its_expected_outputs_are_compared(everything: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": [{"INPUT": [1, 2]}], "validation_data": [{"OUTPUT": [-1, -2]}]}))
    options = ["-m", "dynamic", "--shape=INPUT:2", "-b", "1", "--input-data", str(file)]
    assert_fine(*bench(everything.address, *options))
    file.write_text(json.dumps({"data": [{"INPUT": [1, 2]}], "validation_data": [{"OUTPUT": [-1, 2]}]}))
    code, found = bench(everything.address, *options)
    assert code == 1
    assert found["wrong"][0] == "model 'dynamic': output 'OUTPUT' has other values"


def test_answers_are_compared_with_an_onnx_file_and_another_server(
    everything: ServerProcess, secure: ServerProcess, tmp_path: Path
) -> None:
    node = onnx.helper.make_node("Abs", ["INPUT"], ["OUTPUT"])
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", None]) for name in ("INPUT", "OUTPUT")
    ]
    graph = onnx.helper.make_graph([node], "abs", tensors[:1], tensors[1:])
    file = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    code, found = bench(everything.address, "-m", "dynamic", "--shape=INPUT:1,8", "--reference", str(file))
    assert code == 1
    assert "has other values" in found["wrong"][0]
    code, found = bench(everything.address, "-m", "dynamic", "--reference", everything.address)
    assert_fine(code, found)


def test_a_range_gives_a_csv_and_a_page(everything: ServerProcess, tmp_path: Path) -> None:
    table, page = tmp_path / "table.csv", tmp_path / "page.html"
    arguments = ["-m", "dynamic", "-u", everything.address, "-i", "grpc", "--concurrency-range", "1:5:2", "-p", "100"]
    arguments += ["--percentile=99", "--async", "-r", "1", "--max-threads", "4", "-f", str(table), "--html", str(page)]
    arguments += ["--metrics-url", f"http://127.0.0.1:{everything.http_port}/metrics", "--verbose-csv", "--warmup=0"]
    code, found = asked(*arguments)
    assert [one["load"] for one in found["loads"]] == [
        "1 request at a time",
        "3 requests at a time",
        "5 requests at a time",
    ]
    assert [row["Concurrency"] for row in csv.DictReader(table.read_text().splitlines())] == ["1", "3", "5"]
    assert page.read_text().count("<svg") == 10
    for one in found["loads"]:
        assert one["url"] == f"grpc://{everything.address}"
        # A load as short as that may take less CPU than the system counts.
        assert one["server"].keys() - {"cpu_us"} == {
            *("resident_mib", "batch_rows", "queue_us", "input_us", "infer_us", "output_us"),
        }
        assert one["server"]["batch_rows"]["mean"] >= 1
    assert code == bool(found["doubt"])


def test_a_knee_is_found_and_an_impossible_target_is_told(
    everything: ServerProcess,
) -> None:
    arguments = [*SHORT, everything.address, "-m", "dynamic", "--repeats=1"]
    _, found = asked(*arguments, "--slo=p50=60s")
    assert found["knee"]["requests_per_second"] > 0 or found["doubt"]
    ended = run("bench", *arguments, "--slo=p50=0.001us")
    assert ended.returncode == 1
    out = ended.stdout
    assert "NO KNEE: at " in out
    assert "above 1e-06 ms" in out


def test_a_server_is_compared_with_itself(everything: ServerProcess) -> None:
    _, found = bench(everything.address, "-m", "dynamic", "--compare", everything.address)
    assert [one["figure"] for one in found["differences"]] == ["rate", "p50", "p99"]
    assert len(found["loads"]) == 2
    # Two blocks have an interval that holds whatever chance can do.
    assert not any(one["different"] for one in found["differences"] if one["interval"][0] < 1 < one["interval"][1])


@contextlib.contextmanager
def stalling(pid: int, every_s: float) -> Iterator[None]:
    """A process stops for 200 ms, so many seconds after it last went on, for as long as the block lasts."""
    ended = threading.Event()

    def stall() -> None:
        while not ended.wait(every_s):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def latency_ms(share: str, *arguments: str) -> float:
    _, found = asked(*arguments, "--repeats=1", "--warmup=0", "-m", "dynamic")
    return float(found["latency_us"][share]) / 1e3


@pytest.mark.alone
def test_an_open_loop_shows_stalls_of_the_server(
    repository: Path,
    tmp_path: Path,
) -> None:
    with running(repository, tmp_path, ["--load-models", "dynamic"]) as server, stalling(server.process.pid, 0.8):
        # Of the requests, a fifth came while the server was stopped, and waited for up to 200 ms.
        assert latency_ms("p99", server.address, "--rate=200", "--seconds=2.5") > 100


@pytest.mark.alone
def test_stalls_once_a_second_show_at_four_fifths_of_the_knee_and_not_in_a_closed_loop(
    repository: Path,
    tmp_path: Path,
) -> None:
    with running(repository, tmp_path, ["--load-models", "dynamic"]) as server:
        search = ["--slo=p99=80ms", "--seconds=0.3", "--repeats=1", "--warmup=0.1"]
        knee = asked(server.address, "-m", "dynamic", *search)[1]["knee"]["requests_per_second"]
        assert knee > 0
        with stalling(server.process.pid, 0.8):
            shown = latency_ms("p99", server.address, f"--rate={0.8 * knee:.0f}", "--seconds=4")
            # A closed loop sends one request for each stall, among all the others: how many depends on the machine.
            hidden = latency_ms("p95", server.address, "--concurrency=1", "--seconds=4")
    assert shown > 100
    assert hidden < 100


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command with a terminal for its progress, and that terminal."""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "toutates", "bench", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        try:
            yield process, terminal
        finally:
            process.kill()
            os.close(terminal)


def wait_under_load(terminal: int) -> None:
    """Read the terminal until the line of progress says that requests are answered."""
    seen = b""
    while b"requests/s" not in seen:
        seen += os.read(terminal, 4_096)


def drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4_096):
            pass


LONG = ["-m", "dynamic", "--seconds=100", "--repeats=2", "--warmup=0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_what_there_is_and_leaves_nothing(everything: ServerProcess, number: int) -> None:
    with started(everything.address, *LONG, "--shared-memory=system") as (process, terminal):
        wait_under_load(terminal)
        process.send_signal(number)
        threading.Thread(target=drain, args=[terminal], daemon=True).start()
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert "STOPPED before its time" in out
    assert "p99.99" in out
    assert "UNANSWERED" not in out
    assert process.returncode == 1
    assert not list(Path("/dev/shm").glob(f"toutates-bench-{process.pid}-*"))
    with triton.InferenceServerClient(everything.address) as client:
        left = client.get_system_shared_memory_status().regions
    assert not [name for name in left if name.startswith(f"toutates-bench-{process.pid}-")]


def test_a_server_that_dies_loses_calls_and_is_told(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, ["--load-models", "dynamic"]) as server:
        with started(server.address, *LONG) as (process, terminal):
            wait_under_load(terminal)
            threading.Thread(target=drain, args=[terminal], daemon=True).start()
            os.kill(server.process.pid, signal.SIGKILL)
            out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "LOST: " in out
        assert "Connection refused" in out
        assert "p50" in out


def test_a_connection_that_is_reset_is_told_in_words() -> None:
    def reset() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=reset)
        thread.start()
        said = refused(1, f"http://127.0.0.1:{port}", "--model", "dynamic")
        thread.join()
    assert said == f"toutates: error: 127.0.0.1:{port}: Connection reset by peer\n"


def _greeting(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4_096)
                    connection.sendall(answer)

    return serve


@pytest.mark.parametrize(
    ("scheme", "answer", "said"),
    [
        ("grpc", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "write http:// instead of grpc://"),
        ("grpc", b"220 mail.example ESMTP\r\n", "does not speak HTTP/2"),
        ("http", b"\0\0\0\4\0\0\0\0\0", "write grpc:// instead of http://"),
        ("http", b"220 mail.example ESMTP\r\n", "does not speak HTTP/1.1"),
        ("grpcs", b"220 mail.example ESMTP\r\n", "does the server speak TLS?"),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "is not of the v2 protocol"),
        ("http", b"HTTP/1.1 503 Not Ready\r\nContent-Length: 4\r\n\r\nwait", "HTTP 503: wait"),
    ],
)
def test_a_server_of_another_protocol_is_told(scheme: str, answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_greeting(answer), args=[listener], daemon=True).start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        told = refused(1, *SHORT, url, "-m", "dynamic")
        listener.shutdown(socket.SHUT_RDWR)
    assert said in told


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "a"], "URL is missing"),
        (["host:1"], "the model is missing"),
        (["host:1", "-m", "a", "-u", "host:2"], "-u: says what URL says"),
        (["host:1", "-m", "a", "-i", "thrift"], "is no protocol"),
        (["host:1", "-m", "a", "--shared-memory", "cuda"], "the client has no GPU"),
        (["host:1", "-m", "a", "--grpc-compression-algorithm", "gzip"], "sent uncompressed"),
        (["host:1", "-m", "a", "--request-count", "5"], "use --measurement-interval"),
        (["host:1", "-m", "a", "--profile-export-file", "f"], "--json has a histogram"),
        (["host:1", "-m", "a", "--service-kind", "tfserving"], "use 'triton'"),
        (["host:1", "-m", "a", "--seconds", "0"], "--seconds: must be above 0"),
        (["host:1", "-m", "a", "--html", "/nonexistent/page"], "--html: cannot be written"),
        (["host:1", "-m", "a", "--csv", "/nonexistent/table"], "--csv: cannot be written"),
        (["host:1", "-m", "a", "--percentile", "42"], "use 50, 90, 95 or 99"),
        (["host:1", "-m", "a", "--binary-search"], "use --slo p99=10ms"),
        (["host:1", "-m", "a", "--concurrency", "5:1"], "write N or 1:16:5"),
        (["host:1", "-m", "a", "--rate", "1:9:0.001"], "a larger STEP"),
        (["host:1", "-m", "a", "--rate", "1", "--concurrency", "2"], "give one"),
        (["host:1", "-m", "a", "--slo", "p99"], "a target such as p99=10ms"),
        (["host:1", "-m", "a", "--slo", "p99=1ms", "--compare", "host:2"], "leave one out"),
        (["host:1", "-m", "a", "--compare", "http://host:2"], "is not the protocol grpc"),
        (["host:1", "-m", "a", "--arrivals", "trace:/nonexistent"], "cannot be read"),
        (["host:1", "-m", "a", "--arrivals", "burst:0"], "must be from 1 to 1000000"),
        (["host:1", "-m", "a", "--reference", "none.onnx"], "is no file"),
        (["host:1", "-m", "a", "--header", "x"], "write NAME:VALUE"),
        (["host:1", "-m", "a", "--request-parameter", "x:1"], "write NAME:VALUE:TYPE"),
        (["http://host:1", "-m", "a", "--streaming"], "write grpc://"),
        (["host:1", "-m", "a", "--sequence-length", "3", "--rate", "5"], "leave out --rate"),
        (["host:1", "-m", "a", "--tls-key", "f"], "needs --tls-cert"),
        (["grpcs://host:1", "-m", "a", "--tls-ca", "/nonexistent"], "--tls-ca: cannot be used"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_told(arguments: list[str], said: str) -> None:
    assert said in refused(2, *arguments)
