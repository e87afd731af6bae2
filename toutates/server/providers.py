"""Which of ONNX Runtime's execution providers to use, and with which options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from toutates.engine.session import Provider, provider_problem
from toutates.server.options import Options
from toutates.system.errors import ConfigurationError

__all__ = ["choose_providers"]

logger = logging.getLogger(__name__)

_NAMES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def choose_providers(
    options: Options,
    available: Sequence[str],
    problem_of: Callable[[Sequence[Provider]], str] = provider_problem,
) -> tuple[Provider, ...]:
    """Providers with their options, by priority; the CPU comes last always, for what the others leave.

    Args:
        options: the flags. ``auto`` takes CUDA where this ONNX Runtime was built with it and the machine can run it.
        available: what this build of ONNX Runtime offers, whether or not the machine has the device.
        problem_of: tells why a session with some providers cannot be made, see ``provider_problem``.

    Raises:
        ConfigurationError: a provider that was asked for is not offered.
    """
    wanted = options.execution_providers
    if wanted == ("auto",):
        return _choose_automatically(options, available, problem_of)
    for name in wanted:
        if _NAMES[name] not in available:
            offered = [short for short, full in _NAMES.items() if full in available]
            raise ConfigurationError(
                "this build of onnxruntime does not offer the provider",
                key="--execution-providers",
                value=name,
                remedy=f"install toutates[gpu] in place of toutates[cpu], or choose from {', '.join(offered)}",
            )
    return _with_options(wanted, options)


def _choose_automatically(
    options: Options, available: Sequence[str], problem_of: Callable[[Sequence[Provider]], str]
) -> tuple[Provider, ...]:
    if _NAMES["cuda"] in available:
        with_cuda = _with_options(("cuda",), options)
        problem = problem_of(with_cuda)
        if not problem:
            return with_cuda
        logger.warning("CUDA cannot be used, so models run on the CPU: %s", problem)
    return _with_options(("cpu",), options)


def _with_options(names: Sequence[str], options: Options) -> tuple[Provider, ...]:
    whole = [*names, *(["cpu"] if "cpu" not in names else [])]
    return tuple((_NAMES[name], _provider_options(name, options)) for name in whole)


def _provider_options(name: str, options: Options) -> dict[str, str]:
    if name == "cpu":
        return {}
    chosen = {"device_id": "0"}
    if name == "tensorrt":
        if options.trt_op_types_to_exclude:
            chosen["trt_op_types_to_exclude"] = options.trt_op_types_to_exclude
        if options.trt_min_subgraph_size is not None:
            chosen["trt_min_subgraph_size"] = str(options.trt_min_subgraph_size)
    return chosen
