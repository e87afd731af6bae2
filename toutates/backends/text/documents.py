"""JSON files of a model's folder. What a file says is taken key by key; a key that nobody takes is refused.

Passing over a key that changes vectors would give answers that look right and are not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from toutates.system.errors import ConfigurationError

__all__ = ["Document", "read_document", "read_json"]

_MAX_BYTES: Final = 64 * 1024 * 1024


def read_json(path: Path) -> Any:
    """The contents of a file; None if it is not there. Blocks.

    Raises:
        ConfigurationError: it cannot be read, or is not JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}", source=path, remedy="see that the server's user may read it"
        ) from error
    if len(data) > _MAX_BYTES:
        raise ConfigurationError(f"has more than {_MAX_BYTES} bytes", source=path, remedy="copy the model's own file")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"is not JSON: {error}", source=path, remedy="copy the model's own file") from error


def read_document(path: Path) -> Document | None:
    """A file that holds a JSON object; None if it is not there. Blocks.

    Raises:
        ConfigurationError: it cannot be read, or holds something else.
    """
    values = read_json(path)
    if values is None:
        return None
    if not isinstance(values, dict):
        raise ConfigurationError("holds no JSON object", source=path, remedy="copy the model's own file")
    return Document(path, values)


class Document:
    """A JSON object of a file.

    Args:
        source: the file, for errors.
        values: of the object.
        key: where it is in the file; "" for all of the file.
    """

    def __init__(self, source: Path, values: Mapping[str, Any], key: str = "") -> None:
        self.source = source
        self.values = values
        self._key = key
        self._taken: set[str] = set()

    def text(self, key: str, default: str = "") -> str:
        """A string; null counts as missing."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refused(key, "is no string", "write a string")
        return value

    def integer(self, key: str, lowest: int = 0) -> int | None:
        """A whole number; None where it is missing or null."""
        value = self._take(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise self.refused(key, f"is no whole number of at least {lowest}", "copy the model's own file")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as missing."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(key, "is neither true nor false", "write true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; one string counts as a list of it, null as an empty one."""
        value = self._take(key)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.refused(key, "is no list of strings", "write a list of strings")
        return found

    def words(self, key: str) -> dict[str, str]:
        """An object of strings; null counts as an empty one."""
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise self.refused(key, "is no object of strings", "write {name: text}")
        return dict(value)

    def section(self, key: str) -> Document | None:
        """An object within; None where it is missing or null."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(key, "is no object", "copy the model's own file")
        return Document(self.source, value, f"{self._key}{key}.")

    def pass_over(self, *keys: str) -> None:
        """These keys change no answer."""
        self._taken.update(keys)

    def refuse_rest(self, neutral: Collection[object] = ()) -> None:
        """Refuse what nobody has taken, unless it says nothing: null, false, an empty string, list or object."""
        for key, value in self.values.items():
            if key not in self._taken and value not in (None, False, "", [], {}) and value not in neutral:
                raise self.refused(
                    key,
                    "is not known to this server, and may change what the model computes",
                    "remove it if it does not, or serve the model with another backend",
                )

    def refused(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        """The error of a key."""
        value = self.values.get(key)
        shown = value if isinstance(value, (str, int, float)) else None
        return ConfigurationError(problem, source=self.source, key=f"{self._key}{key}", value=shown, remedy=remedy)

    def _take(self, key: str) -> Any:
        self._taken.add(key)
        return self.values.get(key)
