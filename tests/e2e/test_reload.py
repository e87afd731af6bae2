"""Reloads under load: no request fails, every answer is one version's, and memory does not grow.

The number of reloads is small here; RELOADS in the environment makes it what it should be by hand.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.models import reload_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, SERVICE, Tensor, call, channel_to, outputs_of, pb, request, triton
from tests.waiting import wait_until

pytestmark = pytest.mark.long

RELOADS: Final = int(os.environ.get("RELOADS", "15"))
EXPLICIT: Final = ("--model-control-mode", "explicit", "--load-model", "m")
CONFIG: Final = "backend: supertensor\nbatch_size: 16\ncapacity: 64\nnum_executors: {}\nallocator: cpu\n"


def put(root: Path, number: int, *, executors: int = 2) -> None:
    """The model's only version: it adds ``number``."""
    folder = root / "m" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG.format(executors))
    (folder / "next").write_bytes(reload_model(number))
    (folder / "next").replace(folder / "model.onnx")


class Hammer:
    """Clients that send requests as fast as they are answered, and keep what they got."""

    def __init__(self, address: str, clients: int) -> None:
        self.problems: list[str] = []
        self.answers: Counter[int] = Counter()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        raw, real = clients // 2, clients - clients // 2
        self._threads = [threading.Thread(target=self._raw, args=(address,)) for _ in range(raw)]
        self._threads += [threading.Thread(target=self._tritonclient, args=(address,)) for _ in range(real)]

    def _raw(self, address: str) -> None:
        """Bare grpcio, eight requests at a time, of rows enough to be split among batches."""
        message = request("m", Tensor.of("INPUT", "INT32", [[0] * 4] * 24)).SerializeToString()
        with channel_to(address) as channel:
            send = channel.unary_unary(INFER)
            while not self._stop.is_set():
                futures = [send.future(message, timeout=120) for _ in range(8)]
                try:
                    for future in futures:
                        self._note(outputs_of(pb.ModelInferResponse.FromString(future.result()))["OUTPUT"])
                except Exception as error:
                    self.problems.append(repr(error))
                    return

    def _tritonclient(self, address: str) -> None:
        import numpy as np

        tensor = triton.InferInput("INPUT", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
        try:
            with triton.InferenceServerClient(address) as client:
                while not self._stop.is_set():
                    self._note(client.infer("m", [tensor], client_timeout=120).as_numpy("OUTPUT"))
        except Exception as error:
            self.problems.append(repr(error))

    def _note(self, output: Any) -> None:
        found = {int(value) for value in output.reshape(-1)}
        with self._lock:
            self.answers.update(found)
        if len(found) != 1 and output.shape[0] == 1:
            self.problems.append(f"an answer of two versions: {found}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(120)


@pytest.mark.parametrize("workers", [1, 3])
def test_no_request_fails_because_of_a_reload(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "models"
    put(root, 0)
    (tmp_path / "log").mkdir()
    flags = (*EXPLICIT, "--processing-cores", str(workers))
    with running(root, tmp_path / "log", flags) as process, triton.InferenceServerClient(process.address) as client:
        hammer = Hammer(process.address, 6)
        with hammer.at_work():
            for number in range(1, RELOADS + 1):
                wait_until(lambda last=number - 1: hammer.answers[last] or hammer.problems)  # type: ignore[misc]
                put(root, number)
                client.load_model("m")
                # The answer of a request that is sent from now on is the new version's.
                assert infer_once(process.address) == number
                assert client.is_server_ready()
            wait_until(lambda: hammer.answers[RELOADS] or hammer.problems)
        assert hammer.problems == []
        assert set(hammer.answers) == set(range(RELOADS + 1))
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


def infer_once(address: str) -> int:
    with channel_to(address) as channel:
        message = request("m", Tensor.of("INPUT", "INT32", [[0] * 4]))
        answer = channel.unary_unary(INFER)(message.SerializeToString(), timeout=120)
        return int(outputs_of(pb.ModelInferResponse.FromString(answer))["OUTPUT"][0, 0])


@pytest.mark.alone
def test_memory_does_not_grow_with_reloads(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(root, 0)
    (tmp_path / "log").mkdir()
    with running(root, tmp_path / "log", EXPLICIT) as process, triton.InferenceServerClient(process.address) as client:
        resident: list[int] = []
        threads = [0]  # of the server with one version
        for number in range(1, RELOADS + 11):
            put(root, number)
            client.load_model("m")
            assert infer_once(process.address) == number
            threads[0] = threads[0] or threads_of(process)
            if number >= 10:
                # The version before goes when it is the machine's turn.
                wait_until(lambda: threads_of(process) <= threads[0] + 2)
                resident.append(memory_of(process))
        # Two sessions with 8 MB of weights each: one more version or one less may be there when it is measured.
        assert max(resident[-5:]) - max(resident[:5]) < 48e6, [size // 10**6 for size in resident]
        assert process.stop() == 0


def threads_of(process: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{process.process.pid}/task"))


def memory_of(process: ServerProcess) -> int:
    """Bytes that are resident."""
    text = Path(f"/proc/{process.process.pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.quick
def test_an_unload_under_load_answers_what_is_queued_and_refuses_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(root, 3)
    (tmp_path / "log").mkdir()
    with running(root, tmp_path / "log", EXPLICIT) as process, triton.InferenceServerClient(process.address) as client:
        message = request("m", Tensor.of("INPUT", "INT32", [[0] * 4] * 16)).SerializeToString()
        with channel_to(process.address) as channel:
            call(channel, SERVICE + "ServerLive", b"")  # what waits for the connection is sent in any order
            futures = [channel.unary_unary(INFER).future(message, timeout=120) for _ in range(50)]
            unload = pb.RepositoryModelUnloadRequest(model_name="m").SerializeToString()
            channel.unary_unary(SERVICE + "RepositoryModelUnload")(unload, timeout=120)
            later = channel.unary_unary(INFER).future(message, timeout=120)
            assert later.code().name == "NOT_FOUND"
            assert {future.code().name for future in futures} <= {"OK", "NOT_FOUND", "UNAVAILABLE"}
            assert futures[0].code().name == "OK"
        assert not client.is_model_ready("m")
        assert process.stop() == 0
