"""What a peer can do wrong (RFC 9113 section 5.4), as exceptions. None of them leaves ``receive_data``."""

from __future__ import annotations

from toutates.h2grpc.frames import ErrorCodes

__all__ = ["ConnectionFault", "StreamFault"]


class ConnectionFault(Exception):
    """The peer broke the protocol beyond one stream: GOAWAY with this code, and the end."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke the protocol on one stream: RST_STREAM with this code."""

    def __init__(self, stream_id: int, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
