"""Loads of configurations in a real server, which dies, hangs or refuses meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from examples.make_repository import mlp
from toutates.bench.calls import Refused
from toutates.bench.measuring import Questions, Target
from toutates.tune.measuring import Bench
from toutates.tune.server import Server, copy_model

BASE: dict[str, Any] = {
    "backend": "supertensor",
    "batch_size": 8,
    "capacity": 64,
    "num_executors": 1,
    "allocator": "cpu",
    "model_filename": "model.onnx",
}


class Watched(Server):
    """Tells its process."""

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Watched]]:
    folder = tmp_path_factory.mktemp("measuring")
    (folder / "mlp" / "1").mkdir(parents=True)
    onnx.save(mlp().model, folder / "mlp" / "1" / "model.onnx")
    place = copy_model(folder / "mlp", folder / "mlp" / "1", 1, folder / "copy")
    server = Watched(folder / "copy", {"mlp": place}, folder / "log")
    bench = Bench(server, Questions((Target("mlp"),)), 0.3, 8)
    try:
        bench.start({"mlp": BASE})
        bench.begin()
        yield bench, server
    finally:
        bench.close()


def test_a_configuration_that_does_not_load_is_a_fault_and_the_server_goes_on(bench: tuple[Bench, Watched]) -> None:
    measured, server = bench
    pid = server.pid()
    sample = measured.candidate({"mlp": {**BASE, "model_filename": "nothing.onnx"}})
    assert "nothing.onnx" in sample.fault
    assert not sample.figures
    assert server.pid() == pid
    assert measured.candidate({"mlp": BASE}).figures["rate"] > 0


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_or_hangs_during_a_load_is_a_fault_and_the_next_one_has_another(
    bench: tuple[Bench, Watched], sign: signal.Signals
) -> None:
    measured, server = bench
    assert measured.candidate({"mlp": BASE}).fault == ""
    pid = server.pid()
    load: Any = server.load

    def loads_and_dies(model: str, config: Any = None) -> None:
        load(model, config)
        threading.Timer(0.05, os.kill, (pid, sign)).start()

    server.load = loads_and_dies  # type: ignore[method-assign]
    try:
        sample = measured.candidate({"mlp": {**BASE, "batch_size": 16}})
    finally:
        server.load = load  # type: ignore[method-assign]
    assert sample.fault
    assert measured.candidate({"mlp": BASE}).figures["rate"] > 0
    assert server.pid() != pid


@pytest.mark.long
def test_memory_is_that_of_a_server_that_was_just_started(bench: tuple[Bench, Watched]) -> None:
    measured, server = bench
    pid = server.pid()
    assert measured.candidate({"mlp": BASE}, afresh=True).figures["memory"] > 10e6
    assert server.pid() != pid


def test_a_model_that_does_not_load_as_it_is_is_told(tmp_path: Path) -> None:
    (tmp_path / "mlp" / "1").mkdir(parents=True)
    (tmp_path / "mlp" / "1" / "model.onnx").write_bytes(b"no graph")
    place = copy_model(tmp_path / "mlp", tmp_path / "mlp" / "1", 1, tmp_path / "copy")
    bench = Bench(Server(tmp_path / "copy", {"mlp": place}, tmp_path / "log"), Questions((Target("mlp"),)), 0.3, 8)
    try:
        with pytest.raises(Refused, match="mlp"):
            bench.start({"mlp": BASE})
    finally:
        bench.close()
