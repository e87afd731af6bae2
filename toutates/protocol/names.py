"""Words of error texts that clients know: names of messages, and how a request is named."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["request_prefix", "with_client_names"]

_OUR_PACKAGES: Final = re.compile(r"\btoutates\.((?:inference|grpc\.health\.v1|grpc\.reflection\.v1)\.)")


def request_prefix(identifier: str) -> str:
    """The words with which some of Triton's error texts begin, of a request with this id or ""."""
    return f"[request id: {identifier or '<id_unknown>'}] "


def with_client_names(text: str) -> str:
    """An error text of protobuf with the names of messages that clients know, such as ``inference.ModelConfig``.

    The server's own packages have another name; ``release/generate_protocol.py`` says why.
    """
    return _OUR_PACKAGES.sub(r"\1", text)
