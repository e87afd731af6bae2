"""Reads which operators a graph has, from the file alone: ONNX Runtime does not tell them.

An ONNX file is a message of protobuf. It is walked field by field, from memory that maps the file: weights are stepped
over and not read, and no package is needed. Numbers of fields are those of ``onnx.proto``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["UNKNOWN", "Operators", "read_operators"]

Content = bytes | mmap.mmap

#: Fields of ModelProto, of GraphProto and FunctionProto, of NodeProto, and of AttributeProto.
_GRAPH, _FUNCTION = 7, 25
_NODE, _NODE_OF_FUNCTION = 1, 7
_OP_TYPE, _ATTRIBUTE = 4, 5
_SUBGRAPH, _SUBGRAPHS = 6, 11
#: The field ``type`` of an attribute that is a graph, or several. Other bytes may look like it, and are looked into.
_OF_GRAPHS: Final = (b"\xa0\x01\x05", b"\xa0\x01\x0a")
#: Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: A file of so many bytes is read at once, which takes a third of the time.
_SMALL_BYTES: Final = 65_536
#: Graphs inside graphs that are followed.
_MAX_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a model's graph, of its subgraphs and of its functions.

    Attributes:
        names: their types, such as ``MatMul``, whatever their domain.
        has_subgraphs: whether one has a graph of its own, as If, Loop and Scan have.
    """

    names: frozenset[str]
    has_subgraphs: bool


#: Of a file that is none of ONNX's protobuf, such as ONNX Runtime's own format: it may have any operators.
UNKNOWN: Final = Operators(frozenset(), has_subgraphs=True)


def read_operators(path: Path) -> Operators:
    """The operators of an ONNX file; ``UNKNOWN`` where it cannot be read. Blocks."""
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size <= _SMALL_BYTES:
                return _operators(file.read())
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _operators(content)
    except (OSError, ValueError, IndexError, RecursionError):
        return UNKNOWN


def _operators(content: Content) -> Operators:
    names: set[str] = set()
    has_subgraphs, has_graph = False, False
    for field, start, end in _fields(content, 0, len(content)):
        if field == _GRAPH:
            has_graph = True
            has_subgraphs |= _read_nodes(content, start, end, _NODE, names)
        elif field == _FUNCTION:
            has_subgraphs |= _read_nodes(content, start, end, _NODE_OF_FUNCTION, names)
    return Operators(frozenset(names), has_subgraphs) if has_graph else UNKNOWN


def _read_nodes(content: Content, start: int, end: int, nodes: int, names: set[str], depth: int = 0) -> bool:
    """Add the operators of a graph to ``names``; returns whether one has a graph of its own."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    has_subgraphs = False
    for field, first, last in _fields(content, start, end):
        if field != nodes:
            continue
        may_have = any(content.find(mark, first, last) >= 0 for mark in _OF_GRAPHS)
        for own, at, stop in _fields(content, first, last):
            if own == _OP_TYPE:
                names.add(content[at:stop].decode())
                if not may_have:
                    break
            elif own == _ATTRIBUTE and may_have:
                for of_attribute, begin, over in _fields(content, at, stop):
                    if of_attribute in (_SUBGRAPH, _SUBGRAPHS):
                        has_subgraphs = True
                        _read_nodes(content, begin, over, _NODE, names, depth + 1)
    return has_subgraphs


def _fields(content: Content, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a message that is bytes; others are stepped over.

    Raises:
        ValueError, IndexError: this is no message of protobuf.
    """
    while at < end:
        key, at = _varint(content, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _varint(content, at)
            if at + size > end:
                raise ValueError("a field ends behind its message")
            yield key >> 3, at, at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(content, at)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            raise ValueError("no wire type of protobuf")


def _varint(content: Content, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    byte = content[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = content[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise ValueError("no number of protobuf")
    return value, at + 1
