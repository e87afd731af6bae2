"""Kinds of models that Triton serves and this server does not: how they are recognised, and what to do with them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["Kind", "kind_among_files", "kind_of_backend", "kind_of_platform", "refusal_of"]


class Kind(NamedTuple):
    """A kind of models.

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
        "ensemble": Kind("ensembles", "join the graphs into one with onnx.compose, or call the models in turn"),
        "tensorrt": Kind(
            "TensorRT plans",
            "put the ONNX model there that the plan was built from, with the accelerator tensorrt in "
            "optimization.execution_accelerators.gpu_execution_accelerator",
        ),
        "pytorch": Kind("PyTorch models", f"export the model with torch.onnx.export, {_KEEP}"),
        "tensorflow": Kind("TensorFlow models", f"convert the model with tf2onnx, {_KEEP}"),
        "python": Kind("Python models", f"export what it computes to ONNX, and leave the rest to the client, {_KEEP}"),
        "openvino": Kind("OpenVINO models", f"put the ONNX model there that it was made from, {_KEEP}"),
        "dali": Kind("DALI pipelines", f"prepare inputs in the client or in the graph, {_KEEP}"),
        "fil": Kind("tree ensembles (FIL)", f"convert the model with onnxmltools, {_KEEP}"),
        "tensorrtllm": Kind("TensorRT-LLM models", "keep it on Triton"),
        "vllm": Kind("vLLM models", "keep it on Triton"),
    }
)
_PLATFORMS: Final = MappingProxyType(
    {
        "ensemble": "ensemble",
        "tensorrt_plan": "tensorrt",
        "pytorch_libtorch": "pytorch",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
    }
)
#: By the names that Triton's backends give the files of a version.
_FILES: Final = MappingProxyType(
    {
        "model.plan": "tensorrt",
        "model.engine": "tensorrt",
        "model.pt": "pytorch",
        "model.pt2": "pytorch",
        "model.py": "python",
        "model.savedmodel": "tensorflow",
        "model.graphdef": "tensorflow",
        "model.xml": "openvino",
        "model.dali": "dali",
        "xgboost.json": "fil",
        "xgboost.model": "fil",
        "checkpoint.tl": "fil",
    }
)


def kind_of_platform(platform: str) -> Kind | None:
    """The kind that ``platform`` of a config.pbtxt names; None for one that is not known."""
    return _KINDS.get(_PLATFORMS.get(platform, ""))


def kind_of_backend(backend: str) -> Kind | None:
    """The kind that ``backend`` of a config.pbtxt names; None for one that is not known."""
    return _KINDS.get(backend)


def kind_among_files(names: Iterable[str]) -> tuple[str, Kind] | None:
    """The first file of a version that is of another kind, and that kind; None if there is none."""
    return next(((name, _KINDS[_FILES[name]]) for name in sorted(names) if name in _FILES), None)


def refusal_of(key: str, value: str, kind: Kind | None, right: str) -> tuple[str, str]:
    """Problem and remedy where a config.pbtxt names another platform or backend than ONNX Runtime's.

    Args:
        key: platform or backend.
        value: what it says.
        kind: what that is, as far as it is known.
        right: the value for ONNX models.
    """
    if kind is not None:
        return f"{kind.plural} are not served, only ONNX models", kind.remedy
    if "onnx" in value.lower() or get_close_matches(value, [right], cutoff=0.7):
        return "is not for ONNX models", f"write {key}: '{right}'"
    return "is not for ONNX models, and no others are served", f"export the model to ONNX, and write {key}: '{right}'"
