"""The sessions of ONNX Runtime that a version is loaded with: how many, with which options, and when they are freed."""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from onnx import helper, load_model_from_string, save_model

from tests.graphs import DOUBLE, double, model, tensor
from tests.models.support import CONFIG, WatchedFiles, folder_of, gone, load, load_model, manager_in, put, unload_model
from toutates.backends.onnx.opening import SessionOptions
from toutates.models.table import ModelState


def test_profiles_of_executors_have_names_of_their_own(tmp_path: Path) -> None:
    prefix = tmp_path / "profile"
    config = CONFIG.format(2) + f"profiling: {{file_prefix: {prefix}}}\n"
    root = tmp_path / "repository"
    for name in ("a", "b"):
        put(root, name, double(["n", 2]), config=config)
    load(root)
    names = sorted(path.name.split("_")[1:4] for path in tmp_path.glob("profile_*.json"))
    assert names == [[name, "1", number] for name in "ab" for number in "01"]


def options_of(root: Path, server: SessionOptions) -> list[Any]:
    made: list[Any] = []
    load(root, files=WatchedFiles(after=made.extend), sessions=server)
    return [session.get_session_options() for session in made]


def test_a_model_loads_with_the_options_of_the_server(tmp_path: Path) -> None:
    put(tmp_path, "m", config=CONFIG.format(2))
    [options] = options_of(tmp_path, SessionOptions())  # executors on the CPU share a session
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.use_env_allocators") == "1"  # small models share an arena
    with_threads = options_of(tmp_path, SessionOptions(intra_threads=2))
    assert [options.intra_op_num_threads for options in with_threads] == [2, 2]


@pytest.mark.parametrize(("session", "count"), [("", 1), ("session:\n  intra_threads: 2\n", 3)], ids=["one", "each"])
def test_sessions_of_a_version_that_is_unloaded_are_freed(tmp_path: Path, session: str, count: int) -> None:
    """With the weights that they hold, at once, though threads made them that have nothing to do any more."""
    known: list[weakref.ref[Any]] = []

    def remember(sessions: list[Any]) -> None:
        known.extend(map(weakref.ref, sessions))

    put(tmp_path, "m", config=CONFIG.format(3) + session)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, files=WatchedFiles(after=remember))
                await load_model(manager, folder_of(tmp_path))
                assert [one() is None for one in known] == [False] * count
                await unload_model(manager, "m")
                await gone(manager)
                left = [one() for one in known]
                manager.stop()
        assert left == [None] * count

    trio.run(main)


@pytest.mark.parametrize(("replaced", "fails"), [("model.onnx", True), ("w.bin", True), ("other.bin", False)])
def test_a_file_that_is_replaced_between_the_sessions_of_a_version_fails_its_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: str, fails: bool
) -> None:
    """Else its executors would compute different things for good. It is tried three times."""
    folder = put(tmp_path, "m", config=CONFIG.format(2) + "session:\n  intra_threads: 2\n")
    weighted = model(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [tensor("x", ["n", 4])],
        [tensor("y", ["n", 4])],
        w=np.full(4, 2, np.float32),
    )
    graph = load_model_from_string(weighted)
    save_model(graph, folder / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "other.bin").write_bytes(b"some")
    sessions: list[Any] = []

    def replace(made: list[Any]) -> None:
        sessions.extend(made)
        (tmp_path / "new").write_bytes((folder / replaced).read_bytes())
        (tmp_path / "new").rename(folder / replaced)

    manager, _ = load(tmp_path, files=WatchedFiles(after=replace))
    [entry] = manager.table.models["m"].versions.values()
    assert (entry.state is ModelState.UNAVAILABLE, len(sessions)) == (fails, 6 if fails else 2)
    if fails:
        assert entry.reason.startswith(f"Internal: '1/{replaced}' has changed while it was read, 3 times")
        assert f"'{folder}/{replaced}' has changed" in caplog.text
    manager, _ = load(tmp_path)
    assert manager.table.ready


def test_a_file_that_is_replaced_behind_the_only_session_of_a_version_fails_nothing(tmp_path: Path) -> None:
    folder = put(tmp_path, "m", config=CONFIG.format(2))

    def replace(made: list[Any]) -> None:
        (tmp_path / "new").write_bytes(DOUBLE)
        (tmp_path / "new").rename(folder / "model.onnx")

    manager, _ = load(tmp_path, files=WatchedFiles(after=replace))
    assert manager.table.ready


class Noted:
    """A session of ONNX Runtime that notes the shape of the first input of each run, and is not quick."""

    def __init__(self, session: Any, shapes: list[tuple[int, ...]]) -> None:
        self._session, self._shapes = session, shapes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, names: Any, feed: dict[str, Any], options: Any) -> Any:
        self._shapes.append(feed["x"].shape)
        time.sleep(0.002)
        return self._session.run(names, feed, options)


@pytest.mark.parametrize(
    ("session", "expected"),
    [("", [(1, 4), (4, 4)]), ("session:\n  intra_threads: 2\n", [(1, 4), (1, 4), (4, 4), (4, 4)])],
    ids=["a session for all", "a session for each"],
)
def test_warm_up_runs_one_row_and_a_whole_batch_in_every_session(
    tmp_path: Path, session: str, expected: list[tuple[int, ...]]
) -> None:
    runs: list[tuple[int, ...]] = []

    def note(sessions: list[Any]) -> None:
        sessions[:] = [Noted(one, runs) for one in sessions]

    # A graph that no other load of this process has probed.
    put(tmp_path, "m", double([tmp_path.name, 4]), config=CONFIG.format(2) + session)
    manager, _ = load(tmp_path, files=WatchedFiles(after=note))
    assert manager.table.ready
    # Then random rows are run together and one by one.
    assert runs[-5:] == [(1, 4)] * 4 + [(4, 4)]
    # A run that was slow is timed once more.
    assert runs[:-5] in (expected, [(1, 4), *expected])
