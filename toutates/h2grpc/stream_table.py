"""The streams of one connection: those that are open, and what is still known of those that are closed."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from toutates.h2grpc.budget import CALL_BYTES, UNCOUNTED_CALLS, MemoryBudget
from toutates.h2grpc.faults import ConnectionFault, StreamFault
from toutates.h2grpc.frames import MAX_STREAM_ID, ErrorCodes
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.stream import Stream
from toutates.h2grpc.streams import (
    ACCEPT,
    CLOSED,
    CONNECTION_PROTOCOL_ERROR,
    CONNECTION_STREAM_CLOSED,
    IDLE,
    IGNORE,
    TRANSITIONS,
    WE_RESET,
    Input,
    State,
)

__all__ = ["StreamTable"]

_S = TypeVar("_S", bound=Stream)

#: Ranges of skipped stream numbers that are remembered.
_MOST_SKIPPED = 64


class StreamTable(Generic[_S]):
    """The streams of one connection. Adding one to ``streams`` opens it, removing it closes it.

    Args:
        limits: how many streams may be open, and how many resets are remembered.
        budget: counts the records of open streams.

    Attributes:
        streams: open and half-closed streams, by number.
        last_id: the highest number that the peer has used.
        highest_accepted_id: streams above it came after our last GOAWAY and are ignored.
        few: streams that the peer may always have open, however much memory other connections use.
        cancelled: whether a call was cancelled that may be among the events of the current read.
        many: whether more than UNCOUNTED_CALLS streams may be open.
        counted: streams whose records are counted in the budget (``count``).
    """

    __slots__ = (
        "_budget",
        "_forgotten_id",
        "_limits",
        "_resets",
        "_skipped",
        "cancelled",
        "counted",
        "few",
        "highest_accepted_id",
        "last_id",
        "many",
        "streams",
    )

    def __init__(self, limits: Limits, budget: MemoryBudget) -> None:
        self._limits = limits
        self._budget = budget
        self.streams: dict[int, _S] = {}
        self.last_id = 0
        self.highest_accepted_id = MAX_STREAM_ID
        self.few = min(UNCOUNTED_CALLS, limits.max_concurrent_streams)
        self.cancelled = False
        self.many = False
        self.counted = 0
        #: (low, high) numbers between which the peer skipped all streams: those are idle, not closed
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_MOST_SKIPPED)
        #: how streams were closed that were not closed by END_STREAM; the latest ``closed_stream_memory`` of them
        self._resets: dict[int, int] = {}
        #: the highest stream number dropped from ``_resets``
        self._forgotten_id = 0

    # --- states ------------------------------------------------------------------------------------------------------

    def state(self, stream_id: int) -> int:
        """The state of any stream, a number of ``streams.State``."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            return stream.state
        if stream_id in self._resets:
            return self._resets[stream_id]
        if stream_id > self.last_id or not stream_id & 1:
            return IDLE
        # How older streams were closed is forgotten; in the state WE_RESET late frames of a correct peer are ignored.
        return CLOSED if stream_id > self._forgotten_id else WE_RESET

    def accepts(self, stream_id: int, stream_input: Input) -> bool:
        """Whether a frame of the peer is to be handled (True) or ignored, by the table of transitions.

        Raises:
            ConnectionFault, StreamFault: the table says that the frame is an error.
        """
        state = self.state(stream_id)
        action = TRANSITIONS[state][stream_input][0]
        if action is ACCEPT:
            return True
        if action is IGNORE:
            return False
        text = f"{stream_input.name} on stream {stream_id} in state {State(state).name}"
        if action is CONNECTION_PROTOCOL_ERROR:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, text)
        if action is CONNECTION_STREAM_CLOSED:
            raise ConnectionFault(ErrorCodes.STREAM_CLOSED, text)
        raise StreamFault(stream_id, ErrorCodes.STREAM_CLOSED, text)

    def advance(self, stream_id: int) -> None:
        """Note that the peer has opened a stream, and which numbers it skipped."""
        if stream_id > self.last_id + 2:
            self._skipped.append((self.last_id, stream_id))
        self.last_id = stream_id

    def was_skipped(self, stream_id: int) -> bool:
        """Whether the peer has skipped this number."""
        return any(low < stream_id < high for low, high in self._skipped)

    # --- resets ------------------------------------------------------------------------------------------------------

    def remember_reset(self, stream_id: int, state: int) -> None:
        """Note that a stream was closed by RST_STREAM: the peer's (PEER_RESET) or ours (WE_RESET)."""
        self._resets[stream_id] = state
        if len(self._resets) > self._limits.closed_stream_memory:
            oldest = next(iter(self._resets))
            del self._resets[oldest]
            self._forgotten_id = max(self._forgotten_id, oldest)

    @property
    def remembered_resets(self) -> int:
        """How many resets are remembered."""
        return len(self._resets)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def most(self, queued_bytes: int) -> int:
        """How many streams the peer may have open now, while ``queued_bytes`` of responses wait for its windows.

        0 if too many bytes are queued, and only a few if there is no memory for the records of more.
        """
        calls = len(self.streams)
        if not queued_bytes and calls < self.few:
            return self.few  # a read that opens more than these comes here again
        self.many = True
        if queued_bytes and (queued_bytes > self._limits.max_queued_bytes or self._budget.exceeded):
            return 0
        most = self.counted + self._budget.call_room // CALL_BYTES
        return min(self._limits.max_concurrent_streams, max(self.few, most))

    def count(self) -> None:
        """Count the records of the streams that are open now in the budget.

        Called after reads and before output, while more than UNCOUNTED_CALLS may be open: counting each call when it
        begins and ends would cost every request.
        """
        calls = len(self.streams)
        if calls <= UNCOUNTED_CALLS:
            calls = 0
        growth = CALL_BYTES * (calls - self.counted)
        self.counted = calls
        self.many = calls > 0
        self._budget.used += growth
        self._budget.call_bytes += growth
