"""Chooses ONNX Runtime's execution providers and their options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from toutates.backends.onnx.opening import provider_problem
from toutates.backends.onnx.provider_names import CUDA, PROVIDERS, Provider
from toutates.system.errors import ConfigurationError

__all__ = ["choose_providers"]

logger = logging.getLogger(__name__)


def choose_providers(
    wanted: Sequence[str],
    tensorrt: Mapping[str, str],
    available: Sequence[str],
    problem_of: Callable[[Sequence[Provider]], str] = provider_problem,
) -> tuple[Provider, ...]:
    """Providers with their options, by priority. The CPU is always last, for operators that the others cannot run.

    Args:
        wanted: names in ``PROVIDERS``, or ``auto`` alone: CUDA where this ONNX Runtime was built with it and the
            machine can run it.
        tensorrt: options of TensorRT, by ONNX Runtime's names.
        available: what this build of ONNX Runtime offers, whether or not the machine has the device.
        problem_of: tells why a session with some providers cannot be made; see ``provider_problem``.

    Raises:
        ConfigurationError: a provider that was asked for is not offered.
    """
    if list(wanted) == ["auto"]:
        return _choose_automatically(tensorrt, available, problem_of)
    for name in wanted:
        if PROVIDERS[name] not in available:
            offered = [short for short, full in PROVIDERS.items() if full in available]
            raise ConfigurationError(
                "this build of onnxruntime does not offer the provider",
                key="--execution-providers",
                value=name,
                remedy=f"install toutates[gpu] in place of toutates[cpu], or choose from {', '.join(offered)}",
            )
    return _with_options(wanted, tensorrt)


def _choose_automatically(
    tensorrt: Mapping[str, str], available: Sequence[str], problem_of: Callable[[Sequence[Provider]], str]
) -> tuple[Provider, ...]:
    if CUDA in available:
        with_cuda = _with_options(("cuda",), tensorrt)
        problem = problem_of(with_cuda)
        if not problem:
            return with_cuda
        logger.warning("CUDA cannot be used, so models run on the CPU: %s", problem)
    return _with_options(("cpu",), tensorrt)


def _with_options(names: Sequence[str], tensorrt: Mapping[str, str]) -> tuple[Provider, ...]:
    options = {"cpu": {}, "cuda": {"device_id": "0"}, "tensorrt": {"device_id": "0", **tensorrt}}
    whole = [*names, *(["cpu"] if "cpu" not in names else [])]
    return tuple((PROVIDERS[name], options[name]) for name in whole)
