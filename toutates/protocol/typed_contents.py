"""Reading the typed contents of large requests without protobuf.

protobuf makes a Python object of each number. Its pure-Python implementation, which free-threaded Python uses, takes
seconds for 25 MB, and the worker's other calls wait. So the contents are cut out of a large message before protobuf
parses the rest, and read here: packed numbers by NumPy, elements of ``bytes_contents`` one by one. Both have limits
that bound the worker's time. Larger tensors can be sent as ``raw_input_contents``, which have no such limit and take
less time on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from toutates.protocol.datatypes import NATURAL_DATATYPES, Datatype, join_strings
from toutates.protocol.grpc_service_pb2 import InferTensorContents
from toutates.protocol.wire_format import field_head, read_varint
from toutates.system.errors import InvalidRequest

__all__ = ["LARGE_MESSAGE_BYTES", "CutRequest", "TypedReader", "cut_contents"]

#: Bytes of packed integers and booleans in one request. Each takes 15 ns; a number has up to ten.
MAX_VARINT_BYTES: Final = 524_288
#: Elements of ``bytes_contents`` in one request. Each takes 1 us.
MAX_TYPED_ELEMENTS: Final = 8_192
#: Pieces of packed fields, and unknown fields, in one request.
MAX_CHUNKS: Final = 16_384
#: A message of more bytes is large. A shorter one has no room for too many fields, and protobuf parses all of it.
LARGE_MESSAGE_BYTES: Final = 32_768

_INPUT: Final = 5 << 3 | 2
_CONTENTS: Final = 5 << 3 | 2
_RAW: Final = 7 << 3 | 2
_BYTES: Final = 8 << 3 | 2

_FIELD_NAMES: Final = {field.number: field.name for field in InferTensorContents.DESCRIPTOR.fields}


@dataclass(slots=True)
class CutRequest:
    """A ModelInferRequest, with the contents of its tensors cut out.

    Attributes:
        rest: the message with empty typed contents, and without raw contents.
        raws: the raw contents.
        typed: the typed contents of each input, in the order of the message: pieces of one InferTensorContents, which
            protobuf would merge.
    """

    rest: bytes
    raws: list[memoryview]
    typed: list[list[memoryview]]


def cut_contents(message: memoryview) -> CutRequest | None:
    """Take the contents of tensors out of a ModelInferRequest whose fields are few (``check_structure``).

    Returns:
        None if the message is malformed, or has groups, which no client sends.
    """
    rest: list[bytes | memoryview] = []
    cut = CutRequest(b"", [], [])
    try:
        at = 0
        while at < len(message):
            tag, start, end = _field(message, at)
            if tag == _RAW:
                cut.raws.append(message[start:end])
            elif tag == _INPUT:
                pieces: list[memoryview] = []
                own = _cut_input(message[start:end], pieces)
                rest += (field_head(_INPUT, len(own)), own)
                cut.typed.append(pieces)
            else:
                rest.append(message[at:end])
            at = end
    except IndexError:
        return None
    cut.rest = b"".join(rest)
    return cut


def _cut_input(message: memoryview, pieces: list[memoryview]) -> bytes:
    """An InferInputTensor whose contents are replaced by empty ones; they are appended to ``pieces``."""
    rest: list[bytes | memoryview] = []
    at = 0
    while at < len(message):
        tag, start, end = _field(message, at)
        if tag == _CONTENTS:
            if not pieces:
                rest.append(field_head(_CONTENTS, 0))
            pieces.append(message[start:end])
        else:
            rest.append(message[at:end])
        at = end
    return b"".join(rest)


class TypedReader:
    """Reads the typed contents of one request.

    Args:
        model: its name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._varint_bytes = 0
        self._elements = 0
        self._fields = 0

    def read(self, pieces: Sequence[memoryview], datatype: Datatype, tensor: str) -> bytes | memoryview:
        """The bytes that the same tensor would have as raw contents; see ``typed_contents_to_raw``.

        Args:
            pieces: the InferTensorContents, as in ``CutRequest.typed``; no pieces are no elements.
            datatype: the input's declared type.
            tensor: the input's name, for errors.

        Raises:
            InvalidRequest: a field of another type is filled, or several are; a limit is exceeded; or the contents are
                malformed.
        """
        where = f"input tensor '{tensor}' for model '{self._model}'"
        packed: dict[int, list[memoryview]] = {}
        for piece in pieces:
            try:
                self._collect(piece, packed, where)
            except IndexError:
                raise InvalidRequest(f"explicit tensor data for {where} is malformed") from None
        filled = sorted(number for number, parts in packed.items() if any(parts) or number == _BYTES >> 3)
        if not filled:
            return b""
        name = _FIELD_NAMES[filled[0]]
        if name != datatype.contents_field:
            raise InvalidRequest(
                f"unexpected explicit tensor data for {where} "
                f"of type '{NATURAL_DATATYPES[name].name}', expected datatype '{datatype.name}'"
            )
        if len(filled) > 1:
            raise InvalidRequest(f"unexpected explicit tensor data for {where}, binary data was already supplied.")
        parts = packed[filled[0]]
        if datatype.size == 0:
            return join_strings(parts)
        whole = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        if name in ("fp32_contents", "fp64_contents"):
            if len(whole) % datatype.size:
                raise InvalidRequest(f"explicit tensor data for {where} is malformed")
            return whole
        self._varint_bytes += len(whole)
        if self._varint_bytes > MAX_VARINT_BYTES:
            raise InvalidRequest(
                f"explicit tensor data for {where} is too large, at most {MAX_VARINT_BYTES} bytes of integers are "
                "taken in one request; send raw_input_contents instead"
            )
        numbers = _varints(whole)
        if numbers is None:
            raise InvalidRequest(f"explicit tensor data for {where} is malformed")
        decoded: bytes = (numbers != 0 if name == "bool_contents" else numbers.astype(datatype.numpy)).tobytes()
        return decoded

    def _collect(self, piece: memoryview, packed: dict[int, list[memoryview]], where: str) -> None:
        """Append the contents of a message's fields to ``packed``, by field number."""
        at = 0
        while at < len(piece):
            tag, start, end = _field(piece, at)
            at = end
            if tag == _BYTES:
                self._elements += 1
                if self._elements > MAX_TYPED_ELEMENTS:
                    raise InvalidRequest(
                        f"explicit tensor data for {where} has too many elements, at most {MAX_TYPED_ELEMENTS} of "
                        f"bytes_contents are taken in a request of more than {LARGE_MESSAGE_BYTES} bytes; send "
                        "raw_input_contents instead"
                    )
            elif tag >> 3 in _FIELD_NAMES and tag & 7 != 2:
                raise InvalidRequest(
                    f"explicit tensor data for {where} is not packed, which is taken in requests of at most "
                    f"{LARGE_MESSAGE_BYTES} bytes; pack it, as protobuf does by default, or send raw_input_contents"
                )
            else:
                self._fields += 1
                if self._fields > MAX_CHUNKS:
                    raise InvalidRequest(
                        f"explicit tensor data for {where} is in more than {MAX_CHUNKS} pieces; send each field whole"
                    )
            if tag >> 3 in _FIELD_NAMES:
                packed.setdefault(tag >> 3, []).append(piece[start:end])


def _varints(data: memoryview) -> npt.NDArray[np.uint64] | None:
    """The numbers of a packed field; None if the last one is cut short, or one is longer than ten bytes."""
    octets = np.frombuffer(data, np.uint8)
    last = octets < 0x80
    if len(octets) and not last[-1]:
        return None
    if last.all():
        return octets.astype(np.uint64)
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > 10:
        return None
    numbers = np.zeros(len(ends), np.uint64)
    for at in range(longest):
        some = np.flatnonzero(lengths > at)
        numbers[some] |= (octets[starts[some] + at] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * at)
    return numbers


def _field(message: memoryview, at: int) -> tuple[int, int, int]:
    """The tag of the field at offset ``at``, and the offsets of the beginning and end of its content.

    Raises:
        IndexError: it does not end within the message, or is a group.
    """
    tag, at = read_varint(message, at)
    kind = tag & 7
    if kind == 2:
        length, at = read_varint(message, at)
        end = at + length
    elif kind == 0:
        _, end = read_varint(message, at)
    elif kind in (1, 5):
        end = at + (8 if kind == 1 else 4)
    else:
        raise IndexError
    if end > len(message) or not tag >> 3:
        raise IndexError
    return tag, at, end
