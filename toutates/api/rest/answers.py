"""What an endpoint answers, and the one table from errors of requests to HTTP's statuses."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Any, Final, NamedTuple

import msgspec

from toutates.system.errors import (
    AlreadyExists,
    ByError,
    Cancelled,
    ExecutionFailed,
    InvalidRequest,
    InvalidSequence,
    MalformedMessage,
    ModelNotReady,
    NotInRepository,
    Overloaded,
    QueueFull,
    RequestError,
    TooLate,
    Unavailable,
    UnknownFailure,
    UnknownModel,
    Unsupported,
    WouldBeLate,
)

__all__ = ["EMPTY", "METHOD_NOT_ALLOWED", "NOT_FOUND", "STATUSES", "Answer", "error_answer", "json_answer", "refusal"]

#: As Triton has them, where it has such an error.
STATUSES: Final[ByError[HTTPStatus]] = ByError(
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
        TooLate: HTTPStatus.SERVICE_UNAVAILABLE,
        Unsupported: HTTPStatus.NOT_IMPLEMENTED,
        AlreadyExists: HTTPStatus.BAD_REQUEST,
        Cancelled: HTTPStatus.BAD_REQUEST,
        UnknownFailure: HTTPStatus.BAD_REQUEST,
        ExecutionFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)

_JSON: Final = b"content-type: application/json\r\n"

_encode: Final = msgspec.json.Encoder().encode


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
    return Answer(status, _JSON, _encode(document))


def error_answer(status: int, text: str) -> Answer:
    """The answer to a request that is refused; clients show the text."""
    return json_answer({"error": text}, status)


def refusal(error: RequestError) -> Answer:
    """The answer to a request that had an error."""
    answer = error_answer(STATUSES[type(error)], str(error))
    if isinstance(error, WouldBeLate):
        # Whole seconds are all that the field can say (RFC 9110 section 10.2.3); the text has milliseconds.
        answer = answer._replace(fields=b"%bretry-after: %d\r\n" % (answer.fields, max(1, ceil(error.retry_s))))
    return answer


NOT_FOUND: Final = error_answer(404, "Not Found")
METHOD_NOT_ALLOWED: Final = error_answer(405, "Method Not Allowed")
