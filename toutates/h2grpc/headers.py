"""Header blocks: those of requests are read and remembered, those of responses are made of constants.

**Requests.** Most clients send the same block over and over. A block whose decoding leaves the HPACK dynamic table as
it was is a pure function of the block and the table, so its result is remembered, and everything remembered is
forgotten whenever the table changes (RFC 7541 section 2.3.2). Blocks of any length may be remembered: nghttp2 spells
out ``:path`` in every request, C-core sends a dozen index bytes. grpc-go changes the table on every call that has a
deadline. Other blocks are decoded (``hpack_decoder``) and judged (``request_head``) in 3 to 8 us, which took 22 to 35
with the ``hpack`` package and without the memory of verdicts (``bench/micro_headers.py``).

**Responses.** Blocks use only the static table and literals without indexing, so the same bytes are valid on every
connection, whatever the peer's table size.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from toutates.h2grpc.budget import FREE_BYTES, MemoryBudget
from toutates.h2grpc.frames import DEFAULT_MAX_FRAME_SIZE, END_HEADERS, FRAME_HEAD, HEADERS
from toutates.h2grpc.header_field import FIELD_BYTES, HeaderField
from toutates.h2grpc.hpack_decoder import HeaderBlockError, HpackDecoder
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.method import Method
from toutates.h2grpc.request_head import PlainRequestHead, RequestHead, RequestJudge, trailers_complaint
from toutates.h2grpc.status import CallRefused, Metadata, Status, encode_message

__all__ = [
    "OK_HEADERS",
    "OK_TRAILERS",
    "HeaderBlockError",
    "HeaderReader",
    "PlainRequestHead",
    "RequestHead",
    "ResponseBlock",
    "encode_block",
    "error_block",
    "metadata_fields",
    "plain_http_block",
]

#: Longer blocks are not remembered.
MAX_REMEMBERED_BYTES: Final = 4_096
#: What the blocks that a connection remembers may take, bytes, with the heads that are made of them as objects.
MAX_MEMORY_BYTES: Final = 131_072
#: Bytes of a head beside its fields, with the place of its block; and of what the driver makes of a field of HTTP.
HEAD_BYTES: Final = 512
PLAIN_FIELD_BYTES: Final = 128
#: Calls count heads of more than this by themselves; of plain HTTP, whose ordinary ones take several times as much, of
#: more than the second.
MAX_FREE_BYTES: Final = 2_048
MAX_FREE_PLAIN_BYTES: Final = 4_096


class HeaderReader:
    """Reads one connection's header blocks, and remembers those that will mean the same next time.

    Args:
        methods: the services' table, by ``:path``.
        limits: bounds on the size of header lists and on what is remembered.
        response_encoding: how to compress the responses of compressible methods when the client accepts it.
        admit: judges plain HTTP (``plain.Admit``); None where that is refused.
        budget: counts what is kept.

    Attributes:
        memory: heads by their blocks, which leave the dynamic table as it is now.
        kept_bytes: what is kept of blocks and fields as objects, at most, and counted in the budget: without the first
            FREE_BYTES, and without the heads of open calls.
        has_plain, has_grpc: whether one of the requests so far was plain HTTP; and whether one was a call.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        response_encoding: str = "",
        admit: Callable[[Sequence[HeaderField], int], tuple[Any, int]] | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._limits = limits
        self._response_encoding = response_encoding
        # Decoding stops at this bound, which ends the connection; the judge's lower bound fails a call.
        self.decoder = HpackDecoder(2 * limits.max_header_list_size)
        self._judge = RequestJudge(methods, limits, response_encoding, admit)
        self.has_plain = self.has_grpc = False
        self.memory: dict[bytes, RequestHead] = {}
        self._memory_bytes = 0
        self._budget = MemoryBudget(2**63 - 1) if budget is None else budget
        self.kept_bytes = 0

    def judge_by(
        self,
        methods: Mapping[bytes, Method],
        admit: Callable[[Sequence[HeaderField], int], tuple[Any, int]] | None,
    ) -> None:
        """Have requests to come judged by these, and forget what was judged by others."""
        self._judge = RequestJudge(methods, self._limits, self._response_encoding, admit)
        self._forget_blocks()
        self._count()

    def read(self, block: bytes) -> RequestHead:
        """The head of a request, for a block that is not in ``memory``.

        Raises:
            HeaderBlockError: the connection has to end.
        """
        decoder = self.decoder
        before, made = decoder.table_changes, decoder.made_bytes
        fields, list_size = decoder.decode(block)
        judge = self._judge
        head = judge.judge(tuple(fields), list_size)
        size = decoder.made_bytes - made + 8 * len(fields) + HEAD_BYTES
        free, cost, entries = MAX_FREE_BYTES, 0, self._limits.header_memory_entries
        if isinstance(head, PlainRequestHead):
            self.has_plain = True
            size += PLAIN_FIELD_BYTES * len(fields) + list_size + HEAD_BYTES
            free, cost, entries = MAX_FREE_PLAIN_BYTES, head.cost, entries >> 2
        elif not head.malformed:
            self.has_grpc = True
        if size > free:
            head.kept_bytes = size
            head.long_way = True
        if decoder.table_changes != before:
            if self.memory:
                self._forget_blocks()
        elif len(block) <= MAX_REMEMBERED_BYTES and not cost and head.error.__class__ is not CallRefused:
            size += len(block)
            if self._memory_bytes + size > MAX_MEMORY_BYTES or len(self.memory) >= entries:
                self._forget_blocks()
            # Requests and responses have at least half of the memory, whatever is remembered.
            if size <= MAX_MEMORY_BYTES >> 2 and self._budget.used + size <= self._budget.limit >> 1:
                self.memory[block] = head
                self._memory_bytes += size
        kept = self._memory_bytes + judge.kept_bytes + decoder.table_size + FIELD_BYTES * len(decoder.entries)
        kept = kept - FREE_BYTES if kept > FREE_BYTES else 0
        if kept != self.kept_bytes:  # ``_count``, written out
            self._budget.used += kept - self.kept_bytes
            self.kept_bytes = kept
        return head

    def forget(self) -> None:
        """Remember nothing of what was read. The dynamic table stays, which the peer relies on."""
        self._forget_blocks()
        self._judge.forget()
        self._count()

    def close(self) -> None:
        """Keep nothing: no block is read any more."""
        self.decoder.entries.clear()
        self.decoder.table_size = 0
        self.forget()

    def _forget_blocks(self) -> None:
        self.memory.clear()
        self._memory_bytes = 0

    def _count(self) -> None:
        decoder = self.decoder
        kept = self._memory_bytes + self._judge.kept_bytes + decoder.table_size + FIELD_BYTES * len(decoder.entries)
        kept = max(kept - FREE_BYTES, 0)
        self._budget.used += kept - self.kept_bytes
        self.kept_bytes = kept

    def read_trailers(self, block: bytes) -> str:
        """Decode a trailer section, which may change the table; returns why it is malformed, or "".

        Raises:
            HeaderBlockError: the connection has to end.
        """
        before = self.decoder.table_changes
        fields, _ = self.decoder.decode(block)
        if self.decoder.table_changes != before:
            self._forget_blocks()
            self._count()
        return trailers_complaint(fields)


