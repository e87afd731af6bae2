"""Flow control (RFC 9113 section 5.2): the connection's two windows, and changes of streams' windows."""

from __future__ import annotations

from collections.abc import Iterable

from toutates.h2grpc.faults import ConnectionFault, StreamFault
from toutates.h2grpc.frames import DEFAULT_WINDOW, MAX_WINDOW, ErrorCodes, pack_window_update
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.output import Output
from toutates.h2grpc.stream import Stream

__all__ = ["Windows"]


class Windows:
    """The windows of a connection. A stream's windows are in its record.

    Args:
        limits: the sizes of the receive windows.
        output: where WINDOW_UPDATE frames are written.

    Attributes:
        send: bytes of DATA that the peer accepts on the whole connection; may be negative.
        receive: bytes of DATA that the peer may still send.
        low: the receive window is opened again when it falls below so many bytes.
    """

    __slots__ = ("_full", "_output", "_stream_full", "low", "receive", "send")

    def __init__(self, limits: Limits, output: Output) -> None:
        self._output = output
        self._full = limits.connection_window
        self._stream_full = limits.stream_window
        self.send = DEFAULT_WINDOW
        self.receive = limits.connection_window
        self.low = limits.connection_window >> 1

    def take(self, size: int) -> None:
        """Take ``size`` bytes of received DATA from the connection's window.

        Raises:
            ConnectionFault: the window is smaller.
        """
        self.receive -= size
        if self.receive < 0:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "DATA exceeds the connection's window")
        if self.receive < self.low:
            self.refill()

    def take_frames(self, count: int, length: int, last: int) -> None:
        """``take`` for ``count`` frames of ``length`` bytes and one of ``last``: of ``low`` bytes at most, in all."""
        size = count * length + last
        left = self.receive - size
        if left < self.low:
            # The window is opened by the frame after which it is too small, and the others count in the new one.
            before = (self.receive - self.low) // length + 1
            spent = before * length if before <= count else size
            self.receive -= spent
            self.refill()
            left = self.receive - (size - spent)
        self.receive = left

    def refill(self) -> None:
        """Open the receive window again to its full size.

        This does not wait for handlers to read: what they have not read is bounded by their streams' windows.
        """
        self._output.write(pack_window_update(0, self._full - self.receive))
        self.receive = self._full

    def spare_of(self, stream: Stream) -> int:
        """Bytes of DATA after which ``refill_stream`` has nothing to do yet."""
        return stream.receive_window + stream.unread_bytes - (self._stream_full + 1 >> 1)

    def refill_stream(self, stream: Stream) -> None:
        """Open the stream's window again to its full size, less what its handler has not read yet."""
        increment = self._stream_full - stream.unread_bytes - stream.receive_window
        if increment > self._stream_full >> 1:
            stream.receive_window += increment
            self._output.write(pack_window_update(stream.stream_id, increment))

    def credit(self, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE for the connection."""
        self.send += increment
        if not increment:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.send > MAX_WINDOW:
            raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "WINDOW_UPDATE exceeds 2^31-1")

    def credit_stream(self, stream: Stream, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE for a stream."""
        stream.send_window += increment
        if not increment:
            raise StreamFault(stream.stream_id, ErrorCodes.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if stream.send_window > MAX_WINDOW:
            raise StreamFault(stream.stream_id, ErrorCodes.FLOW_CONTROL_ERROR, "WINDOW_UPDATE exceeds 2^31-1")

    def change_streams(self, streams: Iterable[Stream], change: int) -> None:
        """Apply a change of the peer's initial window to open streams; they may become negative (section 6.9.2)."""
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream")
