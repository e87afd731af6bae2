"""JSON that leaves the server. It can always be written: what no UTF-8 can encode is replaced (``system.text``)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from toutates.system.text import writable

__all__ = ["encode_json"]

_encode: Final = msgspec.json.Encoder().encode


def encode_json(document: Any) -> bytes:
    """A document in UTF-8, compact. Its strings, keys too, are changed where they cannot be encoded only."""
    try:
        return _encode(document)
    except UnicodeEncodeError:
        return _encode(_writable(document))


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, dict):
        return {_writable(key): _writable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return _writable(msgspec.to_builtins(value))
    return value
