"""TLS of a client's connection without its socket: bytes that came in, plain bytes out, and the reverse."""

from __future__ import annotations

import ssl
from typing import Final

from toutates.bench.answer import ConnectionFailed

__all__ = ["TlsPipe"]

_CHUNK: Final = 1 << 16


class TlsPipe:
    """One connection's TLS, from its handshake on.

    Args:
        context: with what is trusted.
        server_name: the name in the server's certificate.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)

    def shake_hands(self, data: bytes) -> bool:
        """Go on with the handshake by what the server has sent; whether it is done.

        Raises:
            ssl.SSLError: it failed.
        """
        self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def protocol(self) -> str:
        """What was agreed on by ALPN, or ""."""
        return self._tls.selected_alpn_protocol() or ""

    def encrypt(self, data: bytes) -> bytes:
        """What is to be sent for plain bytes, and for what TLS itself has to say."""
        if data:
            self._tls.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes of what has come, as far as their records are whole.

        Raises:
            ConnectionFailed: it is no TLS, or the server has ended it.
        """
        self._in.write(data)
        pieces = []
        try:
            while piece := self._tls.read(_CHUNK):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            if not pieces:
                raise ConnectionFailed("the server closed the connection") from None
        except ssl.SSLError as error:
            raise ConnectionFailed(f"TLS failed: {error.reason or error}") from None
        return b"".join(pieces)
