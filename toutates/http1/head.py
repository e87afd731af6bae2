"""A request's head: its request line and its header fields.

The request line has to match as a whole, so nothing in it is read leniently. llhttp (by httptools) reads the fields. It
refuses what request smuggling is made of: a bare CR or LF, folded lines, blanks before a colon, control characters, a
second Content-Length or one beside Transfer-Encoding. What it leaves open is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from toutates.http1.coding import CODINGS, SAME_CODINGS, choose_coding, too_large
from toutates.http1.limits import Limits
from toutates.http1.responses import Refused

__all__ = ["CHUNKED", "Head", "admit_head", "check_start", "check_trailers", "read_head"]

#: ``Head.body_size`` of a body in chunks.
CHUNKED: Final = -1

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)\r\n")
_NO_TOKEN: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
#: llhttp refuses methods that it does not know and reads some in other ways. It gets this one whatever came.
_METHOD: Final = b"POST"
#: Bytes that a head takes as objects, at most: beside its fields, and each field beside twice its own bytes.
_HEAD_BYTES: Final = 1_024
_FIELD_BYTES: Final = 224
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"


class Head:
    """A request's head, the same object for each request of a connection that begins with the same bytes.

    Attributes:
        method: as it came; methods have upper-case letters.
        target: as it came, without the scheme and the host that a proxy's client writes: path and query.
        path: the target up to its query, not decoded.
        query: what follows the first "?", not decoded; "" if there is none.
        fields: header fields by lower-case name; values of one name are joined by ", ".
        names: of the fields as they came, in their order, without repetition.
        http_1_0: whether the client speaks HTTP/1.0.
        keep_alive: whether the connection may go on after the answer.
        body_size: bytes of the body; CHUNKED where the body says so itself.
        expects_continue: whether the client waits for "100 Continue" before it sends the body.
        coding: of the body: "gzip", "deflate" or "", or another one as it came until the head is admitted.
        answer_coding: the one that the client likes best in an answer: "gzip", "deflate" or "".
        max_body_size: bytes that the body may have; set by the connection.
        refusal: why the request gets no further, whatever its body; set by the connection.
        plain: whether the body is as it came and of known size, nothing is to be said before it comes, and the
            connection goes on after it; set by the connection.
        octets: all of it, up to and with the empty line; b"" if it is not remembered. Set by the connection.
        whole_size: bytes of a plain request with this head; set by the connection.
        kept_bytes: what it takes as objects, at most; set by ``read_head``.
        purpose: what ``admit`` has found out about the request, for whoever answers it; None until it sets it.
        in_memory: whether whoever answers it takes a large body in memory of its own (``body_memory``), and minds that
            it is only a part of its buffer; set by ``admit``.
        aligned_at: the place in such a body that is to be aligned; set by ``admit``.
    """

    __slots__ = (
        "aligned_at",
        "answer_coding",
        "body_size",
        "coding",
        "expects_continue",
        "fields",
        "http_1_0",
        "in_memory",
        "keep_alive",
        "kept_bytes",
        "max_body_size",
        "method",
        "names",
        "octets",
        "path",
        "plain",
        "purpose",
        "query",
        "refusal",
        "target",
        "whole_size",
    )

    def __init__(
        self,
        method: str,
        target: str,
        fields: dict[str, str],
        *,
        http_1_0: bool,
        keep_alive: bool,
        names: tuple[str, ...] = (),
    ) -> None:
        self.method = method
        if not target.startswith("/") and "://" in target:  # RFC 9112 section 3.2.2
            target = "/" + target.partition("://")[2].partition("/")[2]
        self.target = target
        self.path, _, self.query = target.partition("?")
        self.fields = fields
        self.http_1_0 = http_1_0
        self.keep_alive = keep_alive
        self.body_size = _body_size(fields, http_1_0=http_1_0)
        self.expects_continue = False
        if "expect" in fields and not http_1_0:
            if fields["expect"].lower() != "100-continue":
                raise Refused(417, "the only expectation that is understood is 100-continue")
            self.expects_continue = self.body_size != 0
        coding = fields.get("content-encoding", "").lower()
        self.coding = SAME_CODINGS.get(coding, coding)
        self.answer_coding = choose_coding(fields["accept-encoding"]) if "accept-encoding" in fields else ""
        self.max_body_size = 0
        self.refusal: Refused | None = None
        self.names = names
        self.plain = False
        self.octets = b""
        self.whole_size = 0
        self.kept_bytes = 0
        self.purpose: Any = None
        self.in_memory = False
        self.aligned_at = 0

    @property
    def served_as(self) -> str:
        """The method that says what is done: HEAD is a GET without the body of its answer (RFC 9110 section 9.3.2)."""
        return "GET" if self.method == "HEAD" else self.method


def _body_size(fields: dict[str, str], *, http_1_0: bool) -> int:
    codings = fields.get("transfer-encoding")
    if codings is None:
        return int(fields.get("content-length", 0))  # llhttp has seen that it is one number
    if http_1_0 or "content-length" in fields:
        raise Refused(400, "transfer-encoding and the rest of the head do not go together")
    if codings.lower() != "chunked":
        raise Refused(501, "the only transfer-encoding that is understood is chunked")
    return CHUNKED


def admit_head(head: Head, admit: Callable[[Head], int]) -> None:
    """Judge a head before its body is read: set its ``max_body_size``, or its ``refusal``.

    Args:
        head: it.
        admit: gives the bytes that the body may have, or raises ``Refused``.
    """
    try:
        head.max_body_size = admit(head)
        if head.coding and head.coding not in CODINGS:
            text = "the only content-encodings that are understood are gzip and deflate"
            raise Refused(415, text, b"accept-encoding: gzip, deflate\r\n")
        if head.body_size > head.max_body_size:
            head.refusal = too_large(head.max_body_size)
    except Refused as refusal:
        head.refusal = refusal.anew()


def check_start(data: bytes, at: int, seen: int, end: int) -> None:
    """Check whether bytes can be the beginning of a head.

    Args:
        data: what came.
        at: where the head begins.
        seen: where what was not looked at before begins.
        end: where the head, or what may be looked at of it, ends.

    Raises:
        Refused: they cannot.
    """
    if at < end and _NO_TOKEN.match(data, at):
        raise Refused(400, "this is no HTTP/1.1 request")
    if _BARE_LF.search(data, seen, end):
        raise Refused(400, "a line of the request's head does not end with CR LF")


def read_head(octets: bytes, limits: Limits) -> Head:
    """Parse a head: the bytes up to and with the empty line.

    Raises:
        Refused: they are no head, or one that is not understood.
    """
    line = _REQUEST_LINE.match(octets)
    if line is None:
        raise Refused(400, "the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != b"1" or minor not in b"01":
        raise Refused(505, "the only versions that are understood are HTTP/1.1 and HTTP/1.0")
    reader = _Reader()
    parser = HttpRequestParser(reader)
    try:
        parser.feed_data(_METHOD + octets[len(method) :])
    except HttpParserUpgrade:
        pass  # to what the client proposes beside HTTP/1.1; nobody has to take it
    except HttpParserError as error:
        raise Refused(400, f"the request's head is refused: {error}") from None
    if not reader.complete:
        raise Refused(400, "the request's head is refused")
    if len(reader.fields) > limits.max_fields:
        raise Refused(431, f"the request has more than {limits.max_fields} header fields")
    fields: dict[str, str] = {}
    names: dict[str, str] = {}
    hosts = 0
    for octets_of_name, value in reader.fields:
        sent = octets_of_name.decode("latin-1")
        name = sent.lower()
        names.setdefault(name, sent)
        text = value.decode("latin-1").strip(" \t")
        fields[name] = f"{fields[name]}, {text}" if name in fields else text
        hosts += name == "host"
    http_1_0 = minor == b"0"
    if hosts > 1 or (not hosts and not http_1_0):
        raise Refused(400, "a request names its host once (RFC 9112 section 3.2)")
    head = Head(
        method.decode("ascii"),
        target.decode("ascii"),
        fields,
        http_1_0=http_1_0,
        keep_alive=_keeps_alive(fields.get("connection", ""), http_1_0=http_1_0),
        names=tuple(names.values()),
    )
    head.kept_bytes = _HEAD_BYTES + _FIELD_BYTES * len(reader.fields) + 2 * len(octets)
    return head


def _keeps_alive(connection: str, *, http_1_0: bool) -> bool:
    """RFC 9112 section 9.3."""
    options = [option.strip() for option in connection.lower().split(",")]
    return "close" not in options and (not http_1_0 or "keep-alive" in options)


def check_trailers(octets: bytes) -> None:
    """Check the trailer fields of a chunked body, up to and with the empty line. They are not used.

    Raises:
        Refused: they are no fields.
    """
    try:
        HttpRequestParser(_Reader()).feed_data(_CHUNKED_HEAD + octets)
    except HttpParserError as error:
        raise Refused(400, f"the request's trailers are refused: {error}") from None


class _Reader:
    """Collects what llhttp reports of a head."""

    __slots__ = ("complete", "fields")

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True
