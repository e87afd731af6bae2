"""The table from errors to statuses is complete; what it says is in tests/contract/error-statuses.txt."""

from __future__ import annotations

import pytest

from tests.api.every_error import assert_has_every_error
from toutates.api.grpc.statuses import STATUSES
from toutates.api.rest.answers import STATUSES as REST_STATUSES
from toutates.backends.text.interface import TextError
from toutates.h2grpc import Status


def test_table_has_every_request_error_and_nothing_else() -> None:
    assert_has_every_error(STATUSES)


def test_a_kind_of_error_that_is_not_named_has_the_status_of_the_nearest_that_is() -> None:
    assert TextError not in STATUSES
    assert STATUSES[TextError] is Status.INVALID_ARGUMENT
    assert REST_STATUSES[TextError] == 400
    with pytest.raises(KeyError):
        STATUSES[KeyError]  # type: ignore[index]
