"""The module that models import as ``c_python_backend_utils``: what of Triton's module is written in C++."""

from __future__ import annotations

from toutates.backends.python.child.errors import TritonModelException
from toutates.backends.python.child.logger import Logger
from toutates.backends.python.child.metrics import Metric, MetricFamily
from toutates.backends.python.child.requests import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    ResponseIterator,
    TritonError,
    is_model_ready,
    load_model,
    unload_model,
)
from toutates.backends.python.child.senders import ResponseSender as InferenceResponseSender
from toutates.backends.python.child.tensors import Tensor

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]
