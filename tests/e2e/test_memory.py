"""A server that has warmed up needs no more memory after any number of requests and connections.

Bounds are of anonymous memory, and leave room for the allocators, which move by some 100 KiB either way. Growth is
looked for after a warm-up, because what a connection or a batch once took is kept for the next: the process stays as
large as the most connections that were ever open at once made it, at about 5 KiB each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.prepared import prepared_connection
from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

pytestmark = pytest.mark.long

INFER = "/inference.GRPCInferenceService/ModelInfer"
#: 50 bytes for each of the requests; 500 for each of the connections.
MOST_GROWTH_KIB = 1_024
REQUESTS = 20_000
CONNECTIONS = 2_000
CONNECTIONS_AT_ONCE = 100


@pytest.fixture
def process(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own, of two workers."""
    with running(repository, tmp_path, ["--load-models", "mlp", "--processing-cores", "2"]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def message() -> bytes:
    request = ModelInferRequest(model_name="mlp", id="always the same")
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(bytes(4 * 64))
    return request.SerializeToString()


def anonymous_kib(process: ServerProcess) -> int:
    """Resident memory but for that of files."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1])


def send_requests(process: ServerProcess, count: int) -> None:
    """So many, 40 at a time on each of five connections."""
    with ExitStack() as stack:
        connections = [stack.enter_context(prepared_connection(process.port, INFER, message())) for _ in range(5)]
        for _ in range(count // 200):
            for connection in connections:
                connection.call(40)


def come_and_go(process: ServerProcess, count: int) -> None:
    """So many connections of one request each."""
    for _ in range(count // CONNECTIONS_AT_ONCE):
        with ExitStack() as stack:
            connections = [
                stack.enter_context(prepared_connection(process.port, INFER, message()))
                for _ in range(CONNECTIONS_AT_ONCE)
            ]
            for connection in connections:
                connection.call(1)


def wait_until_alone(process: ServerProcess) -> None:
    """Until the server has closed the connections of clients that are gone."""
    wait_until(lambda: not process.open_connections())


def test_requests_leave_no_memory_behind(process: ServerProcess) -> None:
    send_requests(process, REQUESTS // 4)
    before_kib = anonymous_kib(process)
    send_requests(process, REQUESTS)
    assert anonymous_kib(process) - before_kib < MOST_GROWTH_KIB


def test_connections_leave_neither_files_nor_memory_behind(process: ServerProcess) -> None:
    come_and_go(process, CONNECTIONS)
    wait_until_alone(process)
    before_files, before_kib = process.open_files(), anonymous_kib(process)
    come_and_go(process, CONNECTIONS)
    wait_until_alone(process)
    wait_until(lambda: process.open_files() <= before_files)
    assert anonymous_kib(process) - before_kib < MOST_GROWTH_KIB
