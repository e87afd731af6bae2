"""Writing a ModelInferResponse: a constant around the request's id and the raw bytes of the outputs.

The fields go out in the order of their numbers: model name and version (constant), id (as it stands in the request),
the outputs' names, datatypes and shapes (constant for a kind of request), then the raw contents. A template holds the
constants, so that a response costs a few slices and no message object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.errors import InvalidRequest
from toutates.protocol.grpc_service_pb2 import ModelInferResponse

__all__ = [
    "MAX_CLASSIFIED_ELEMENTS",
    "OutputPart",
    "ResponseTemplate",
    "WireTensor",
    "build_template",
    "classify",
    "write_response",
]

_RAW_TAG: Final = bytes([6 << 3 | 2])

#: Triton refuses to sort more.
MAX_CLASSIFIED_ELEMENTS: Final = 1_000_000


def _raw_head(size: int) -> bytes:
    """Tag and length of one raw content."""
    out = bytearray(_RAW_TAG)
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One raw content of a templated response.

    Attributes:
        head: tag and length.
        index: which output of the model.
        size: bytes.
    """

    head: bytes
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A response but for id and raw contents.

    Attributes:
        before: model name and version.
        after: the outputs' descriptions; for a single output the head of its raw content too.
        outputs: the raw contents, in order.
        single: the only output's index, or -1 when there are several.
        single_size: its bytes.
        length: bytes of the whole message without the id.
    """

    before: bytes
    after: bytes
    outputs: tuple[OutputPart, ...]
    single: int
    single_size: int
    length: int


@dataclass(frozen=True, slots=True)
class WireTensor:
    """What a response says of one output: its name, its datatype's name, and its whole shape."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def _names(model: str, version: str) -> bytes:
    return ModelInferResponse(model_name=model, model_version=version).SerializeToString()


def _descriptions(tensors: Sequence[WireTensor]) -> bytes:
    outputs = [
        ModelInferResponse.InferOutputTensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in tensors
    ]
    return ModelInferResponse(outputs=outputs).SerializeToString()


def build_template(
    model: str, version: str, tensors: Sequence[WireTensor], indices: Sequence[int], sizes: Sequence[int]
) -> ResponseTemplate:
    """The template of all responses with these outputs.

    Args:
        model: name.
        version: the version that ran, decimal.
        tensors: the outputs returned, in the order they are returned in.
        indices: which output of the model each is.
        sizes: bytes of each.
    """
    before, after = _names(model, version), _descriptions(tensors)
    parts = tuple(OutputPart(_raw_head(size), index, size) for index, size in zip(indices, sizes, strict=True))
    length = len(before) + len(after) + sum(len(part.head) + part.size for part in parts)
    if len(parts) == 1:
        return ResponseTemplate(before, after + parts[0].head, parts, parts[0].index, parts[0].size, length)
    return ResponseTemplate(before, after, parts, -1, 0, length)


def write_response(
    model: str, version: str, id_field: bytes, tensors: Sequence[WireTensor], contents: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """A response in pieces, for outputs whose sizes are not known beforehand.

    Args:
        model: name.
        version: the version that ran, decimal.
        id_field: the request's id with tag and length, or b"".
        tensors: the outputs, in the order they are returned in.
        contents: their bytes.
    """
    pieces: list[bytes | memoryview] = [_names(model, version) + id_field + _descriptions(tensors)]
    for content in contents:
        pieces += (_raw_head(len(content)), content)
    return pieces


class ClassLabels(Protocol):
    """Names of classes by their numbers."""

    def __getitem__(self, number: int) -> str:
        """ "" for a class without a name."""
        ...


def classify(values: npt.NDArray[Any], count: int, labels: ClassLabels | None = None) -> npt.NDArray[np.object_]:
    """Triton's classification extension: the ``count`` greatest values of each row, as ``value:index:label``.

    Args:
        values: shape [rows, n], numeric.
        count: at least 1; more than n gives n.
        labels: of the n classes; those without one are ``value:index``.

    Returns:
        str objects of shape [rows, min(count, n)], greatest first, equal values by index.

    Raises:
        InvalidRequest: there are too many values.
    """
    if values.size > MAX_CLASSIFIED_ELEMENTS:
        raise InvalidRequest("classification output tensor too large")
    rows, n = values.shape
    # A stable sort of the reversed row, read backwards, keeps the lower index first among equals; negating the values
    # instead would overflow for integers.
    order = (n - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable"))[:, ::-1][:, :count]
    form = "{:f}:{}" if values.dtype.kind == "f" else "{}:{}"
    texts = [form.format(values[row, at], at) for row in range(rows) for at in order[row]]
    if labels is not None:
        names = [labels[at] for row in order.tolist() for at in row]
        texts = [f"{text}:{name}" if name else text for text, name in zip(texts, names, strict=True)]
    result = np.empty(len(texts), np.object_)
    result[:] = texts
    return result.reshape(rows, order.shape[1])
