"""Parsing messages with protobuf."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from toutates.protocol.names import with_client_names
from toutates.system.errors import MalformedMessage

__all__ = ["parse"]

M = TypeVar("M", bound=Message)


def parse(message_type: type[M], message: bytes) -> M:
    """Parse ``message`` as a ``message_type``.

    Raises:
        MalformedMessage: it is not one.
    """
    try:
        return message_type.FromString(message)
    except (DecodeError, UnicodeDecodeError) as error:  # the second from the pure-Python protobuf, as on 3.14t
        reason = with_client_names(str(error))
        raise MalformedMessage(f"the message is not a {message_type.DESCRIPTOR.name}: {reason}") from None
