"""A server that has warmed up needs no more memory after any number of requests and connections.

Bounds are of anonymous memory, and leave room for the allocators, which move by some 100 KiB either way. Growth is
looked for after a warm-up, because what a connection or a batch once took is kept for the next: the process stays as
large as the most connections that were ever open at once made it, at about 5 KiB each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

from bench.models import payload_models
from bench.process import peak_mib, reset_peak, resident_mib
from tests.e2e.prepared import prepared_connection
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import pb, triton
from tests.waiting import PATIENCE_S, wait_until

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
    request = pb.ModelInferRequest(model_name="mlp", id="always the same")
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(bytes(4 * 64))
    return bytes(request.SerializeToString())


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


@pytest.mark.alone
def test_requests_leave_no_memory_behind(process: ServerProcess) -> None:
    send_requests(process, REQUESTS // 4)
    before_kib = anonymous_kib(process)
    send_requests(process, REQUESTS)
    assert anonymous_kib(process) - before_kib < MOST_GROWTH_KIB


@pytest.mark.parametrize(
    "is_measured",
    [pytest.param(False, marks=pytest.mark.long, id="files"), pytest.param(True, marks=pytest.mark.alone, id="memory")],
)
def test_connections_leave_neither_files_nor_memory_behind(process: ServerProcess, is_measured: bool) -> None:
    come_and_go(process, CONNECTIONS)
    wait_until_alone(process)
    before_files, before_kib = process.open_files(), anonymous_kib(process)
    come_and_go(process, CONNECTIONS)
    wait_until_alone(process)
    wait_until(lambda: process.open_files() <= before_files)
    assert not is_measured or anonymous_kib(process) - before_kib < MOST_GROWTH_KIB


#: Bytes of a request.
LARGE = 32 * 2**20
#: How many times its size a request may take, and what may be left of all of them, MiB.
MOST_TIMES = 2.2
MOST_LEFT_MIB = 24


@pytest.mark.alone
def test_a_large_request_takes_twice_its_size_and_leaves_nothing(tmp_path: Path) -> None:
    model = payload_models(tmp_path / "models", [LARGE])[0]
    row = np.zeros(model.row, np.float32)
    row[-1] = 5
    tensor = {
        "name": model.input,
        "shape": [1, *model.row],
        "datatype": "FP32",
        "parameters": {"binary_data_size": LARGE},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    with running(tmp_path / "models", tmp_path, ["--load-models", model.name]) as process:
        pid = process.process.pid
        before_mib = resident_mib(pid)
        with (
            triton.InferenceServerClient(process.address) as grpc_client,
            closing(HTTPConnection("127.0.0.1", process.port, timeout=PATIENCE_S)) as http_client,
        ):
            given = triton.InferInput(model.input, [1, *model.row], "FP32")
            given.set_data_from_numpy(row[None])
            for over in ("grpc", "rest"):
                reset_peak(pid)
                if over == "grpc":
                    answer = grpc_client.infer(model.name, [given])
                    assert answer.as_numpy(model.output) == [[5]]
                else:
                    fields = {"Inference-Header-Content-Length": str(len(head))}
                    http_client.request("POST", f"/v2/models/{model.name}/infer", head + row.tobytes(), fields)
                    assert json.load(http_client.getresponse())["outputs"][0]["data"] == [5]
                assert peak_mib(pid) - before_mib < MOST_TIMES * LARGE / 2**20, over
        wait_until(lambda: resident_mib(pid) - before_mib < MOST_LEFT_MIB)
        assert process.stop() == 0
