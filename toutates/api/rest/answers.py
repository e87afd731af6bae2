"""What an endpoint answers, and the one table from errors of requests to HTTP's statuses."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from toutates.system.errors import (
    AlreadyExists,
    ByError,
    CallerLeft,
    Cancelled,
    ExecutionFailed,
    Forbidden,
    InvalidRequest,
    InvalidSequence,
    MalformedMessage,
    ModelNotReady,
    NotInRepository,
    Overloaded,
    QueueFull,
    QuotaExceeded,
    RequestError,
    TooLate,
    Unauthenticated,
    Unavailable,
    UnknownFailure,
    UnknownModel,
    Unsupported,
)
from toutates.system.json_text import encode_json
from toutates.system.retry import retry_after_ms

__all__ = [
    "EMPTY",
    "METHOD_NOT_ALLOWED",
    "NOT_FOUND",
    "STATUSES",
    "Answer",
    "ClientStatus",
    "access_fields",
    "allow_field",
    "error_answer",
    "json_answer",
    "refusal",
]


class ClientStatus(IntEnum):
    """What only logs, metrics and traces have, as those of nginx do."""

    CLIENT_CLOSED_REQUEST = 499


#: As Triton has them, where it has such an error.
STATUSES: Final[ByError[IntEnum]] = ByError(
    {
        MalformedMessage: HTTPStatus.INTERNAL_SERVER_ERROR,
        InvalidRequest: HTTPStatus.BAD_REQUEST,
        InvalidSequence: HTTPStatus.BAD_REQUEST,
        UnknownModel: HTTPStatus.NOT_FOUND,
        ModelNotReady: HTTPStatus.SERVICE_UNAVAILABLE,
        Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
        NotInRepository: HTTPStatus.INTERNAL_SERVER_ERROR,
        Overloaded: HTTPStatus.SERVICE_UNAVAILABLE,
        QueueFull: HTTPStatus.SERVICE_UNAVAILABLE,
        QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
        Unauthenticated: HTTPStatus.UNAUTHORIZED,
        Forbidden: HTTPStatus.FORBIDDEN,
        TooLate: HTTPStatus.SERVICE_UNAVAILABLE,
        Unsupported: HTTPStatus.NOT_IMPLEMENTED,
        AlreadyExists: HTTPStatus.BAD_REQUEST,
        Cancelled: HTTPStatus.BAD_REQUEST,
        CallerLeft: ClientStatus.CLIENT_CLOSED_REQUEST,
        UnknownFailure: HTTPStatus.BAD_REQUEST,
        ExecutionFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)

_JSON: Final = b"content-type: application/json\r\n"


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: HTTP's.
        fields: header fields that say what the body is, each with its CR LF.
        body: in full.
    """

    status: int
    fields: bytes
    body: bytes


#: To what has succeeded, where there is nothing to say.
EMPTY: Final = Answer(200, b"content-type: text/plain\r\n", b"")


def json_answer(document: Any, status: int = 200) -> Answer:
    """An answer of JSON, compact as Triton writes it."""
    return Answer(status, _JSON, encode_json(document))


def error_answer(status: int, text: str) -> Answer:
    """The answer to a request that is refused; clients show the text."""
    return json_answer({"error": text}, status)


def refusal(error: RequestError) -> Answer:
    """The answer to a request that had an error."""
    answer = error_answer(STATUSES[type(error)], str(error))
    return answer._replace(fields=answer.fields + access_fields(error))


def access_fields(error: RequestError) -> bytes:
    """Header fields that say what a refused caller has to send, or when to come again (RFC 9110 section 11.6.1)."""
    if isinstance(error, Unauthenticated):
        return b"www-authenticate: Bearer\r\n"
    after_ms = retry_after_ms(error)
    if after_ms is None:
        return b""
    # Whole seconds are all that the field can say (section 10.2.3). OpenAI's clients know one of milliseconds.
    return b"retry-after-ms: %d\r\nretry-after: %d\r\n" % (after_ms, max(1, -(-after_ms // 1_000)))


def allow_field(methods: Collection[str]) -> bytes:
    """The header field that every answer with status 405 has (RFC 9110 section 15.5.6). GET brings HEAD with it."""
    allowed = {*methods, "HEAD"} if "GET" in methods else {*methods}
    return b"allow: %b\r\n" % ", ".join(sorted(allowed)).encode("ascii")


NOT_FOUND: Final = error_answer(404, "Not Found")
METHOD_NOT_ALLOWED: Final = error_answer(405, "Method Not Allowed")
