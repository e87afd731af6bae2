"""What an ONNX file says of its operators, read from the file itself: ONNX Runtime does not tell.

The file is a message of protobuf. It is walked field by field: weights are stepped over and not read, and no package is
needed. Numbers of fields are those of ``onnx.proto``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toutates.backends.onnx.file_bytes import FileBytes
from toutates.backends.probing import GraphFacts
from toutates.protocol.wire_format import read_varint
from toutates.system.private_copies import Identity, identity_of

__all__ = ["External", "GraphFile"]

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
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_SPARSE, _GRAPH_VALUES = 1, 5, 15, (11, 12, 13)
_NODE_OPERATOR, _NODE_ATTRIBUTE = 4, 5
_ATTRIBUTE_NUMBER, _ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPHS = 3, 5, (6, 11)
_ATTRIBUTE_TENSORS, _ATTRIBUTE_SPARSE, _PARTS_OF_SPARSE = (5, 10), (22, 23), (1, 2)
_TENSOR_EXTERNAL, _KEY, _VALUE = 13, 1, 2
#: The key of a tensor's external data that names the file.
_LOCATION: Final = b"location"
_FUNCTION_NODE = 7
_TENSOR_TYPE, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT = 2, 2, 1, 1
#: The field ``type`` of an attribute that is a graph, or several. Other bytes may look like it, and are looked into.
_OF_GRAPHS: Final = (b"\xa0\x01\x05", b"\xa0\x01\x0a")
#: Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: A file of so many bytes is read at once, which takes a third of the time, and when somebody asks.
_SMALL_BYTES: Final = 65_536
#: Graphs inside graphs that are followed.
_MAX_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class External:
    """A tensor whose values are in another file.

    Attributes:
        location: the file, a path from the graph's directory, as the graph has it.
        tensor: the message that has it (TensorProto); empty where that has values too.
        is_initializer: whether it is an initializer of the model's graph itself, and not of a subgraph or a node.
    """

    location: str
    tensor: bytes
    is_initializer: bool


class GraphFile:
    """The file of a graph, as it is now: to be made before the session that is to be told about. Blocks.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: None: nobody has asked yet. Several threads may find it out at once, and find the same.
        self._has_subgraphs: bool | None = None
        reader = _Reader(only_subgraphs=True)
        #: which file it is; None if there is none
        self.identity = reader.find_external(path)
        if self.identity is not None and self.identity[2] > _SMALL_BYTES:  # it was read whole
            self._has_subgraphs = reader.has_subgraphs or not reader.has_graph
        #: tensors whose values are in other files
        self.external = tuple(reader.external)
        self._digest = reader.digest

    def has_subgraphs(self) -> bool:
        """Whether an operator has a graph of its own, as If, Loop and Scan have.

        It is true of what cannot be read, such as ONNX Runtime's own format, and of a file that was replaced before
        the first question.
        """
        known = self._has_subgraphs
        if known is None:
            reader = _Reader(only_subgraphs=True)
            is_read = reader.read(self._path) and self.identity == _identity(self._path)
            self._has_subgraphs = known = reader.has_subgraphs or not (is_read and reader.has_graph)
        return known

    def digest(self) -> bytes:
        """The SHA-256 of a graph that is all in this file; empty of others, and where the file was replaced."""
        if self.external or self._digest:
            return b"" if self.external else self._digest
        try:
            with open(self._path, "rb", buffering=0) as file:
                is_same = self.identity == identity_of(os.fstat(file.fileno()))
                return hashlib.file_digest(file, "sha256").digest() if is_same else b""
        except OSError:  # it has just been removed
            return b""

    def facts(self) -> GraphFacts:
        """What the operators compute with; some 20 us for each node. Of what cannot be read nothing is known."""
        reader = _Reader()
        reader.read(self._path)
        return GraphFacts(reader.is_random, reader.is_inexact)


def _identity(path: Path) -> Identity | None:
    """The identity of the file at a path; None if there is none."""
    try:
        return identity_of(os.stat(path))
    except OSError:
        return None


