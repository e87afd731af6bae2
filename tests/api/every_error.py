"""Every error that any part of the server may answer with. What one API alone knows has a status there."""

from __future__ import annotations

from typing import Any, Final

from toutates.system import errors
from toutates.system.errors import ByError

__all__ = ["assert_has_every_error"]

_REQUEST_ERRORS: Final = {
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)
} - {errors.RequestError}


def assert_has_every_error(statuses: ByError[Any]) -> None:
    """An error may be left out whose base has the same status."""
    assert set(statuses) <= _REQUEST_ERRORS
    for kind in _REQUEST_ERRORS:
        assert statuses[kind], kind
