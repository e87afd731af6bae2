"""ONNX Runtime sessions: loading, execution providers, and profiles."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import DOUBLE, DOUBLE_LENGTHS, gather
from tests.threads import threads_by_id
from tests.waiting import wait_until
from toutates.backends.onnx import device_runs, opening
from toutates.backends.onnx import session as session_module
from toutates.backends.onnx.opening import SessionOptions, load_session, provider_problem
from toutates.backends.onnx.session import ModelSession
from toutates.backends.onnx.shared_arena import TINY_MODEL
from toutates.engine.on_device import DeviceLane, DeviceRows
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ModelLoadError

CPU = ("CPUExecutionProvider", dict[str, str]())
CUDA = ("CUDAExecutionProvider", {"device_id": "0"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(DOUBLE)
    return path


class FakeSession:
    """An ``InferenceSession`` whose CUDA provider cannot start, in either of the two ways of ONNX Runtime."""

    def __init__(self, how: str, providers: Sequence[Any], **options: Any) -> None:
        assert options == {"enable_fallback": 0}
        self._names = [name for name, _ in providers]
        if "CUDAExecutionProvider" in self._names:
            if how == "raises":
                raise RuntimeError("CUDA failure 100:\n no CUDA-capable device is detected")
            self._names.remove("CUDAExecutionProvider")

    def get_providers(self) -> list[str]:
        return self._names


def without_gpu(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def make(model: object, options: object, providers: Sequence[Any], **more: Any) -> FakeSession:
        return FakeSession(how, providers, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)


def test_a_session_has_the_threads_it_was_told_to_and_no_others(path: Path) -> None:
    options = load_session(path, SessionOptions(intra_threads=2, inter_threads=3)).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def of_this_name() -> set[int]:
    """Threads that have this one's name, as those have that it starts; clients of tests before may start others."""
    threads = threads_by_id()
    name, _ = threads[threading.get_native_id()]
    return {thread for thread, (its_name, _) in threads.items() if its_name == name}


def test_threads_across_operators_are_there_where_they_are_asked_for(path: Path) -> None:
    before = of_this_name()
    one = load_session(path, SessionOptions(inter_threads=1))
    assert not of_this_name() - before
    several = load_session(path, SessionOptions(inter_threads=3))
    assert len(of_this_name() - before) == 2
    del one, several


def test_a_run_that_fails_is_not_logged_by_onnx_runtime_too(capfd: pytest.CaptureFixture[str], path: Path) -> None:
    path.write_bytes(gather())
    session = load_session(path, SessionOptions())
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"x": np.array([[9]])})
    assert "out of data bounds" not in capfd.readouterr().err


