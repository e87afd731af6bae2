"""Exceptions for a peer's mistakes (RFC 9113 section 5.4). ``ServerConnection.receive_data`` raises none of them."""

from __future__ import annotations

from toutates.h2grpc.frames import ErrorCodes

__all__ = ["ConnectionFault", "StreamFault"]


class ConnectionFault(Exception):
    """A mistake that ends the connection, with a GOAWAY.

    Args:
        code: the error code of the GOAWAY.
        text: the reason, for the GOAWAY's debug data and the log.
        limit: the limit that the peer has met, of ``limits.LIMIT_NAMES``, or "".
    """

    def __init__(self, code: ErrorCodes, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.limit = limit


class StreamFault(Exception):
    """A mistake that ends one stream, with RST_STREAM.

    Args:
        stream_id: the stream.
        code: the error code of the RST_STREAM.
        text: the reason.
        limit: as in ConnectionFault.
    """

    def __init__(self, stream_id: int, code: ErrorCodes, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.limit = limit
