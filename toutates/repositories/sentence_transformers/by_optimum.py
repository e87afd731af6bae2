"""Converting by Hugging Face's optimum, where it is installed: for architectures that are not written here.

It loads the model with PyTorch and records what it computes. Python code of the model's own is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toutates.repositories.sentence_transformers.family import Output
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line

__all__ = ["export"]

_TASKS: Final[Mapping[Output, str]] = {
    Output.HIDDEN: "feature-extraction",
    Output.LABELS: "text-classification",
    Output.TOKENS: "fill-mask",
}


def export(folder: Path, output: Output, target: Path, reason: str) -> None:
    """Write ``model.onnx`` into a directory.

    Args:
        folder: of the model.
        output: what the graph has to compute.
        target: the directory.
        reason: why this is asked for, for the error where optimum is not installed.

    Raises:
        ConfigurationError: optimum is not installed, or fails.
    """
    try:
        from optimum.exporters.onnx import main_export
    except ImportError as error:
        raise ConfigurationError(
            f"{reason}, and optimum, which could convert it, cannot be imported: {one_line(error, 300)}",
            source=folder / "config.json",
            remedy="run 'pip install optimum-onnx', which brings PyTorch, or put a model.onnx into the folder",
        ) from None
    try:
        main_export(
            str(folder),
            target,
            task=_TASKS[output],
            framework="pt",
            library_name="transformers",
            do_validation=False,
            local_files_only=True,
        )
    except Exception as error:  # whatever a model, PyTorch and optimum can raise
        problem = f"optimum cannot convert the model: {type(error).__name__}: {one_line(error, 500)}"
        raise ConfigurationError(problem, source=folder, remedy="see optimum's documentation") from error
    if not (target / "model.onnx").is_file():
        raise ConfigurationError(
            "optimum has written no model.onnx", source=folder, remedy="see optimum's documentation"
        )
