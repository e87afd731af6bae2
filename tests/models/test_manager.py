"""Loading a repository, and ending what was started for it."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from onnx import TensorProto, helper, load_model_from_string, save_model

from tests.engine.support import wait_until
from tests.graphs import DOUBLE, double, model, tensor
from tests.threads import cpus_of_threads
from toutates.backends import warming as warming_module
from toutates.backends.onnx import loader as loader_module
from toutates.backends.onnx import preparing as preparing_module
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.row_probe import FOUND
from toutates.backends.onnx.session import ModelSession
from toutates.engine.batched import BatchedServable
from toutates.engine.lane import PackedLane
from toutates.engine.servable import Consumer, Host
from toutates.engine.submitter import Submitter
from toutates.engine.supertensor import SuperTensor
from toutates.models import current_table as current_table_module
from toutates.models import running as running_module
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.repository import ModelFolder, scan, scan_model
from toutates.models.table import ModelState, ServedVersion
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import ModelLoadError, ModelNotReady, PartlyLoaded
from toutates.system.placement import Placement, running_on
from toutates.system.shared_threads import SharedThreads
from toutates.system.topology import allowed_cpus, read_topology

CONFIG = "backend: supertensor\nbatch_size: 4\ncapacity: 2\nnum_executors: {}\nallocator: cpu\n"


def put(root: Path, name: str, content: bytes = DOUBLE, version: int = 1, config: str = "") -> Path:
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    if config:
        (folder / "config.yaml").write_text(config)
    return folder


def manager_in(
    nursery: trio.Nursery,
    *,
    sessions: SessionOptions | None = None,
    placement: Placement | None = None,
    parallel_loads: int = 1,
    **more: Any,
) -> ModelManager:
    placement = placement or Placement()
    kind = OnnxKind(sessions or SessionOptions(), placement)
    return ModelManager(LoadOptions([kind], placement, parallel_loads), nursery, **more)


def load(root: Path) -> tuple[ModelManager, list[tuple[int, int, str]]]:
    """Load a repository, and stop at once."""
    progress: list[tuple[int, int, str]] = []

    async def main() -> ModelManager:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery)
            assert not manager.table.ready
            await manager.load_all(scan(root), lambda done, total, name: progress.append((done, total, name)))
            manager.stop()
        return manager

    return trio.run(main), progress


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> Any:
        raise ZeroDivisionError("surprise")

    put(tmp_path, "m")
    monkeypatch.setattr(preparing_module, "check_warmup", fail)
    manager, _ = load(tmp_path)
    assert manager.table.models["m"].versions[1].reason == "Internal: ZeroDivisionError: surprise"
    assert "Traceback" in caplog.text


def test_clients_are_told_no_paths_of_files_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> Any:
        raise FileNotFoundError(2, "No such file or directory", str(tmp_path / "keys" / "key.pem"))

    put(tmp_path / "models", "m")
    monkeypatch.setattr(preparing_module, "check_warmup", fail)
    manager, _ = load(tmp_path / "models")
    told = "Internal: FileNotFoundError: [Errno 2] No such file or directory: 'key.pem'"
    assert manager.table.models["m"].versions[1].reason == told
    assert f"'{tmp_path}/keys/key.pem'" in caplog.text


def test_what_a_load_has_made_in_vain_is_freed_without_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made:
        pass

    made: list[weakref.ref[Made]] = []

    def refuse(model_path: Path, options: SessionOptions, **more: object) -> None:
        own = Made()
        made.append(weakref.ref(own))
        raise ModelLoadError("not today")

    monkeypatch.setattr(loader_module, "load_session", refuse)
    put(tmp_path, "m")
    gc.collect()
    gc.disable()
    try:
        load(tmp_path)
        assert [one() for one in made] == [None]
    finally:
        gc.enable()


def test_loaded_models_run_until_stop_ends_every_executor(tmp_path: Path) -> None:
    put(tmp_path, "m", config=CONFIG.format(3))
    results: list[Any] = []

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                [version] = manager.table.served()
                supertensor = supertensor_of(version)
                await trio.to_thread.run_sync(wait_until, lambda: supertensor.occupancy().idle_executors == 3)
                rounds: list[Any] = []
                submitter = Submitter(supertensor, Consumer(results.append, results.append, rounds.append))
                lane = supertensor.lane(((0, (4,)),))
                assert isinstance(lane, PackedLane)
                submitter.add_packed(submitter.writer(lane), 1, "a", np.ones(4, np.float32).tobytes(), [0, 16])
                rounds.pop()()
                await trio.to_thread.run_sync(wait_until, lambda: results)
                manager.stop()
        assert version.servable.counters.batches()[1].count == 1

    trio.run(main)
    assert results[0].outputs.data[0] == np.full(4, 2, np.float32).tobytes()


@pytest.mark.parametrize("threads", [0, 1], ids=["threads of its own", "threads that models share"])
def test_a_server_that_fails_waits_for_its_executors_to_close_their_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    put(tmp_path, "m", config=CONFIG.format(1))
    closing, closed = threading.Event(), threading.Event()
    close = ModelSession.close

    def close_slowly(session: ModelSession) -> None:
        closing.set()
        closed.wait(0.2)  # which nobody sets
        close(session)
        closed.set()

    monkeypatch.setattr(ModelSession, "close", close_slowly)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            options = LoadOptions([OnnxKind(SessionOptions(), Placement())], Placement(), executor_threads=threads)
            manager = ModelManager(options, nursery)
            await manager.load_all(scan(tmp_path), lambda *told: None)
            await trio.testing.wait_all_tasks_blocked()
            try:
                nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()
            finally:
                manager.stop()
        assert closing.is_set()
        assert closed.is_set()

    trio.run(main)


@pytest.mark.parametrize("delay", ["", "max_queue_delay_us: 100\n"])
def test_models_whose_executors_share_threads_need_no_tasks_while_they_are_served(tmp_path: Path, delay: str) -> None:
    config = CONFIG.format(2) + delay
    put(tmp_path / "one", "m", config=config)
    for number in range(5):
        put(tmp_path / "five", f"m{number}", config=config)

    async def tasks(root: Path, served: int) -> int:
        async with trio.open_nursery() as nursery:
            options = LoadOptions([OnnxKind(SessionOptions(), Placement())], Placement(), executor_threads=1)
            manager = ModelManager(options, nursery)
            await manager.load_all(scan(root), lambda *told: None)
            await trio.testing.wait_all_tasks_blocked()
            count = trio.lowlevel.current_statistics().tasks_living
            assert len(manager.table.served()) == served
            assert all(version.servable.ready for version in manager.table.served())
            manager.stop()
        return count

    assert trio.run(tasks, tmp_path / "five", 5) == trio.run(tasks, tmp_path / "one", 1)


def test_a_worker_that_ended_in_the_middle_of_its_round_does_not_keep_stop_from_ending(tmp_path: Path) -> None:
    put(tmp_path, "m")

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                [version] = manager.table.served()
                port = version.servable.port(Consumer(lambda result: None, lambda result: None, lambda callback: None))
                port.add_packed(port.way(((0, (4,)),)), 1, "a", bytes(16), [0, 16])
                manager.stop()

    trio.run(main)


@pytest.mark.parametrize("parallel_loads", [1, 3])
def test_cancelled_while_loading_it_waits_for_the_versions_in_hand_and_loads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel_loads: int
) -> None:
    for number in range(6):
        put(tmp_path, f"m{number}")
    loading, go_on = threading.Semaphore(0), threading.Event()
    loaded: list[object] = []
    really_load = load_session

    def load_slowly(*arguments: Any, **options: Any) -> Any:
        loading.release()
        assert go_on.wait(120)
        loaded.append(arguments)
        return really_load(*arguments, **options)

    monkeypatch.setattr(loader_module, "load_session", load_slowly)
    monkeypatch.setattr(running_module, "SHARE_NS", 0)  # else a thread may begin another one before it hears of it

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as executors:
                manager = manager_in(executors, parallel_loads=parallel_loads)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(manager.load_all, scan(tmp_path), lambda *progress: None)
                    for _ in range(parallel_loads):
                        await trio.to_thread.run_sync(loading.acquire)
                    nursery.cancel_scope.cancel()
                    go_on.set()
                assert not manager.table.models
                assert not manager.table.complete
                manager.stop()

    trio.run(main)
    assert len(loaded) == parallel_loads


def test_profiles_of_executors_have_names_of_their_own(tmp_path: Path) -> None:
    prefix = tmp_path / "profile"
    config = CONFIG.format(2) + f"profiling: {{file_prefix: {prefix}}}\n"
    root = tmp_path / "repository"
    for name in ("a", "b"):
        put(root, name, double(["n", 2]), config=config)
    load(root)
    names = sorted(path.name.split("_")[1:4] for path in tmp_path.glob("profile_*.json"))
    assert names == [[name, "1", number] for name in "ab" for number in "01"]


def test_a_model_loads_with_the_options_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    really_load = load_session

    def load_seen(path: Path, options: SessionOptions, **more: Any) -> Any:
        seen.append(options)
        return really_load(path, options, **more)

    monkeypatch.setattr(loader_module, "load_session", load_seen)
    put(tmp_path, "m", config=CONFIG.format(2))
    load(tmp_path)
    # Executors on the CPU share a session, and small models an arena.
    assert seen == [SessionOptions(shared_arena=True)]


def pinned_placement() -> Placement:
    """Every role on the first and the last CPU of this process, however few it has."""
    first, last = min(allowed_cpus()), max(allowed_cpus())
    return Placement(
        topology=read_topology(allowed_cpus()),
        manager=(last,),
        executors=(first, last),
        workers=(first,),
        intra_op=(last, first, first),
    )


def test_pinned_executors_and_pools_take_their_cpus_in_turn(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path, name, config=CONFIG.format(2))
    placement = pinned_placement()
    first, last = placement.executors
    # Two threads for each of four sessions, of last, first, first, last, first, first, last, first.
    pools = sorted([last] * 3 + [first] * 5)

    def placed() -> bool:
        threads = cpus_of_threads()
        executors = [of(threads, f"executor-0 {name}", f"executor-1 {name}") for name in ("a", "b")]
        return executors == [sorted([first, last])] * 2 and of(threads, "ort a", "ort b") == pools

    def look() -> None:
        # Trio keeps the thread for other tests, and it has inherited the manager's CPU.
        with running_on(allowed_cpus(), allowed_cpus()):
            wait_until(placed)

    async def main() -> None:
        with running_on(placement.manager, allowed_cpus()):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, placement=placement, sessions=SessionOptions(intra_threads=3))
                try:
                    await manager.load_all(scan(tmp_path), lambda *progress: None)
                    await trio.to_thread.run_sync(look)
                finally:
                    manager.stop()

    trio.run(main)


def of(threads: list[tuple[str, set[int]]], *names: str) -> list[int]:
    """The CPU of each thread of these names, ascending; -1 for a thread that has several."""
    return sorted(min(cpus) if len(cpus) == 1 else -1 for name, cpus in threads if name in names)


def test_models_load_on_every_cpu_though_the_manager_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    really_load = load_session

    def load_seen(*arguments: Any, **options: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return really_load(*arguments, **options)

    monkeypatch.setattr(loader_module, "load_session", load_seen)
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    placement = pinned_placement()

    async def main() -> None:
        with running_on(placement.manager, allowed_cpus()):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, placement=placement)
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                manager.stop()

    trio.run(main)
    assert seen == [allowed_cpus()] * 3


def test_threads_that_executors_leave_behind_are_not_pinned(tmp_path: Path) -> None:
    """Trio gives them to whatever runs in a thread next."""
    put(tmp_path, "m", config=CONFIG.format(3))
    placement = pinned_placement()
    affinities: list[set[int]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery, placement=placement)
            await manager.load_all(scan(tmp_path), lambda *progress: None)
            manager.stop()
        together = threading.Barrier(3)

        def look() -> None:
            together.wait(120)
            affinities.append(os.sched_getaffinity(0))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.to_thread.run_sync, look)

    trio.run(main)
    assert affinities == [allowed_cpus()] * 3


# --- models that come and go


def folder_of(root: Path, name: str = "m") -> Any:
    [folder] = LocalRepository(root).scan([name])
    return folder


def supertensor_of(version: ServedVersion) -> SuperTensor:
    assert isinstance(version.servable, BatchedServable)
    return version.servable.supertensor


async def gone(manager: ModelManager, name: str = "m") -> None:
    """Wait until no version of the model is left that is not in the table: before that, nobody gets a turn."""
    async with manager.turn(name):
        pass


async def load_model(manager: ModelManager, folder: ModelFolder, **more: Any) -> None:
    async with manager.turn(folder.name) as turn:
        await turn.load(folder, **more)


async def unload_model(manager: ModelManager, name: str = "m", **more: Any) -> None:
    async with manager.turn(name) as turn:
        turn.unload(**more)


def test_a_version_that_is_replaced_is_freed_without_the_collector(tmp_path: Path) -> None:
    put(tmp_path, "m", config=CONFIG.format(2))

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                # Before, because on free-threaded Python a collection may give objects to other threads.
                gc.collect()
                gc.disable()
                try:
                    await load_model(manager, folder_of(tmp_path))
                    gc.freeze()
                    for number in range(3):
                        [version] = manager.table.served()
                        supertensor = supertensor_of(version)
                        await double_once(supertensor)
                        lane = supertensor.lane(((0, (4,)),))
                        known = [weakref.ref(one) for one in (supertensor, lane, lane.spare[0].arrays[0])]
                        del version, supertensor, lane
                        (tmp_path / "m" / "1" / "config.yaml").write_text(CONFIG.format(2) + f"# {number}\n")
                        await load_model(manager, folder_of(tmp_path))
                        await gone(manager)
                        assert [one() for one in known] == [None] * 3
                finally:
                    gc.enable()
                    gc.unfreeze()
                    manager.stop()

    trio.run(main)


@pytest.mark.parametrize(("session", "count"), [("", 1), ("session:\n  intra_threads: 2\n", 3)], ids=["one", "each"])
def test_sessions_of_a_version_that_is_unloaded_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str, count: int
) -> None:
    """With the weights that they hold, at once, though threads made them that have nothing to do any more."""
    known: list[weakref.ref[Any]] = []

    def remembered(*arguments: Any, **more: Any) -> Any:
        session = load_session(*arguments, **more)
        known.append(weakref.ref(session))
        return session

    monkeypatch.setattr(loader_module, "load_session", remembered)
    put(tmp_path, "m", config=CONFIG.format(3) + session)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replaced: str, fails: bool
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

    def load_and_replace(*arguments: Any, **more: Any) -> Any:
        sessions.append(load_session(*arguments, **more))
        (tmp_path / "new").write_bytes((folder / replaced).read_bytes())
        (tmp_path / "new").rename(folder / replaced)
        return sessions[-1]

    monkeypatch.setattr(loader_module, "load_session", load_and_replace)
    manager, _ = load(tmp_path)
    [entry] = manager.table.models["m"].versions.values()
    assert (entry.state is ModelState.UNAVAILABLE, len(sessions)) == (fails, 6 if fails else 2)
    if fails:
        assert entry.reason.startswith(f"Internal: '1/{replaced}' has changed while it was read, 3 times")
        assert f"'{folder}/{replaced}' has changed" in caplog.text
    monkeypatch.undo()
    manager, _ = load(tmp_path)
    assert manager.table.ready


def test_a_file_that_is_replaced_behind_the_only_session_of_a_version_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path, "m", config=CONFIG.format(2))

    def load_and_replace(*arguments: Any, **more: Any) -> Any:
        session = load_session(*arguments, **more)
        (tmp_path / "new").write_bytes(DOUBLE)
        (tmp_path / "new").rename(folder / "model.onnx")
        return session

    monkeypatch.setattr(loader_module, "load_session", load_and_replace)
    manager, _ = load(tmp_path)
    assert manager.table.ready


def repository_state(manager: ModelManager) -> tuple[ModelState, str]:
    entry = manager.table.models["m"].versions[1]
    return entry.state, entry.reason


async def double_once(supertensor: SuperTensor) -> None:
    results: list[Any] = []
    rounds: list[Any] = []
    submitter = Submitter(supertensor, Consumer(results.append, results.append, rounds.append))
    lane = supertensor.lane(((0, (4,)),))
    assert isinstance(lane, PackedLane)
    submitter.add_packed(submitter.writer(lane), 1, "a", bytes(16), [0, 16])
    rounds.pop()()
    # Not in a thread, which might still know of all this when it is to be freed.
    while not (results and lane.spare):  # noqa: ASYNC110  # no event
        await trio.sleep(0.0005)


def test_a_version_is_closed_only_once_every_worker_has_let_go(tmp_path: Path) -> None:
    put(tmp_path, "m")
    settled = trio.Event()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=settled.wait)
                await load_model(manager, folder_of(tmp_path))
                [version] = manager.table.served()
                await unload_model(manager, "m")
                assert repository_state(manager) == (ModelState.UNLOADING, "")
                assert manager.table.ready
                await trio.testing.wait_all_tasks_blocked()
                await double_once(supertensor_of(version))  # a worker that has not looked yet
                settled.set()
                await gone(manager)
                assert repository_state(manager) == (ModelState.UNAVAILABLE, "unloaded")
                with pytest.raises(ModelNotReady):
                    await double_once(supertensor_of(version))
                await load_model(manager, folder_of(tmp_path))
                assert repository_state(manager) == (ModelState.READY, "")
                manager.stop()

    trio.run(main)


def test_a_server_that_stops_does_not_wait_for_workers_that_will_not_let_go(tmp_path: Path) -> None:
    put(tmp_path, "m")

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=trio.sleep_forever)
                await load_model(manager, folder_of(tmp_path))
                await unload_model(manager, "m")
                manager.stop()

    trio.run(main)


def test_versions_of_a_new_model_are_all_served_or_none_unless_each_is_by_itself(tmp_path: Path) -> None:
    put(tmp_path, "m", version=1)
    put(tmp_path, "m", b"nonsense", version=2)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                with pytest.raises(ModelLoadError, match="version 2 is at UNAVAILABLE state: Internal: onnxruntime"):
                    await load_model(manager, folder_of(tmp_path))
                assert not manager.table.served()
                await gone(manager)
                with pytest.raises(ModelLoadError):
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert [version.number for version in manager.table.served()] == [1]
                manager.stop()

    trio.run(main)


@pytest.mark.parametrize("failure", ["a version", "the files"])
def test_a_model_that_could_not_be_served_leaves_the_server_unready_until_it_can(tmp_path: Path, failure: str) -> None:
    seen: list[tuple[bool, ModelState | None]] = []

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:

                def note() -> None:
                    states = [version.state for version in manager.table.models["m"].versions.values()]
                    seen.append((manager.table.ready, states[0] if states else None))

                manager = manager_in(nursery, on_change=note)
                graph = put(tmp_path, "m", b"nonsense") / "model.onnx"
                if failure == "the files":
                    manager.refuse("m", "its files are not in the cache")
                for _ in range(2):
                    with pytest.raises(ModelLoadError):
                        await load_model(manager, folder_of(tmp_path))
                graph.write_bytes(DOUBLE)
                await load_model(manager, folder_of(tmp_path))
                manager.stop()

    trio.run(main)
    refused = [(False, None)] if failure == "the files" else []
    first, *again = [(False, ModelState.LOADING), (False, ModelState.UNAVAILABLE)] * 2 + [(False, ModelState.LOADING)]
    if failure == "a version":
        first = (True, ModelState.LOADING)  # it is new: whatever else is served is served on
    assert seen == [*refused, first, *again, (True, ModelState.READY)]


def test_of_what_was_removed_the_latest_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_table_module, "MAX_GONE", 2)
    monkeypatch.setattr(current_table_module, "MAX_REMOVED", 2)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                for number in (1, 2, 3, 4):
                    shutil.rmtree(tmp_path / "m", ignore_errors=True)
                    put(tmp_path, "m", version=number)
                    await load_model(manager, scan_model(tmp_path / "m"))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([4], (2, 3))
                put(tmp_path, "m", b"nonsense", version=5)
                with pytest.raises(ModelLoadError):
                    await load_model(manager, scan_model(tmp_path / "m"))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([4, 5], (2, 3))
                for name in ("a", "b", "m"):
                    if name != "m":
                        put(tmp_path, name)
                        await load_model(manager, scan_model(tmp_path / name))
                    await unload_model(manager, name, forget=True)
                    await gone(manager, name)
                    assert name not in manager.table.models
                assert manager.table.removed == {"b": (1,), "m": (4, 5)}
                await load_model(manager, scan_model(tmp_path / "b"))
                assert list(manager.table.removed) == ["m"]
                manager.stop()

    trio.run(main)


def test_a_model_that_vanishes_while_it_loads_is_an_error_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "m")
    really_load = load_session

    def vanish(path: Path, *arguments: Any, **options: Any) -> Any:
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        return really_load(path, *arguments, **options)

    monkeypatch.setattr(loader_module, "load_session", vanish)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                with pytest.raises(ModelLoadError, match=r"cannot read '1/model\.onnx': No such file"):
                    await load_model(manager, folder_of(tmp_path))
                await unload_model(manager, "m", forget=True)
                assert not manager.table.models
                manager.stop()

    trio.run(main)


@pytest.mark.parametrize(
    ("session", "small_ns", "expected"),
    [
        ("", 0, [(1, 4), (4, 4)]),
        ("", 2**62, [(1, 4)]),
        ("session:\n  intra_threads: 2\n", 0, [(1, 4), (1, 4), (4, 4), (4, 4)]),
    ],
    ids=["a session for all", "of a small model", "a session for each"],
)
def test_warm_up_runs_one_row_and_a_whole_batch_in_every_session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    session: str,
    small_ns: int,
    expected: list[tuple[int, ...]],
) -> None:
    runs: list[tuple[int, ...]] = []
    really_run = ModelSession.run_arrays

    def run(self: ModelSession, inputs: Any) -> Any:
        runs.append(inputs[0].shape)
        return really_run(self, inputs)

    monkeypatch.setattr(ModelSession, "run_arrays", run)
    monkeypatch.setattr(warming_module, "_SMALL_RUN_NS", small_ns)
    FOUND.clear()  # an equal file may have been probed before
    put(tmp_path, "m", config=CONFIG.format(2) + session)
    load(tmp_path)
    # Then random rows are run together and one by one.
    assert runs[-5:] == [(1, 4)] * 4 + [(4, 4)]
    # A run that was slow is timed once more.
    assert runs[:-5] in (expected, [(1, 4), *expected])


@pytest.mark.parametrize(("repeating_ns", "samples", "expected"), [(2**62, 1, 1_000), (0, 3, 6), (2**62, 600, 1_000)])
def test_warm_up_is_bounded_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    repeating_ns: int,
    samples: int,
    expected: int,
) -> None:
    runs: list[int] = []
    really_run = ModelSession.run_arrays

    def run(self: ModelSession, inputs: Any) -> Any:
        runs.append(0)
        return really_run(self, inputs)

    monkeypatch.setattr(ModelSession, "run_arrays", run)
    monkeypatch.setattr(warming_module, "MAX_REPEATING_NS", repeating_ns)
    FOUND.clear()  # an equal file may have been probed before
    sample = "  - {name: a, count: 1000000, inputs: {x: {datatype: FP32, shape: [4], data: zero}}}\n"
    put(tmp_path, "m", config=CONFIG.format(2) + "session:\n  intra_threads: 2\nwarmup:\n" + samples * sample)
    load(tmp_path)
    # Then two rows are run, and random ones: four one by one, and all together.
    assert len(runs) == expected + 5
    assert f"model 'm': {expected} of {2_000_000 * samples} warm-up runs were made" in caplog.text


def test_changes_of_one_model_wait_for_each_other_and_for_what_the_last_one_replaced(tmp_path: Path) -> None:
    for name in ("m", "other"):
        put(tmp_path, name)
    settled, order = trio.Event(), list[str]()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery, settle=settled.wait)

                async def change(name: str, text: str, stay: trio.Event | None = None) -> None:
                    async with manager.turn(name):
                        order.append(text)
                        if stay is not None:
                            await stay.wait()

                await load_model(manager, folder_of(tmp_path))
                leave = trio.Event()
                for name, text, stay in (("m", "first", leave), ("m", "second", None), ("other", "other", None)):
                    nursery.start_soon(change, name, text, stay)
                    await trio.testing.wait_all_tasks_blocked()
                with trio.move_on_after(0):
                    await change("m", "cancelled")
                nursery.start_soon(change, "m", "third")
                await trio.testing.wait_all_tasks_blocked()
                assert order == ["first", "other"]
                leave.set()
                await trio.testing.wait_all_tasks_blocked()
                assert order[2:] == ["second", "third"]
                await unload_model(manager)
                nursery.start_soon(change, "m", "after the end")
                await trio.testing.wait_all_tasks_blocked()
                assert order[4:] == []
                settled.set()
                await gone(manager)
                assert order[4:] == ["after the end"]
                manager.stop()

    trio.run(main)


def counted(manager: ModelManager) -> tuple[int, int, int, int]:
    counters = manager.counters
    assert 0 < counters.load_ns < 60 * 10**9
    return counters.loads, counters.failures, counters.reloads, counters.unloads


def test_versions_that_would_come_out_the_same_stay_and_the_others_are_counted(tmp_path: Path) -> None:
    for version in (1, 2):
        put(tmp_path, "m", version=version)
    graph = tmp_path / "m" / "2" / "model.onnx"

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                await load_model(manager, folder_of(tmp_path))
                first, second = manager.table.served()
                assert counted(manager) == (2, 0, 0, 0)
                await load_model(manager, folder_of(tmp_path))
                assert (manager.table.served(), counted(manager)) == ([first, second], (2, 0, 0, 0))
                # Nobody knows whether the files are the same where nobody has looked at them.
                await load_model(manager, scan_model(tmp_path / "m"))
                assert not {first, second} & set(manager.table.served())
                assert counted(manager) == (4, 0, 2, 2)
                await load_model(manager, folder_of(tmp_path))
                first, second = manager.table.served()
                graph.write_bytes(double(["n", 4]))
                await load_model(manager, folder_of(tmp_path))
                assert manager.table.served()[0] is first
                assert manager.table.served()[1] is not second
                assert counted(manager) == (7, 0, 5, 5)
                second = manager.table.served()[1]
                graph.write_bytes(b"nonsense")
                put(tmp_path, "m", version=3)
                for all_or_none in (True, False):
                    with pytest.raises(ModelLoadError, match=r"^version 2 is at UNAVAILABLE state: ") as caught:
                        await load_model(manager, folder_of(tmp_path), all_or_none=all_or_none)
                    assert not isinstance(caught.value, PartlyLoaded)
                    assert manager.table.served() == [first, second]
                entries = manager.table.models["m"].versions
                assert [(number, entry.reason != "") for number, entry in entries.items()] == [(1, False), (2, True)]
                shutil.rmtree(tmp_path / "m" / "2")
                await load_model(manager, folder_of(tmp_path))
                assert [one.number for one in manager.table.served()] == [1, 3]
                assert manager.table.models["m"].gone == (2,)
                assert counted(manager) == (10, 2, 5, 6)
                # A version that was never served is not remembered.
                put(tmp_path, "m", b"nonsense", version=4)
                with pytest.raises(ModelLoadError, match="version 4"):
                    await load_model(manager, folder_of(tmp_path))
                shutil.rmtree(tmp_path / "m" / "4")
                await load_model(manager, folder_of(tmp_path))
                assert (list(manager.table.models["m"].versions), manager.table.models["m"].gone) == ([1, 3], (2,))
                manager.refuse("m", "it is served, and nothing is wrong with that")
                assert manager.table.ready
                await unload_model(manager)
                await unload_model(manager, "unknown")
                assert counted(manager) == (10, 3, 5, 8)
                await gone(manager)
                manager.refuse("m", "it cannot be had")
                assert manager.table.models["m"].problem == "it cannot be had"
                manager.stop()

    trio.run(main)


def test_a_new_model_is_partly_served_where_each_version_is_by_itself(tmp_path: Path) -> None:
    for version, content in ((1, DOUBLE), (2, b"nonsense"), (3, b"nonsense")):
        put(tmp_path, "m", content, version=version)

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager = manager_in(nursery)
                with pytest.raises(PartlyLoaded) as caught:
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert [line[:9] for line in str(caught.value).splitlines()] == ["version 2", "version 3"]
                shutil.rmtree(tmp_path / "m" / "1")
                await unload_model(manager, forget=True)
                with pytest.raises(ModelLoadError) as other:
                    await load_model(manager, folder_of(tmp_path), all_or_none=False)
                assert not isinstance(other.value, PartlyLoaded)
                manager.stop()

    trio.run(main)


def test_a_version_whose_executors_have_died_is_unavailable_until_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = False
    really_run = BatchedServable.run
    hosts: list[Host] = []

    async def run(self: BatchedServable, host: Host) -> None:
        hosts.append(host)
        await really_run(self, host)

    monkeypatch.setattr(BatchedServable, "run", run)
    monkeypatch.setattr(BatchedServable, "ready", property(lambda self: not dead))
    put(tmp_path, "m")
    changes: list[bool] = []

    async def main() -> None:
        nonlocal dead
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                manager: ModelManager
                manager = manager_in(nursery, on_change=lambda: changes.append(manager.table.ready))
                await manager.load_all(scan(tmp_path), lambda *progress: None)
                await trio.testing.wait_all_tasks_blocked()
                [host] = hosts
                for dead in (True, False):
                    host.on_death()
                    host.on_ready_change()
                    state, reason = repository_state(manager)
                    assert state is (ModelState.UNAVAILABLE if dead else ModelState.READY)
                    assert ("died" in reason) is dead
                assert (changes, manager.counters.executor_deaths) == ([False, True], 2)
                manager.stop()

    trio.run(main)


def test_a_model_is_unloaded_where_there_is_no_thread_to_give_its_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "m")

    async def refuse(*given: Any, **more: Any) -> Any:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            manager = manager_in(nursery)
            await manager.load_all(scan(tmp_path), lambda done, total, name: None)
            with monkeypatch.context() as patched:
                patched.setattr(trio.to_thread, "run_sync", refuse)
                await unload_model(manager)
                await gone(manager)
            assert not manager.table.served()
            await load_model(manager, scan_model(tmp_path / "m"))
            assert [version.model for version in manager.table.served()] == ["m"]
            manager.stop()

    trio.run(main)
    assert "memory of models that have left is given back later: can't start new thread" in caplog.text


def test_versions_for_which_there_is_no_thread_fail_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SharedThreads) -> Any:
        raise RuntimeError("can't start new thread")

    put(tmp_path, "a")
    put(tmp_path, "b")
    monkeypatch.setattr(SharedThreads, "_start", refuse)
    manager, _ = load(tmp_path)
    reasons = {name: manager.table.models[name].versions[1].reason for name in ("a", "b")}
    assert reasons == dict.fromkeys("ab", "Internal: RuntimeError: can't start new thread")
