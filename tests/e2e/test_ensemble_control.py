"""Ensembles whose members come, go, and are replaced, seen by tritonclient."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.testing as npt
import pytest
from onnx import helper

from tests.e2e.control import EXPLICIT, client_of, fails, index
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import triton
from tests.ensembles import MODELS, add_ensemble, add_graph, pbtxt, step
from tests.graphs import model, tensor
from tests.waiting import wait_until

IN: Final = ["IN FP32 [4]"]
OUT: Final = ["OUT FP32 [4]"]
CHAIN: Final = pbtxt(IN, OUT, [step("scale", "x=IN", "y=t"), step("negate", "x=t", "y=OUT")])


def scaled(factor: float, width: int = 4) -> bytes:
    """y = factor * x."""
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    rows = tensor("x", ["n", width]), tensor("y", ["n", width])
    return model([node], rows[:1], rows[1:], factor=np.array([factor], np.float32))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    add_graph(root, "scale", scaled(2))
    add_graph(root, "negate", MODELS["negate"])
    add_graph(root, "double", MODELS["double"])
    add_ensemble(root, "chain", CHAIN)
    add_ensemble(root, "outer", pbtxt(IN, OUT, [step("chain", "IN=IN", "OUT=t"), step("double", "x=t", "y=OUT")]))
    add_ensemble(root, "lacking", pbtxt(IN, OUT, [step("nobody", "x=IN", "y=OUT")]))
    add_ensemble(root, "one", pbtxt(IN, OUT, [step("two", "IN=IN", "OUT=OUT")]))
    add_ensemble(root, "two", pbtxt(IN, OUT, [step("one", "IN=IN", "OUT=OUT")]))
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(root, tmp_path_factory.mktemp("log"), EXPLICIT) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess, root: Path) -> Iterator[Any]:
    with client_of(server) as one:
        yield one
        add_graph(root, "scale", scaled(2))
        for name in ("outer", "chain", "double", "negate", "scale", "lacking", "one", "two"):
            one.unload_model(name)


def given(rows: Any) -> list[Any]:
    one = triton.InferInput("IN", list(rows.shape), "FP32")
    one.set_data_from_numpy(rows)
    return [one]


def ask(client: Any, ensemble: str, rows: Any) -> Any:
    return client.infer(ensemble, given(rows), client_timeout=120).as_numpy("OUT")


def states(client: Any) -> dict[str, str]:
    return {name: state for name, _, state, _ in index(client) if state}


ROW: Final = np.array([[1, 2, 3, 4]], np.float32)


def test_an_ensemble_brings_its_members_and_leaves_them(client: Any) -> None:
    client.load_model("outer")
    npt.assert_array_equal(ask(client, "outer", ROW), -4 * ROW)
    assert {name for name, state in states(client).items() if state == "READY"} == {
        "outer",
        "chain",
        "double",
        "negate",
        "scale",
    }
    client.unload_model("outer")
    assert not client.is_model_ready("outer")
    assert client.is_model_ready("chain")


def test_members_go_with_it_that_nobody_else_needs_or_has_asked_for(client: Any) -> None:
    client.load_model("negate")
    client.load_model("outer")
    client.unload_model("outer", unload_dependents=True)
    wait_until(lambda: not client.is_model_ready("chain"))
    ready = {name for name in ("outer", "chain", "double", "negate", "scale") if client.is_model_ready(name)}
    assert ready == {"negate"}


def test_an_ensemble_follows_its_members(client: Any) -> None:
    client.load_model("chain")
    client.unload_model("scale")
    assert not client.is_model_ready("chain")
    assert client.is_server_ready()  # what was asked for is no failure
    [reason] = [reason for name, _, _, reason in index(client) if name == "chain"]
    assert reason == "Invalid argument: ensemble 'chain' depends on 'scale' which has no loaded version."
    assert fails(lambda: ask(client, "chain", ROW))[0] == "UNAVAILABLE"
    client.load_model("scale")
    npt.assert_array_equal(ask(client, "chain", ROW), -2 * ROW)


def test_a_member_that_does_not_fit_any_more_makes_it_unavailable(client: Any, root: Path) -> None:
    client.load_model("chain")
    add_graph(root, "scale", scaled(2, width=5))
    client.load_model("scale")
    [reason] = [reason for name, _, _, reason in index(client) if name == "chain"]
    assert "in ensemble chain, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model chain" in reason
    add_graph(root, "scale", scaled(2))
    client.load_model("scale")
    npt.assert_array_equal(ask(client, "chain", ROW), -2 * ROW)


@pytest.mark.parametrize(
    ("ensemble", "text"),
    [
        ("lacking", "ensemble lacking contains models that are not available or ambiguous: nobody"),
        ("one", "circular dependency between ensembles: "),
    ],
)
def test_an_ensemble_that_cannot_be_served_fails_with_tritons_words(client: Any, ensemble: str, text: str) -> None:
    status, said = fails(lambda: client.load_model(ensemble))
    assert status == "INVALID_ARGUMENT"
    assert f"load failed for model '{ensemble}'" in said
    assert text in said
    assert not client.is_model_ready(ensemble)


class Load:
    """Requests from some threads, until the block ends: one row of a number of its own each."""

    def __init__(self, server: ServerProcess, factors: set[float], allowed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self._server, self._factors, self._allowed = server, factors, allowed
        self._stop = threading.Event()
        self.wrong: list[Any] = []
        self.right = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(4)]

    def _run(self, number: int) -> None:
        row = np.full((1 + number, 4), number + 1, np.float32)
        with client_of(self._server) as client:
            while not self._stop.is_set():
                try:
                    got = ask(client, "chain", row)
                except triton.InferenceServerException as error:
                    if str(error.status()).removeprefix("StatusCode.") not in self._allowed:
                        self.wrong.append(error)
                    continue
                if got[0, 0] / row[0, 0] not in self._factors or (got != got[0, 0]).any() or got.shape != row.shape:
                    self.wrong.append(got)
                self.right += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def some_more(self) -> None:
        """Wait until some more have been answered."""
        reached = self.right + 20
        wait_until(lambda: self.right > reached or self.wrong)


def test_a_member_is_replaced_under_load_without_a_failed_or_wrong_answer(
    server: ServerProcess, client: Any, root: Path
) -> None:
    client.load_model("chain")
    with Load(server, {-2, -3, -5}) as load:
        load.some_more()
        for factor in (3, 5, 2, 3):
            add_graph(root, "scale", scaled(factor))
            client.load_model("scale")
            load.some_more()
    assert not load.wrong, load.wrong[0]
    npt.assert_array_equal(ask(client, "chain", ROW), -3 * ROW)


def test_a_member_is_unloaded_under_load_and_nothing_is_wrong_but_unavailable(
    server: ServerProcess, client: Any, root: Path
) -> None:
    client.load_model("chain")
    with Load(server, {-2}, {"UNAVAILABLE", "NOT_FOUND"}) as load:
        load.some_more()
        for _ in range(3):
            client.unload_model("scale")
            client.load_model("scale")
            load.some_more()
        client.unload_model("chain")
        client.load_model("chain")
        load.some_more()
    assert not load.wrong, load.wrong[0]


def test_a_member_that_is_gone_for_good_is_forgotten(client: Any, root: Path) -> None:
    client.load_model("chain")
    shutil.move(root / "negate", root.parent / "negate")
    try:
        client.unload_model("negate")
        assert not client.is_model_ready("chain")
        status, said = fails(lambda: client.load_model("outer"))
        assert "ensemble 'chain' depends on 'negate' which has no loaded version." in said, status
    finally:
        shutil.move(root.parent / "negate", root / "negate")
