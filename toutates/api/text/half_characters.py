"""Finds which text of a request has half of a character, such as one half of an emoji that was cut in two.

``msgspec`` refuses such JSON, and says neither which text it is nor where. Only bodies that it has refused come here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from toutates.api.text.large_json import BadJson, TooMuch, read_large
from toutates.api.text.problems import Kind, Problem
from toutates.protocol.strings import rest

__all__ = ["STEPPED_BYTES", "half_character"]

#: Longer bodies are read in steps: 1 MiB takes up to 8 ms, in which no other thread has the interpreter.
STEPPED_BYTES: Final = 1_048_576

#: A half in JSON's escapes: no body without one is read again.
_ESCAPED: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF: Final = re.compile("[\ud800-\udfff]")


def half_character(body: bytes | bytearray) -> Problem | None:
    """The problem of a body that is JSON but for half a character; None where something else is wrong with it."""
    if not _ESCAPED.search(body):
        return None
    try:
        if len(body) <= STEPPED_BYTES:
            value = json.loads(body, parse_constant=_refuse)
        else:
            value = read_large(body, rest, halves=True)
    except (ValueError, RecursionError, BadJson, TooMuch):
        return None
    for path, text in _texts(value, ""):
        found = _HALF.search(text)
        if found is not None:
            return Problem(
                Kind.SYNTAX,
                f"`{path or 'the body'}` is no valid Unicode: it has the surrogate U+{ord(found[0]):04X} at character "
                f"{found.start()}",
                path,
            )
    return None


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield path, key
            # A member is named where it is one of an API: others are refused by name, and may be long.
            yield from _texts(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if not isinstance(one, int | float):
                yield from _texts(one, f"{path}[{index}]")


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
