"""Header blocks: what a request's says, remembered; what a response's says, constant.

**Requests.** Decoding and judging a block costs 20 us, and a client sends the same block over and over. A block whose
decoding leaves the HPACK dynamic table as it was is a pure function of the block and the table, so its result is
remembered, and everything remembered is forgotten whenever the table changes (RFC 7541 section 2.3.2). The block's
length says nothing about this: nghttp2 spells out ``:path`` in every request, C-core sends a dozen index bytes, and
grpc-go changes the table on every call that has a deadline.

**Responses.** Blocks use the static table and literals without indexing only, so they are constant bytes that hold on
every connection whatever the peer's table size.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from toutates.h2grpc.limits import Limits
from toutates.h2grpc.messages import ENCODINGS
from toutates.h2grpc.method import Method
from toutates.h2grpc.status import GrpcError, Metadata, Status, encode_message, parse_timeout

__all__ = [
    "OK_HEADERS",
    "OK_TRAILERS",
    "HeaderBlockError",
    "HeaderReader",
    "RequestHead",
    "encode_block",
    "error_block",
    "metadata_fields",
    "plain_http_block",
]


#: Longer blocks are decoded every time: 128 of them, and what they decode to, would be megabytes per connection.
MAX_REMEMBERED_BYTES: Final = 4_096


class HeaderBlockError(Exception):
    """The peer's header block cannot be decoded, so the compression state is lost: a connection error.

    Attributes:
        hostile: whether the block is too large rather than broken.
    """

    def __init__(self, text: str, *, hostile: bool) -> None:
        super().__init__(text)
        self.hostile = hostile


class RequestHead:
    """What a request's header block says. Shared by every call that sends the same block, so never changed.

    Attributes:
        method: the method called; None when the request is refused.
        malformed: why the request breaks RFC 9113 section 8 (a stream error); "" when it does not.
        not_grpc: whether this is plain HTTP, answered with 415; ``http_method`` tells HEAD apart.
        error: the status that ends the call before its message is looked at.
        timeout_ns: the call's ``grpc-timeout``.
        encoding: the ``grpc-encoding`` of the messages that follow.
        response_encoding: how responses are compressed; "" for not at all.
        content_length: bytes of DATA announced, which RFC 9113 section 8.1.1 makes binding.
        fields: the header list as received, in order.
    """

    __slots__ = (
        "content_length",
        "encoding",
        "error",
        "fields",
        "http_method",
        "malformed",
        "method",
        "not_grpc",
        "response_encoding",
        "timeout_ns",
    )

    def __init__(self, fields: tuple[tuple[bytes, bytes], ...]) -> None:
        self.fields = fields
        self.method: Method | None = None
        self.malformed = ""
        self.not_grpc = False
        self.http_method = b""
        self.error: GrpcError | None = None
        self.timeout_ns: int | None = None
        self.encoding = "identity"
        self.response_encoding = ""
        self.content_length: int | None = None

    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The caller's custom metadata; values of ``-bin`` names decoded from base64, padded or not.

        Raises:
            GrpcError: INTERNAL when a ``-bin`` value is not base64.
        """
        return [
            (name.decode("ascii"), part)
            for name, value in self.fields
            if _is_custom(name)
            for part in _metadata_values(name, value)
        ]


_RESERVED_NAMES = frozenset((b"content-type", b"te", b"user-agent", b"content-length"))


def _is_custom(name: bytes) -> bool:
    return not (name.startswith((b":", b"grpc-")) or name in _RESERVED_NAMES)


def _metadata_values(name: bytes, value: bytes) -> list[str] | list[bytes]:
    if not name.endswith(b"-bin"):
        return [value.decode("latin-1")]
    try:
        # A proxy may have joined several values with commas, which base64 does not use.
        return [base64.b64decode(part + b"=" * (-len(part) % 4), validate=True) for part in value.split(b",")]
    except binascii.Error as error:
        raise GrpcError(Status.INTERNAL, f"metadata '{name.decode()}' is not valid base64") from error


