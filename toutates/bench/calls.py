"""Single calls to a server: what it says of its models, and the first answer to each request."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from toutates.bench.answer import Answer, ClientSide, ConnectionFailed
from toutates.bench.client_connection import ClientConnection, Request
from toutates.bench.endpoint import Endpoint
from toutates.bench.http1_connection import HttpConnection, HttpRequest
from toutates.bench.link import CHUNK, Unreachable, connect
from toutates.bench.outcome import status_name
from toutates.bench.streams import StreamingConnection, StreamRequest
from toutates.protocol.parsing import parse
from toutates.system.errors import MalformedMessage
from toutates.system.text import one_line

__all__ = ["SERVICE", "Refused", "ask", "ask_stream", "fetch", "fetch_json", "read"]

M = TypeVar("M", bound=Message)

SERVICE: Final = "/inference.GRPCInferenceService/"
_PATIENCE_S: Final = 60.0
_PREFIX: Final = 5
_MOST_TEXT: Final = 300
_MOST_SHOWN: Final = 1_000


class Refused(Exception):
    """The server does not answer a request that the load is to consist of, or it cannot be made."""


def ask(endpoint: Endpoint, path: str, message: bytes, fields: Mapping[str, str] | None = None) -> bytes:
    """One gRPC call over a connection of its own; returns the answer's message.

    Raises:
        Unreachable: the server cannot be reached, or does not speak HTTP/2.
        Refused: it answered with an error.
    """
    side = ClientConnection()
    request = Request(path, endpoint.authority, message, fields, secure=endpoint.tls is not None)
    _, status, answer = _exchange(endpoint, side, request)
    if status:
        text = one_line(side.texts.get(status, ""), _MOST_SHOWN)
        raise Refused(f"{status_name(status)}: {text}" if text else status_name(status))
    return bytes(answer[_PREFIX:])


def ask_stream(endpoint: Endpoint, message: bytes, fields: Mapping[str, str] | None = None) -> bytes:
    """One request over a stream of its own; returns the first ModelInferResponse.

    Raises:
        Unreachable, Refused: see ``ask``.
    """
    side = StreamingConnection(endpoint.authority, fields, secure=endpoint.tls is not None)
    _, status, answer = _exchange(endpoint, side, StreamRequest(message))
    if status:
        raise Refused(one_line(side.texts.get(status, ""), _MOST_SHOWN) or status_name(status))
    return bytes(answer[_PREFIX:])


def fetch(
    endpoint: Endpoint, method: str, path: str, body: bytes = b"", fields: Mapping[str, str] | None = None
) -> bytes:
    """One HTTP request over a connection of its own; returns the answer's body.

    Raises:
        Unreachable: the server cannot be reached, or does not speak HTTP/1.1.
        Refused: it answered with another status than 200.
    """
    side = HttpConnection()
    _, status, answer = _exchange(endpoint, side, HttpRequest(method, path, endpoint.authority, body, fields))
    if status:
        text = one_line(_error_text(bytes(answer)), _MOST_SHOWN)
        raise Refused(f"{status_name(status)}: {text}" if text else f"{status_name(status)} for {path}")
    return bytes(answer)


def fetch_json(endpoint: Endpoint, path: str, fields: Mapping[str, str] | None = None) -> Any:
    """What a resource says in JSON.

    Raises:
        Unreachable, Refused: see ``fetch``, or it is no JSON.
    """
    body = fetch(endpoint, "GET", path, b"", fields)
    try:
        return json.loads(body or b"null")
    except ValueError:
        raise Refused(f"the server's answer to {path} is no JSON") from None


def read(kind: type[M], octets: bytes) -> M:
    """A message of an answer.

    Raises:
        Refused: it is none.
    """
    try:
        return parse(kind, octets)
    except MalformedMessage as error:
        raise Refused(f"the server's answer cannot be read: {error}") from None


def _exchange(endpoint: Endpoint, side: ClientSide, request: Any) -> Answer:
    context = endpoint.tls.context(endpoint.protocol) if endpoint.tls else None
    (link,) = connect(endpoint, lambda: side, context)
    with contextlib.closing(link.sock):
        try:
            side.begin(request, 0)
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                # Of the whole call, which a server may draw out byte by byte.
                link.sock.settimeout(max(0.001, deadline - time.monotonic()))
                link.send()
                data = link.sock.recv(CHUNK)
                answers = side.receive(link.decrypt(data)) if data else side.receive_end()
                if answers:
                    return answers[0]
                if not data:
                    raise ConnectionFailed(side.ended)
        except TimeoutError as error:
            raise Unreachable(f"{endpoint.authority}: no answer within {_PATIENCE_S:g} s") from error
        except (OSError, ConnectionFailed) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise Unreachable(f"{endpoint.authority}: {text}") from error


def _error_text(body: bytes) -> str:
    """The text of an error, as v2 servers and OpenAI's write it in JSON."""
    try:
        told = json.loads(body)
        error = told.get("error", told.get("detail"))
        text = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = None
    return str(text if text else body[:_MOST_TEXT].decode(errors="replace"))
