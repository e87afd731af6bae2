"""What is wrong with the files of one model is that model's alone: a good one beside it is served, and loads go on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.hostile_files import HOSTILE, good_graph, put
from tests.e2e.process import run, running
from tests.e2e.support import Tensor, call, channel_to, infer, outputs_of, pb, request
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SERVICE = "/inference.GRPCInferenceService"
#: What ONNX Runtime and the settings take, odd as it is.
SERVED = {
    "graph_bare_outside",
    "graph_dimension_least",
    "graph_dimension_zero",
    "graph_ir_least",
    "graph_metadata",
    "graph_no_shape",
    "graph_outside",
    "pbtxt_latest_most",
    "pbtxt_levels_most",
    "pbtxt_queue_most",
}


def put_good(root: Path, name: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1/model.onnx").write_bytes(good_graph())


def put_all(root: Path) -> None:
    for name in HOSTILE:
        put(root, name)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    put_good(root, "good")
    put_all(root)
    return root


def answer_of(channel: Any, model: str) -> list[list[float]]:
    tensor = Tensor.of("x", "FP32", np.ones((1, 2), np.float32))
    found: list[list[float]] = outputs_of(infer(channel, request(model, tensor)))["y"].tolist()
    return found


def index_of(channel: Any) -> dict[str, tuple[str, str]]:
    """State and reason by the model's name."""
    octets = call(channel, f"{SERVICE}/RepositoryIndex", b"")
    return {one.name: (one.state, one.reason) for one in pb.RepositoryIndexResponse.FromString(octets).models}


def check_that_all_is_told(channel: Any, names: Collection[str]) -> None:
    index = index_of(channel)
    assert set(names) <= index.keys()
    ready = {name for name in names if index[name][0] == "READY"}
    assert ready <= SERVED
    silent = [name for name in names if name not in ready and not index[name][1]]
    assert not silent
    assert max(len(reason) for _, reason in index.values()) < 100_000


def test_the_others_are_served(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path) as server, channel_to(server.address) as channel:
        assert answer_of(channel, "good") == [[-1, -1]]
        check_that_all_is_told(channel, HOSTILE)
        assert server.stop() == 0


def test_the_others_are_served_by_several_processes(tmp_path: Path) -> None:
    root, some = tmp_path / "repository", sorted(HOSTILE)[::4]
    put_good(root, "good")
    for name in some:
        put(root, name)
    with running(root, tmp_path, ["--processes", "2"]) as server, channel_to(server.address) as channel:
        assert answer_of(channel, "good") == [[-1, -1]]
        check_that_all_is_told(channel, some)
        assert server.stop() == 0


def test_polls_go_on(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    put_good(root, "good")
    flags = ["--model-control-mode", "poll", "--repository-poll-secs", "1"]
    with running(root, tmp_path, flags) as server, channel_to(server.address) as channel:
        put_all(root)
        wait_until(lambda: HOSTILE.keys() <= index_of(channel).keys())
        put_good(root, "later")
        wait_until(lambda: index_of(channel).get("later", ("",))[0] == "READY")
        assert answer_of(channel, "later") == answer_of(channel, "good") == [[-1, -1]]
        wait_until(lambda: not [one for one in index_of(channel).values() if one[0] == "LOADING"])
        check_that_all_is_told(channel, HOSTILE)


def test_each_is_refused_on_request(repository: Path, tmp_path: Path) -> None:
    import grpc

    flags = ["--model-control-mode", "explicit", "--load-model", "good"]
    with running(repository, tmp_path, flags) as server, channel_to(server.address) as channel:
        for name in HOSTILE:
            message = pb.RepositoryModelLoadRequest(model_name=name).SerializeToString()
            try:
                call(channel, f"{SERVICE}/RepositoryModelLoad", message)
                problem = "" if name in SERVED else "it is served"
            except grpc.RpcError as error:
                problem = "" if error.details() and "internal error" not in error.details() else error.details()
            assert not problem, name
        assert answer_of(channel, "good") == [[-1, -1]]
        assert HOSTILE.keys() <= index_of(channel).keys()


def test_each_is_refused_on_demand(repository: Path, tmp_path: Path) -> None:
    import grpc

    with (
        running(repository, tmp_path, ["--model-control-mode", "on-demand"]) as server,
        channel_to(server.address) as channel,
    ):
        for name in sorted(HOSTILE.keys() - SERVED):
            with pytest.raises(grpc.RpcError) as caught:
                answer_of(channel, name)
            assert "internal error" not in caught.value.details(), name
        assert answer_of(channel, "good") == [[-1, -1]]


def test_check_tells_all_of_them(repository: Path) -> None:
    found = run("check", str(repository))
    assert found.returncode == 1
    assert "Traceback" not in found.stdout + found.stderr
    told = "\n".join(line for line in found.stdout.splitlines() if line.startswith("error: "))
    assert {name for name in HOSTILE if f"{name}" not in told} <= SERVED | {"python_no_class", "python_text"}
    assert "good 1: batched" in found.stdout
