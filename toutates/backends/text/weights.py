"""Reads tensors of safetensors files: 8 bytes of length, a JSON header, and the tensors' bytes.

Only the tensors that are asked for are read. Files of pickles are never read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from toutates.backends.text.interface import Float32
from toutates.system.errors import ModelLoadError

__all__ = ["WEIGHTS", "read_weights"]

#: The file's name.
WEIGHTS: Final = "model.safetensors"
_PICKLE: Final = "pytorch_model.bin"
_MAX_HEADER_BYTES: Final = 100_000_000  # that of the format's own library
_TYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_weights(directory: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Float32]:
    """Tensors of a directory's ``model.safetensors``, as float32. Blocks.

    Args:
        directory: with the file.
        names: of the tensors.
        optional: of those that may be missing.

    Raises:
        ModelLoadError: the file is missing or broken, or lacks a tensor.
    """
    path = directory / WEIGHTS
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _MAX_HEADER_BYTES:
                raise ModelLoadError(f"'{path}' is no safetensors file: its header has {length} bytes")
            header: Any = json.loads(file.read(length))
            found = {}
            for name in (*names, *optional):
                entry = header.get(name)
                if entry is None and name in optional:
                    continue
                if entry is None:
                    known = ", ".join(sorted(key for key in header if key != "__metadata__")[:10]) or "none"
                    raise ModelLoadError(f"'{path}' has no tensor '{name}'; it has: {known}")
                start, end = entry["data_offsets"]
                file.seek(8 + length + start)
                found[name] = _tensor(file.read(end - start), entry)
            return found
    except FileNotFoundError as error:
        if (directory / _PICKLE).exists():
            raise ModelLoadError(
                f"'{directory / _PICKLE}' is a pickle, which runs the code of whoever wrote it, and is not read; save "
                "the model again with sentence-transformers and safe_serialization=True"
            ) from error
        raise ModelLoadError(f"unable to find '{path}'; copy the whole model folder") from error
    except OSError as error:
        raise ModelLoadError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"'{path}' is no safetensors file: {type(error).__name__}: {error}") from error


def _tensor(data: bytes, entry: Any) -> Float32:
    kind, shape = entry["dtype"], entry["shape"]
    if kind not in _TYPES:
        raise ValueError(f"the type {kind} is not one of {', '.join(_TYPES)}")
    array = np.frombuffer(data, _TYPES[kind])
    if array.size != prod(shape):
        raise ValueError(f"a tensor of shape {shape} has {array.size} elements")
    if kind == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32).reshape(shape)
