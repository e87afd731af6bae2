"""The names of messages in what protobuf says of them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["with_client_names"]

_OUR_PACKAGES: Final = re.compile(r"\btoutates\.((?:inference|grpc\.health\.v1)\.)")


def with_client_names(text: str) -> str:
    """An error text of protobuf with messages named as clients know them: ``inference.ModelConfig``.

    Our packages have another name; ``grpc_service.proto`` says why.
    """
    return _OUR_PACKAGES.sub(r"\1", text)