class HeaderReader:
    """Decodes one connection's header blocks and remembers those that cannot mean anything else next time.

    Args:
        methods: the services' table, by ``:path``.
        limits: bounds on the size of header lists and on what is remembered.
        response_encoding: how to compress the responses of compressible methods when the client accepts it.
    """

    def __init__(self, methods: Mapping[bytes, Method], limits: Limits, response_encoding: str = "") -> None:
        self._methods = methods
        self._limits = limits
        self._response_encoding = response_encoding
        # hpack stops decoding beyond its bound, which loses the compression state; the soft bound is checked below.
        self._decoder = Decoder(max_header_list_size=2 * limits.max_header_list_size)
        #: block -> head, for blocks that leave the dynamic table as it is now
        self.memory: dict[bytes, RequestHead] = {}

    def read(self, block: bytes) -> RequestHead:
        """The head of a request, for a block that is not in ``memory``.

        Raises:
            HeaderBlockError: the peer's fault, fatal to the connection.
        """
        before = self._table_state()
        fields = self._decode(block)
        head = read_request(fields, self._methods, self._response_encoding, self._limits.max_header_list_size)
        if self._table_state() != before:
            self.memory.clear()
        elif len(block) <= MAX_REMEMBERED_BYTES:
            if len(self.memory) >= self._limits.header_memory_entries:
                self.memory.clear()
            self.memory[block] = head
        return head

    def read_trailers(self, block: bytes) -> str:
        """Decode a trailer section, for the table's sake; returns why it is malformed, or "".

        Raises:
            HeaderBlockError: the peer's fault, fatal to the connection.
        """
        before = self._table_state()
        fields = self._decode(block)
        if self._table_state() != before:
            self.memory.clear()
        if any(name.startswith(b":") for name, _ in fields):
            return "pseudo-header field in a trailer section"
        return _check_fields(fields)

    def _table_state(self) -> tuple[object, ...]:
        # Every insertion puts a new object at the front, every eviction changes the length, and a size update changes
        # maxsize: equal states are equal tables. The front entry itself is kept, so that its id is not reused.
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return (_Identity(entries[0]) if entries else None, len(entries), table.maxsize)

    def _decode(self, block: bytes) -> tuple[tuple[bytes, bytes], ...]:
        try:
            return tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            bound = 2 * self._limits.max_header_list_size
            raise HeaderBlockError(f"header list exceeds {bound} bytes", hostile=True) from error
        except (HPACKError, UnicodeDecodeError, ValueError, IndexError) as error:
            raise HeaderBlockError(f"header block cannot be decoded: {error}", hostile=False) from error


class _Identity:
    """Compares by the identity of what it holds."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.held is other.held

    __hash__ = None  # type: ignore[assignment]  # compared only, never a key


def read_request(
    fields: tuple[tuple[bytes, bytes], ...],
    methods: Mapping[bytes, Method],
    response_encoding: str,
    max_header_list_size: int,
) -> RequestHead:
    """Judge a request's header list by RFC 9113 section 8 and the gRPC specification, in that order."""
    head = RequestHead(fields)
    head.malformed = _check_fields(fields) or _check_pseudo(fields)
    if head.malformed:
        return head
    values = dict(fields)
    head.http_method = values[b":method"]
    length = values.get(b"content-length")
    if length is not None:
        if not _LENGTH.fullmatch(length) or any(other != length for name, other in fields if name == b"content-length"):
            head.malformed = "content-length is not a number"
            return head
        head.content_length = int(length)
    content_type = values.get(b"content-type", b"")
    if head.http_method != b"POST" or not _GRPC_TYPE.fullmatch(content_type):
        head.not_grpc = True
        return head
    try:
        _read_grpc(head, values, fields, max_header_list_size)
        head.method = find_method(methods, values[b":path"])
    except GrpcError as error:
        head.error = error
        return head
    if response_encoding and head.method.compressible:
        accepted = values.get(b"grpc-accept-encoding", b"").decode("latin-1").split(",")
        head.response_encoding = response_encoding if response_encoding in map(str.strip, accepted) else ""
    return head


