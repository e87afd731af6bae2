"""The life of a stream, seen from the server (RFC 9113 section 5.1), as one table.

``TRANSITIONS[state][input]`` is what a frame, the peer's or our own, does to a stream. ``Receiver`` uses the table for
every frame that it handles. The frames that make up nearly all traffic (HEADERS that opens a stream, DATA that
completes a unary request, WINDOW_UPDATE) are handled by ``FrameLoop``, which has the same rules written out, because
looking them up costs as much as the rest of the frame.

The reserved states are missing, because this server promises no streams and clients cannot. A closed stream has one of
three states, because how late frames are answered depends on how the stream was closed (RFC 9113 section 5.1):

========== ======================================= ==============================================================
CLOSED     both sides ended it                     more DATA or HEADERS is a connection error
WE_RESET   we sent RST_STREAM                      the peer may not know yet: everything is ignored
PEER_RESET the peer sent RST_STREAM                more DATA or HEADERS is a stream error
========== ======================================= ==============================================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "ACCEPT",
    "CLOSED",
    "CONNECTION_PROTOCOL_ERROR",
    "CONNECTION_STREAM_CLOSED",
    "HALF_CLOSED_LOCAL",
    "HALF_CLOSED_REMOTE",
    "IDLE",
    "IGNORE",
    "OPEN",
    "PEER_RESET",
    "STREAM_CLOSED_ERROR",
    "TRANSITIONS",
    "WE_RESET",
    "Action",
    "Input",
    "State",
]


class State(IntEnum):
    """The state of a stream."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_REMOTE = 2
    HALF_CLOSED_LOCAL = 3
    CLOSED = 4
    WE_RESET = 5
    PEER_RESET = 6


class Input(IntEnum):
    """What happens to a stream. PRIORITY is missing: it is allowed in every state and changes none."""

    RECV_HEADERS = 0
    RECV_DATA = 1
    RECV_END_STREAM = 2  # after the HEADERS or DATA that carries the flag was accepted
    RECV_RST_STREAM = 3
    RECV_WINDOW_UPDATE = 4
    SEND_END_STREAM = 5
    SEND_RST_STREAM = 6


class Action(IntEnum):
    """What the connection does about it."""

    ACCEPT = 0
    IGNORE = 1
    STREAM_CLOSED_ERROR = 2  # stream error STREAM_CLOSED
    CONNECTION_STREAM_CLOSED = 3  # connection error STREAM_CLOSED
    CONNECTION_PROTOCOL_ERROR = 4  # connection error PROTOCOL_ERROR
    OUR_MISTAKE = 5  # the connection must not ask for this: a bug of ours


# Plain numbers, small enough for CPython to share them without counting references: see ``wire``.
IDLE: Final = int(State.IDLE)
OPEN: Final = int(State.OPEN)
HALF_CLOSED_REMOTE: Final = int(State.HALF_CLOSED_REMOTE)
HALF_CLOSED_LOCAL: Final = int(State.HALF_CLOSED_LOCAL)
CLOSED: Final = int(State.CLOSED)
WE_RESET: Final = int(State.WE_RESET)
PEER_RESET: Final = int(State.PEER_RESET)

ACCEPT: Final = Action.ACCEPT
IGNORE: Final = Action.IGNORE
STREAM_CLOSED_ERROR: Final = Action.STREAM_CLOSED_ERROR
CONNECTION_STREAM_CLOSED: Final = Action.CONNECTION_STREAM_CLOSED
CONNECTION_PROTOCOL_ERROR: Final = Action.CONNECTION_PROTOCOL_ERROR
OUR_MISTAKE: Final = Action.OUR_MISTAKE

#: Rows by State, columns by Input:
#:    RECV_HEADERS  RECV_DATA  RECV_END_STREAM  RECV_RST_STREAM  RECV_WINDOW_UPDATE  SEND_END_STREAM  SEND_RST_STREAM
#: RECV_HEADERS on an open stream is a trailer section, which has to end it; that is checked where it is decoded.
TRANSITIONS: Final[tuple[tuple[tuple[Action, int], ...], ...]] = (
    (  # IDLE: only HEADERS may come first
        (ACCEPT, OPEN),
        (CONNECTION_PROTOCOL_ERROR, IDLE),
        (OUR_MISTAKE, IDLE),
        (CONNECTION_PROTOCOL_ERROR, IDLE),
        (CONNECTION_PROTOCOL_ERROR, IDLE),
        (OUR_MISTAKE, IDLE),
        (OUR_MISTAKE, IDLE),
    ),
    (  # OPEN
        (ACCEPT, OPEN),
        (ACCEPT, OPEN),
        (ACCEPT, HALF_CLOSED_REMOTE),
        (ACCEPT, PEER_RESET),
        (ACCEPT, OPEN),
        (ACCEPT, HALF_CLOSED_LOCAL),
        (ACCEPT, WE_RESET),
    ),
    (  # HALF_CLOSED_REMOTE: the request is complete, the response is not
        (STREAM_CLOSED_ERROR, WE_RESET),
        (STREAM_CLOSED_ERROR, WE_RESET),
        (OUR_MISTAKE, HALF_CLOSED_REMOTE),
        (ACCEPT, PEER_RESET),
        (ACCEPT, HALF_CLOSED_REMOTE),
        (ACCEPT, CLOSED),
        (ACCEPT, WE_RESET),
    ),
    (  # HALF_CLOSED_LOCAL: answered early; our RST_STREAM follows at once, before the peer can do anything
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (OUR_MISTAKE, HALF_CLOSED_LOCAL),
        (ACCEPT, WE_RESET),
    ),
    (  # CLOSED by END_STREAM from both sides; WINDOW_UPDATE and RST_STREAM may have crossed our last frame
        (CONNECTION_STREAM_CLOSED, CLOSED),
        (CONNECTION_STREAM_CLOSED, CLOSED),
        (OUR_MISTAKE, CLOSED),
        (IGNORE, CLOSED),
        (IGNORE, CLOSED),
        (OUR_MISTAKE, CLOSED),
        (OUR_MISTAKE, CLOSED),
    ),
    (  # WE_RESET, and it stays so whatever crosses our RST_STREAM
        (IGNORE, WE_RESET),
        (IGNORE, WE_RESET),
        (OUR_MISTAKE, WE_RESET),
        (IGNORE, WE_RESET),
        (IGNORE, WE_RESET),
        (OUR_MISTAKE, WE_RESET),
        (OUR_MISTAKE, WE_RESET),
    ),
    (  # PEER_RESET
        (STREAM_CLOSED_ERROR, WE_RESET),
        (STREAM_CLOSED_ERROR, WE_RESET),
        (OUR_MISTAKE, PEER_RESET),
        (IGNORE, PEER_RESET),
        (IGNORE, PEER_RESET),
        (OUR_MISTAKE, PEER_RESET),
        (OUR_MISTAKE, PEER_RESET),
    ),
)
