"""A repository laid out for Triton, served untouched, seen by Triton's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import Tensor, channel_to, infer, outputs_of, pb, refused, request, triton
from tests.triton_repository import add_model, adder, build_triton_repository, negative, write_config


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves it for all tests of this module, with models beside it that cannot be served."""
    root = tmp_path_factory.mktemp("triton")
    build_triton_repository(root)
    (add_model(root, "both", negative()) / "config.yaml").write_text(
        "backend: supertensor\nbatch_size: 5\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
    )
    write_config(root, "both", "max_batch_size: 7")
    add_model(root, "malformed", negative())
    write_config(root, "malformed", "max_batch_size: 8\nmax_batch: 3\n")
    add_model(root, "ensemble", negative())
    write_config(root, "ensemble", "ensemble_scheduling { }")
    add_model(root, "mismatched", negative())
    write_config(root, "mismatched", 'max_batch_size: 2 input { name: "INPUT" data_type: TYPE_INT32 dims: 4 }')
    external = add_model(root, "external", adder(1))
    onnx.save_model(
        adder(5), external / "model.onnx", save_as_external_data=True, location="weights.data", size_threshold=0
    )
    assert (external / "weights.data").stat().st_size >= 4
    with running(root, tmp_path_factory.mktemp("log")) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def test_a_whole_configuration_is_acted_on_and_shown(client: Any, channel: Any) -> None:
    assert client.get_model_config("full", as_json=True)["config"] == {
        "name": "full",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [{"name": name, "data_type": "TYPE_INT32", "dims": ["16"]} for name in "AB"],
        "output": [{"name": "SUM", "data_type": "TYPE_INT32", "dims": ["16"]}],
        "instance_group": [{"name": "full_0", "count": 2, "kind": "KIND_CPU"}],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {
            "preferred_batch_size": [4, 8],
            "max_queue_delay_microseconds": "100",
            "default_queue_policy": {"max_queue_size": 64},
        },
        "optimization": {
            "graph": {"level": 1},
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
        },
        "parameters": {
            "intra_op_thread_count": {"string_value": "2"},
            "memory.enable_memory_arena_shrinkage": {"string_value": "cpu:0"},
        },
        "model_warmup": [
            {
                "name": "both",
                "batch_size": 4,
                "inputs": {
                    "A": {"data_type": "TYPE_INT32", "dims": ["16"], "zero_data": True},
                    "B": {"data_type": "TYPE_INT32", "dims": ["16"], "random_data": True},
                },
            }
        ],
    }
    values = np.arange(48, dtype=np.int32).reshape(3, 16)
    tensors = [Tensor.of("A", "INT32", values), Tensor.of("B", "INT32", 2 * values)]
    answer = outputs_of(infer(channel, request("full", *tensors)))
    assert list(answer) == ["SUM"]
    np.testing.assert_array_equal(answer["SUM"], 3 * values)
    status, text = refused(channel, request("full", *tensors, outputs=["DIFFERENCE"]))
    assert (status, text) == ("INVALID_ARGUMENT", "unexpected inference output 'DIFFERENCE' for model 'full'")


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_reshaped_tensors_are_for_clients_what_the_configuration_says(client: Any, channel: Any, rows: int) -> None:
    metadata = client.get_model_metadata("reshaped")
    assert [list(metadata.inputs[0].shape), list(metadata.outputs[0].shape)] == [[-1, -1, -1], [-1, -1, -1, 1]]
    values = np.random.default_rng(rows).normal(size=(rows, 2, 3)).astype(np.float32)
    answer = outputs_of(infer(channel, request("reshaped", Tensor.of("INPUT", "FP32", values))))
    np.testing.assert_array_equal(answer["OUTPUT"], values.transpose(0, 2, 1)[..., None])
    status, text = refused(channel, request("reshaped", Tensor.of("INPUT", "FP32", values[:, None])))
    assert status == "INVALID_ARGUMENT"
    assert "unexpected shape for input 'INPUT' for model 'reshaped'. Expected [-1,-1,-1], got" in text


def test_rows_without_dimensions_are_sent_with_one(client: Any, channel: Any) -> None:
    config = client.get_model_config("scalars").config
    assert (list(config.input[0].dims), config.input[0].HasField("reshape")) == ([1], True)
    values = np.array([[3], [4]], np.int32)
    answer = outputs_of(infer(channel, request("scalars", Tensor.of("INPUT", "INT32", values))))
    np.testing.assert_array_equal(answer["OUTPUT"], -values)


