"""The end of a server with calls under way: they are answered, within the grace."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.certificates import issue
from tests.e2e.held import Runs, running_held
from tests.e2e.prepared import prepared_connection
from tests.e2e.process import ROOT, ServerProcess, environment, running
from tests.e2e.support import INFER, Tensor, channel_to, infer, outputs_of, pb, request, triton
from tests.waiting import wait_until


@contextmanager
def busy_server(repository: Path, folder: Path, *flags: str) -> Iterator[tuple[ServerProcess, Runs, Any]]:
    """A server, the runs of its model, and the future of a call whose run has begun and is held."""
    message = request("slow", Tensor.of("INPUT", "INT64", [[3]]))
    with (
        running_held(repository, folder, ["--load-models", "slow", *flags]) as (process, runs),
        channel_to(process.address) as channel,
        runs.held(),
    ):
        future = channel.unary_unary(INFER).future(message.SerializeToString(), timeout=120)
        runs.wait_begun(1)
        yield process, runs, future


def assert_answered(future: Any) -> None:
    assert outputs_of(pb.ModelInferResponse.FromString(future.result()))["OUTPUT"].tolist() == [[3]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_answers_what_is_under_way_before_it_ends(
    repository: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with busy_server(repository, tmp_path) as (process, runs, future):
        process.process.send_signal(number)
        wait_until(lambda: f"{number.name}: " in process.log)
        runs.allow()
        assert_answered(future)
        assert process.process.wait(120) == 0
        assert "Traceback" not in process.log


def test_server_that_stops_takes_no_new_connections_and_answers_the_old_ones(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path) as (process, runs, future):
        process.process.terminate()
        wait_until(lambda: is_refused(process.port))
        runs.allow()
        assert_answered(future)
        assert process.process.wait(120) == 0


def is_refused(port: int) -> bool:
    """Whether nobody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=120).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("workers", ["1", "3"])
def test_calls_cut_off_at_the_end_of_the_grace_make_the_exit_code_1(
    repository: Path, tmp_path: Path, workers: str
) -> None:
    flags = ["--shutdown-grace", "0.2", "--processing-cores", workers]
    with busy_server(repository, tmp_path, *flags) as (process, runs, future):
        process.process.terminate()
        assert future.exception().code().name == "UNAVAILABLE"
        runs.allow()
        assert process.process.wait(120) == 1


