"""Kinds of models that Triton serves and this server does not: how they are recognised, and what to do with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

__all__ = [
    "EXTRAS",
    "PYTORCH_RUNTIME",
    "ForeignKind",
    "backend_of_platform",
    "kind_among_files",
    "refuse_unknown_backend",
]


class ForeignKind(NamedTuple):
    """A kind of models that only Triton serves.

    Attributes:
        plural: what they are called.
        remedy: what their owner can do.
    """

    plural: str
    remedy: str


_KEEP: Final = "or keep it on Triton"
#: By Triton's name of the backend; "ensemble" is a platform alone.
_KINDS: Final = MappingProxyType(
    {
        "tensorrt": ForeignKind(
            "TensorRT plans",
            "put the ONNX model there that the plan was built from, with the accelerator tensorrt in "
            "optimization.execution_accelerators.gpu_execution_accelerator",
        ),
        "tensorflow": ForeignKind("TensorFlow models", f"convert the model with tf2onnx, {_KEEP}"),
        "dali": ForeignKind("DALI pipelines", f"prepare inputs in the client or in the graph, {_KEEP}"),
        "fil": ForeignKind("tree ensembles (FIL)", f"convert the model with onnxmltools, {_KEEP}"),
        "tensorrtllm": ForeignKind("TensorRT-LLM models", "keep it on Triton"),
        "vllm": ForeignKind("vLLM models", "keep it on Triton"),
    }
)
#: Backends by Triton's platforms. Newer backends have no platform.
_PLATFORMS: Final = MappingProxyType(
    {
        "onnxruntime_onnx": "onnxruntime",
        "ensemble": "ensemble",
        "tensorrt_plan": "tensorrt",
        "pytorch_libtorch": "pytorch",
        "libtorch": "pytorch",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
    }
)
#: PyTorch's Python runtime (``runtime: "model.py"``), as the name of a backend.
PYTORCH_RUNTIME: Final = "pytorch:model.py"
#: Backends of ours that need a package: each is an extra of the same name.
EXTRAS: Final = ("lightgbm", "openvino", "pytorch", "sklearn", "xgboost")
#: By the names that Triton's backends give the files of a version.
_FILES: Final = MappingProxyType(
    {
        "model.plan": "tensorrt",
        "model.engine": "tensorrt",
        "model.savedmodel": "tensorflow",
        "model.graphdef": "tensorflow",
        "model.dali": "dali",
        "checkpoint.tl": "fil",
    }
)


def kind_among_files(names: Iterable[str]) -> tuple[str, ForeignKind] | None:
    """The first file of a version that is of another kind, and that kind; None if there is none."""
    return next(((name, _KINDS[_FILES[name]]) for name in sorted(names) if name in _FILES), None)


def backend_of_platform(platform: str) -> str | None:
    """The backend that ``platform`` of a config.pbtxt stands for; None for a platform that Triton does not know."""
    return _PLATFORMS.get(platform)


def refuse_unknown_backend(config: ModelConfig, backends: Sequence[str], source: Path) -> None:
    """See that what a config.pbtxt calls its backend is there.

    Args:
        config: read by ``triton_configuration``.
        backends: names of those that are there.
        source: the file, for the error.

    Raises:
        ConfigurationError: it is not; with what the model's owner can do.
    """
    name = config.backend or _PLATFORMS.get(config.platform, "")
    if not name or name in backends:
        return
    key = "backend" if config.backend else "platform"
    kind = _KINDS.get(name)
    if kind is not None:
        problem, remedy = f"{kind.plural} are not served", kind.remedy
    else:
        near = get_close_matches(name, backends, n=1, cutoff=0.7)
        problem = "there is no backend of this name"
        remedy = f"did you mean '{near[0]}'?" if near else f"write one of {', '.join(backends)}{_more(backends)}"
    raise ConfigurationError(problem, source=source, key=key, value=getattr(config, key), remedy=remedy)


def _more(backends: Sequence[str]) -> str:
    """The end of the remedy: backends that an extra brings, where it is not installed."""
    installed = list(backends)
    missing = [name for name in EXTRAS if name not in installed]
    return f"; or install one of {', '.join(missing)}, extras of toutates" if missing else ""