def test_an_optional_input_may_be_left_out(client: Any, channel: Any) -> None:
    inputs = client.get_model_config("optional").config.input
    assert [(tensor.name, tensor.optional) for tensor in inputs] == [("INPUT", False), ("bias", True)]
    values = Tensor.of("INPUT", "INT32", [1, 2, 3, 4])
    without = outputs_of(infer(channel, request("optional", values)))
    np.testing.assert_array_equal(without["OUTPUT"], [11, 12, 13, 14])
    given = outputs_of(infer(channel, request("optional", values, Tensor.of("bias", "INT32", [5] * 4))))
    np.testing.assert_array_equal(given["OUTPUT"], [6, 7, 8, 9])


@pytest.mark.parametrize(
    ("model", "versions"), [("specific", ["1", "3"]), ("latest", ["3"]), ("every", ["1", "2", "3"])]
)
def test_the_version_policy_says_what_is_served(client: Any, channel: Any, model: str, versions: list[str]) -> None:
    assert list(client.get_model_metadata(model).versions) == versions
    zeros = Tensor.of("INPUT", "INT32", np.zeros((1, 4)))
    for version in versions:
        answer = outputs_of(infer(channel, request(model, zeros, model_version=version)))
        np.testing.assert_array_equal(answer["OUTPUT"], np.full((1, 4), int(version)))
    np.testing.assert_array_equal(outputs_of(infer(channel, request(model, zeros)))["OUTPUT"], np.full((1, 4), 3))
    if "2" not in versions:
        status, text = refused(channel, request(model, zeros, model_version="2"))
        assert (status, text) == (
            "NOT_FOUND",
            f"Request for unknown model: '{model}' version 2 is not found",
        )


def test_the_graph_may_have_another_file_name(client: Any, channel: Any) -> None:
    assert client.get_model_config("named").config.default_model_filename == "weights.onnx"
    answer = outputs_of(infer(channel, request("named", Tensor.of("INPUT", "FP32", np.ones((20, 4))))))
    np.testing.assert_array_equal(answer["OUTPUT"], -np.ones((20, 4), np.float32))


def test_tensors_without_a_batch_size_are_taken_whole(client: Any, channel: Any) -> None:
    config = client.get_model_config("unbatched", as_json=True)["config"]
    assert "max_batch_size" not in config
    assert "dynamic_batching" not in config
    assert config["input"][0]["dims"] == ["-1", "4"]
    answer = outputs_of(infer(channel, request("unbatched", Tensor.of("INPUT", "FP32", np.ones((5, 4))))))
    np.testing.assert_array_equal(answer["OUTPUT"], -np.ones((5, 4), np.float32))


def test_config_yaml_wins_and_the_log_says_so_once(client: Any, server: ServerProcess) -> None:
    assert client.get_model_config("both").config.max_batch_size == 5
    assert server.log.count("config.yaml' holds, and not '") == 1


def test_what_is_passed_over_is_one_warning(channel: Any, server: ServerProcess) -> None:
    infer(channel, request("warned", Tensor.of("INPUT", "FP32", np.ones((1, 4)))))
    [line] = [line for line in server.log.splitlines() if "passed over" in line]
    assert "WARNING" in line
    assert "warned/config.pbtxt" in line
    assert "parameters['strange']" in line
    [line] = [line for line in server.log.splitlines() if "model_operations.op_library_filename" in line]
    assert "the library 'a'" in line
    assert "--custom-op-libraries" in line


def test_weights_beside_the_graph_are_found(channel: Any) -> None:
    answer = outputs_of(infer(channel, request("external", Tensor.of("INPUT", "INT32", np.zeros((1, 4))))))
    np.testing.assert_array_equal(answer["OUTPUT"], np.full((1, 4), 5))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("malformed", 'line 2, column 1: Message type "inference.ModelConfig" has no field named "max_batch"'),
        ("ensemble", "ensemble scheduling cannot be set for model 'ensemble' whose platform is not ensemble"),
        (
            "mismatched",
            "unable to load model 'mismatched', configuration expects datatype TYPE_INT32 for input 'INPUT', model "
            "provides TYPE_FP32",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_fails_its_model_alone(client: Any, model: str, reason: str) -> None:
    [entry] = [entry for entry in client.get_model_repository_index().models if entry.name == model]
    assert entry.state == "UNAVAILABLE"
    assert entry.reason.startswith("Internal: ")
    assert reason in entry.reason
    assert not client.is_model_ready(model)
    if model == "malformed":
        assert entry.reason.startswith("Internal: failed to read text proto from ")


def test_the_client_s_own_parser_reads_what_config_prints(client: Any) -> None:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    config = client.get_model_config("full").config
    assert text_format.Parse(text_format.MessageToString(config), model_config_pb2.ModelConfig()) == config
    assert isinstance(config, type(pb.ModelConfigResponse().config))
