"""What a peer can do wrong (RFC 9113 section 5.4), as exceptions. None of them leaves ``receive_data``."""

from __future__ import annotations

from toutates.h2grpc.frames import ErrorCodes

__all__ = ["ConnectionFault", "StreamFault"]


class ConnectionFault(Exception):
    """The peer broke the protocol beyond one stream: GOAWAY with this code, and the end.

    Args:
        code: of the GOAWAY.
        text: the reason, for its debug data and the log.
        limit: the one that the peer met, of ``limits.LIMIT_NAMES``, or "".
    """

    def __init__(self, code: ErrorCodes, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.limit = limit


class StreamFault(Exception):
    """The peer broke the protocol on one stream: RST_STREAM with this code.

    Args:
        limit: as in ConnectionFault.
    """

    def __init__(self, stream_id: int, code: ErrorCodes, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.limit = limit
