"""The table from errors to statuses is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toutates.api.grpc.statuses import STATUSES, as_grpc_error
from toutates.h2grpc import Status
from toutates.system.errors import (
    ExecutionFailed,
    InvalidRequest,
    MalformedMessage,
    ModelNotReady,
    Overloaded,
    RequestError,
    Unavailable,
    UnknownModel,
    Unsupported,
)

#: What Triton's clients expect, stated once more.
EXPECTED = {
    InvalidRequest: Status.INVALID_ARGUMENT,
    MalformedMessage: Status.INTERNAL,
    UnknownModel: Status.NOT_FOUND,
    ModelNotReady: Status.UNAVAILABLE,
    Unavailable: Status.UNAVAILABLE,
    Overloaded: Status.RESOURCE_EXHAUSTED,
    Unsupported: Status.UNIMPLEMENTED,
    ExecutionFailed: Status.INTERNAL,
}


def subclasses(base: type[RequestError]) -> Iterator[type[RequestError]]:
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)


def test_table_has_every_request_error_and_nothing_else() -> None:
    assert set(STATUSES) == set(subclasses(RequestError))


@pytest.mark.parametrize("error", EXPECTED, ids=lambda error: error.__name__)
def test_error_becomes_its_status_with_its_text(error: type[RequestError]) -> None:
    grpc_error = as_grpc_error(error("what happened, 100 %"))
    assert (grpc_error.status, grpc_error.text) == (EXPECTED[error], "what happened, 100 %")
    assert not grpc_error.metadata
