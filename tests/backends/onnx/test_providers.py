"""Which execution providers the flags and the machine amount to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from toutates.backends.onnx.provider_names import Provider
from toutates.backends.onnx.providers import choose_providers
from toutates.server.options import Options
from toutates.system.errors import ConfigurationError

CPU = ("CPUExecutionProvider", dict[str, str]())
CUDA = ("CUDAExecutionProvider", {"device_id": "0"})
ALL = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


def choose(*wanted: str, available: Sequence[str] = ALL, problem: str = "", **flags: object) -> Sequence[Provider]:
    options = Options((Path("models"),), execution_providers=wanted, **flags)  # type: ignore[arg-type]
    return choose_providers(options.execution_providers, options.tensorrt, available, lambda providers: problem)


def test_auto_takes_the_cpu_where_there_is_nothing_else() -> None:
    assert choose("auto", available=["AzureExecutionProvider", "CPUExecutionProvider"]) == (CPU,)


def test_auto_takes_cuda_where_it_works_and_the_cpu_for_what_it_leaves() -> None:
    assert choose("auto") == (CUDA, CPU)


def test_auto_falls_back_to_the_cpu_with_a_warning_where_cuda_does_not_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose("auto", problem="no device") == (CPU,)
    assert "CUDA cannot be used, so models run on the CPU: no device" in caplog.text


def test_a_provider_that_was_asked_for_is_taken_without_trying_it() -> None:
    # Whether it works shows when models are loaded, which then fail with the reason.
    assert choose("cuda", problem="no device") == (CUDA, CPU)


def test_the_order_asked_for_is_kept_and_the_cpu_comes_last_once() -> None:
    assert [name for name, _ in choose("tensorrt", "cuda")] == ALL
    assert choose("cpu") == (CPU,)
    assert choose("cpu", "cuda") == (CPU, CUDA)


def test_a_provider_that_this_build_lacks_is_refused_with_the_package_to_install() -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose("cuda", available=["CPUExecutionProvider"])
    assert str(caught.value) == (
        "--execution-providers: this build of onnxruntime does not offer the provider (got 'cuda'); "
        "install toutates[gpu] in place of toutates[cpu], or choose from cpu"
    )


def test_tensorrt_alone_gets_its_options() -> None:
    tensorrt, cuda, cpu = choose("tensorrt", "cuda", trt_op_types_to_exclude="Mul,Add", trt_min_subgraph_size=5)
    assert tensorrt[1] == {"device_id": "0", "trt_op_types_to_exclude": "Mul,Add", "trt_min_subgraph_size": "5"}
    assert (cuda, cpu) == (CUDA, CPU)
    assert choose("tensorrt")[0][1] == {"device_id": "0"}
