"""A conversation of a client with our server and with h2's: what has been said, and whether all agree on it.

``machine`` decides what is said next, and holds the invariant.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis.stateful import RuleBasedStateMachine

from tests.fuzz.disagreements import DISAGREEMENTS, ORACLE_STAYS_IN_STEP
from tests.fuzz.oracle import Oracle, Verdict
from tests.fuzz.vocabulary import LIMITS
from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    message,
    settings,
)
from tests.h2grpc.support import Server
from toutates.h2grpc import Call, MessageReceived, StreamOpened

__all__ = ["EVEN", "NEXT", "NONE", "SKIP", "SOME", "Talk"]

#: Which stream: up to ``SOME`` one of those there are, most often one that is not over; the others seldom exist.
SOME, NEXT, SKIP, EVEN, NONE = 19, 20, 21, 22, 23


class Talk(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.start([])

    def start(self, pairs: list[tuple[int, int]]) -> None:
        """A new connection, on which the peer has sent its SETTINGS."""
        self.server = Server(LIMITS)
        self.oracle = Oracle(LIMITS)
        self.last_id = -1
        self.states: dict[int, str] = {}
        self.calls: list[Call] = []
        self.unread: list[MessageReceived] = []
        self.echoes: list[Frame] = []
        #: what the peer may still send, on the connection and by stream
        self.window = 65_535
        self.windows: dict[int, int] = {}
        #: bytes of DATA announced and received
        self.lengths: dict[int, tuple[int | None, int]] = {}
        self.send(PREFACE + settings(*pairs), "the preface", 0, first=True)

    # --- the model of the client -------------------------------------------------------------------------------------

    def pick(self, which: int) -> int:
        """A stream's number; -1 where there is none yet."""
        if which > SOME:
            return {NEXT: self.last_id + 2, SKIP: self.last_id + 6, EVEN: 2, NONE: 0}[which]
        alive = [stream_id for stream_id, state in self.states.items() if state in ("open", "half-closed")]
        if alive and which < 15:
            return alive[which % len(alive)]
        # Some of them were passed over.
        return max(1, self.last_id - 2 * (which % 6)) if self.last_id > 0 else -1

    def state(self, stream_id: int) -> str:
        """Where a stream stands, by what both sides have sent."""
        if not stream_id:
            return "connection"
        if stream_id > self.last_id or not stream_id & 1:
            return "idle" if stream_id & 1 else "even"
        return self.states.get(stream_id, "skipped")

    def opened(self, stream_id: int, flags: int, announced: int | None) -> None:
        """HEADERS that is about to be sent."""
        if self.state(stream_id) == "idle":
            self.last_id = stream_id
            self.states[stream_id] = "half-closed" if flags & END_STREAM else "open"
            self.windows[stream_id] = LIMITS.stream_window
            self.lengths[stream_id] = (announced, 0)
        elif self.state(stream_id) == "open" and flags & END_STREAM:
            self.states[stream_id] = "half-closed"

    def spent(self, stream_id: int, flow_bytes: int, size: int) -> bool:
        """DATA that is about to be sent; whether it fits the stream's window."""
        if stream_id:
            self.window -= flow_bytes
        if self.state(stream_id) != "open":
            return True
        self.windows[stream_id] -= flow_bytes
        announced, received = self.lengths[stream_id]
        self.lengths[stream_id] = (announced, received + size)
        return self.windows[stream_id] >= 0

    def short(self, stream_id: int) -> bool:
        announced, received = self.lengths.get(stream_id, (None, 0))
        return announced is not None and received < announced

    def send(self, octets: bytes, label: str, stream_id: int, state: str | None = None, *, first: bool = False) -> None:
        """The peer's frames to both servers; compare what they make of them."""
        state = self.state(stream_id) if state is None else state
        connection = self.server.connection
        events = self.server.receive(octets)
        sent = self.server.frames()
        if first:
            sent = sent[1:]  # h2 was told our SETTINGS
        ours = self.verdict(sent)
        if ours is Verdict.ACCEPT and label.startswith("DATA") and state == "open" and octets[4] & END_STREAM:
            self.states[stream_id] = "half-closed"
        if ours is Verdict.ACCEPT and label == "RST_STREAM" and state in ("open", "half-closed"):
            self.states[stream_id] = "reset by peer"
        theirs = self.oracle.receive(octets)
        in_step = self.compare(label, state, ours, theirs, sent)
        for event in events:
            if isinstance(event, StreamOpened | Call):
                call = event.call if isinstance(event, StreamOpened) else event
                self.calls.append(call)
                if in_step:
                    self.check_request(call, whole=isinstance(event, Call))
            elif isinstance(event, MessageReceived):
                self.unread.append(event)
        assert connection.closed == (ours is Verdict.CONNECTION)
        if in_step and not connection.closed:
            self.sent(sent)
        else:
            self.start([])

    def compare(self, label: str, state: str, ours: Verdict, theirs: Verdict, sent: list[Frame]) -> bool:
        """Whether h2 is still of use: after most disagreements it is not."""
        if any(one.type == GOAWAY and one.code == ENHANCE_YOUR_CALM for one in sent):
            return False  # a peer may be refused for how much it sends (RFC 9113 section 10.5)
        if label == "GOAWAY":
            return False  # after which h2 takes no frame, though the streams there are go on (RFC 9113 section 6.8)
        if ours is theirs:
            return True
        listed = DISAGREEMENTS.get((label, state))
        assert listed is not None, f"{label} on a stream that is {state}: we say {ours}, h2 says {theirs}"
        assert (ours, theirs) == listed[:2], f"{label}, {state}: listed as {listed}, now {ours} and {theirs}"
        return (label, state) in ORACLE_STAYS_IN_STEP

    def verdict(self, sent: list[Frame]) -> Verdict:
        if any(one.type == GOAWAY for one in sent):
            return Verdict.CONNECTION
        if any(one.type == RST_STREAM and one.code != NO_ERROR for one in sent):
            return Verdict.STREAM
        return Verdict.ACCEPT

    def sent(self, frames: Iterable[Frame] | None = None) -> None:
        """What the server has sent: h2 has to agree that it may."""
        frames = self.server.frames() if frames is None else list(frames)
        for one in frames:
            if one.type == RST_STREAM:
                self.states[one.stream_id] = "reset by us"
            elif one.type in (HEADERS, DATA) and one.flags & END_STREAM:
                if self.state(one.stream_id) == "half-closed":
                    self.states[one.stream_id] = "closed"
            elif one.type == WINDOW_UPDATE:
                increment = int.from_bytes(one.payload, "big")
                if one.stream_id:
                    self.windows[one.stream_id] += increment
                else:
                    self.window += increment
        self.echoes += [one for one in frames if one.type in (PING, SETTINGS)]
        self.oracle.mirror(frames)
        assert self.echoes == self.oracle.echoes, "the answers to SETTINGS and PING differ"

    def check_request(self, call: Call, *, whole: bool) -> None:
        fields = [field[:2] for field in call.head.fields]
        assert fields == self.oracle.requests[call.stream_id], "the header lists differ"
        if whole:
            assert message(call.message) == self.oracle.bodies[call.stream_id], "the bodies differ"
