"""JSON files of a model folder: read with bounds, and refused where a key stands twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toutates.models.config.small_file import read_small_file
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line, shown

__all__ = ["read_document", "read_object"]

#: Bytes of a file such as config.json. Those with a million labels are not among the models that are converted.
_MOST_BYTES: Final = 16 * 2**20


def read_document(path: Path) -> Any:
    """What a JSON file says; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read, is no JSON, has NaN or infinity, or an object has a key twice.
    """
    data = read_small_file(path, _MOST_BYTES)
    if data is None:
        return None
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigurationError("is nested too deeply", source=path, remedy="save the model again") from None
    except ValueError as error:
        problem = f"is no JSON: {one_line(error, 200)}"
        raise ConfigurationError(problem, source=path, remedy="download or save the file again") from None


def read_object(path: Path) -> Mapping[str, Any] | None:
    """The object of a JSON file; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read, or holds no object.
    """
    document = read_document(path)
    if document is None and not path.exists():
        return None
    if not isinstance(document, dict):
        raise ConfigurationError("is no JSON object", source=path, remedy="download or save the file again")
    return document


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key '{shown(name)}' stands twice in an object")
            seen.add(name)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