def test_a_second_signal_ends_the_grace(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path) as (process, runs, future):
        process.process.terminate()
        wait_until(lambda: "SIGTERM: " in process.log)  # two signals that wait for a process are one
        process.process.terminate()
        assert future.exception().code().name == "UNAVAILABLE"
        runs.allow()
        assert process.process.wait(120) == 1


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one", "processes"])
def test_a_server_that_is_to_stop_says_so_and_serves_on(repository: Path, tmp_path: Path, flags: Sequence[str]) -> None:
    rules = tmp_path / "access.yaml"
    rules.write_text(
        f"anonymous: [health]\nkeys: [{{name: a, sha256: {sha256(b'sk').hexdigest()}, groups: [inference, metrics]}}]\n"
    )
    certificate = issue(tmp_path)
    flags = [*flags, *certificate.server_flags(), "--metrics-tls", "true", "--access-file", str(rules)]
    flags += ["--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--load-models", "slow"]
    with (
        running(repository, tmp_path, [*flags, "--shutdown-delay", "3600"]) as server,
        requests.Session() as session,
    ):
        side, rest = f"https://127.0.0.1:{server.http_port}", f"https://127.0.0.1:{server.rest_port}"
        key = {"authorization": "Bearer sk"}

        def status(url: str, fields: Mapping[str, str] | None = None) -> int:
            return session.get(url, headers=fields, timeout=120, verify=str(certificate.ca)).status_code

        assert status(f"{side}/metrics", key) == 200
        assert [status(f"{side}{path}") for path in ("/metrics", "/", "/status.json")] == [401] * 3
        assert status(f"{side}/debug/tasks", key) == 403
        ready = [f"{side}/health/ready", f"{rest}/v2/health/ready", f"{rest}/health/ready"]
        wait_until(lambda: [status(url) for url in ready] == [200] * 3)
        server.process.terminate()
        wait_until(lambda: [status(url) for url in ready] == [503, 400, 503])
        assert status(f"{side}/health/live") == 200
        document: Any = {"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "INT64", "data": [3]}]}
        with requests.Session() as other:  # over a new connection
            url = f"{rest}/v2/models/slow/infer"
            answer = other.post(url, json=document, headers=key, timeout=120, verify=str(certificate.ca))
        assert answer.status_code == 200
        session.close()
        server.process.terminate()
        assert server.process.wait(120) in (0, 1)
        assert "Traceback" not in server.log


def test_the_delay_ends_by_itself_and_then_calls_are_drained(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path, "--shutdown-delay", "0.2") as (process, runs, future):
        process.process.terminate()
        wait_until(lambda: is_refused(process.port))
        runs.allow()
        assert_answered(future)
        assert process.process.wait(120) == 0


def test_calls_of_a_client_that_leaves_do_not_hold_up_the_end(repository: Path, tmp_path: Path) -> None:
    with busy_server(repository, tmp_path) as (process, runs, future):
        future.cancel()
        process.process.terminate()
        wait_until(lambda: is_refused(process.port))
        runs.allow()  # ONNX Runtime finishes what it runs
        assert process.process.wait(120) == 0


# --- under full load

#: Run as a program: address, and the calls of tritonclient until the server is gone; prints what became of them.
TRITON_CLIENT = """
import sys
import numpy as np
import tritonclient.grpc as triton
from tests.e2e.test_shutdown import triton_outcomes
for outcome, count in triton_outcomes(sys.argv[1], lambda: print("answered", flush=True)).items():
    print("outcome", count, outcome, flush=True)
"""


def triton_outcomes(address: str, on_answer: Any) -> Counter[str]:
    """Call until the server is gone; how many calls were answered rightly, and what the others were told."""
    outcomes: Counter[str] = Counter()
    with triton.InferenceServerClient(address) as client:
        while True:
            number = sum(outcomes.values())
            tensor = triton.InferInput("INPUT", [1, 4], "INT32")
            tensor.set_data_from_numpy(np.full((1, 4), number, np.int32))
            try:
                response = client.infer("versions", [tensor], request_id=str(number), client_timeout=120)
            except triton.InferenceServerException as error:
                outcomes[f"{error.status()}: {error.message()}"] += 1
                return outcomes
            assert response.get_response().id == str(number)
            assert (response.as_numpy("OUTPUT") == number + 10).all()
            outcomes["right"] += 1
            if number % 20 == 0:
                on_answer()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_under_full_load_loses_no_call_that_was_taken(repository: Path, tmp_path: Path, workers: str) -> None:
    """Counted by its clients: each call is answered, and rightly, or its client knows that it was not taken."""
    message = request("versions", Tensor.of("INPUT", "INT32", np.zeros((1, 4)))).SerializeToString()
    warm = threading.Semaphore(0)
    flags = ["--load-models", "versions", "--processing-cores", workers]
    with running(repository, tmp_path, flags) as process, ThreadPoolExecutor(16) as pool:
        with channel_to(process.address) as channel:
            expected = infer(channel, request("versions", Tensor.of("INPUT", "INT32", np.zeros((1, 4)))))
        answer = expected.SerializeToString()

        def flood(at_once: int) -> Any:
            with prepared_connection(process.port, INFER, message) as connection:
                return connection.call_until_goodbye(at_once, warm.release)

        raw = [pool.submit(flood, at_once) for at_once in (1, 8, 64)]
        threads = [pool.submit(triton_outcomes, process.address, warm.release) for _ in range(3)]
        other = subprocess.Popen(
            [sys.executable, "-c", TRITON_CLIENT, process.address], env=environment(), cwd=ROOT, stdout=subprocess.PIPE
        )
        load = start_h2load(process, tmp_path, message)
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"answered\n"  # all others have begun by then
            for _ in range(500):
                assert warm.acquire(timeout=120)
            process.process.terminate()
            goodbyes = [future.result(120) for future in raw]
            outcomes = [future.result(120) for future in threads]
            output, _ = other.communicate(timeout=120)
            report = load.communicate(timeout=120)[0].decode() if load is not None else ""
            # Every call that was taken has been answered: nothing was cut off.
            assert process.process.wait(120) == 0
        finally:
            other.kill()
            if load is not None:
                load.kill()
        assert "Traceback" not in process.log
    for goodbye in goodbyes:
        assert not goodbye.reset
        assert goodbye.answered.keys() == {stream for stream in goodbye.sent if stream <= goodbye.last}
        assert all(content[5:] == answer for content in goodbye.answered.values())
    for line in output.decode().splitlines():
        if line.startswith("outcome"):
            _, count, outcome = line.split(" ", 2)
            outcomes.append(Counter({outcome: int(count)}))
    total: Counter[str] = sum(outcomes, Counter())
    assert total.pop("right") > 20
    # One for each client: the call with which it learned that nobody listens any more.
    assert total.total() == 4
    assert all(outcome.startswith("StatusCode.UNAVAILABLE: ") for outcome in total), total
    # In the middle of a call that would be all that is said; a new connection may be closed before it is a connection.
    assert not any(outcome.startswith("StatusCode.UNAVAILABLE: Socket closed") for outcome in total), total
    if report:
        assert_no_wrong_status(report)


def start_h2load(process: ServerProcess, folder: Path, message: bytes) -> subprocess.Popen[bytes] | None:
    """A client that is nobody's friend, where it is installed."""
    if shutil.which("h2load") is None:
        return None
    body = folder / "body"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    return subprocess.Popen(
        ["h2load", "-n", "10000000", "-c", "4", "-m", "8", *headers, "-d", body, f"http://{process.address}{INFER}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def assert_no_wrong_status(report: str) -> None:
    """What h2load says of the answers it had: HTTP status 200, all of them."""
    match = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", report)
    assert match is not None, report
    assert int(match[1]) > 0
    assert match.groups()[1:] == ("0", "0", "0")


def test_a_client_whose_calls_the_server_no_longer_takes_makes_them_elsewhere(repository: Path, tmp_path: Path) -> None:
    """With a server to go to, a client of gRPC's own sees nothing of the end of another: it sends the rest again."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    flags = ["--load-models", "versions"]
    with running(repository, tmp_path / "one", flags) as one, running(repository, tmp_path / "two", flags) as two:
        addresses = f"ipv4:{one.address},{two.address}"
        answered = []
        stop = threading.Event()

        def client(number: int) -> None:
            with channel_to(addresses) as channel:
                at = 0
                while not stop.is_set():
                    value = number * 1_000_000 + at
                    response = infer(channel, request("versions", Tensor.of("INPUT", "INT32", np.full((1, 4), value))))
                    assert outputs_of(response)["OUTPUT"].tolist() == [[value + 10] * 4]
                    answered.append(value)
                    at += 1

        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(client, number) for number in range(4)]
            wait_until(lambda: len(answered) > 200)
            assert one.stop() == 0
            before = len(answered)
            wait_until(lambda: len(answered) > before + 200)
            stop.set()
            for future in clients:
                future.result(120)
        assert two.stop() == 0
