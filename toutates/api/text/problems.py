"""Why a request is refused, in the terms that all APIs for text share. Each API says it with a status of its own."""

from __future__ import annotations

from enum import Enum
from typing import Final

from toutates.backends.text.interface import Fault, TextError
from toutates.system.errors import (
    Forbidden,
    InvalidRequest,
    MalformedMessage,
    ModelNotReady,
    Overloaded,
    RequestError,
    TooLate,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)

__all__ = ["Kind", "Problem", "as_problem"]


class Kind(Enum):
    """What is wrong."""

    #: the body is no JSON
    SYNTAX = "syntax"
    #: a member is missing, unknown, or of another type
    FORM = "form"
    #: a member has a value that cannot be used
    VALUE = "value"
    #: there is no text at all
    EMPTY = "empty"
    #: there are more texts than one request may have
    TOO_MANY = "too_many"
    #: the body is too large
    TOO_LARGE = "too_large"
    #: the body is not called JSON
    MEDIA_TYPE = "media_type"
    #: a text cannot be read into tokens
    TOKENIZER = "tokenizer"
    #: no model of this name, or none for this route
    UNKNOWN_MODEL = "unknown_model"
    #: a model that computes something else
    WRONG_MODEL = "wrong_model"
    #: the server, or the model, does not answer now
    NOT_READY = "not_ready"
    #: no key, or a wrong one
    UNAUTHORIZED = "unauthorized"
    #: an operator's restriction
    FORBIDDEN = "forbidden"
    #: too much is under way
    OVERLOADED = "overloaded"
    #: computing failed
    FAILED = "failed"
    #: the path has no such method
    METHOD = "method"
    #: there is nothing at this path
    PATH = "path"


class Problem(RequestError):
    """A request is refused.

    Args:
        kind: what is wrong.
        text: for the caller.
        param: the member that is at fault; "" for none.
        fields: further header fields of the answer.
    """

    def __init__(self, kind: Kind, text: str, param: str = "", fields: bytes = b"") -> None:
        super().__init__(text)
        self.kind, self.param, self.fields = kind, param, fields


_FAULTS: Final = {
    Fault.WRONG_KIND: Kind.WRONG_MODEL,
    Fault.TOKENIZER: Kind.TOKENIZER,
    Fault.NAN: Kind.FAILED,
}
#: The members that faults of options are about; every other one is about the texts.
_PARAMS: Final = {Fault.PROMPT: "prompt_name", Fault.DIMENSIONS: "dimensions", Fault.WRONG_KIND: "model"}
_KINDS: Final = (
    (UnknownModel, Kind.UNKNOWN_MODEL),
    (ModelNotReady, Kind.NOT_READY),
    (Unavailable, Kind.NOT_READY),
    (Unauthenticated, Kind.UNAUTHORIZED),
    (Forbidden, Kind.FORBIDDEN),
    (Overloaded, Kind.OVERLOADED),
    (TooLate, Kind.OVERLOADED),
    (InvalidRequest, Kind.VALUE),
    (MalformedMessage, Kind.SYNTAX),
)


def as_problem(error: RequestError, texts: str) -> Problem:
    """What an error of a model, or of the server, is.

    Args:
        error: it.
        texts: the member of the request that has the texts.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, TextError):
        param = _PARAMS.get(error.fault, texts)
        if error.index is not None:
            param = f"{param}[{error.index}]"
        if error.fault is Fault.TOO_LONG and error.limit:
            text = f"`{param}` must have at most {error.limit} tokens. Given: {error.tokens}"
            return Problem(Kind.VALUE, text, param)
        return Problem(_FAULTS.get(error.fault, Kind.VALUE), str(error), param)
    kind = next((kind for of, kind in _KINDS if isinstance(error, of)), Kind.FAILED)
    problem = Problem(kind, str(error), "model" if kind is Kind.UNKNOWN_MODEL else "")
    problem.retry_after_s = error.retry_after_s
    return problem
