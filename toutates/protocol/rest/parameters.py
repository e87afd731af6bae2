"""Parameters of a request in JSON, as those of the message that it would be over gRPC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from toutates.protocol.rest.document import as_boolean, as_string, as_unsigned, read_member
from toutates.system.errors import InvalidRequest, MalformedMessage, Unsupported

__all__ = ["add_forwarded", "is_known", "matching_fields", "read_any", "read_parameters", "read_region"]

_MOST: Final = 2**63 - 1
_RESERVED: Final = "triton_"
#: Keys of parameters that mean something to the server, which no header field may set.
_KNOWN: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
#: Longest string for a sequence's id.
_MAX_SEQUENCE_ID: Final = 128


class _Parameters(Protocol):
    """A map of InferParameter, of which ``map[key]`` makes the entry."""

    def __getitem__(self, key: str) -> Any: ...


def read_parameters(members: Any, into: _Parameters) -> bool:
    """Read the member ``parameters`` of a request, if there is one.

    Args:
        members: of the request.
        into: the message's parameters, without those that only REST has.

    Returns:
        Whether outputs that are not listed are sent as binary data.

    Raises:
        RequestError: in Triton's words.
    """
    if "parameters" not in members:
        return False
    parameters = members["parameters"]
    if not isinstance(parameters, dict):
        raise MalformedMessage("failed to get request params.: attempt to get members for non-object")
    binary_output = False
    for key, value in parameters.items():
        if key == "sequence_id":
            _read_sequence_id(value, into[key])
        elif key in ("sequence_start", "sequence_end"):
            into[key].bool_param = read_member(parameters, key, as_boolean)
        elif key == "priority":
            into[key].uint64_param = read_member(parameters, key, as_unsigned)
        elif key == "timeout":
            into[key].int64_param = min(read_member(parameters, key, as_unsigned), _MOST)
        elif key == "binary_data_output":
            binary_output = read_member(parameters, key, as_boolean)
        elif key.startswith(_RESERVED):
            raise InvalidRequest(
                f"parameter keys starting with '{_RESERVED}' are reserved for Triton usage and should not be specified."
            )
        else:
            read_any(key, value, into)
    return binary_output


def _read_sequence_id(value: Any, into: Any) -> None:
    if isinstance(value, str):
        if len(value) > _MAX_SEQUENCE_ID:
            raise Unsupported(f"string correlation ID cannot be longer than {_MAX_SEQUENCE_ID} characters")
        into.string_param = value
        return
    try:
        number = as_unsigned(value)
    except MalformedMessage as error:
        raise MalformedMessage(f"Unable to parse 'sequence_id': {error}") from None
    into.int64_param = number if number <= _MOST else number - 2**64  # the same 64 bits


def read_any(key: str, value: Any, into: _Parameters) -> None:
    """Read a parameter that is the model's affair.

    Raises:
        InvalidRequest: it is of a type that no parameter has.
        MalformedMessage: it is an integer that no double holds.
    """
    if isinstance(value, bool):
        into[key].bool_param = value
    elif isinstance(value, str):
        into[key].string_param = value
    elif type(value) is int and -_MOST - 1 <= value <= _MOST:
        into[key].int64_param = value
    elif isinstance(value, int | float):
        try:
            into[key].double_param = float(value)
        except OverflowError:
            raise MalformedMessage(f"parameter '{key}': Number too big to be stored in double.") from None
    else:
        raise InvalidRequest(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def read_region(parameters: Any, into: _Parameters) -> None:
    """Read the parameters of a tensor that is in shared memory.

    Raises:
        MalformedMessage: one is of another type.
    """
    into["shared_memory_region"].string_param = read_member(parameters, "shared_memory_region", as_string)
    into["shared_memory_byte_size"].int64_param = 0
    for key in ("shared_memory_byte_size", "shared_memory_offset"):
        if key in parameters:
            number = read_member(parameters, key, as_unsigned)
            into[key].int64_param = number if number <= _MOST else number - 2**64


def matching_fields(pattern: re.Pattern[str], fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The header fields that are forwarded to models.

    Args:
        pattern: of names, of any part of them; compiled with ``re.IGNORECASE``.
        fields: names as they were sent, and values.
    """
    return [(name, value) for name, value in fields if pattern.search(name)]


def is_known(key: str) -> bool:
    """Whether a parameter means something to the server."""
    return key in _KNOWN or key.startswith(_RESERVED)


def add_forwarded(fields: Sequence[tuple[str, str]], into: _Parameters) -> None:
    """Add header fields to a request's parameters.

    Raises:
        InvalidRequest: a name is one that means something to the server.
    """
    for name, value in fields:
        if is_known(name):
            raise InvalidRequest(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        into[name].string_param = value
