"""Requests of megabytes: right answers whatever becomes of those beside them, and memory that goes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.models import CONFIG, add_model, greatest_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import pb
from tests.e2e.wire import Client, client_of, framed
from tests.waiting import wait_until

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"
MIB: Final = 1_048_576
#: 1 MiB.
ROW: Final = MIB // 4


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves one model, in batches of up to 8 rows."""
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "greatest", greatest_model(), config=CONFIG.format(8, 8))
    flags = ["--model-control-mode", "explicit", "--load-model", "greatest", "--processing-cores", "2"]
    with running(repository, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


def asked(values: npt.NDArray[np.int32]) -> bytes:
    """A request for the greatest number of a row, framed."""
    message = pb.ModelInferRequest(model_name="greatest")
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, len(values)])
    message.raw_input_contents.append(values.tobytes())
    return framed(message.SerializeToString())


def answer(client: Client, values: npt.NDArray[np.int32]) -> int:
    """What the server says is the greatest."""
    stream_id = client.start(INFER)
    client.send(stream_id, asked(values))
    response = client.answer(stream_id)
    assert response.status == ("0", "")
    return int.from_bytes(pb.ModelInferResponse.FromString(response.data[5:]).raw_output_contents[0], "little")


def test_rows_are_right_beside_messages_that_are_reset_or_end_early_or_are_lost(process: ServerProcess) -> None:
    over = threading.Event()
    failed: list[object] = []

    def break_off(number: int) -> None:
        octets = asked(np.full(ROW, 2**30 + number, np.int32))
        while not over.is_set():
            with client_of(process.port) as client:
                for turn in range(5):
                    part = octets[: 200_000 * (1 + (turn + number) % 5)]
                    if turn == 4:
                        client.send(client.start(INFER), part, end=False)  # and the connection is lost
                    elif turn % 2:
                        stream_id = client.start(INFER)
                        client.send(stream_id, part, end=False)
                        client.connection.reset_stream(stream_id)
                        client.flush()
                    else:
                        stream_id = client.start(INFER)
                        client.send(stream_id, part)
                        assert client.answer(stream_id).status[0] == "13"

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        with client_of(process.port) as client:
            for _ in range(15):
                values = rng.integers(0, 2**29, ROW, np.int32)
                assert answer(client, values) == values.max()

    breakers = [threading.Thread(target=break_off, args=(number,)) for number in range(2)]
    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        for thread in breakers + askers:
            thread.start()
        for thread in askers:
            thread.join()
        over.set()
        for thread in breakers:
            thread.join()
    finally:
        over.set()
        threading.excepthook = hook
    assert not failed


def test_a_model_that_is_unloaded_while_a_request_for_it_comes_is_gone_for_that_request(process: ServerProcess) -> None:
    values = np.arange(ROW, dtype=np.int32)
    octets = asked(values)
    unload = pb.RepositoryModelUnloadRequest(model_name="greatest").SerializeToString()
    load = pb.RepositoryModelLoadRequest(model_name="greatest").SerializeToString()
    with client_of(process.port) as client, client_of(process.port) as other:
        assert answer(client, values) == ROW - 1
        stream_id = client.start(INFER)
        client.send(stream_id, octets[:600_000], end=False)
        assert other.call(SERVICE + "RepositoryModelUnload", unload).status[0] == "0"
        client.send(stream_id, octets[600_000:])
        status = client.answer(stream_id).status
        assert status == ("5", "Request for unknown model: 'greatest' has no available versions")
        assert other.call(SERVICE + "RepositoryModelLoad", load).status[0] == "0"
        assert answer(client, values) == ROW - 1


@pytest.mark.alone
def test_memory_of_very_large_requests_goes_back_to_the_system(process: ServerProcess) -> None:
    values = np.arange(20 * ROW, dtype=np.int32)
    with client_of(process.port) as client:
        assert answer(client, values[:ROW]) == ROW - 1
        before_mib = resident_mib(process)
        for _ in range(10):
            assert answer(client, values) == len(values) - 1
        wait_until(lambda: resident_mib(process) - before_mib < 10)


def resident_mib(process: ServerProcess) -> float:
    """Anonymous memory that is resident."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024
