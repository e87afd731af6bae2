"""The codes of ``TritonError``, and the errors of requests that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from toutates.system.errors import (
    AlreadyExists,
    Cancelled,
    ExecutionFailed,
    InvalidRequest,
    RequestError,
    Rescheduled,
    Unavailable,
    UnknownFailure,
    UnknownModel,
    Unsupported,
)

__all__ = ["code_of", "error_of"]

#: By the code of a ``TritonError``; the last one is of requests that are to come once more.
_ERRORS: Final[Sequence[type[RequestError]]] = (
    UnknownFailure,
    ExecutionFailed,
    UnknownModel,
    InvalidRequest,
    Unavailable,
    Unsupported,
    AlreadyExists,
    Cancelled,
    Rescheduled,
)
#: Characters of an error.
_MAX_TEXT: Final = 8_192


def error_of(said: Sequence[Any]) -> RequestError:
    """The error of a code and a text."""
    code = said[0] if isinstance(said[0], int) and 0 <= said[0] < len(_ERRORS) else 0
    return _ERRORS[code](str(said[1])[:_MAX_TEXT])


def code_of(error: RequestError) -> int:
    """The code of ``TritonError`` for an error."""
    return next((code for code, kind in enumerate(_ERRORS) if isinstance(error, kind)), 1)
