"""Versions that cannot be loaded at first, and --model-load-retry-count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.http import get, peer_of, post
from tests.e2e.models import add_model as add_onnx_model
from tests.e2e.models import versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import IDENTITY, add_model

HTTP = ("--http-addr", "127.0.0.1:0", "--processing-cores", "1", "--strict-readiness", "false")
#: Fails as often as the file beside the repository says, and counts how often it was called.
FAILING = """
def initialize(self, args):
    import pathlib
    path = pathlib.Path({path!r})
    path.write_text(path.read_text() + "x")
    if len(path.read_text()) <= {failures}:
        raise RuntimeError("the database is not there yet")
"""


def failing(root: Path, failures: int, name: str = "m") -> Path:
    calls = root / f"{name}.calls"
    (root / "models").mkdir(exist_ok=True)
    calls.write_text("")
    add_onnx_model(root / "models", "good", versioned_model(1))  # so that the server becomes ready
    add_model(root / "models", name, FAILING.format(path=str(calls), failures=failures) + IDENTITY, more="")
    return calls


def is_ready(server: ServerProcess, name: str = "m") -> bool:
    with peer_of(server.rest_port) as peer:
        return peer.ask(get(f"/v2/models/{name}/ready")).status == 200


@pytest.mark.parametrize(
    ("retries", "failures", "calls", "ready"),
    [((), 1, 1, False), (("1",), 1, 2, True), (("2",), 9, 3, False)],
)
def test_a_version_is_loaded_again_as_often_as_the_flag_says(
    tmp_path: Path, retries: Sequence[str], failures: int, calls: int, ready: bool
) -> None:
    called = failing(tmp_path, failures)
    flags = [*HTTP, *(f"--model-load-retry-count={number}" for number in retries)]
    with running(tmp_path / "models", tmp_path, flags) as server:
        assert (called.read_text(), is_ready(server)) == ("x" * calls, ready)
        assert server.log.count("and is loaded again: ") == calls - 1
        assert ("cannot be served" in server.log) is not ready
        assert server.stop() == 0


def test_loads_by_request_and_on_demand_are_tried_again_too(tmp_path: Path) -> None:
    by_request = failing(tmp_path, 1)
    flags = [*HTTP, "--model-load-retry-count=1"]
    for control, path in (
        (("--model-control-mode", "explicit"), "/v2/repository/models/m/load"),
        (("--model-control-mode", "on-demand"), "/v2/models/m/infer"),
    ):
        by_request.write_text("")
        body = '{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
        with running(tmp_path / "models", tmp_path, [*flags, *control]) as server:
            with peer_of(server.rest_port) as peer:
                assert peer.ask(post(path, body if path.endswith("infer") else "{}")).status == 200
            assert (by_request.read_text(), is_ready(server)) == ("xx", True)


def test_a_configuration_that_cannot_be_used_is_not_tried_again(tmp_path: Path) -> None:
    called = failing(tmp_path, 0)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text("max_batch_size: x")
    with running(tmp_path / "models", tmp_path, [*HTTP, "--model-load-retry-count=5"]) as server:
        assert (called.read_text(), is_ready(server)) == ("", False)
        assert "is loaded again" not in server.log
