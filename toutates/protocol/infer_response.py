"""Writing a ModelInferResponse: constants, the request's id, and the raw bytes of the outputs.

The fields are written in the order of their numbers: model name and version (constant), id (copied from the request),
the outputs' names, datatypes and shapes (constant for requests of one plan), then the raw contents. A template holds
the constants, so a response takes a few slices and no message object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.protocol.grpc_service_pb2 import ModelInferResponse
from toutates.protocol.wire_format import field_head
from toutates.system.errors import InvalidRequest

__all__ = [
    "MAX_CLASSIFIED_ELEMENTS",
    "OutputPart",
    "ResponseTemplate",
    "WireTensor",
    "build_template",
    "classify",
    "write_response",
]

_RAW_TAG: Final = 6 << 3 | 2
#: Fields of InferParameter, by the type of a value.
_FIELDS: Final = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}

#: Values of an output that may be classified: Triton's limit.
MAX_CLASSIFIED_ELEMENTS: Final = 1_000_000
#: Of so many rows the greatest values are found without sorting the others. Of more rows all values are sorted, which
#: takes 15 ms for MAX_SORTED_ELEMENTS of them, in the worker's thread.
_FEW_ROWS: Final = 64
MAX_SORTED_ELEMENTS: Final = 131_072
#: Classes that are returned for one output: their texts take 0.6 us each, in the worker's thread.
MAX_CLASSES: Final = 16_384


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One raw content of a templated response.

    Attributes:
        head: tag and length.
        index: number of the output in the model's signature.
        size: of the content, bytes.
    """

    head: bytes
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A response without its id and raw contents.

    Attributes:
        before: model name and version.
        after: names, datatypes and shapes of the outputs; if there is one output, also the head of its raw content.
        outputs: the raw contents, in order.
        single: the only output's index, or -1 if there are several.
        single_size: bytes of the only output.
        length: of the whole message without the id, bytes.
    """

    before: bytes
    after: bytes
    outputs: tuple[OutputPart, ...]
    single: int
    single_size: int
    length: int


@dataclass(frozen=True, slots=True)
class WireTensor:
    """The description of one output in a response: its name, its datatype's name, and its whole shape."""

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


def _parameters(parameters: Mapping[str, bool | int | float | str]) -> bytes:
    message = ModelInferResponse()
    for name, value in parameters.items():
        setattr(message.parameters[name], _FIELDS[type(value)], value)
    return message.SerializeToString()


def build_template(
    model: str,
    version: str,
    tensors: Sequence[WireTensor],
    indices: Sequence[int],
    sizes: Sequence[int],
    parameters: Mapping[str, bool | int | float | str] | None = None,
) -> ResponseTemplate:
    """Make the template of all responses with certain outputs.

    Args:
        model: name.
        version: the version that ran, decimal.
        tensors: the outputs returned, in the order they are returned in.
        indices: number of each in the model's signature.
        sizes: bytes of each.
        parameters: of each response.
    """
    before, after = _names(model, version), _parameters(parameters or {}) + _descriptions(tensors)
    parts = tuple(
        OutputPart(field_head(_RAW_TAG, size), index, size) for index, size in zip(indices, sizes, strict=True)
    )
    length = len(before) + len(after) + sum(len(part.head) + part.size for part in parts)
    if len(parts) == 1:
        return ResponseTemplate(before, after + parts[0].head, parts, parts[0].index, parts[0].size, length)
    return ResponseTemplate(before, after, parts, -1, 0, length)


def write_response(
    model: str,
    version: str,
    id_field: bytes,
    tensors: Sequence[WireTensor],
    contents: Sequence[bytes | memoryview],
    parameters: Mapping[str, bool | int | float | str] | None = None,
) -> list[bytes | memoryview]:
    """A response in pieces, for outputs whose sizes are not known beforehand.

    Args:
        model: name.
        version: the version that ran, decimal.
        id_field: the request's id with tag and length, or b"".
        tensors: the outputs, in the order they are returned in.
        contents: their bytes.
        parameters: of the response, which a model may set.
    """
    head = _names(model, version) + id_field
    if parameters:
        head += _parameters(parameters)
    pieces: list[bytes | memoryview] = [head + _descriptions(tensors)]
    for content in contents:
        pieces += (field_head(_RAW_TAG, len(content)), content)
    return pieces


class ClassLabels(Protocol):
    """Names of classes by their numbers."""

    def of(self, numbers: Sequence[int]) -> Sequence[str]:
        """The names; "" for a class without one."""
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
    count = min(count, n)
    if rows * count > MAX_CLASSES:
        raise InvalidRequest(
            f"classification of {rows} row{'' if rows == 1 else 's'} by {count} classes is too large, at most "
            f"{MAX_CLASSES} classes are returned for one output; ask for fewer classes, or send fewer rows"
        )
    if rows <= _FEW_ROWS and count < n:
        order = np.array([_greatest(row, count) for row in values], np.int64).reshape(rows, count)
    elif values.size > MAX_SORTED_ELEMENTS:
        raise InvalidRequest(
            f"classification of {rows} rows of {n} values is too large, at most {MAX_SORTED_ELEMENTS} values of more "
            f"than {_FEW_ROWS} rows are sorted; send fewer rows"
        )
    else:
        order = _descending(values)[:, :count]
    chosen = np.take_along_axis(values, order, axis=1).ravel().tolist()
    # Formatting all values at once takes half as long as one by one.
    form = "%f:%d\n" if values.dtype.kind == "f" else "%d:%d\n"
    pairs = tuple([part for pair in zip(chosen, order.ravel().tolist(), strict=True) for part in pair])
    texts = (form * len(chosen) % pairs).splitlines()
    if labels is not None:
        names = labels.of(order.ravel().tolist())
        texts = [f"{text}:{name}" if name else text for text, name in zip(texts, names, strict=True)]
    result = np.empty(len(texts), np.object_)
    result[:] = texts
    return result.reshape(rows, order.shape[1])


def _descending(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The order of each row's values, greatest first, equal ones by index, NaN before all.

    A stable sort of the reversed row, read backwards, keeps the lower index first among equals; negating the values
    instead would overflow for integers.
    """
    order: npt.NDArray[np.int64] = values.shape[1] - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")
    return order[:, ::-1]


def _greatest(row: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """The first ``count`` indices that ``_descending`` gives for a row of more values, without sorting the others."""
    least = np.partition(row, len(row) - count)[len(row) - count]
    if least != least:  # ``count`` values or more are NaN
        return np.flatnonzero(row != row)[:count]
    above = np.flatnonzero(~(row <= least))  # with the NaN
    equal = np.flatnonzero(row == least)[: count - len(above)]
    at = np.sort(np.concatenate([above, equal]))
    order: npt.NDArray[np.int64] = at[_descending(row[None, at])[0]]
    return order
