"""Decoding header blocks to header fields (RFC 7541): the decoder of one connection and its dynamic table.

A block of ten fields, two of which are added to the table, takes the ``hpack`` package 25 us and this decoder 6.1 (on
3.14t 22 and 5.4; ``bench/micro_headers.py``). This one reads integers of one octet in line, makes no views and no log
records, and returns the table's own field objects, which were checked when they were made. It uses that package's copy
of the tables in RFC 7541's appendices, and the tests compare the two decoders.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hpack.table import HeaderTable

from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import DEFAULT_HEADER_TABLE_SIZE, ErrorCodes
from toutates.h2grpc.header_field import FIELD_BYTES, HeaderField, make_field
from toutates.h2grpc.huffman import decode_huffman

__all__ = ["HeaderBlockError", "HpackDecoder"]

#: Octets of an integer after its prefix: enough for 32 bits. RFC 7541 section 5.1 asks for a limit.
MAX_INTEGER_OCTETS: Final = 5

#: By their index, which begins at 1 (RFC 7541 appendix A).
_STATIC_FIELDS: Final = {
    index: make_field(name, value) for index, (name, value) in enumerate(HeaderTable.STATIC_TABLE, 1)
}
_FIRST_DYNAMIC: Final = len(_STATIC_FIELDS) + 1


#: Table size updates at the start of a block: an encoder whose table size changed several times since the last block
#: sends the smallest size and the last (RFC 7541 section 4.2). More would make the server work at little cost.
MAX_RESIZES: Final = 2


class HeaderBlockError(ConnectionFault):
    """The peer's header block cannot be decoded, so the compression state is lost: a connection error.

    Attributes:
        hostile: whether the block is too large rather than broken.
    """

    def __init__(self, text: str, *, hostile: bool) -> None:
        if hostile:
            super().__init__(ErrorCodes.ENHANCE_YOUR_CALM, text, "header_list_size")
        else:
            super().__init__(ErrorCodes.COMPRESSION_ERROR, text)
        self.hostile = hostile


class HpackDecoder:
    """Decodes one connection's header blocks, all of them and in order.

    Args:
        max_list_size: bytes by RFC 9113 section 6.5.2 beyond which a header list is not decoded any further.

    Attributes:
        table_changes: how often the dynamic table has changed. While it stays the same, a block means the same.
        made_bytes: bytes of all fields that were made so far, rather than found in a table.
    """

    __slots__ = ("_max_list_size", "entries", "made_bytes", "max_table_size", "table_changes", "table_size")

    def __init__(self, max_list_size: int) -> None:
        self._max_list_size = max_list_size
        #: the dynamic table, newest first
        self.entries: deque[HeaderField] = deque()
        self.table_size = 0
        # We announce no other size: it would have to be agreed on with every peer first (RFC 7541 section 4.2), to save
        # 4 KiB of a connection that fills the table.
        self.max_table_size = DEFAULT_HEADER_TABLE_SIZE
        self.table_changes = 0
        self.made_bytes = 0

    def decode(self, block: bytes) -> tuple[list[HeaderField], int]:
        """The header list of a whole block, and its size in bytes by RFC 9113 section 6.5.2.

        Raises:
            HeaderBlockError: the peer's fault; the decoder must not be used again.
        """
        try:
            return self._decode(block)
        except ValueError as error:
            raise HeaderBlockError(f"header block cannot be decoded: {error}", hostile=False) from error

    def _decode(self, block: bytes) -> tuple[list[HeaderField], int]:
        max_list_size = self._max_list_size
        fields: list[HeaderField] = []
        size = 0
        resizes = 0
        at = 0
        end = len(block)
        while at < end:
            octet = block[at]
            at += 1
            if octet & 0x80:  # indexed (section 6.1)
                index = octet & 0x7F
                if index == 0x7F:
                    index, at = _read_integer(block, at, 0x7F)
                field = self._entry(index)
            elif octet & 0x40:  # literal with incremental indexing (section 6.2.1)
                field, at = self._read_literal(block, at, octet & 0x3F, 0x3F)
                self._insert(field)
            elif octet & 0x20:  # dynamic table size update (section 6.3)
                if fields:
                    raise ValueError("Table size update not at the start of the block")
                resizes += 1
                if resizes > MAX_RESIZES:
                    raise HeaderBlockError("header block with too many table size updates", hostile=True)
                max_size = octet & 0x1F
                if max_size == 0x1F:
                    max_size, at = _read_integer(block, at, 0x1F)
                self._resize(max_size)
                continue
            else:  # literal without indexing, or never indexed (sections 6.2.2 and 6.2.3)
                field, at = self._read_literal(block, at, octet & 0x0F, 0x0F)
            fields.append(field)
            size += field[2]
            if size > max_list_size:
                raise HeaderBlockError(f"header list exceeds {max_list_size} bytes", hostile=True)
        return fields, size

    def _read_literal(self, block: bytes, at: int, index: int, prefix: int) -> tuple[HeaderField, int]:
        """A literal field and the offset of its end; ``index`` is the name's, as far as it fits the prefix."""
        if index == prefix:
            index, at = _read_integer(block, at, prefix)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _read_string(block, at)
        value, at = _read_string(block, at)
        field = make_field(name, value)
        self.made_bytes += field[2] + FIELD_BYTES
        return field, at

    def _entry(self, index: int) -> HeaderField:
        try:
            return _STATIC_FIELDS[index] if index < _FIRST_DYNAMIC else self.entries[index - _FIRST_DYNAMIC]
        except LookupError:
            raise ValueError(f"Invalid table index {index}") from None

    def _insert(self, field: HeaderField) -> None:
        if field[2] > self.max_table_size and not self.entries:
            return  # The table does not change, so a client that sets its size to 0 can be remembered all the same.
        self.table_changes += 1
        self.entries.appendleft(field)
        self.table_size += field[2]
        if self.table_size > self.max_table_size:
            self._evict()

    def _resize(self, max_size: int) -> None:
        if max_size > DEFAULT_HEADER_TABLE_SIZE:
            raise ValueError("Encoder exceeded max allowable table size")
        if max_size != self.max_table_size:
            self.table_changes += 1
            self.max_table_size = max_size
            self._evict()

    def _evict(self) -> None:
        # An entry larger than the table leaves it empty, itself included (RFC 7541 section 4.4).
        while self.table_size > self.max_table_size:
            self.table_size -= self.entries.pop()[2]


def _read_integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Decode an integer (RFC 7541 section 5.1) whose prefix is full, from the octet after it; also its end."""
    value = prefix
    for shift, octet in enumerate(block[at : at + MAX_INTEGER_OCTETS]):
        value += (octet & 0x7F) << 7 * shift
        if octet < 0x80:
            return value, at + shift + 1
    if at + MAX_INTEGER_OCTETS > len(block):
        raise ValueError("Truncated header block")
    raise ValueError("Variable integer representation is too long")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """Decode a string (RFC 7541 section 5.2); returns it and the offset of its end."""
    if at >= len(block):
        raise ValueError("Truncated header block")
    octet = block[at]
    length = octet & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _read_integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise ValueError("Truncated header block")
    octets = block[at:end]
    return (decode_huffman(octets) if octet & 0x80 else octets), end
