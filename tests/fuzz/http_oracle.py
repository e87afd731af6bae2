"""HTTP/1.1 as h11 reads it, and a remembered head as one that is parsed.

Invariant: of the same bytes, h11 and we make the same requests, up to where one of the two refuses to go on; where only
one refuses, ``OURS`` or ``THEIRS`` has the reason. And it makes no difference whether a connection has seen the heads
before, or remembers none, wherever the bytes are cut.

A case is the bytes.
"""

from __future__ import annotations

import contextlib
import random
import re
import zlib
from typing import Final, NamedTuple

import h11

from tests.fuzz import http_sessions
from tests.fuzz.sessions import mutate
from tests.http1.support import conversation, request
from toutates.http1 import Connection, Limits

__all__ = ["OURS", "THEIRS", "check", "make_case"]

LIMITS: Final = Limits(max_head_size=4_096, max_body_size=4_000, max_pipelined=64)
FORGETFUL: Final = Limits(max_head_size=4_096, max_body_size=4_000, max_pipelined=64, remembered_heads=0)
_REFUSAL: Final = re.compile(rb"HTTP/1\.1 [45]\d\d [A-Z].*?\r\n\r\n", re.DOTALL)
#: Longer cases are cut at some places only.
CUT_EVERYWHERE: Final = 120
CUTS: Final = 24

#: What we refuse and h11 takes: a part of our text, and why.
OURS: Final = {
    "the only versions": "HTTP/1.2 and 2.0 have other rules (RFC 9110 section 2.5)",
    "does not end with CR LF": "a line may end with LF alone for h11, and does not for others (RFC 9112 section 2.2)",
    "Invalid characters in url": "targets that are neither a path nor absolute (RFC 9112 section 3.2)",
    "Unexpected start char in url": "the same",
    "Unexpected char in url": "the same",
    "Unexpected whitespace after header value": "folded lines, which h11 unfolds and others do not (section 5.2)",
    "Invalid header value char": "control characters in values, which some readers drop (RFC 9110 section 5.5)",
    "Content-Length can't be present": "a length beside chunks: h11 takes the chunks, others the length (section 6.1)",
    "Duplicate Content-Length": "equal lengths, of which h11 makes one (section 6.3)",
    "transfer-encoding and the rest": "chunks in HTTP/1.0, which most of its readers do not know (section 6.1)",
    "begins with no size": "blanks behind a chunk's size, and LF alone (section 7.1)",
    "longer than it says": "a chunk that does not end with CR LF (section 7.1)",
    "around the chunks": "long extensions of chunks: a limit of ours",
    "trailers are refused": "trailers that are none, or that say anew where the body ends (section 6.5.1)",
    "the only expectation": "RFC 9110 section 10.1.1: 417",
    "more than": "limits of ours",
    "the only content-encodings": "h11 leaves a body as it is",
    "is not what its content-encoding says": "h11 leaves a body as it is",
    "compressed": "h11 leaves a body as it is",
}
#: What h11 refuses and we take: a part of its text, and why.
THEIRS: Final = {
    "no request line received": "an empty line before a request, which a server should ignore (RFC 9112 section 2.2)",
}


#: Of refusals that answer a HEAD.
NO_TEXT: Final = "no text"


class Read(NamedTuple):
    """What became of some bytes.

    Attributes:
        requests: method, target and body of each.
        refusal: why nothing more is read; "" where more bytes may come.
    """

    requests: list[tuple[str, str, bytes]]
    refusal: str


def make_case(rng: random.Random) -> bytes:
    """Requests one behind the other, some broken, and often the same again."""
    if rng.random() < 0.5:
        return http_sessions.make_case(rng)[1:]
    kinds = [request(target="/a"), request("POST", body=b"x" * rng.randrange(20)), request("POST", "/b", b"\r\n\r\n")]
    data = b"".join(rng.choices(kinds, k=rng.randint(1, 5)))
    return mutate(data, rng) if rng.random() < 0.5 else data


def check(case: bytes) -> None:
    """Raise AssertionError, or whatever leaks, if the invariant breaks."""
    _compare(_ours(case), _theirs(case))
    _check_memory(case)


# --- h11 -------------------------------------------------------------------------------------------------------------


def _ours(data: bytes) -> Read:
    found, sent = conversation([data], Connection(LIMITS))
    answers = _REFUSAL.split(sent, maxsplit=1)
    return Read(found, "" if len(answers) == 1 else answers[1].decode().strip() or NO_TEXT)


def _theirs(data: bytes) -> Read:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=65_536)
    requests: list[tuple[str, str, bytes]] = []
    method = target = ""
    body = b""
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method.decode(), event.target.decode(), b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                requests.append((method, target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return Read(requests, "")
                connection.start_next_cycle()
            else:
                return Read(requests, "")
    except h11.RemoteProtocolError as error:
        return Read(requests, str(error))


def _compare(ours: Read, theirs: Read) -> None:
    for mine, other in zip(ours.requests, theirs.requests, strict=False):
        method, target, body = other
        if "://" in target and not target.startswith("/"):
            target = "/" + target.partition("://")[2].partition("/")[2]  # section 3.2.2: the path is what we look at
        assert mine[:2] == (method, target), "another request line"
        assert mine[2] in (body, *_inflated(body)), "another body"
    if len(ours.requests) < len(theirs.requests):
        reasons = [text for text in OURS if text in ours.refusal]
        assert reasons or ours.refusal == NO_TEXT, f"we refuse what h11 takes: {ours.refusal!r}"
    elif len(ours.requests) > len(theirs.requests) and theirs.refusal:
        assert theirs.refusal in THEIRS, f"h11 refuses what we take: {theirs.refusal!r}"


def _inflated(body: bytes) -> list[bytes]:
    """What a body may be, if it is compressed."""
    found = []
    for bits in (15, 31):
        with contextlib.suppress(zlib.error):
            found.append(zlib.decompress(body, bits))
    return found


# --- the memory of heads ---------------------------------------------------------------------------------------------


def _check_memory(data: bytes) -> None:
    """The second time the heads are known, and whole requests in a piece take the short way."""
    long_way = conversation([data, data], Connection(FORGETFUL))
    places = range(len(data) + 1)
    if len(data) > CUT_EVERYWHERE:
        places = range(0, len(data) + 1, len(data) // CUTS)
    for at in places:
        known = conversation([data, data[:at], data[at:]], Connection(LIMITS))
        assert known == long_way, f"cut at {at}, what is remembered is read otherwise"