class _Reader:
    """What has been seen so far.

    Args:
        only_subgraphs: whether nothing else is looked for, which takes a tenth of the time.
    """

    def __init__(self, *, only_subgraphs: bool = False) -> None:
        self._only_subgraphs = only_subgraphs
        self._content: bytes | FileBytes = b""
        self._may_have_external = False
        self.external: list[External] = []
        #: of a small file
        self.digest = b""
        self.has_graph = self.has_subgraphs = self.is_random = self.is_inexact = False

    def read(self, path: Path) -> bool:
        """Read a file; returns whether all of it could be read."""
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                self._content = file.read() if size <= _SMALL_BYTES else FileBytes(file.fileno(), size)
                self._read_model()
        except (OSError, ValueError, IndexError):
            return False
        return True

    def find_external(self, path: Path) -> Identity | None:
        """Read a file for the tensors whose values are in others; a small one only where it may have some."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return _identity(path)
        try:
            identity = identity_of(os.fstat(descriptor))
            is_small = identity[2] <= _SMALL_BYTES
            if is_small:
                self._content = os.read(descriptor, _SMALL_BYTES)
                self.digest = hashlib.sha256(self._content).digest()
            else:
                self._content = FileBytes(descriptor, identity[2])
            self._may_have_external = isinstance(self._content, FileBytes) or _LOCATION in self._content
            if self._may_have_external:
                self._read_model()
        except (OSError, ValueError, IndexError):
            self.has_graph = False
        finally:
            os.close(descriptor)
        return identity

    def _read_model(self) -> None:
        for number, start, end in _fields(self._content, 0, len(self._content)):
            if number == _MODEL_GRAPH:
                self.has_graph = True
                self._read_graph(start, end, 0)
            elif number == _MODEL_FUNCTION:
                for own, first, last in _fields(self._content, start, end):
                    if own == _FUNCTION_NODE:
                        self._read_node(first, last, 0)

    def _read_graph(self, start: int, end: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError("graphs inside graphs without end")
        for number, first, last in _fields(self._content, start, end):
            if number == _GRAPH_NODE:
                self._read_node(first, last, depth)
            elif number == _GRAPH_TENSOR and self._may_have_external:
                self._note_external(first, last, is_initializer=not depth)
            elif number == _GRAPH_SPARSE and self._may_have_external:
                self._note_sparse(first, last)
            elif self._only_subgraphs:
                continue
            elif number == _GRAPH_TENSOR:
                self._note_type(self._number((first, last), _TENSOR_TYPE))
            elif number in _GRAPH_VALUES:
                self._note_type(self._number((first, last), _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_ELEMENT))

    def _read_node(self, start: int, end: int, depth: int) -> None:
        content = self._content
        looked_for = (*_OF_GRAPHS, _LOCATION) if self._may_have_external else _OF_GRAPHS
        if self._only_subgraphs and all([content.find(mark, start, end) < 0 for mark in looked_for]):
            return
        operator = b""
        for number, first, last in _fields(content, start, end):
            if number == _NODE_OPERATOR:
                operator = content[first:last]
            elif number == _NODE_ATTRIBUTE:
                # The operator's name stands before its attributes.
                self._read_attribute(first, last, depth, is_cast=operator == b"Cast")
        self.is_random |= operator in _RANDOM
        self.is_inexact |= any(part in operator for part in _QUANTIZING)

    def _read_attribute(self, start: int, end: int, depth: int, *, is_cast: bool) -> None:
        for number, first, last in _fields(self._content, start, end):
            if number in _ATTRIBUTE_GRAPHS:
                self.has_subgraphs = True
                self._read_graph(first, last, depth + 1)
            elif self._may_have_external and number in _ATTRIBUTE_TENSORS:
                self._note_external(first, last)
            elif self._may_have_external and number in _ATTRIBUTE_SPARSE:
                self._note_sparse(first, last)
            elif number == _ATTRIBUTE_TENSOR:
                self._note_type(self._number((first, last), _TENSOR_TYPE))
            elif number == _ATTRIBUTE_NUMBER and is_cast:
                self._note_type(first)

    def _note_sparse(self, start: int, end: int) -> None:
        for number, first, last in _fields(self._content, start, end):
            if number in _PARTS_OF_SPARSE:
                self._note_external(first, last)

    def _note_external(self, start: int, end: int, *, is_initializer: bool = False) -> None:
        content = self._content
        is_small = end - start <= _SMALL_BYTES
        if is_small and content.find(_LOCATION, start, end) < 0:
            return
        for number, first, last in _fields(content, start, end):
            if number == _TENSOR_EXTERNAL:
                entry = content[first:last]
                found = {own: entry[at:stop] for own, at, stop in _fields(entry, 0, len(entry))}
                if found.get(_KEY) == _LOCATION:
                    tensor = content[start:end] if is_small else b""
                    location = os.fsdecode(found.get(_VALUE, b""))
                    self.external.append(External(location, tensor, is_initializer and is_small))

    def _number(self, message: tuple[int, int], *path: int) -> int:
        """The number that fields inside each other lead to, the first of each; 0 without one."""
        for wanted in path:
            found = [(first, last) for own, first, last in _fields(self._content, *message) if own == wanted]
            if not found:
                return 0
            message = found[0]
        return message[0]

    def _note_type(self, element: int) -> None:
        self.is_inexact |= element in _HALVES


def _fields(content: bytes | FileBytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: number, start and end of bytes; number, value and 0 of a number.

    Raises:
        ValueError, IndexError: this is no message of protobuf.
    """
    while at < end:
        tag = content[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(content, at - 1)
        kind = tag & 7
        if kind == _BYTES:
            size = content[at]
            at += 1
            if size >= 0x80:
                size, at = read_varint(content, at - 1)
            if size > end - at:
                raise ValueError("a field ends behind its message")
            yield tag >> 3, at, at + size
            at += size
        elif kind == _VARINT:
            value, at = read_varint(content, at)
            yield tag >> 3, value, 0
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no wire type of protobuf")
