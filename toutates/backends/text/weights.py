"""Weights of a model's modules, from their safetensors files. Files of pickles are never read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toutates.backends.text.interface import Float32
from toutates.protocol.safetensors import Changed, open_safetensors
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.private_copies import TRIES

__all__ = ["read_weights"]

_WEIGHTS: Final = "model.safetensors"
_PICKLE: Final = "pytorch_model.bin"


def read_weights(directory: Path, names: Sequence[str]) -> dict[str, Float32]:
    """Tensors of a directory's ``model.safetensors``, as float32. Blocks.

    A file that changes meanwhile is read again, three times at most.

    Args:
        directory: with the file.
        names: of the tensors.

    Raises:
        ConfigurationError: the file is broken, or a tensor has other values than numbers.
        ModelLoadError: the file is missing, or lacks a tensor.
    """
    path = directory / _WEIGHTS
    if not path.exists():
        pickle = directory / _PICKLE
        if pickle.exists():
            raise ModelLoadError(
                f"'{pickle}' is a pickle, which runs the code of whoever wrote it, and is not read; save the model "
                "again with sentence-transformers and safe_serialization=True"
            )
        raise ModelLoadError(f"unable to find '{path}'; copy the whole model folder")
    for _ in range(TRIES - 1):
        try:
            return _read(path, names)
        except Changed:
            continue
    return _read(path, names)


def _read(path: Path, names: Sequence[str]) -> dict[str, Float32]:
    tensors = open_safetensors(path)
    missing = [name for name in names if name not in tensors]
    if missing:
        raise ConfigurationError(
            f"has no tensor {', '.join(missing)}",
            source=path,
            remedy=f"copy the model's own file; it has {', '.join(sorted(tensors)[:10]) or 'none'}",
        )
    return {name: tensors[name].float32() for name in names}
