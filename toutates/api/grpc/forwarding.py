"""Metadata of calls that models get as parameters of their requests (``--grpc-header-forward-pattern``).

The fields are written behind the request's message, as entries of its map of parameters: of entries with one key the
last one counts in protobuf, so no caller says in its message what a proxy says in a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from toutates.h2grpc import HeaderField, text_of
from toutates.infer.call import Handler
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.rest.parameters import add_forwarded, matching_fields

__all__ = ["Forward", "forward_nothing", "forwarding"]

#: Makes a handler that forwards fields of one that does not.
Forward = Callable[[Handler], Handler]

#: What gRPC itself says of a call is no metadata (the gRPC specification, "Requests").
_OF_GRPC: Final = re.compile(r":|grpc-|(?:te|content-type|content-length|host)$")


def forward_nothing(handler: Handler) -> Handler:
    """The handler itself."""
    return handler


def forwarding(pattern: re.Pattern[str] | None) -> Forward:
    """What has metadata forwarded.

    Args:
        pattern: of its names; None for none, and the handlers stay as they are.
    """
    if pattern is None:
        return forward_nothing
    memory = _Memory(pattern)

    def forward(handler: Handler) -> Handler:
        def handle(call: Any) -> None:
            entries = memory.entries_of(call.head.fields)
            if not entries:
                handler(call)
                return
            as_received = buffer, start, end = call.buffer, call.start, call.end
            message = b"".join((memoryview(buffer)[start:end], entries))
            call.buffer, call.start, call.end = message, 0, len(message)
            try:
                handler(call)
            finally:  # its bytes are counted as they came
                call.buffer, call.start, call.end = as_received

        return handle

    return forward


class _Memory:
    """What the fields of calls come to, on one worker. Those of the last call are remembered: most have the same."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._fields: Sequence[HeaderField] = ()
        self._entries = b""

    def entries_of(self, fields: Sequence[HeaderField]) -> bytes:
        """The entries of a header list, as they stand in a message.

        Raises:
            InvalidRequest: a name that would be forwarded means something to the server.
        """
        if fields is not self._fields:
            self._entries = self._make(fields)
            self._fields = fields
        return self._entries

    def _make(self, fields: Sequence[HeaderField]) -> bytes:
        values: dict[str, str] = {}
        for field in fields:
            name, value = field[0].decode("ascii"), text_of(field).decode("latin-1")
            if not _OF_GRPC.match(name):
                values[name] = f"{values[name]}, {value}" if name in values else value  # RFC 9110 section 5.3
        message = ModelInferRequest()
        add_forwarded(matching_fields(self._pattern, values.items()), message.parameters)
        return message.SerializeToString(deterministic=True)
