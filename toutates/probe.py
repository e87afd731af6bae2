"""A health check from outside: one grpc.health.v1 call over a connection of its own.

The client is ``h2``, another implementation of HTTP/2 than the server's, so that the two cannot share a
misunderstanding.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from toutates.options import Address
from toutates.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse

__all__ = ["probe"]


#: RFC 9113 4.1: length (3 bytes), type, flags, stream.
_FRAME_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4


class _Answer:
    """What has come back so far."""

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


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def probe(address: Address, timeout_s: float) -> tuple[bool, str]:
    """Ask for the server's health.

    Args:
        address: of its gRPC port.
        timeout_s: for the whole exchange.

    Returns:
        Whether it is serving, and a sentence for people.
    """
    try:
        answer = _call(address, time.monotonic() + timeout_s)
    except TimeoutError:
        return False, f"{address}: no answer within {timeout_s:g} s"
    except OSError as error:
        return False, f"{address}: {error.strerror or error}"
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


def _call(address: Address, deadline: float) -> _Answer:
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    connection.send_headers(
        1,
        [
            (":method", "POST"),
            (":scheme", "http"),
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
    with socket.create_connection((address.host, address.port), timeout=_left(deadline)) as sock:
        while not answer.ended and "grpc-status" not in answer.fields:
            sock.settimeout(_left(deadline))
            sock.sendall(connection.data_to_send())
            data = sock.recv(65_536)
            if not data:
                answer.ended = "the server closed the connection"
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
