"""The errors that this package raises on purpose. They know no transport.

    ToutatesError
    ├── ConfigurationError      a flag, a config.yaml or a repository is wrong; names file, key, value, remedy
    │   └── MissingRepository   the directory of a repository is not there
    ├── RepositoryError         a repository or a model's files cannot be read now; served models go on
    ├── ModelLoadError          one model version cannot be served; the others can
    │   ├── PartlyLoaded        some versions of a model cannot be served; the others are
    │   └── NotPolled           a model's directory or configuration cannot be used, so no version was tried
    └── RequestError            one request cannot be answered
        ├── MalformedMessage    the request's bytes are no message of its kind
        ├── InvalidRequest      the caller's request does not fit the protocol or the model
        │   └── InvalidSequence it names no sequence, or one that has not begun
        ├── UnknownModel        no such model or version
        ├── ModelNotReady       the version is known, but cannot answer now
        │   └── NotLoaded       it is loaded on demand, and nobody has waited for it yet
        ├── Unavailable         the server does not answer this now: it exits, or its mode forbids it
        │   └── QueueTimeout    the request has waited for longer than its model's configuration allows
        ├── Unauthenticated     nobody knows who the caller is
        ├── Forbidden           it is known, and may not do this
        ├── Overloaded          the model has as many rows under way as it may have; try again later
        │   ├── OwnRequestsFirst  by its caller's own requests: it waits on its stream, and nobody is told
        │   ├── QueueFull       as many requests wait for the model as its configuration allows
        │   └── QuotaExceeded   the caller has asked for as much as it may in this time
        ├── TooLate             the answer would come after the caller's deadline
        │   └── WouldBeLate     the same, and it is known before anything is done for the request
        │       └── BeyondTarget  it would come after the model's own latency target
        ├── Cancelled           the request was given up
        │   └── CallerLeft      by its caller, who has left or waits no more
        ├── Unsupported         the protocol defines it, this server does not offer it
        ├── NotInRepository     the repositories do not give a model that is to be loaded
        ├── AlreadyExists       a model says that something is there already
        ├── UnknownFailure      a model failed, and does not say in which way
        └── ExecutionFailed     ONNX Runtime, or the code of a model, refused or failed

``toutates.api.grpc.statuses`` holds the one table from these classes to gRPC statuses. Texts of ``RequestError`` go to
callers as they are, so they never carry paths or tracebacks. Texts of the other classes go to the log, and have paths.
What clients are told of these is made by ``client_text.without_paths``: for the table of models when a load has failed,
and where such an error becomes a ``RequestError``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from toutates.system.text import writable

__all__ = [
    "AlreadyExists",
    "BeyondTarget",
    "ByError",
    "CallerLeft",
    "Cancelled",
    "ConfigurationError",
    "ExecutionFailed",
    "Forbidden",
    "InvalidRequest",
    "InvalidSequence",
    "MalformedMessage",
    "MissingRepository",
    "ModelLoadError",
    "ModelNotReady",
    "NotInRepository",
    "NotLoaded",
    "NotPolled",
    "Overloaded",
    "OwnRequestsFirst",
    "PartlyLoaded",
    "QueueFull",
    "QueueTimeout",
    "QuotaExceeded",
    "RepositoryError",
    "RequestError",
    "TooLate",
    "ToutatesError",
    "Unauthenticated",
    "Unavailable",
    "UnknownFailure",
    "UnknownModel",
    "Unsupported",
    "WouldBeLate",
    "anew",
]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

#: The part of what may be under way of a model, one in so many, that is one connection's share.
OWN_SHARE: Final = 8


class ToutatesError(Exception):
    """Base of every error this package raises on purpose, outside ``toutates.h2grpc``. Its text can always be sent."""

    def __str__(self) -> str:
        return writable(super().__str__())


class ConfigurationError(ToutatesError):
    """A setting cannot be used. The text says where the setting stands, what is wrong, and what to write instead.

    Args:
        problem: what is wrong, one sentence without a full stop.
        source: the file, or None for a command-line flag.
        key: the key or flag, dotted for nested keys (``profiling.file_prefix``).
        value: the offending value, shown with ``repr``; omitted from the text when None.
        remedy: what to write instead, one sentence without a full stop.
    """

    def __init__(
        self, problem: str, *, source: Path | None = None, key: str = "", value: object = None, remedy: str = ""
    ) -> None:
        self.problem, self.source, self.key, self.value, self.remedy = problem, source, key, value, remedy
        where = ": ".join(part for part in (str(source) if source else "", key) if part)
        shown = f" (got {value!r})" if value is not None else ""
        text = f"{where}: {problem}{shown}" if where else f"{problem}{shown}"
        super().__init__(f"{text}; {remedy}" if remedy else text)


class MissingRepository(ConfigurationError):
    """The directory of a local repository is not there."""


class RepositoryError(ToutatesError):
    """A repository, or the files of one model, cannot be read at this moment; trying again later may help."""


class ModelLoadError(ToutatesError):
    """One model version cannot be served; the text, without paths of the server, is its reason in the repository index.

    Attributes:
        missing: names of other models that it is made of and that are not served.
    """

    missing: tuple[str, ...] = ()


class PartlyLoaded(ModelLoadError):
    """Some versions of a model cannot be served, and the others are from now on."""


class NotPolled(ModelLoadError):
    """A model's directory or configuration cannot be used, so that none of its versions was tried."""


