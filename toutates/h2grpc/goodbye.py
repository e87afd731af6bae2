"""GOAWAY frames: the graceful shutdown of a connection (RFC 9113 section 6.8), and its end at once."""

from __future__ import annotations

from typing import Any

from toutates.h2grpc.frames import MAX_STREAM_ID, PING, ErrorCodes, pack_frame, pack_goaway
from toutates.h2grpc.output import Output
from toutates.h2grpc.settings import Settings
from toutates.h2grpc.stream_table import StreamTable

__all__ = ["STOPPING", "Goodbye"]

#: The PING that follows the first GOAWAY of a graceful shutdown; its ACK shows that the peer has read the GOAWAY.
SHUTDOWN_PING = b"goodbye!"
#: The reason of a shutdown, where the driver gives no other.
STOPPING = "server is shutting down"


class Goodbye:
    """Sends the GOAWAY frames of one connection.

    A graceful shutdown has two: the first announces it, the second names the last stream that is answered.

    Args:
        table: the connection's streams.
        settings: sent first, if they have not been sent yet.
        output: where frames are written.
    """

    __slots__ = ("_output", "_reason", "_settings", "_table")

    def __init__(self, table: StreamTable[Any], settings: Settings, output: Output) -> None:
        self._table = table
        self._settings = settings
        self._output = output
        #: the reason of the shutdown; "" before it begins
        self._reason = ""

    def begin(self, reason: str) -> None:
        """Send the first GOAWAY, with the highest stream number, and a PING."""
        if not self._reason:
            self._reason = reason
            self._settings.announce()
            self._output.write(pack_goaway(MAX_STREAM_ID, ErrorCodes.NO_ERROR, reason))
            self._output.write(pack_frame(PING, 0, 0, SHUTDOWN_PING))

    def finish(self, reason: str = "") -> None:
        """Send the second GOAWAY, after which no new stream is answered; with a reason, where it is the first one."""
        table = self._table
        self._reason = self._reason or reason
        if table.highest_accepted_id == MAX_STREAM_ID:
            table.highest_accepted_id = table.last_id
            self._output.write(pack_goaway(table.last_id, ErrorCodes.NO_ERROR, self._reason))

    def take_pong(self, payload: bytes) -> None:
        """Finish the shutdown if this is the peer's answer to the PING that began it."""
        if payload == SHUTDOWN_PING and self._reason:
            self.finish()

    def end(self, code: ErrorCodes, text: str) -> None:
        """Send the GOAWAY of a connection that ends at once."""
        # The number must not grow from one GOAWAY to the next.
        last_id = min(self._table.last_id, self._table.highest_accepted_id)
        self._output.write(pack_goaway(last_id, code, text))

    @property
    def drained(self) -> bool:
        """Whether the last GOAWAY is out and no call is left."""
        return self._table.highest_accepted_id != MAX_STREAM_ID and not self._table.streams
