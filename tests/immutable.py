"""What of a record could be changed in place, and would be for all that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["mutable_parts"]

_PLAIN = (str, bytes, int, float, bool, type(None), Enum, PurePath, type, np.dtype)


def mutable_parts(value: Any, at: str = "") -> Iterator[str]:
    """The place and the type of each such part, however deep."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, (tuple, frozenset)):
        for index, one in enumerate(value):
            yield from mutable_parts(one, f"{at}[{index}]")
    elif isinstance(value, Mapping):
        if not isinstance(value, MappingProxyType):
            yield f"{at}: {type(value).__name__}"
        for key, one in value.items():
            yield from mutable_parts(one, f"{at}[{key!r}]")
    elif is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
        for one in fields(value):
            yield from mutable_parts(getattr(value, one.name), f"{at}.{one.name}")
    else:
        yield f"{at}: {type(value).__name__}"
