"""A connection of the client with its socket, and TLS where it is asked for."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from toutates.bench.answer import ClientSide, ConnectionFailed
from toutates.bench.endpoint import Endpoint
from toutates.bench.tls_pipe import TlsPipe

__all__ = ["CHUNK", "Link", "Unreachable", "connect"]

CONNECT_SECONDS: Final = 10.0
CHUNK: Final = 1 << 16


class Unreachable(Exception):
    """No connection to the server, or none that is greeted."""


class Link:
    """A connection with its socket, which is blocking until it is registered with ``poll``.

    Args:
        endpoint: the server.
        make: the protocol's side.
        context: of TLS; None for plaintext.

    Raises:
        OSError, ConnectionFailed: the server cannot be reached, or does not speak the protocol.

    Attributes:
        protocol: what is said over it.
        answered: how many calls were, with any status.
    """

    __slots__ = ("_is_blocked", "_poll", "_tls", "_unsent", "answered", "protocol", "sock")

    def __init__(self, endpoint: Endpoint, make: Callable[[], ClientSide], context: ssl.SSLContext | None) -> None:
        self.protocol = make()
        self.answered = 0
        self._unsent: bytes | memoryview = b""
        self._is_blocked = False
        self._poll: select.epoll | None = None
        self._tls: TlsPipe | None = None
        self.sock = socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_SECONDS)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None and endpoint.tls is not None:
                self._shake_hands(context, endpoint.tls.server_name or endpoint.host)
            self._greet()
        except BaseException:
            self.sock.close()
            raise

    def _shake_hands(self, context: ssl.SSLContext, server_name: str) -> None:
        self._tls = TlsPipe(context, server_name)
        data = b""
        try:
            while not self._tls.shake_hands(data):
                self.sock.sendall(self._tls.encrypt(b""))
                data = self.sock.recv(CHUNK)
                if not data:
                    raise ConnectionFailed(
                        "the server closed the connection during TLS's handshake; does it speak TLS?"
                    )
            self.sock.sendall(self._tls.encrypt(b""))
        except ssl.SSLCertVerificationError as error:
            raise ConnectionFailed(f"the server's certificate is not trusted: {error.verify_message}") from None
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise ConnectionFailed(f"TLS failed: {reason}; does the server speak TLS?") from None

    def _greet(self) -> None:
        """Exchange what the protocol begins with."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            self.send()
            if self.protocol.greeted:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s")
            data = self.sock.recv(CHUNK)
            if not data:
                raise ConnectionFailed("the server closed the connection at once; does it want TLS?")
            self.protocol.receive(self.decrypt(data))

    def send(self) -> None:
        """Send all there is, over the blocking socket."""
        self.sock.sendall(self._out())

    def register(self, poll: select.epoll) -> None:
        """From now on the socket does not block, and ``poll`` tells when it can be read."""
        self._poll = poll
        self.sock.setblocking(False)
        poll.register(self.sock, select.EPOLLIN)

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes of what was read.

        Raises:
            ConnectionFailed: TLS failed or has ended.
        """
        return data if self._tls is None else self._tls.decrypt(data)

    def _out(self) -> bytes:
        out = self.protocol.data_to_send()
        return out if self._tls is None else self._tls.encrypt(out)

    def close(self) -> None:
        """Close the socket."""
        self._poll = None
        self.sock.close()

    def flush(self) -> None:
        """Send what there is, as far as the socket takes it. While it takes nothing, more is not asked for."""
        if self._poll is None:
            return
        out = self._unsent or self._out()
        while out:
            try:
                sent = self.sock.send(out)
            except BlockingIOError:
                sent = 0
            except OSError:  # which a read will say
                sent = len(out)
            if sent < len(out):
                self._unsent = memoryview(out)[sent:]
                break
            out = b""
            if self._unsent:
                self._unsent = b""
                out = self._out()
        if bool(self._unsent) is not self._is_blocked:
            self._is_blocked = not self._is_blocked
            self._poll.modify(self.sock, select.EPOLLIN | (select.EPOLLOUT if self._is_blocked else 0))


def connect(
    endpoint: Endpoint, make: Callable[[], ClientSide], context: ssl.SSLContext | None, count: int = 1
) -> Sequence[Link]:
    """Some connections to a server.

    Raises:
        Unreachable: one of them cannot be made.
    """
    links: list[Link] = []
    try:
        while len(links) < count:
            links.append(Link(endpoint, make, context))
    except (OSError, ConnectionFailed, UnicodeError) as error:
        for link in links:
            link.sock.close()
        if isinstance(error, TimeoutError):
            raise Unreachable(f"{endpoint.authority}: no answer within {CONNECT_SECONDS:g} s") from error
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Unreachable(f"{endpoint.authority}: {text}") from error
    return links