def test_a_pools_threads_run_on_the_cpus_they_were_given(path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    given = (allowed[-1], allowed[0], allowed[-1])
    before = threads_by_id()

    def started() -> list[list[int]]:
        return sorted(sorted(cpus) for thread, (_, cpus) in threads_by_id().items() if thread not in before)

    session = load_session(path, SessionOptions(intra_threads=4, intra_op_cpus=given))
    wait_until(lambda: started() == sorted([cpu] for cpu in given))  # each sets its own, after it has started
    del session
    wait_until(lambda: not started())


def test_a_session_without_cpus_leaves_its_threads_to_the_system(path: Path) -> None:
    options = load_session(path, SessionOptions(intra_threads=2)).get_session_options()
    with pytest.raises(RuntimeError, match="does not have configuration"):
        options.get_session_config_entry("session.intra_op_thread_affinities")


@pytest.mark.parametrize("content", [b"", b"not a model", DOUBLE[: len(DOUBLE) // 2]], ids=["empty", "text", "half"])
def test_a_file_that_is_no_model_is_refused_with_a_reason_of_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"^onnxruntime cannot load 'model.onnx': [^\n]+$"):
        load_session(path, SessionOptions())


def test_a_library_that_is_none_is_refused(path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model\.onnx"):
        load_session(path, SessionOptions(custom_op_libraries=(path,)))


@pytest.mark.parametrize("how", ["raises", "goes on without"])
def test_a_provider_that_cannot_start_fails_the_model(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch, how)
    with pytest.raises(ModelLoadError, match=r"no CUDA-capable device|could not start CUDAExecutionProvider"):
        load_session(path, SessionOptions(providers=(CUDA, CPU)))
    load_session(path, SessionOptions())


@pytest.mark.parametrize("how", ["raises", "goes on without"])
def test_a_provider_that_cannot_start_is_found_before_any_model_is_loaded(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpu(monkeypatch, how)
    assert provider_problem([CPU]) == ""
    assert "CUDA" in provider_problem([CUDA, CPU])
    assert "\n" not in provider_problem([CUDA, CPU])


def test_the_libraries_of_cuda_are_looked_for_once_and_only_for_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def preload() -> None:
        calls.append("cuda")
        print("Failed to load libcudart.so")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    opening._load_cuda.cache_clear()
    try:
        provider_problem([CPU])
        assert calls == []
        without_gpu(monkeypatch, "raises")
        for _ in range(2):
            assert "CUDA" in provider_problem([CUDA, CPU])
        assert calls == ["cuda"]
        assert capsys.readouterr().out == ""
    finally:
        opening._load_cuda.cache_clear()


def test_the_cpu_has_no_problem_with_the_tiny_model_that_providers_are_tried_with() -> None:
    assert provider_problem([CPU]) == ""
    onnx.checker.check_model(onnx.load_model_from_string(TINY_MODEL))


@pytest.mark.parametrize("content", [DOUBLE, DOUBLE_LENGTHS], ids=["known outputs", "dynamic outputs"])
def test_buffers_of_a_session_on_a_device_are_not_bound(content: bytes) -> None:
    # A binding copies its inputs to the device when it is made: kept, it would answer with the first batch for ever.
    rig = Rig(content)
    rig.sessions[0].on_cpu = False
    with rig.running():
        for start in range(3):
            rows = np.full((2, 4), start, np.float32)
            rig.worker.add(start, rig.lane((4,)), rows)
            rig.worker.end_round()
            npt.assert_array_equal(rig.worker.collect(start)[0], 2 * rows)
    assert rig.packed((4,)).spare[0].bindings == {}


def run_batches(rig: Rig, count: int) -> None:
    for context in range(count):
        rig.worker.add(context, rig.lane((4,)), np.ones((1, 4), np.float32))
        rig.worker.end_round()
        rig.worker.collect(context)
    rig.worker.answers.clear()


def runs_in(profile: Path) -> int:
    return sum(event["name"] == "model_run" for event in json.loads(profile.read_text()))


def test_a_profile_is_written_after_as_many_batches_as_config_yaml_says(tmp_path: Path) -> None:
    rig = Rig(DOUBLE, profile=(tmp_path / "profile", 2))
    with rig.running():
        run_batches(rig, 1)
        assert not any(runs_in(profile) for profile in tmp_path.glob("profile*") if profile.stat().st_size)
        run_batches(rig, 1)
        [profile] = tmp_path.glob("profile*.json")
        assert runs_in(profile) == 2
        run_batches(rig, 2)
    [profile] = tmp_path.glob("profile*.json")
    assert runs_in(profile) == 2


def test_a_profile_is_written_at_the_end_by_every_executor(tmp_path: Path) -> None:
    rig = Rig(DOUBLE, profile=(tmp_path / "profile", 2**62), executors=2)
    with rig.running():
        run_batches(rig, 3)
    profiles = list(tmp_path.glob("profile*.json"))
    assert len(profiles) == 2
    assert sum(map(runs_in, profiles)) == 3


def test_options_of_a_model_reach_its_session(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(DOUBLE)
    options = SessionOptions(
        inter_threads=2,
        parallel=False,
        graph_level="off",
        memory_arena=False,
        memory_pattern=False,
        config_entries=(("session.use_device_allocator_for_initializers", "1"),),
    )
    made = load_session(path, options).get_session_options()
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert (made.enable_cpu_mem_arena, made.enable_mem_pattern) == (False, False)
    assert made.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


def test_a_run_after_large_outputs_has_the_arena_give_memory_back_but_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(DOUBLE_LENGTHS)
    session, given = rig.sessions[0].session, []
    run_with_iobinding = session.run_with_iobinding

    def noted(binding: Any, options: Any) -> None:
        given.append(options is not None and options.get_run_config_entry("memory.enable_memory_arena_shrinkage"))
        run_with_iobinding(binding, options)

    monkeypatch.setattr(session, "run_with_iobinding", noted)

    def run(length: int) -> None:
        rows = np.ones((1, length), np.float32)
        rig.worker.add(length, rig.lane((length,)), rows)
        rig.worker.end_round()
        npt.assert_array_equal(rig.worker.collect(length)[0], 2 * rows)
        rig.worker.answers.clear()

    with rig.running():
        monkeypatch.setattr(session_module, "_SHRINK_NS", 3_600_000_000_000)
        for length in (100_000, 4, 100_000):
            run(length)
        assert given == [False] * 3
        monkeypatch.setattr(session_module, "_SHRINK_NS", 0)
        for length in (4, 4, 100_000, 4):
            run(length)
        assert given[3:] == ["cpu:0", False, False, "cpu:0"]


@pytest.mark.parametrize(
    ("provider", "options", "device"),
    [
        ("CPUExecutionProvider", {}, None),
        ("CUDAExecutionProvider", {"device_id": "1", "enable_cuda_graph": "0"}, 1),
        ("CUDAExecutionProvider", {"device_id": "1", "enable_cuda_graph": "1"}, None),
        ("TensorrtExecutionProvider", {"device_id": "0", "trt_cuda_graph_enable": "True"}, None),
        ("TensorrtExecutionProvider", {"device_id": "0"}, 0),
    ],
)
def test_a_session_says_whose_memory_it_may_bind(
    path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, options: dict[str, str], device: int | None
) -> None:
    session = load_session(path, SessionOptions())
    given, made = (TensorSpec(name, BY_NAME["FP32"], (4,)) for name in "xy")
    model = ModelSession(session, Signature((given,), (made,), batched=True), "m")
    monkeypatch.setattr(session, "get_providers", lambda: [provider, "CPUExecutionProvider"])
    monkeypatch.setattr(session, "get_provider_options", lambda: {provider: options})
    assert model.device == device


@pytest.mark.parametrize("outputs", ["y", "yx"], ids=["all are written", "one is the input"])
def test_what_a_gpu_is_to_write_comes_to_the_host_where_the_run_does_not_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: str
) -> None:
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"}
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [tensors["x"]], [tensors[name] for name in outputs])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    specs = {name: TensorSpec(name, BY_NAME["FP32"], (4,)) for name in "xy"}
    signature = Signature((specs["x"],), tuple(specs[name] for name in outputs), batched=True)
    model = ModelSession(load_session(path, SessionOptions()), signature, "m")
    # The host's memory stands for that of a GPU.
    monkeypatch.setattr(device_runs, "GPU_MEMORY", "cpu")
    monkeypatch.setattr(ModelSession, "device", 0)
    model.on_cpu = False
    lane = DeviceLane(signature, ((0, (4,)),), 8, 2)
    for _ in range(2):
        x = np.random.default_rng(0).random((2, 4), np.float32)
        places = [np.full((2, 4), 77, np.float32) for _ in outputs]
        wanted = {index: (place.ctypes.data, place.nbytes) for index, place in enumerate(places)}
        batch = lane.new_batch(1, 2)
        batch.rows, batch.pieces = 2, [(0, 2, [DeviceRows({0: x.ctypes.data}, wanted)])]  # type: ignore[list-item]
        found = model.run(batch, 0, 2)
        if outputs == "y":
            npt.assert_array_equal(places[0], -x)
            assert found.data == (b"",)
        else:
            assert found.data == ((-x).tobytes(), x.tobytes())
