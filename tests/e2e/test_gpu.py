"""Models on a GPU, as users have them. None of it runs without one: ``make test-gpu``."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnxruntime
import pytest

from tests.e2e.models import CONFIG, add_model, negating_model
from tests.e2e.process import FRESH, ServerProcess, running
from tests.e2e.support import triton
from tests.gpus import gpus_here
from tests.waiting import wait_until

pytestmark = pytest.mark.gpu

WIDTH: Final = 1024
FLAGS: Final = ("--execution-providers", "cuda", "--metrics-addr", "127.0.0.1:0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if not gpus_here():
        pytest.skip("there is no GPU, no driver of NVIDIA, or cuda-bindings is not installed")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA: install onnxruntime-gpu in place of onnxruntime")
    models = tmp_path_factory.mktemp("models")
    config = CONFIG.format(64, 8)
    add_model(models, "plain", negating_model(WIDTH), config=config)
    pinned = config.replace("allocator: cpu", "allocator: cuda_pinned")
    add_model(models, "pinned", negating_model(WIDTH), config=pinned)
    add_model(models, "on_gpu", negating_model(WIDTH), config=config + "devices: ['gpu:0']\n")
    add_model(models, "on_cpu", negating_model(WIDTH), config=config + "devices: [cpu]\n")
    with running(models, tmp_path_factory.mktemp("server"), FLAGS, FRESH) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert "cannot be pinned" not in process.log


@pytest.mark.parametrize("model", ["plain", "pinned", "on_gpu", "on_cpu"])
def test_a_model_answers_from_wherever_its_memory_is(server: ServerProcess, model: str) -> None:
    with triton.InferenceServerClient(server.address) as client:
        for rows in (1, 7, 64, 100):
            values: Any = np.random.default_rng(rows).random((rows, WIDTH), np.float32)
            tensor = triton.InferInput("INPUT", list(values.shape), "FP32")
            tensor.set_data_from_numpy(values)
            np.testing.assert_array_equal(client.infer(model, [tensor]).as_numpy("OUTPUT"), -values)


def test_the_configuration_says_which_models_are_on_the_gpu(server: ServerProcess) -> None:
    with triton.InferenceServerClient(server.address) as client:
        for model, kind in (("on_gpu", "KIND_GPU"), ("on_cpu", "KIND_CPU")):
            config = client.get_model_config(model, as_json=True)["config"]
            assert [group["kind"] for group in config["instance_group"]] == [kind]


def test_metrics_tell_of_the_gpu(server: ServerProcess) -> None:
    def text() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=120) as answer:
            return str(answer.read().decode())

    wait_until(lambda: "nv_gpu_memory_total_bytes{" in text())
