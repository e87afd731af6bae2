"""The module that models import as ``triton_python_backend_utils``."""

from __future__ import annotations

import threading
from typing import Any

from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.logger import Logger
from toutates.backends.python.child.metrics import Metric, MetricFamily
from toutates.backends.python.child.model_config import ModelConfig
from toutates.backends.python.child.requests import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    TritonError,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
    is_model_ready,
    load_model,
    unload_model,
)
from toutates.backends.python.child.tensors import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "set_model_dir",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

_whose = threading.local()
_model_dir = ""


def set_model_dir(path: str) -> None:
    """Say which version's directory ``get_model_dir`` gives: in this thread, and in those that nobody has told."""
    global _model_dir
    _whose.model_dir = _model_dir = path


def get_model_dir() -> str:
    """The path of the version's directory."""
    return str(getattr(_whose, "model_dir", _model_dir))


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a parsed configuration says of an input; None for one that it has not."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a parsed configuration says of an output; None for one that it has not."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether a parsed configuration says that the model is decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
