"""Reading safetensors files: of a file its header, and of a tensor its bytes when they are asked for.

Nothing is mapped: a file that is cut short while it is mapped ends the process, and one that is written changes.

A file is 8 bytes with the header's length, the header in JSON, and the tensors' bytes:

    {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}

The file may come from anybody, so nothing of the header is believed: every size is computed from the shape, and the
tensors have to fill the file without gaps and without sharing bytes.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.system.errors import ConfigurationError
from toutates.system.private_copies import identity_of
from toutates.system.text import one_line, shown

__all__ = ["Changed", "Tensor", "open_safetensors"]

#: Bytes of a header. Models with 100,000 tensors need 10 MB.
_MOST_HEADER: Final = 100_000_000
_MOST_DIMENSIONS: Final = 8
_METADATA: Final = "__metadata__"

#: Element types, and how NumPy reads them. BF16, which NumPy lacks, is the upper half of a float32.
_DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
        "BOOL": "u1",
    }
)
_FLOATS: Final = ("F64", "F32", "F16", "BF16")


class Changed(ConfigurationError):
    """A file was written while it was read."""


class _File:
    """A file that is open as long as this lives.

    Args:
        path: of it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._identity = identity_of(os.fstat(self._descriptor))
        self.size = self._identity[2]

    def read(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of it.

        Raises:
            Changed: the file is not as it was when it was opened.
            OSError: they cannot be read.
        """
        content = np.empty(size, np.uint8)
        view, at = content.data, 0
        while at < size and (count := os.preadv(self._descriptor, [view[at:]], start + at)):
            at += count
        if at < size or identity_of(os.fstat(self._descriptor)) != self._identity:
            remedy = "try again when all of it is written"
            raise Changed("has changed while it was read", source=self._path, remedy=remedy)
        return content


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        source: the file, for errors.
        name: its name there.
        dtype: as the file names it, such as ``F32``.
        shape: its dimensions.
        file, start, size: where its bytes are.
    """

    source: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: _File
    start: int
    size: int

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Its bytes, which are read each time.

        Raises:
            ConfigurationError: the file has changed, or cannot be read.
        """
        try:
            return self.file.read(self.start, self.size)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise ConfigurationError(problem, source=self.source, remedy="make it readable") from error

    def float32(self) -> npt.NDArray[np.float32]:
        """Its values in single precision; half precision is widened, which loses nothing.

        Raises:
            ConfigurationError: it is no tensor of floating-point numbers, or has values that are not finite.
        """
        if self.dtype not in _FLOATS:
            raise ConfigurationError(
                f"is of type {self.dtype}, where floating-point numbers are expected",
                source=self.source,
                key=shown(self.name),
                remedy="save the model in F32, F16 or BF16, not quantized",
            )
        values = self.data.view(_DTYPES[self.dtype])
        if self.dtype == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, and is refused
            values = values.astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise ConfigurationError(
                "has values that are no finite float32",
                source=self.source,
                key=shown(self.name),
                remedy="download or save the weights again",
            )
        return values.reshape(self.shape)


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name. The file stays open while one of them lives.

    Raises:
        ConfigurationError: it cannot be read, or is no valid safetensors file.
    """
    try:
        if not path.is_file():
            raise ConfigurationError("is no regular file", source=path, remedy="download it again")
        file = _File(path)
        size = file.size
        if size < 8:
            raise _wrong(path, "is shorter than its header")
        length = int.from_bytes(file.read(0, 8).tobytes(), "little")
        if not 2 <= length <= min(_MOST_HEADER, size - 8):
            raise _wrong(path, f"says that its header has {length} bytes, of {size} of the file")
        text = file.read(8, length).tobytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ConfigurationError(problem, source=path, remedy="make it readable") from error
    if text[:1] != b"{":
        raise _wrong(path, "has a header that does not begin with '{'")
    header = _read_header(path, text)
    header.pop(_METADATA, None)
    start = 8 + length
    tensors = {name: _tensor(path, name, entry, file, start) for name, entry in header.items()}
    _check_layout(path, header, size - start)
    return tensors


def _read_header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"has a header that is no JSON object: {one_line(error, 200)}") from None
    return header


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in it")
    return found


def _tensor(path: Path, name: str, entry: Any, file: _File, start: int) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _wrong(path, "has no entry of dtype, shape and data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ConfigurationError(
            f"has the type {shown(str(dtype))}, which cannot be read",
            source=path,
            key=shown(name),
            remedy=f"save the model in one of {', '.join(_FLOATS)}",
        )
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(_is_size(one) for one in shape):
        raise _wrong(path, f"has a shape that is no list of at most {_MOST_DIMENSIONS} sizes", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(one) for one in offsets):
        raise _wrong(path, "has data_offsets that are no two offsets", name)
    begin, end = offsets
    if not begin <= end <= file.size - start:
        raise _wrong(path, f"has the bytes {begin} to {end}, of {file.size - start}", name)
    if end - begin != math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
        raise _wrong(path, f"has {end - begin} bytes, which is not what its type and shape need", name)
    return Tensor(path, name, dtype, tuple(shape), file, start + begin, end - begin)


def _check_layout(path: Path, header: Mapping[str, Any], size: int) -> None:
    """See that the tensors follow each other from the first byte to the last."""
    at = 0
    for begin, end, name in sorted((*entry["data_offsets"], name) for name, entry in header.items()):
        if begin != at:
            raise _wrong(path, f"begins at byte {begin}, where the tensor before ends at {at}", name)
        at = end
    if at != size:
        raise _wrong(path, f"has {size - at} bytes behind its tensors")


def _is_size(value: Any) -> bool:
    """Whether a value of the header is a number of bytes or elements; true and false are none."""
    return type(value) is int and 0 <= value < 2**63


def _wrong(path: Path, problem: str, name: str = "") -> ConfigurationError:
    return ConfigurationError(problem, source=path, key=shown(name), remedy="download or save the weights again")
