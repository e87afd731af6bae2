"""Parameters of requests and responses that the code of a model gives. They are not taken on trust."""

from __future__ import annotations

from typing import Any, Final

from toutates.engine.result import Parameters
from toutates.system.text import writable

__all__ = ["checked_parameters"]

#: Parameters of one request or response.
_MAX_PARAMETERS: Final = 1_000


def checked_parameters(given: Any) -> Parameters:
    """Parameters as they can be sent.

    Raises:
        ValueError: they cannot; the text says what they are.
    """
    if not isinstance(given, dict) or len(given) > _MAX_PARAMETERS:
        raise ValueError("parameters in no known form")
    has_halves = False
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | str):
            raise ValueError("parameters in no known form")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"parameter '{name[:100]}', which is no integer of 64 bits")
        has_halves = has_halves or writable(name) != name or (isinstance(value, str) and writable(value) != value)
    if not has_halves:
        return given
    return {writable(name): writable(value) if isinstance(value, str) else value for name, value in given.items()}
