"""Loading a repository at the start."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import trio
import trio.testing
from onnx import TensorProto, helper

from tests.graphs import DOUBLE, model, tensor
from tests.models.support import CONFIG, WatchedFiles, load, manager_in, put
from tests.threads import no_threads
from toutates.models.repository import scan
from toutates.models.table import ModelState
from toutates.system.errors import ModelLoadError


def test_every_version_is_loaded_and_progress_is_told(tmp_path: Path) -> None:
    put(tmp_path, "a", version=1)
    put(tmp_path, "a", version=2)
    put(tmp_path, "b", config=CONFIG.format(2))
    manager, progress = load(tmp_path)
    assert [(done, total) for done, total, _ in progress] == [(1, 3), (2, 3), (3, 3)]
    assert {name for _, _, name in progress} == {"a 1", "a 2", "b 1"}
    assert manager.table.ready
    a, _, b = manager.table.served()
    made = [version.servable.statistics() for version in (a, b)]
    assert [(one.batch_size, one.occupancy.capacity, one.executors) for one in made] == [(64, 16, 1), (4, 2, 2)]
    assert (b.config.name, b.config.max_batch_size) == ("b", 4)


def test_versions_of_a_model_ascend_whatever_was_loaded_first(tmp_path: Path) -> None:
    for version in (10, 2, 1):
        put(tmp_path, "a", version=version)
    manager, _ = load(tmp_path)
    assert list(manager.table.models["a"].versions) == [1, 2, 10]


def test_an_empty_repository_is_ready(tmp_path: Path) -> None:
    manager, progress = load(tmp_path)
    assert manager.table.ready
    assert progress == []


SEQUENCE = model(
    [helper.make_node("SequenceConstruct", ["x"], ["y"])],
    [tensor("x", ["n"])],
    [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
)


BROKEN = {
    "no model": (b"nonsense", "", "onnxruntime cannot load 'model.onnx': "),
    "config": (DOUBLE, "batch_size: 0\n", "config.yaml: batch_size: is not an integer from 1"),
    "shapes": (DOUBLE, CONFIG.format(1) + "input_shapes: {x: [-1, 3]}\n", "differs from a size that the graph fixes"),
    "allocator": (DOUBLE, CONFIG.format(1).replace("cpu", "cuda_pinned"), "page-locked memory needs the CUDA"),
    "type": (SEQUENCE, "", "which the inference protocol cannot carry"),
}


@pytest.mark.parametrize(("content", "config", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_version_is_entered_with_its_reason_and_the_others_serve(
    tmp_path: Path, content: bytes, config: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "broken", content, config=config)
    put(tmp_path, "fine")
    manager, progress = load(tmp_path)
    # What has failed is not said to be loaded.
    assert sorted(progress) in ([(0, 2, ""), (1, 2, "fine 1")], [(1, 2, ""), (1, 2, "fine 1")])
    entry = manager.table.models["broken"].versions[1]
    assert (entry.state, entry.served) == (ModelState.UNAVAILABLE, None)
    assert entry.reason.startswith("Internal: ")
    assert reason in entry.reason
    assert "model 'broken' version 1 cannot be served: " in caplog.text
    assert reason in caplog.text
    assert [version.model for version in manager.table.served()] == ["fine"]
    assert not manager.table.ready


def test_several_reasons_are_several_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "m", config="backend: supertensor\nbatch_size: 0\nother: 1\nworse: 2\n")
    manager, _ = load(tmp_path)
    reasons = manager.table.models["m"].versions[1].reason.removeprefix("Internal: ").splitlines()
    assert len(reasons) > 2
    # The log says where the file is.
    assert caplog.messages == [f"model 'm' version 1 cannot be served: {tmp_path}/m/{reason}" for reason in reasons]


def test_bf16_and_bytes_in_one_model_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [name + "_out"]) for name in ("a", "b")]
    kinds = (TensorProto.BFLOAT16, TensorProto.STRING)
    inputs = [tensor(name, ["n", 1], kind) for name, kind in zip("ab", kinds, strict=True)]
    outputs = [tensor(name + "_out", ["n", 1], kind) for name, kind in zip("ab", kinds, strict=True)]
    put(tmp_path, "m", model(nodes, inputs, outputs))
    manager, _ = load(tmp_path)
    assert "BF16 and BYTES tensors in one model" in manager.table.models["m"].versions[1].reason


def test_folders_that_cannot_be_loaded_at_all_are_entered_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_file" / "1").mkdir(parents=True)
    (tmp_path / "fine" / "latest").mkdir(parents=True)
    put(tmp_path, "fine")
    (tmp_path / "fine" / "config.yaml").write_text("nobody reads this")
    manager, progress = load(tmp_path)
    assert [total for _, total, _ in progress] == [2, 2]
    assert f"'{tmp_path}/fine/config.yaml' is not read" in caplog.text
    assert "no version directory" in manager.table.models["empty"].problem
    assert "unable to find" in manager.table.models["no_file"].versions[1].reason
    assert "model 'empty' cannot be loaded: no version directory" in caplog.text
    assert (manager.counters.loads, manager.counters.failures) == (1, 2)
    assert "latest' is passed over" in caplog.text


def test_an_error_nobody_thought_of_fails_one_version_and_is_logged_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("surprise")

    put(tmp_path, "m")
    manager, _ = load(tmp_path, files=WatchedFiles(before=fail))
    assert manager.table.models["m"].versions[1].reason == "Internal: ZeroDivisionError: surprise"
    assert "Traceback" in caplog.text


def test_clients_are_told_no_paths_of_files_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "No such file or directory", str(tmp_path / "keys" / "key.pem"))

    put(tmp_path / "models", "m")
    manager, _ = load(tmp_path / "models", files=WatchedFiles(before=fail))
    told = "Internal: FileNotFoundError: [Errno 2] No such file or directory: 'key.pem'"
    assert manager.table.models["m"].versions[1].reason == told
    assert f"'{tmp_path}/keys/key.pem'" in caplog.text


def test_what_a_load_has_made_in_vain_is_freed_without_the_collector(tmp_path: Path) -> None:
    class Made:
        pass

    made: list[weakref.ref[Made]] = []

    def refuse() -> None:
        own = Made()
        made.append(weakref.ref(own))
        raise ModelLoadError("not today")

    put(tmp_path, "m")
    gc.collect()
    gc.disable()
    try:
        load(tmp_path, files=WatchedFiles(before=refuse))
        assert [one() for one in made] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("parallel_loads", [1, 3])
def test_cancelled_while_loading_it_waits_for_the_versions_in_hand_and_loads_no_more(
    tmp_path: Path, parallel_loads: int
) -> None:
    for number in range(6):
        put(tmp_path, f"m{number}")
    loading, go_on = threading.Semaphore(0), threading.Event()
    loaded: list[object] = []

    def wait() -> None:
        loading.release()
        assert go_on.wait(120)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as executors:
                files = WatchedFiles(before=wait, after=loaded.append)
                manager = manager_in(executors, parallel_loads=parallel_loads, files=files)
                scope = trio.CancelScope()

                async def load_until_cancelled() -> None:
                    with scope:
                        await manager.load_all(scan(tmp_path), lambda *progress: None)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(load_until_cancelled)
                    for _ in range(parallel_loads):
                        await trio.to_thread.run_sync(loading.acquire)
                    scope.cancel()
                    await trio.testing.wait_all_tasks_blocked()  # they have heard of it
                    go_on.set()
                assert not manager.table.models
                assert not manager.table.complete
                manager.stop()

    trio.run(main)
    assert len(loaded) == parallel_loads


def test_versions_for_which_there_is_no_thread_fail_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "a")
    put(tmp_path, "b")
    with no_threads():
        manager, _ = load(tmp_path)
    reasons = {name: manager.table.models[name].versions[1].reason for name in ("a", "b")}
    assert reasons == dict.fromkeys("ab", "Internal: RuntimeError: can't start new thread")