class RequestError(ToutatesError):
    """One request cannot be answered; the text is sent to the caller.

    Attributes:
        retry_after_s: when the caller may try again, seconds; None where nobody can say.
    """

    retry_after_s: float | None = None

    def after(self: E, retry_after_s: float | None) -> E:
        """The same error, with when the caller may try again."""
        self.retry_after_s = retry_after_s  # type: ignore[attr-defined]
        return self


class MalformedMessage(RequestError):
    """The bytes of the request are no message of its kind."""


class InvalidRequest(RequestError):
    """The request does not fit the protocol or the model."""


class InvalidSequence(InvalidRequest):
    """The request names no sequence that it could belong to. As with Triton, the text does not name the request."""


class UnknownModel(RequestError):
    """The repository holds no such model or version."""


class ModelNotReady(RequestError):
    """The model version is known, but cannot answer now."""


class NotLoaded(ModelNotReady):
    """The model is in a repository, and is loaded when somebody waits for it (``models.demand``).

    Args:
        model: its name.
    """

    def __init__(self, model: str) -> None:
        super().__init__(f"Request for unknown model: '{model}' is not loaded yet")
        self.model = model


class Unavailable(RequestError):
    """The server does not answer such requests now: it is exiting, or it runs in a mode that forbids them."""


class QueueTimeout(Unavailable):
    """The request has waited for longer than the configuration of its model, or its own ``timeout``, allows."""


class Overloaded(RequestError):
    """The model has as many rows under way, or as much memory for them, as it may have.

    Args:
        text: for the caller.
        bound: how much may be under way; 0 where the answers to the caller's own requests make no room.
        more: what this request would add to it.

    Attributes:
        share: whose connection has at least so many requests like this one under way has had its share: an
            OWN_SHARE-th of the bound. 0 where there is none.
    """

    def __init__(self, text: str, bound: int = 0, more: int = 1) -> None:
        super().__init__(text)
        self.share = max(1, bound // (OWN_SHARE * max(more, 1))) if bound else 0


class OwnRequestsFirst(Overloaded):
    """The caller's own requests fill the model: this one is not refused, and is to be tried again when they go."""


class QueueFull(Overloaded):
    """As many requests wait for the model as ``max_queue_size`` allows."""


class QuotaExceeded(Overloaded):
    """The caller has asked for as much as it may in this time.

    Args:
        text: for the caller.
        retry_after_s: when it may try again.
    """

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Unauthenticated(RequestError):
    """Nobody knows who the caller is: it has sent no key or token, or one that is not accepted.

    Args:
        text: for the caller.
        was_dear: whether it took a signature to find out, so that a connection should not ask often.
    """

    def __init__(self, text: str, *, was_dear: bool = False) -> None:
        super().__init__(text)
        self.was_dear = was_dear


class Forbidden(RequestError):
    """The caller is known, and may not do this."""


class TooLate(RequestError):
    """The caller's deadline has passed, or will have before there is an answer."""


class WouldBeLate(TooLate):
    """By what is under way and how long runs take, the answer would come after the deadline; nothing was done for it.

    Attributes:
        retry_after_s: after so many seconds it would not be refused for what is under way now.
    """

    retry_after_s: float = 0.0


class BeyondTarget(WouldBeLate):
    """The answer would come later than the model's ``latency_target_ms`` allows."""


class Cancelled(RequestError):
    """The request was given up."""


class CallerLeft(Cancelled):
    """The caller has left, so that nobody hears of this error; it is counted and logged."""


class Unsupported(RequestError):
    """The protocol defines it; this server does not offer it."""


class NotInRepository(RequestError):
    """No repository has the model that is to be loaded, two have it, or the one that has it cannot be read."""


class AlreadyExists(RequestError):
    """A model's code answers so."""


class UnknownFailure(RequestError):
    """A model's code answers with an error of no particular kind."""


class ExecutionFailed(RequestError):
    """ONNX Runtime, or the code of a model, failed while running a batch."""


class Rescheduled(ExecutionFailed):
    """The code of a model asks for the request once more. A failure where requests of the model do not come again."""


def anew(error: E) -> E:
    """The same error without its past: what is kept, or was and is raised, has to be one.

    An error that was raised leads to the frames that it has passed, and they to what they hold: the request, and the
    error itself, where it has a name or a place there. Only the garbage collector frees such a circle. One that is
    raised again and again grows by these frames each time.
    """
    other = type(error).__new__(type(error), *error.args)
    other.__dict__.update(error.__dict__)
    return other


class ByError(dict[type[RequestError], T]):
    """What belongs to the kinds of errors. A kind that is not named has what the nearest of its bases has."""

    def __missing__(self, kind: type[RequestError]) -> T:
        for base in kind.__mro__[1:]:
            if base in self:
                return self[base]
        raise KeyError(kind)
