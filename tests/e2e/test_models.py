"""What models need beside their graph, seen from a client: custom operators, profiles, several sessions."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.process import running
from tests.e2e.support import SERVICE, Tensor, bytes_tensor, call, channel_to, infer, outputs_of, pb, request


def save(root: Path, name: str, node: onnx.NodeProto, datatype: int, config: str = "") -> None:
    """A model of one operator, x to y, rows of two elements."""
    tensors = [helper.make_tensor_value_info(tensor, datatype, ["batch", 2]) for tensor in "xy"]
    graph = helper.make_graph([node], name, tensors[:1], tensors[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1), helper.make_opsetid("my.ops", 1)]
    folder = root / name / "1"
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    if config:
        (folder / "config.yaml").write_text(config)


@pytest.mark.skipif("TOUTATES_SERVER_PYTHON" in os.environ, reason="the library is made for the clients' interpreter")
def test_a_model_with_custom_operators_is_served_once_their_library_is_given(tmp_path: Path) -> None:
    library = pytest.importorskip("onnxruntime_extensions").get_library_path()
    repository, log = tmp_path / "repository", tmp_path / "log"
    log.mkdir()
    save(
        repository, "upper", helper.make_node("StringUpper", ["x"], ["y"], domain="ai.onnx.contrib"), TensorProto.STRING
    )
    with (
        running(repository, log, ["--custom-op-libraries", library]) as process,
        channel_to(process.address) as channel,
    ):
        response = infer(channel, request("upper", Tensor("x", "BYTES", (1, 2), bytes_tensor(b"ab", b"c"))))
        assert response.raw_output_contents[0] == bytes_tensor(b"AB", b"C")


@pytest.mark.skipif("TOUTATES_SERVER_PYTHON" in os.environ, reason="the library is made for the clients' interpreter")
@pytest.mark.parametrize("place", ["1", ".", "elsewhere", "not there"])
@pytest.mark.parametrize("allowed", ["repository", "another", "the library", "nothing"])
def test_a_library_that_a_config_pbtxt_names_is_loaded_from_the_repository_where_that_is_allowed(
    place: str, allowed: str, tmp_path: Path
) -> None:
    library = Path(pytest.importorskip("onnxruntime_extensions").get_library_path())
    repository, log, another = tmp_path / "repository", tmp_path / "log", tmp_path / "another"
    log.mkdir()
    another.mkdir()
    save(
        repository, "upper", helper.make_node("StringUpper", ["x"], ["y"], domain="ai.onnx.contrib"), TensorProto.STRING
    )
    lies = {"elsewhere": another, "not there": another}.get(place, repository / "upper" / place) / "ops.so"
    lies.symlink_to(library) if place == "elsewhere" else shutil.copyfile(library, lies)
    said = {"elsewhere": str(lies), "not there": "ops.so"}.get(place, "ops.so")
    (repository / "upper" / "config.pbtxt").write_text(f'model_operations {{ op_library_filename: "{said}" }}')
    named = {"repository": repository, "another": another, "the library": lies}.get(allowed)
    flags = [] if named is None else ["--custom-op-libraries", str(named)]
    with running(repository, log, flags) as process, channel_to(process.address) as channel:
        answer = call(channel, SERVICE + "RepositoryIndex", b"")
        [model] = pb.RepositoryIndexResponse.FromString(answer).models
        if allowed == "the library" or (allowed == "repository" and place in ("1", ".")):
            assert model.state == "READY", process.log
            response = infer(channel, request("upper", Tensor("x", "BYTES", (1, 2), bytes_tensor(b"ab", b"c"))))
            assert response.raw_output_contents[0] == bytes_tensor(b"AB", b"C")
        else:
            assert model.state == "UNAVAILABLE"
            assert (
                "--custom-op-libraries" in model.reason or "no such library in the model's repository" in model.reason
            )


@pytest.mark.parametrize("domain", ["", "my.ops"])
def test_an_unknown_operator_names_the_flag_in_the_index(domain: str, tmp_path: Path) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    log.mkdir()
    save(repository, "ops", helper.make_node("Mystery", ["x"], ["y"], domain=domain), TensorProto.FLOAT)
    with running(repository, log) as process, channel_to(process.address) as channel:
        answer = call(channel, SERVICE + "RepositoryIndex", b"")
        [model] = pb.RepositoryIndexResponse.FromString(answer).models
        assert "Mystery" in model.reason
        assert model.reason.endswith("; name the library of its custom operators in --custom-op-libraries")
        assert "--custom-op-libraries" in process.log


def test_a_version_with_profiling_writes_onnx_runtimes_profile(tmp_path: Path) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    log.mkdir()
    config = (
        "backend: supertensor\nbatch_size: 4\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
        f"profiling:\n  file_prefix: {tmp_path / 'profile'}\n  stop_after_batches: 2\n"
    )
    save(repository, "neg", helper.make_node("Neg", ["x"], ["y"]), TensorProto.FLOAT, config)
    values = np.ones((1, 2), np.float32)
    with running(repository, log) as process, channel_to(process.address) as channel:
        for _ in range(3):
            infer(channel, request("neg", Tensor.of("x", "FP32", values)))
        profiles = list(tmp_path.glob("profile_neg_1_0_*.json"))
    assert len(profiles) == 1
    assert any(event.get("name") == "model_run" for event in json.loads(profiles[0].read_text()))


def test_several_executors_and_workers_answer_many_clients_right(tmp_path: Path) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    log.mkdir()
    config = "backend: supertensor\nbatch_size: 4\ncapacity: 64\nnum_executors: 3\nallocator: cpu\n"
    save(repository, "neg", helper.make_node("Neg", ["x"], ["y"]), TensorProto.FLOAT, config)

    def client(number: int) -> None:
        with channel_to(process.address) as channel:
            for step in range(50):
                values = np.full((1 + step % 6, 2), number * 1_000 + step, np.float32)
                response = infer(channel, request("neg", Tensor.of("x", "FP32", values)))
                np.testing.assert_array_equal(outputs_of(response)["y"], -values)

    with running(repository, log, ["--processing-cores", "2"]) as process, ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
