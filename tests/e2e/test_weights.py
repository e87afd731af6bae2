"""Weights beside a graph: what is done to their files does not reach a version that is served."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.control import client_of
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import Tensor, channel_to, infer, outputs_of, request, triton
from tests.text_models import DIM, make_folder, save_weights

pytestmark = pytest.mark.long

ROWS, COLUMNS = 20_000, 256
EACH_SESSION = """backend: supertensor
batch_size: 4
capacity: 4
num_executors: 3
allocator: cpu
session:
  intra_threads: 2
"""


def put(folder: Path, value: float, location: str = "model.onnx.data") -> Path:
    """A model whose answer to the number of a row is that row, in each place ``value``; returns its weights' file."""
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["W", "x"], ["y"], axis=0)],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1, COLUMNS])],
        [numpy_helper.from_array(np.full((ROWS, COLUMNS), value, np.float32), "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return folder / location


def answers(server: ServerProcess) -> set[float]:
    """The different numbers in the answers to rows all over the weights."""
    found: set[float] = set()
    with channel_to(server.address) as channel:
        for row in range(0, ROWS, ROWS // 50):
            asked = request("m", Tensor.of("x", "INT64", np.array([[row]])))
            found.update(np.unique(outputs_of(infer(channel, asked))["y"]).tolist())
    return found


def no_folders(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none for copies of weights, in a server that has this one for its cache."""
    cache.write_text("no folder")
    monkeypatch.setenv("TMPDIR", str(cache))


def _cut(path: Path) -> None:
    os.truncate(path, 0)


def _write_over(path: Path) -> None:
    with path.open("r+b") as file:  # as cp does
        file.truncate(0)
        file.write(np.full(ROWS * COLUMNS // 2, 3, np.float32).tobytes())


def _replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(np.full(ROWS * COLUMNS, 3, np.float32).tobytes())
    new.rename(path)


def _forbid(path: Path) -> None:
    path.chmod(0)


def _remove(path: Path) -> None:
    path.unlink()


HARM = (_cut, _write_over, _replace, _forbid, _remove)


@pytest.mark.parametrize("config", ["", EACH_SESSION], ids=["one session", "three sessions"])
@pytest.mark.parametrize("where", [pytest.param("copies", marks=pytest.mark.quick), "memory"])
def test_what_happens_to_the_files_of_a_served_version_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, config: str
) -> None:
    cache = tmp_path / "cache"
    if where == "memory":
        no_folders(cache, monkeypatch)
    weights = put(tmp_path / "models" / "m" / "1", 2.0, "deep/er/w.bin")
    if config:
        (tmp_path / "models" / "m" / "1" / "config.yaml").write_text(config)
    with running(tmp_path / "models", tmp_path, ["--model-cache-dir", str(cache)]) as server:
        for harm in HARM:
            harm(weights)
            assert answers(server) == {2.0}, harm
        (tmp_path / "models" / "m" / "1" / "model.onnx").write_bytes(b"")
        assert answers(server) == {2.0}
        assert server.stop() == 0
        said = server.log.count("MB of weights are read into memory, because they cannot be copied to")
    assert said == (where == "memory")
    if where == "copies":
        assert os.listdir(cache / "serving") == []


@pytest.mark.parametrize("where", ["copies", "memory"])
def test_sessions_of_a_version_have_its_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    cache = tmp_path / "cache"
    if where == "memory":
        no_folders(cache, monkeypatch)
    folder = tmp_path / "models" / "m" / "1"
    weights = put(folder, 2.0)
    (folder / "config.yaml").write_text(EACH_SESSION)
    used = {}
    for flags in (["--map-weights"], ["--model-cache-dir", str(cache)]):
        log = tmp_path / flags[0]
        log.mkdir()
        with running(tmp_path / "models", log, flags) as server:
            assert answers(server) == {2.0}
            rollup = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
            used[flags[0]] = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    # Three of them would be two more.
    assert used["--model-cache-dir"] * 1024 < used["--map-weights"] * 1024 + 1.5 * weights.stat().st_size


def test_what_a_killed_server_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    put(tmp_path / "models" / "m" / "1", 2.0)
    left = tmp_path / "cache" / "serving" / "0123"
    left.mkdir(parents=True)
    (left / "w.bin").write_bytes(b"weights")
    left.with_suffix(".lock").write_bytes(b"")
    with running(tmp_path / "models", tmp_path, ["--model-cache-dir", str(tmp_path / "cache")]) as server:
        assert answers(server) == {2.0}
        assert os.listdir(tmp_path / "cache" / "serving") == []


def test_processes_share_the_copies_of_weights_and_remove_them(tmp_path: Path) -> None:
    weights = put(tmp_path / "models" / "m" / "1", 2.0)
    serving = tmp_path / "cache" / "serving"

    def copies() -> list[str]:
        return [name for name in os.listdir(serving) if (serving / name).is_dir()]

    flags = ["--model-cache-dir", str(tmp_path / "cache"), "--processes", "2"]
    with running(tmp_path / "models", tmp_path, flags) as server:
        assert len(copies()) == 1
        _cut(weights)
        assert answers(server) == {2.0}
        assert server.stop() == 0
    assert os.listdir(serving) == []


def test_a_load_brings_what_has_been_written(tmp_path: Path) -> None:
    weights = put(tmp_path / "models" / "m" / "1", 2.0)
    flags = ["--model-cache-dir", str(tmp_path / "cache"), "--model-control-mode", "explicit", "--load-model", "m"]
    with running(tmp_path / "models", tmp_path, flags) as server:
        assert answers(server) == {2.0}
        _replace(weights)
        assert answers(server) == {2.0}
        with client_of(server) as client:
            client.load_model("m")
        assert answers(server) == {3.0}


@pytest.mark.quick
def test_a_text_model_keeps_the_weights_that_it_was_loaded_with(tmp_path: Path) -> None:
    """Those beside its graph, and those of a module, which are in a safetensors file."""
    folder = make_folder(
        tmp_path / "models" / "t",
        modules=[
            ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True}),
            ("2_Dense", "sentence_transformers.models.Dense", {"in_features": DIM, "out_features": DIM, "bias": False}),
        ],
    )
    save_weights(folder / "2_Dense", linear_weight=np.eye(DIM, dtype=np.float32)[::-1])
    model = onnx.load(folder / "model.onnx")
    onnx.save_model(
        model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=100
    )

    def vector(client: Any) -> list[float]:
        tensor = triton.InferInput("text", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([["the cat"]], object))
        found: list[float] = client.infer("t", [tensor]).as_numpy("embedding")[0].tolist()
        return found

    with running(tmp_path / "models", tmp_path, ["--model-cache-dir", str(tmp_path / "cache")]) as server:
        with client_of(server) as client:
            before = vector(client)
            for name in ("model.onnx_data", "2_Dense/model.safetensors", "model.onnx"):
                _cut(folder / name)
                assert vector(client) == before
        assert server.stop() == 0


# --- links


def _to_shared(root: Path, weights: Path) -> None:
    target = root / "models" / "shared" / "weights"
    target.parent.mkdir()
    weights.rename(target)
    weights.symlink_to("../../shared/weights")


def _to_shared_folder(root: Path, weights: Path) -> None:
    target = root / "models" / "shared"
    weights.parent.rename(target)
    weights.parent.symlink_to(target)


def _to_cache(root: Path, weights: Path) -> None:
    target = root / "hub" / "models--somebody--rows" / "blobs" / ("ab" * 32)
    target.parent.mkdir(parents=True)
    weights.rename(target)
    weights.symlink_to(target)


def _by_kubernetes(root: Path, weights: Path) -> None:
    version = root / "models" / "m" / "1"
    data = version / "..2026_11_28"
    data.mkdir()
    names = [path.name for path in version.iterdir() if not path.name.startswith("..")]
    for name in names:
        (version / name).rename(data / name)
        (version / name).symlink_to(f"..data/{name}")
    (version / "..data").symlink_to(data.name)


@pytest.mark.parametrize("flags", [(), ("--map-weights",), ("--processes", "2")])
@pytest.mark.parametrize("move", [_to_shared, _to_shared_folder, _to_cache, _by_kubernetes])
def test_links_into_the_repository_or_a_cache_are_followed(
    tmp_path: Path, move: Callable[[Path, Path], None], flags: tuple[str, ...]
) -> None:
    location = "weights/model.onnx.data" if move is _to_shared_folder else "model.onnx.data"
    weights = put(tmp_path / "models" / "m" / "1", 2, location)
    move(tmp_path, weights)
    checked = run("check", str(tmp_path / "models"))
    assert (checked.returncode, "cannot" in checked.stdout) == (0, False), checked.stdout
    log = tmp_path / "log"
    log.mkdir()
    own = ("--model-cache-dir", str(tmp_path / "cache"), "--load-models", "m")
    with running(tmp_path / "models", log, (*own, *flags)) as server:
        assert answers(server) == {2}
        assert server.stop() == 0


def test_a_snapshot_of_the_hub_is_served_where_it_is(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--somebody--rows"
    blobs, snapshot = hub / "blobs", hub / "snapshots" / ("cd" * 20) / "onnx"
    put(blobs, 2)
    snapshot.mkdir(parents=True)
    (blobs / "model.onnx").rename(blobs / "00ff")
    (blobs / "model.onnx.data").rename(blobs / "ff00")
    (snapshot / "model.onnx").symlink_to("../../../blobs/00ff")
    (snapshot / "model.onnx.data").symlink_to("../../../blobs/ff00")
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1").symlink_to(snapshot)
    with running(tmp_path / "models", tmp_path, ("--model-cache-dir", str(tmp_path / "cache"))) as server:
        assert answers(server) == {2}
        assert server.stop() == 0


@pytest.mark.parametrize("location", ["link", "folder/w", "../../../outside", "/absolute"])
def test_weights_from_elsewhere_are_refused_by_name(tmp_path: Path, location: str) -> None:
    """Whoever writes into the repository does not have the server read another file."""
    version = tmp_path / "models" / "m" / "1"
    outside = tmp_path / "outside"
    put(version, 2).rename(outside)
    secret = {"/absolute": str(outside)}.get(location, location)
    model = onnx.load(version / "model.onnx", load_external_data=False)
    [entry] = [one for one in model.graph.initializer[0].external_data if one.key == "location"]
    entry.value = secret
    onnx.save(model, version / "model.onnx")
    if location == "link":
        (version / "link").symlink_to(outside)
    if location == "folder/w":
        outside.rename(tmp_path / "w")
        (version / "folder").symlink_to("../../..")
    said = f"{version / location.partition('/')[0]}' is a link to" if location[0] in "lf" else f"weights in '{secret}'"
    checked = run("check", str(tmp_path / "models"))
    assert checked.returncode == 1
    assert said in checked.stdout
    log = tmp_path / "log"
    log.mkdir()
    for flags in ((), ("--map-weights",)):
        own = ("--model-cache-dir", str(tmp_path / "cache"))
        with running(tmp_path / "models", log, (*own, *flags)) as server, client_of(server) as client:
            assert not client.is_model_ready("m")
            assert said in server.log
            assert server.stop() == 0
