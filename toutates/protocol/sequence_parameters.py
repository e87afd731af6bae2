"""The parameters by which a request says to which sequence it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toutates.protocol.grpc_service_pb2 import InferParameter

__all__ = ["ID_MASK", "MAX_TEXT", "NAMES", "Said", "named", "said_in"]

#: A sequence's id, a number of 64 bits or a text, 0 or "" for none; and whether a request has the flags START and END.
Said = tuple[int | str, bool, bool]

#: The parameters' names, in the order of ``Said``.
NAMES: Final = ("sequence_id", "sequence_start", "sequence_end")
#: Characters of an id that is a text.
MAX_TEXT: Final = 128
#: Ids that are numbers have no sign.
ID_MASK: Final = 2**64 - 1


def said_in(parameters: Mapping[str, InferParameter]) -> Said | None:
    """What a request's valid parameters say of a sequence; None for nothing."""
    if not any(name in parameters for name in NAMES):
        return None
    identifier: int | str = 0
    if NAMES[0] in parameters:
        given = parameters[NAMES[0]]
        is_text = given.WhichOneof("parameter_choice") == "string_param"
        identifier = given.string_param if is_text else given.int64_param & ID_MASK
    start, end = (name in parameters and parameters[name].bool_param for name in NAMES[1:])
    return identifier, start, end


def named(said: Said) -> dict[str, Any]:
    """The parameters that say so."""
    return dict(zip(NAMES, said, strict=True))
