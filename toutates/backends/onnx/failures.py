"""What ONNX Runtime's exceptions come to."""

from __future__ import annotations

import re
from typing import Final

from toutates.backends.onnx.opening import MAX_REASON
from toutates.system.errors import ExecutionFailed
from toutates.system.text import one_line

__all__ = ["RunFailed", "execution_failure", "is_of_shape"]

_ERROR_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+)")
#: What ONNX Runtime says where an output does not have the shape of the buffer that is bound for it: of a size that the
#: graph fixes, and of others. ``OutputMLValue`` is the function that refuses, where the text ends before the reason.
_OTHER_SHAPE: Final = re.compile(r"shape verification failed|OutputMLValue|(?:dimensions|rank) for output")


class RunFailed(ExecutionFailed):
    """ONNX Runtime has refused or failed a run."""


def execution_failure(error: Exception) -> RunFailed:
    """ONNX Runtime's exception in Triton's words: ``onnx runtime error N: <text>``."""
    text = one_line(error, MAX_REASON).removeprefix("Error in execution: ")  # which the Python interface adds
    match = _ERROR_CODE.search(text)
    return RunFailed(f"onnx runtime error {match[1] if match else 1}: {text}")


def is_of_shape(failure: ExecutionFailed) -> bool:
    """Whether a run has failed because an output has another shape than the buffer that was bound for it."""
    return _OTHER_SHAPE.search(str(failure)) is not None
