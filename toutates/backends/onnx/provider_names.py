"""The execution providers that can be asked for: our names, and ONNX Runtime's. Imports no ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["CPU", "CUDA", "ON_CPU", "ON_DEVICES", "PROVIDERS", "TENSORRT", "Provider"]

#: Name of an execution provider, as ONNX Runtime has it, and its options.
Provider = tuple[str, Mapping[str, str]]

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
#: The CPU, without options.
ON_CPU: Final[Provider] = (CPU, MappingProxyType({}))

#: ONNX Runtime's names by those of flags and configuration files.
PROVIDERS: Final[Mapping[str, str]] = MappingProxyType({"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT})
#: Those that need an NVIDIA GPU.
ON_DEVICES: Final = frozenset({CUDA, TENSORRT})
