"""SETTINGS of both sides (RFC 9113 section 6.5)."""

from __future__ import annotations

from toutates.h2grpc.faults import ConnectionFault
from toutates.h2grpc.frames import (
    DEFAULT_HEADER_TABLE_SIZE,
    DEFAULT_MAX_FRAME_SIZE,
    DEFAULT_WINDOW,
    LARGEST_MAX_FRAME_SIZE,
    MAX_WINDOW,
    UINT32,
    ErrorCodes,
    SettingCodes,
    pack_settings,
    pack_window_update,
)
from toutates.h2grpc.limits import Limits
from toutates.h2grpc.output import Output

__all__ = ["Settings"]

_unpack_uint32 = UINT32.unpack_from


class Settings:
    """The peer's settings, and the SETTINGS frame that we send.

    Args:
        limits: the values that we send.
        output: where the frame is written.

    Attributes:
        seen: whether the peer's first SETTINGS frame has come.
        stream_window: the peer's initial window of a stream, bytes.
        frame_size: its largest frame payload, bytes.
        table_update_due: whether our next header block has to acknowledge a smaller HPACK table.
    """

    __slots__ = ("_announced", "_limits", "_output", "frame_size", "seen", "stream_window", "table_update_due")

    def __init__(self, limits: Limits, output: Output) -> None:
        self._limits = limits
        self._output = output
        self._announced = False
        self.seen = False
        self.stream_window = DEFAULT_WINDOW
        self.frame_size = DEFAULT_MAX_FRAME_SIZE
        self.table_update_due = False

    def announce(self) -> None:
        """Send our SETTINGS, the first frame of all; once."""
        if self._announced:
            return
        self._announced = True
        limits = self._limits
        settings: dict[int, int] = {
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
            SettingCodes.MAX_FRAME_SIZE: limits.max_frame_size,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_list_size,
        }
        self._output.write(pack_settings(settings))
        if limits.connection_window > DEFAULT_WINDOW:
            self._output.write(pack_window_update(0, limits.connection_window - DEFAULT_WINDOW))

    def receive(self, payload: bytes) -> int:
        """Apply the peer's SETTINGS.

        Returns:
            By how many bytes the window of each stream changes.

        Raises:
            ConnectionFault: a size or value that RFC 9113 section 6.5 forbids, or too many of them.
        """
        if len(payload) % 6:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "SETTINGS is not a multiple of 6 bytes long")
        if len(payload) > 6 * self._limits.max_settings:
            text = f"SETTINGS frame with {len(payload) // 6} settings, at most {self._limits.max_settings}"
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, text, "settings")
        self.seen = True
        before = self.stream_window
        for at in range(0, len(payload), 6):
            self._apply(int.from_bytes(payload[at : at + 2], "big"), _unpack_uint32(payload, at + 2)[0])
        return self.stream_window - before

    def _apply(self, code: int, value: int) -> None:
        """RFC 9113 section 6.5.2; identifiers that are not known are ignored."""
        if code == SettingCodes.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise ConnectionFault(ErrorCodes.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
            self.stream_window = value
        elif code == SettingCodes.MAX_FRAME_SIZE:
            if not DEFAULT_MAX_FRAME_SIZE <= value <= LARGEST_MAX_FRAME_SIZE:
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
            self.frame_size = value
        elif code == SettingCodes.HEADER_TABLE_SIZE:
            # We use none of the table. Only a size below the default one has to be acknowledged in a header block.
            self.table_update_due = self.table_update_due or value < DEFAULT_HEADER_TABLE_SIZE
        elif code == SettingCodes.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
