"""The one table from errors of requests to gRPC statuses."""

from __future__ import annotations

from typing import Final

from toutates.h2grpc import Status
from toutates.system.errors import (
    AlreadyExists,
    BeyondTarget,
    ByError,
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
    TooLate,
    Unauthenticated,
    Unavailable,
    UnknownFailure,
    UnknownModel,
    Unsupported,
)

__all__ = ["STATUSES"]

STATUSES: Final[ByError[Status]] = ByError(
    {
        MalformedMessage: Status.INTERNAL,  # as from every gRPC server
        InvalidRequest: Status.INVALID_ARGUMENT,
        InvalidSequence: Status.INVALID_ARGUMENT,
        UnknownModel: Status.NOT_FOUND,
        ModelNotReady: Status.UNAVAILABLE,
        Unavailable: Status.UNAVAILABLE,
        NotInRepository: Status.INTERNAL,
        Overloaded: Status.RESOURCE_EXHAUSTED,
        QueueFull: Status.UNAVAILABLE,  # as Triton has it
        QuotaExceeded: Status.RESOURCE_EXHAUSTED,
        Unauthenticated: Status.UNAUTHENTICATED,
        Forbidden: Status.PERMISSION_DENIED,
        TooLate: Status.DEADLINE_EXCEEDED,
        BeyondTarget: Status.UNAVAILABLE,  # the caller's own deadline may be far away
        Cancelled: Status.CANCELLED,
        Unsupported: Status.UNIMPLEMENTED,
        AlreadyExists: Status.ALREADY_EXISTS,
        UnknownFailure: Status.UNKNOWN,
        ExecutionFailed: Status.INTERNAL,
    }
)
