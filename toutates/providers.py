"""Which of ONNX Runtime's execution providers to use, and with which options."""

from __future__ import annotations

from collections.abc import Sequence

from toutates.errors import ConfigurationError
from toutates.options import Options

__all__ = ["choose_providers"]

_NAMES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


def choose_providers(options: Options, available: Sequence[str]) -> tuple[tuple[str, dict[str, str]], ...]:
    """Providers with their options, by priority; the CPU comes last always, for what the others leave.

    Args:
        options: the flags.
        available: what this build of ONNX Runtime offers.

    Raises:
        ConfigurationError: a provider that was asked for is not offered.
    """
    wanted = options.execution_providers
    if wanted == ("auto",):
        wanted = ("cuda",) if _NAMES["cuda"] in available else ("cpu",)
    for name in wanted:
        if _NAMES[name] not in available:
            offered = [short for short, full in _NAMES.items() if full in available]
            raise ConfigurationError(
                "this build of onnxruntime does not offer the provider",
                key="--execution-providers",
                value=name,
                remedy=f"install toutates[gpu] in place of toutates[cpu], or choose from {', '.join(offered)}",
            )
    names = [*wanted, *(["cpu"] if "cpu" not in wanted else [])]
    return tuple((_NAMES[name], _provider_options(name, options)) for name in names)


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