# --- responses -------------------------------------------------------------------------------------------------------


def _literal_string(data: bytes) -> bytes:
    """RFC 7541 section 5.2, without Huffman coding: the length with a 7-bit prefix, then the octets."""
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    out = bytearray((127,))
    length -= 127
    while length >= 128:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out) + data


#: Fields that the static table holds whole (RFC 7541 appendix A): one octet, index 8 and so on.
_STATIC_FIELDS = {(b":status", b"200"): b"\x88"}


def encode_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block of static-table fields and literals without indexing (RFC 7541 section 6.2.2)."""
    return b"".join(
        _STATIC_FIELDS.get(field) or b"\x00" + _literal_string(field[0]) + _literal_string(field[1]) for field in fields
    )


class ResponseBlock:
    """The header block of responses of plain HTTP.

    Args:
        fields: of the response, ``:status`` first.

    Attributes:
        octets: the block.
        fits: whether it is one frame whatever the peer's settings are.
        pack: of ``head``, a stream, ``octets``, a length << 8 (DATA is 0), flags and the stream, makes the HEADERS
            frame and the head of the only DATA frame behind it.
        head: length, type and flags of the HEADERS frame.
    """

    __slots__ = ("fits", "head", "octets", "pack")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self.octets = encode_block(fields)
        size = len(self.octets)
        self.fits = size <= DEFAULT_MAX_FRAME_SIZE
        self.pack = Struct(f">5sI{size}sIBI").pack
        self.head = FRAME_HEAD.pack(size << 8 | HEADERS, END_HEADERS, 0)[:5]


_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")
_ASCII_VALUE = re.compile(rb"[ -~]*")


def metadata_fields(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Custom metadata as header fields; bytes values are base64-encoded without padding.

    Raises:
        ValueError: the handler's mistake: a name or value that no header field may have.
    """
    fields = []
    for name, value in metadata:
        raw = base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.strip(" ").encode("utf-8")
        if isinstance(value, bytes) != name.endswith("-bin"):
            raise ValueError(f"metadata {name!r}: names that end in '-bin' take bytes, all others str")
        if not _METADATA_NAME.fullmatch(name):
            raise ValueError(f"metadata {name!r}: names are made of a-z, 0-9, '_', '-' and '.'")
        if not _ASCII_VALUE.fullmatch(raw):
            raise ValueError(f"metadata {name!r}: values are printable ASCII; use a name that ends in '-bin'")
        fields.append((name.encode(), raw))
    return fields