def find_method(methods: Mapping[bytes, Method], path: bytes) -> Method:
    """The method at ``path``.

    Raises:
        GrpcError: UNIMPLEMENTED when there is none.
    """
    method = methods.get(path)
    if method is None:
        raise GrpcError(Status.UNIMPLEMENTED, f"Method not found: {path.decode('utf-8', 'replace')}")
    return method


def _read_grpc(
    head: RequestHead, values: dict[bytes, bytes], fields: tuple[tuple[bytes, bytes], ...], max_header_list_size: int
) -> None:
    size = sum(len(name) + len(value) + 32 for name, value in fields)
    if size > max_header_list_size:
        raise GrpcError(
            Status.RESOURCE_EXHAUSTED, f"received metadata size exceeds the limit ({size} vs. {max_header_list_size})"
        )
    timeout = values.get(b"grpc-timeout")
    if timeout is not None:
        head.timeout_ns = parse_timeout(timeout)
        if head.timeout_ns is None:
            raise GrpcError(Status.INTERNAL, f"invalid grpc-timeout value: {timeout[:32].decode('latin-1')!r}")
    encoding = values.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding != "identity" and encoding not in ENCODINGS:
        raise GrpcError(
            Status.INTERNAL,
            f"unknown grpc-encoding '{encoding[:32]}', expected identity, deflate or gzip",
            [("grpc-accept-encoding", "identity,deflate,gzip")],
        )
    head.encoding = encoding


_GRPC_TYPE = re.compile(rb"application/grpc([+;].*)?")
#: Short enough for ``int``, which raises ValueError beyond 4,300 digits.
_LENGTH = re.compile(rb"[0-9]{1,19}")
#: RFC 9113 section 8.2.1: lower-case tokens; a colon only as the first character (pseudo-header fields).
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
#: RFC 9113 section 8.2.2
_CONNECTION_SPECIFIC = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


def _check_fields(fields: Iterable[tuple[bytes, bytes]]) -> str:
    for name, value in fields:
        if not _NAME.fullmatch(name):
            return f"invalid field name {name[:64]!r}"
        if _BAD_VALUE.search(value):
            return f"invalid value of field {name[:64]!r}"
        if name in _CONNECTION_SPECIFIC:
            return f"connection-specific field {name.decode()!r}"
        if name == b"te" and value != b"trailers":
            return "te is not 'trailers'"
    return ""


_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))


def _check_pseudo(fields: tuple[tuple[bytes, bytes], ...]) -> str:
    """RFC 9113 section 8.3 and 8.3.1: which pseudo-header fields, how often, and before all others."""
    seen: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if not name.startswith(b":"):
            regular = True
            continue
        if regular:
            return "pseudo-header field after a regular field"
        if name in seen:
            return f"duplicate {name.decode()}"
        if name not in _PSEUDO:
            return f"unknown pseudo-header field {name[:64]!r}"
        seen[name] = value
    if seen.get(b":method") == b"CONNECT":
        return "CONNECT is not offered"
    missing = [name.decode() for name in (b":method", b":scheme", b":path") if not seen.get(name)]
    return f"missing or empty {missing[0]}" if missing else ""


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


def error_block(status: Status, text: str, metadata: Metadata = (), *, trailers_only: bool) -> bytes:
    """Trailers with a status; with ``trailers_only`` they are the response's only header block."""
    fields = [*(_RESPONSE_FIELDS if trailers_only else ()), (b"grpc-status", b"%d" % status)]
    if text:
        fields.append((b"grpc-message", encode_message(text)))
    return encode_block([*fields, *metadata_fields(metadata)])


def plain_http_block(http_status: int, content_length: int) -> bytes:
    """Headers of the short text answer that a request gets which is not gRPC."""
    return encode_block(
        [
            (b":status", b"%d" % http_status),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % content_length),
        ]
    )
