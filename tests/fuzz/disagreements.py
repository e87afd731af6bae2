"""Where we and h2 differ on what a frame is, and the section that decides.

``DISAGREEMENTS[what, state]`` is our verdict, h2's, and why ours stands: the section of RFC 9113, if no other RFC is
named.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.oracle import Verdict

__all__ = ["DISAGREEMENTS", "ORACLE_STAYS_IN_STEP"]

ACCEPT, STREAM, CONNECTION = Verdict.ACCEPT, Verdict.STREAM, Verdict.CONNECTION

_ANYWHERE: Final = (
    "connection",
    "even",
    "idle",
    "skipped",
    "open",
    "half-closed",
    "closed",
    "reset by us",
    "reset by peer",
)
_OVER: Final = ("skipped", "closed", "reset by us", "reset by peer")
_MALFORMED: Final = "8.1.1: malformed requests are stream errors"
_PRIORITY_SIZE: Final = "6.3: a stream error"
_NO_UPDATE: Final = "6.9: a stream error"
_AFTER_RESET: Final = "5.1: what crossed our RST_STREAM is ignored"
_ONLY_PADDING: Final = (
    "6.1 and 6.2: padding may be all that a frame holds; what is wrong is the empty header list (8.1.1)"
)

#: What, in which states, our verdict, h2's, and why.
_LIST: Final = (
    # requests
    ("HEADERS, malformed", ("idle",), STREAM, CONNECTION, _MALFORMED),
    ("HEADERS: trailers", ("idle",), STREAM, CONNECTION, _MALFORMED),
    ("HEADERS: request of another host", ("idle",), STREAM, CONNECTION, _MALFORMED),
    ("HEADERS: request without :authority", ("idle",), ACCEPT, CONNECTION, "8.3.1: a request may do without"),
    (
        "HEADERS: request to CONNECT",
        ("idle",),
        STREAM,
        ACCEPT,
        "8.5: a tunnel is not offered, nor what follows understood",
    ),
    ("HEADERS: request with a name that is no token", ("idle",), STREAM, ACCEPT, "8.2.1, by RFC 9110 section 5.1"),
    ("HEADERS of a request that is short of its content-length", ("idle",), STREAM, ACCEPT, "8.1.1"),
    ("HEADERS of one stream too many", ("idle",), STREAM, CONNECTION, "5.1.2: a stream error"),
    ("HEADERS, dependent on itself", ("idle",), ACCEPT, CONNECTION, "5.3.2: priorities of RFC 7540 mean nothing"),
    (
        "HEADERS of nothing but padding",
        ("idle", "open", "half-closed", "reset by peer"),
        STREAM,
        CONNECTION,
        _ONLY_PADDING,
    ),
    ("HEADERS of nothing but padding", ("reset by us",), ACCEPT, CONNECTION, _ONLY_PADDING),
    ("HEADERS", ("reset by us",), ACCEPT, STREAM, _AFTER_RESET),
    # trailers
    (
        "trailers, not at the end",
        ("open",),
        STREAM,
        CONNECTION,
        "8.1: the request is malformed, a stream error (8.1.1)",
    ),
    ("trailers, malformed", ("open",), STREAM, CONNECTION, _MALFORMED),
    ("trailers, malformed, not at the end", ("open",), STREAM, CONNECTION, _MALFORMED),
    ("trailers of a request that is short of its content-length", ("open",), STREAM, ACCEPT, "8.1.1"),
    # DATA
    ("DATA", ("reset by us",), ACCEPT, STREAM, _AFTER_RESET),
    ("DATA", ("closed", "skipped"), CONNECTION, STREAM, "5.1: frames after END_STREAM, or on streams passed over"),
    ("DATA beyond content-length", ("open",), STREAM, CONNECTION, "8.1.1"),
    ("DATA short of content-length", ("open",), STREAM, CONNECTION, "8.1.1"),
    ("DATA beyond the stream's window", ("open",), STREAM, CONNECTION, "6.9.1: a stream error does"),
    # the others
    ("RST_STREAM", ("idle", "even"), CONNECTION, ACCEPT, "6.4: a connection error"),
    ("CONTINUATION", ("reset by us", "reset by peer"), CONNECTION, STREAM, "6.10: a connection error"),
    ("WINDOW_UPDATE of 0", ("open", "half-closed"), STREAM, CONNECTION, _NO_UPDATE),
    ("WINDOW_UPDATE of 0", _OVER, ACCEPT, CONNECTION, "5.1: it may have crossed the end of the stream"),
    ("PRIORITY on itself", _ANYWHERE[1:], ACCEPT, CONNECTION, "5.3.2: priorities of RFC 7540 mean nothing"),
    ("PRIORITY of a wrong length", ("open", "half-closed", *_OVER), STREAM, CONNECTION, _PRIORITY_SIZE),
    ("SETTINGS of an extension", ("connection",), ACCEPT, CONNECTION, "6.5.2: unknown settings are ignored"),
    ("SETTINGS of a value that is illegal, then legal", ("connection",), CONNECTION, ACCEPT, "6.5.3: in their order"),
    (
        "ALTSVC, broken",
        _ANYWHERE,
        ACCEPT,
        CONNECTION,
        "4.1: unknown types are ignored; RFC 7838 has servers ignore this",
    ),
)

DISAGREEMENTS: Final[dict[tuple[str, str], tuple[Verdict, Verdict, str]]] = {
    (what, state): (ours, theirs, why) for what, states, ours, theirs, why in _LIST for state in states
}
#: After these the two servers still think the same of every stream, since the one concerned was over before.
ORACLE_STAYS_IN_STEP: Final = frozenset(
    case for case, (ours, theirs, _) in DISAGREEMENTS.items() if CONNECTION not in (ours, theirs) and case[1] in _OVER
)