_RESPONSE_FIELDS: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))

OK_HEADERS: Final = encode_block(_RESPONSE_FIELDS)
OK_TRAILERS: Final = encode_block([(b"grpc-status", b"0")])


def response_block(metadata: Metadata = (), encoding: str = "") -> bytes:
    """Initial metadata of a response; ``encoding`` names the compression of its messages."""
    extra = [(b"grpc-encoding", encoding.encode())] if encoding else []
    return OK_HEADERS + encode_block([*extra, *metadata_fields(metadata)])


#: Characters of the messages of errors whose blocks are remembered.
_SHORT_TEXT: Final = 1_024


def error_block(status: Status, text: str, metadata: Metadata = (), *, trailers_only: bool) -> bytes:
    """Trailers with a status; with ``trailers_only`` they are the response's only header block.

    The last short ones are remembered, because a server with too much to do refuses with the same words again and
    again, and refusing must be cheap then.
    """
    if len(text) > _SHORT_TEXT:
        return _encode_error(status, text, metadata, trailers_only)
    return _remembered_error(status, text, tuple(metadata), trailers_only)


def _encode_error(status: Status, text: str, metadata: Metadata, trailers_only: bool) -> bytes:
    fields = [*(_RESPONSE_FIELDS if trailers_only else ()), (b"grpc-status", b"%d" % status)]
    if text:
        fields.append((b"grpc-message", encode_message(text)))
    return encode_block([*fields, *metadata_fields(metadata)])


#: With the times at which callers may try again there are some dozens of one text.
_remembered_error = lru_cache(maxsize=256)(_encode_error)


def plain_http_block(http_status: int, content_length: int) -> ResponseBlock:
    """Headers of the short text answer that a request gets which is not gRPC."""
    return ResponseBlock(
        [
            (b":status", b"%d" % http_status),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % content_length),
        ]
    )
