"""A second opinion on a conversation: h2's server, told all that the peer sends and all that we answer."""

from __future__ import annotations

from enum import Enum

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hpack import Decoder

from tests.h2grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    parse,
)
from toutates.h2grpc import Limits

__all__ = ["Oracle", "Verdict"]


class Verdict(Enum):
    """What a server makes of a frame."""

    ACCEPT = "accept"  # or ignore
    STREAM = "stream error"
    CONNECTION = "connection error"


class Oracle:
    """h2's server, with our settings.

    Attributes:
        requests: by stream, the header list of its request.
        bodies: by stream, its DATA so far.
        echoes: the PING and SETTINGS that h2 answered with, which ours have to equal.
    """

    def __init__(self, limits: Limits) -> None:
        codes = h2.settings.SettingCodes
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                codes.INITIAL_WINDOW_SIZE: limits.stream_window,
                codes.MAX_FRAME_SIZE: limits.max_frame_size,
                codes.MAX_HEADER_LIST_SIZE: limits.max_header_list_size,
            },
        )
        self._h2.max_inbound_frame_size = limits.max_frame_size
        self._h2.decoder.max_header_list_size = 2 * limits.max_header_list_size
        self._h2.initiate_connection()
        self._h2.clear_outbound_data_buffer()
        self._decoder = Decoder()
        self.requests: dict[int, list[tuple[bytes, bytes]]] = {}
        self.bodies: dict[int, bytes] = {}
        self.echoes: list[Frame] = []

    def receive(self, octets: bytes) -> Verdict:
        """The peer's bytes, whole frames."""
        try:
            events = self._h2.receive_data(octets)
        except h2.exceptions.ProtocolError:
            return Verdict.CONNECTION
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                assert event.stream_id is not None
                self.requests[event.stream_id] = [(bytes(n), bytes(v)) for n, v in event.headers or []]
            elif isinstance(event, h2.events.DataReceived):
                assert event.stream_id is not None
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + (event.data or b"")
        sent = parse(self._h2.data_to_send())
        self.echoes += [one for one in sent if one.type in (PING, SETTINGS)]
        return Verdict.STREAM if any(one.type == RST_STREAM for one in sent) else Verdict.ACCEPT

    def mirror(self, sent: list[Frame]) -> None:
        """What we sent; raises h2's exceptions where h2 knows that a server may not send it now."""
        block: list[Frame] = []
        for one in sent:
            if one.type in (HEADERS, CONTINUATION):
                block.append(one)
                if one.flags & END_HEADERS:
                    fields = self._decoder.decode(b"".join(part.payload for part in block), raw=True)
                    self._h2.send_headers(one.stream_id, list(fields), end_stream=bool(block[0].flags & END_STREAM))
                    block = []
            elif one.type == DATA:
                self._h2.send_data(one.stream_id, one.payload, end_stream=bool(one.flags & END_STREAM))
            elif one.type == RST_STREAM:
                self._reset(one.stream_id, one.code)
            elif one.type == WINDOW_UPDATE:
                increment = int.from_bytes(one.payload, "big")
                self._h2.increment_flow_control_window(increment, one.stream_id or None)
            else:
                assert one.type == GOAWAY or (one.type in (PING, SETTINGS) and one.flags & ACK)
        assert not block, "a header block without an end"
        self._h2.clear_outbound_data_buffer()

    def change_table_size(self, size: int) -> None:
        """The peer has changed the size of the table that our header blocks may use."""
        self._decoder.max_allowed_table_size = size

    def _reset(self, stream_id: int, code: int) -> None:
        try:
            self._h2.reset_stream(stream_id, code)
        except (h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError):
            pass  # it has done so itself
