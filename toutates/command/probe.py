"""A health check from outside: one grpc.health.v1 call over a connection of its own.

The client is ``h2``, another implementation of HTTP/2 than the server's, so that the two cannot share a
misunderstanding.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from toutates.net import describe_tls_error
from toutates.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from toutates.system.address import Address

__all__ = ["Tls", "probe"]


#: RFC 9113 4.1: length (3 bytes), type, flags, stream.
_FRAME_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4


@dataclass(frozen=True, slots=True)
class Tls:
    """How to connect by TLS.

    Attributes:
        context: has the authorities to trust, and the client's own certificate.
        server_name: the name that the server's certificate has to have.
    """

    context: ssl.SSLContext
    server_name: str

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """Do the TLS handshake, within the socket's timeout."""
        return self.context.wrap_socket(sock, server_hostname=self.server_name)


class _Answer:
    """The part of the response that has come so far."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.fields: dict[str, str] = {}
        self.ended = ""

    def add(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            self.fields.update({_text(name): _text(value) for name, value in event.headers or ()})
        elif isinstance(event, DataReceived):
            self.data += event.data or b""
        elif isinstance(event, StreamReset | ConnectionTerminated):
            self.ended = f"the server ended the call with HTTP/2 error {event.error_code}"
            if isinstance(event, ConnectionTerminated) and event.additional_data:
                self.ended += f": {_text(event.additional_data)}"


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def probe(address: Address, timeout_s: float, tls: Tls | None = None) -> tuple[bool, str]:
    """Ask a server for its health.

    Args:
        address: of the server's gRPC port.
        timeout_s: for the whole exchange.
        tls: None for plaintext.

    Returns:
        Whether it is serving, and a line that says so.
    """
    try:
        answer = _call(address, time.monotonic() + timeout_s, tls)
    except TimeoutError:
        return False, f"{address}: no answer within {timeout_s:g} s"
    except ssl.SSLError as error:
        return False, f"{address}: TLS failed: {describe_tls_error(error)}"
    except OSError as error:
        return False, f"{address}: {error.strerror or error}"
    except UnicodeError:  # raised by the codec for host names
        name = address.host if tls is None else tls.server_name
        return False, f"{address}: {name!r} cannot be the name of a host"
    except ProtocolError:
        return False, f"{address}: this is no gRPC server"
    if answer.ended:
        return False, f"{address}: {answer.ended}"
    if answer.fields.get("grpc-status") != "0":
        text = answer.fields.get("grpc-message") or f"status {answer.fields.get('grpc-status', 'missing')}"
        return False, f"{address}: the health check failed: {text}"
    try:
        status = HealthCheckResponse.FromString(bytes(answer.data[5:])).status
        name = HealthCheckResponse.ServingStatus.Name(status)
    except (DecodeError, ValueError):
        return False, f"{address}: the health check's answer cannot be read"
    return status == HealthCheckResponse.SERVING, f"{address}: {name}"


def _call(address: Address, deadline: float, tls: Tls | None) -> _Answer:
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    connection.send_headers(
        1,
        [
            (":method", "POST"),
            (":scheme", "http" if tls is None else "https"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", str(address)),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ],
    )
    message = HealthCheckRequest().SerializeToString()
    connection.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    answer = _Answer()
    head = b""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection((address.host, address.port), timeout=_left(deadline)))
        if tls is not None:
            sock.settimeout(_left(deadline))
            sock = stack.enter_context(tls.wrap(sock))
        while not answer.ended and "grpc-status" not in answer.fields:
            sock.settimeout(_left(deadline))
            sock.sendall(connection.data_to_send())
            data = sock.recv(65_536)
            if not data:
                answer.ended = "the server closed the connection"
                if tls is None and not head:
                    answer.ended += " at once; if it speaks TLS, add --tls"
                break
            # h2 would wait for the end of the long frame that the start of an HTTP/1 response looks like.
            head = (head + data)[:_FRAME_HEAD_BYTES]
            if len(head) == _FRAME_HEAD_BYTES and head[3] != _SETTINGS:
                raise ProtocolError("an HTTP/2 server begins with SETTINGS")
            for event in connection.receive_data(data):
                answer.add(event)
    return answer


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
