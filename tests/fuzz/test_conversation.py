"""A client's every move against the server, with h2 as the judge of both (``machine``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.disagreements import DISAGREEMENTS
from tests.fuzz.machine import Conversation
from tests.fuzz.oracle import Verdict
from tests.fuzz.talk import EVEN, NEXT, NONE, SKIP, SOME
from tests.fuzz.vocabulary import FIELDS, LIMITS
from tests.h2grpc.frames import Frame

TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=50, suppress_health_check=list(HealthCheck)
)

# --- the list of disagreements ---------------------------------------------------------------------------------------


class Recorded(Conversation):
    """A conversation told what to do; it notes where we and h2 differed."""

    def __init__(self) -> None:
        self.differed: list[tuple[str, str]] = []
        super().__init__()

    def compare(self, label: str, state: str, ours: Verdict, theirs: Verdict, sent: list[Frame]) -> bool:
        if ours is not theirs:
            self.differed.append((label, state))
        return super().compare(label, state, ours, theirs, sent)


def opened(talk: Recorded) -> None:
    talk.headers(NEXT, "request", 0x00, False, None, None, 1)


def half_closed(talk: Recorded) -> None:
    talk.call("request", 5, together=False)


def closed(talk: Recorded) -> None:
    half_closed(talk)
    talk.reply(0, 10)


def reset_by_us(talk: Recorded) -> None:
    half_closed(talk)
    talk.data(LATEST, "a message", end=False, padding=None, too_much=False)


def reset_by_peer(talk: Recorded) -> None:
    half_closed(talk)
    talk.reset(LATEST, 8, whole=1)


def skipped(talk: Recorded) -> None:
    talk.headers(SKIP, "request", 0x00, True, None, None, 1)


def full(talk: Recorded) -> None:
    for _ in range(LIMITS.max_concurrent_streams):
        half_closed(talk)


#: ``which`` of the latest stream, and of the one before it.
LATEST, BEFORE = SOME - 1, SOME
#: By state: how a stream comes to it, and which stream it is.
STATES: Final[dict[str, tuple[Callable[[Recorded], None], int]]] = {
    "connection": (closed, NONE),
    "even": (closed, EVEN),
    "idle": (closed, NEXT),
    "skipped": (skipped, BEFORE),
    "open": (opened, LATEST),
    "half-closed": (half_closed, LATEST),
    "closed": (closed, LATEST),
    "reset by us": (reset_by_us, LATEST),
    "reset by peer": (reset_by_peer, LATEST),
}


def headers(fields: str, *, end: bool = False, priority: int | None = None) -> Callable[[Recorded, int], None]:
    return lambda talk, which: talk.headers(which, fields, 0x00, end, None, priority, 1)


def one_too_many(talk: Recorded, which: int) -> None:
    full(talk)
    headers("request")(talk, which)


def unread_flood(talk: Recorded, _: int) -> None:
    talk.reset(LATEST, 8, whole=1)
    headers("request of a stream")(talk, NEXT)
    talk.flood(LATEST, whole=False)


def late_continuation(talk: Recorded, _: int) -> None:
    half_closed(talk)  # until then h2 remembers more of the stream
    talk.continuation(BEFORE, rare=True)


#: By what is sent: how.
MOVES: Final[dict[str, Callable[[Recorded, int], None]]] = {
    **{f"HEADERS: {fields}": headers(fields) for fields in FIELDS},
    "HEADERS": headers("request", end=True),
    "HEADERS, malformed": lambda talk, which: talk.malformed(which, 1, end=False, rare=True),
    "HEADERS of a request that is short of its content-length": headers("request of five bytes", end=True),
    "HEADERS of one stream too many": one_too_many,
    "HEADERS, dependent on itself": headers("request", priority=1),
    "HEADERS of nothing but padding": lambda talk, which: talk.malformed(which, 0, end=False, rare=True),
    "trailers, not at the end": lambda talk, which: talk.trailers(which, end=False),
    "trailers, malformed": lambda talk, which: talk.malformed(which, 1, end=True, rare=True),
    "trailers, malformed, not at the end": lambda talk, which: talk.malformed(which, 1, end=False, rare=True),
    "trailers of a request that is short of its content-length": lambda talk, _: talk.announced(3, True, True),
    "DATA": lambda talk, which: talk.data(which, "a message", end=True, padding=None, too_much=False),
    "DATA beyond content-length": lambda talk, _: talk.announced(7, False, False),
    "DATA short of content-length": lambda talk, _: talk.announced(3, True, False),
    "DATA beyond the stream's window": unread_flood,
    "RST_STREAM": lambda talk, which: talk.reset(which, 8, whole=1),
    "CONTINUATION": late_continuation,
    "WINDOW_UPDATE of 0": lambda talk, which: talk.credit(which, 0, whole=1),
    "PRIORITY on itself": lambda talk, which: talk.priority(which, " on itself"),
    "PRIORITY of a wrong length": lambda talk, which: talk.priority(which, " of a wrong length"),
    "SETTINGS of an extension": lambda talk, _: talk.settings_frame([(" of an extension", 8, 2)]),
    "SETTINGS of a value that is illegal, then legal": lambda talk, _: talk.settings_frame(
        [(" of an illegal value", 2, 2), ("", 2, 0)]
    ),
    "ALTSVC, broken": lambda talk, which: talk.unknown(which, 10, 0),
}


@pytest.mark.parametrize(("what", "state"), DISAGREEMENTS)
def test_every_disagreement_in_the_list_is_one(what: str, state: str) -> None:
    arrange, which = STATES[state]
    talk = Recorded()
    arrange(talk)
    talk.differed.clear()
    MOVES[what](talk, which)
    assert talk.differed == [(what, state)]


def test_a_disagreement_that_is_not_in_the_list_is_an_error() -> None:
    talk = Recorded()
    closed(talk)
    with pytest.raises(AssertionError, match=r"no such thing on a stream that is closed: we say Verdict.CONNECTION"):
        talk.send(b"\0\0\0\0\0\0\0\0\1", "no such thing", 1)
