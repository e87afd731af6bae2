"""Reads the header fields that say which trace a request belongs to: ``traceparent`` and ``tracestate``.

Source: W3C Trace Context, level 2, sections 3.2 and 3.3. A malformed field is ignored, as the standard asks. No request
is refused for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["RANDOM", "SAMPLED", "TraceContext", "parse_traceparent", "parse_tracestate"]

#: Flags of a trace (section 3.2.2.5).
SAMPLED: Final = 1
RANDOM: Final = 2
_KNOWN_FLAGS: Final = SAMPLED | RANDOM

#: Version, trace, parent, flags. Later versions may append fields, after another hyphen (section 3.2.4).
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)

#: Section 3.3.1.1: members of a list, and the form of one.
MAX_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
#: Longest ``tracestate`` that is passed on. Section 3.3.1.5 asks for 512 at least; long members are dropped first.
MAX_STATE_CHARS: Final = 512
LONG_MEMBER_CHARS: Final = 128


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A valid ``traceparent``.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: the caller's span, 64 bits, not 0.
        flags: SAMPLED and RANDOM; others are not known, and left out.
    """

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether the caller records its part of the trace."""
        return bool(self.flags & SAMPLED)


def parse_traceparent(value: str) -> TraceContext | None:
    """Parse a ``traceparent``; None for a malformed one, and for "".

    Several fields, joined with commas by RFC 9110 section 5.3, are malformed: nobody can tell which one is meant.
    """
    match = _TRACEPARENT.fullmatch(value)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS)


def parse_tracestate(value: str) -> list[tuple[str, str]]:
    """Keys and values of a ``tracestate``, in order; none if any part is malformed. Several fields are comma-joined."""
    members = [member for member in map(_trimmed, value.split(",")) if member]
    if len(members) > MAX_MEMBERS:
        return []
    matches = [_MEMBER.fullmatch(member) for member in members]
    pairs = [(match[1], match[2]) for match in matches if match is not None]
    if len(pairs) < len(members) or len({key for key, _ in pairs}) < len(pairs):
        return []
    return _shortened(pairs)


def _trimmed(member: str) -> str:
    return member.strip(" \t")


def _shortened(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop members until the rest fits MAX_STATE_CHARS: long members first, then the last ones."""

    def chars(kept: list[tuple[str, str]]) -> int:
        return sum(len(key) + len(value) + 2 for key, value in kept) - 1

    for at in range(len(pairs) - 1, -1, -1):
        if chars(pairs) <= MAX_STATE_CHARS:
            break
        if len(pairs[at][0]) + len(pairs[at][1]) + 1 > LONG_MEMBER_CHARS:
            pairs = pairs[:at] + pairs[at + 1 :]
    while pairs and chars(pairs) > MAX_STATE_CHARS:
        pairs = pairs[:-1]
    return pairs
