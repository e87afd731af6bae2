"""What an ONNX file says of its operators, read from the file itself: ONNX Runtime does not tell.

Only nodes, types and the heads of tensors are looked at; weights are passed over by their length.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toutates.backends.probing import GraphFacts
from toutates.protocol.wire_format import read_varint

__all__ = ["facts_of"]

#: Operators that draw random numbers.
_RANDOM: Final = frozenset(
    {b"RandomNormal", b"RandomNormalLike", b"RandomUniform", b"RandomUniformLike", b"Multinomial", b"Bernoulli"}
)
#: In the names of operators that quantize, or compute with what is quantized.
_QUANTIZING: Final = (b"Quant", b"QLinear", b"Integer", b"QAttention", b"QGemm", b"QEmbed", b"NBits")
#: FP16 and BF16.
_HALVES: Final = (10, 16)

#: Fields: of a model, a graph, a node, an attribute, a function, and of what has a type.
_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_VALUES = 1, 5, (11, 12, 13)
_NODE_OPERATOR, _NODE_ATTRIBUTE = 4, 5
_ATTRIBUTE_NUMBER, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPHS = 3, 5, (6, 11)
_FUNCTION_NODE = 7
_TENSOR_TYPE, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT = 2, 2, 1, 1


def facts_of(path: Path) -> GraphFacts:
    """Read the operators of a graph. Blocks; some 20 us for each node. Of what cannot be read nothing is known.

    Args:
        path: of the file.
    """
    reader = _Reader()
    try:
        with path.open("rb") as file:
            reader.read_model(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (OSError, ValueError, IndexError):  # such as a graph in ONNX Runtime's own format
        pass
    return GraphFacts(reader.is_random, reader.is_inexact)


class _Reader:
    """What has been seen so far."""

    def __init__(self) -> None:
        self.is_random = self.is_inexact = False

    def read_model(self, model: memoryview) -> None:
        for number, value in _fields(model):
            if isinstance(value, int):
                continue
            if number == _MODEL_GRAPH:
                self._read_graph(value)
            elif number == _MODEL_FUNCTION:
                for own, node in _fields(value):
                    if own == _FUNCTION_NODE and isinstance(node, memoryview):
                        self._read_node(node)

    def _read_graph(self, graph: memoryview) -> None:
        for number, value in _fields(graph):
            if isinstance(value, int):
                continue
            if number == _GRAPH_NODE:
                self._read_node(value)
            elif number == _GRAPH_TENSOR:
                self._read_tensor(value)
            elif number in _GRAPH_VALUES:
                self._note_type(_inner(_inner(_inner(value, _VALUE_TYPE), _TYPE_TENSOR), _TENSOR_ELEMENT))

    def _read_node(self, node: memoryview) -> None:
        operator = b""
        for number, value in _fields(node):
            if number == _NODE_OPERATOR and isinstance(value, memoryview):
                operator = bytes(value)
            elif number == _NODE_ATTRIBUTE and isinstance(value, memoryview):
                # The operator's name stands before its attributes.
                self._read_attribute(value, is_cast=operator == b"Cast")
        self.is_random |= operator in _RANDOM
        self.is_inexact |= any(part in operator for part in _QUANTIZING)

    def _read_attribute(self, attribute: memoryview, *, is_cast: bool) -> None:
        for number, value in _fields(attribute):
            if isinstance(value, int):
                if number == _ATTRIBUTE_NUMBER and is_cast:
                    self._note_type(value)
            elif number == _ATTRIBUTE_TENSOR:
                self._read_tensor(value)
            elif number in _ATTRIBUTE_GRAPHS:
                self._read_graph(value)

    def _read_tensor(self, tensor: memoryview) -> None:
        self._note_type(_inner(tensor, _TENSOR_TYPE))

    def _note_type(self, element: int | memoryview) -> None:
        self.is_inexact |= element in _HALVES


def _inner(message: int | memoryview, number: int) -> int | memoryview:
    """The first field of a number in a message; 0 without one."""
    if isinstance(message, memoryview):
        for own, value in _fields(message):
            if own == number:
                return value
    return 0


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: numbers, and parts of it by their length.

    Raises:
        ValueError, IndexError: it is no message.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(message, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = read_varint(message, at)
            if length > end - at:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("a field of an unknown kind")
