"""One mapping of a configuration file, read key by key: what is wrong is collected, so that one start shows it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from types import MappingProxyType
from typing import Final, TypeGuard

from toutates.models.config.problems import Problems
from toutates.models.config.yaml_reader import YamlValue, shown_value
from toutates.system.text import printable

__all__ = ["MAX_DIMENSION", "MAX_RANK", "Section", "Shapes"]

Shapes = Mapping[str, tuple[int, ...]]

MAX_DIMENSION: Final = 2**31 - 1
MAX_RANK: Final = 32  # NumPy 1's limit, the lower one of the two in use

_MAX_KEY_SHOWN: Final = 80  # characters


class Section:
    """One mapping of a YAML file. Every method notes what is wrong, and returns a stand-in value that is never used.

    Args:
        values: the mapping.
        problems: get what is wrong.
        prefix: of the keys in errors, such as ``profiling.``.
    """

    def __init__(self, values: Mapping[str, YamlValue], problems: Problems, prefix: str = "") -> None:
        self._values, self._problems, self._prefix = values, problems, prefix
        self._known: list[str] = []

    # --- scalars -----------------------------------------------------------------------------------------------------

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """A required word out of ``allowed``."""
        return self._choice(key, self._required(key, allowed[0]), allowed)

    def optional_choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """A word out of ``allowed``, or None where the key is absent."""
        return self._choice(key, self._values[key], allowed) if self.has(key) else None

    def integer(self, key: str, highest: int, example: int) -> int:
        """A required integer from 1 to ``highest``."""
        return self._integer(key, self._required(key, example), 1, highest, example)

    def optional_integer(self, key: str, highest: int, example: int = 100, lowest: int = 1) -> int | None:
        """An integer from ``lowest`` to ``highest``, or None where the key is absent."""
        return self._integer(key, self._values[key], lowest, highest, example) if self.has(key) else None

    def optional_flag(self, key: str) -> bool | None:
        """True or false, or None where the key is absent."""
        if not self.has(key):
            return None
        value = self._values[key]
        if isinstance(value, bool):
            return value
        self.refuse(key, "is neither true nor false", value, f"write `{key}: true` or `{key}: false`, without quotes")
        return None

    def optional_number(self, key: str, highest: float, example: float) -> float | None:
        """A number from 0 to ``highest``, or None where the key is absent."""
        if not self.has(key):
            return None
        value = self._values[key]
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= highest:
            return float(value)
        self.refuse(key, f"is not a number from 0 to {highest:g}", value, f"write such as `{key}: {example:g}`")
        return None

    def numbers(self, key: str, example: str) -> tuple[float, ...]:
        """A required list of numbers, true and false among them."""
        value = self._values[key] if self.has(key) else None
        if isinstance(value, list) and all(isinstance(item, int | float) for item in value):
            return tuple(float(item) for item in value if isinstance(item, int | float))
        self.refuse(key, "is not a list of numbers", value, f"write `{key}: {example}`")
        return ()

    def text(self, key: str, default: str) -> str:
        """A text of at least one character, or ``default`` where the key is absent."""
        return self._text(key, self._values[key] if self.has(key) else default, default)

    def required_text(self, key: str, example: str) -> str:
        """A required text of at least one character."""
        return self._text(key, self._required(key, example), example)

    def hidden_text(self, key: str, fits: Callable[[str], object], problem: str, remedy: str) -> str:
        """A text that no error may show; "" where there is none that ``fits``, which is noted as a ``problem``."""
        value = self._values[key] if self.has(key) else ""
        if isinstance(value, str) and fits(value):
            return value
        self.refuse(key, problem, None, remedy)
        return ""

    def is_list(self, key: str) -> bool:
        """Whether the key is there, and has a list."""
        return isinstance(self._values.get(key), list)

    def number(self, key: str, default: float) -> float:
        """A finite number, or ``default`` where the key is absent."""
        value = self._values[key] if self.has(key) else default
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            return value
        self.refuse(key, "is not a number", value, f"write such as `{key}: {default}`")
        return default

    # --- lists and mappings ------------------------------------------------------------------------------------------

    def mapping(self, key: str, example: str) -> Section | None:
        """A nested mapping, or None where the key is absent."""
        if not self.has(key):
            return None
        value = self._values[key]
        if isinstance(value, dict):
            return Section(value, self._problems, f"{self._prefix}{key}.")
        self.refuse(key, "is not a mapping", value, f"write `{example}`, or leave the key out")
        return None

    def sections(self, key: str, example: str) -> list[Section]:
        """A list of mappings; empty where the key is absent."""
        if not self.has(key):
            return []
        value = self._values[key]
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return [
                Section(item, self._problems, f"{self._prefix}{key}[{at}].")
                for at, item in enumerate(value)
                if isinstance(item, dict)
            ]
        self.refuse(key, "is not a list of mappings", value, f"write `{example}`, or leave the key out")
        return []

    def texts(self, key: str, example: str, fits: Callable[[str], bool] = bool) -> tuple[str, ...]:
        """A list of texts that all fit; empty where the key is absent."""
        if not self.has(key):
            return ()
        value = self._values[key]
        if isinstance(value, list):
            # A tensor may be called 0.
            texts = [str(item) for item in value if isinstance(item, str) or _is_integer(item)]
            if len(texts) == len(value) and all(fits(text) for text in texts):
                return tuple(texts)
        self.refuse(key, "is not a list of what can stand here", value, f"write `{key}: {example}`")
        return ()

    def integers(self, key: str, highest: int, example: str) -> tuple[int, ...]:
        """A list of integers from 1 to ``highest``; empty where the key is absent."""
        if not self.has(key):
            return ()
        value = self._values[key]
        if isinstance(value, list):
            numbers = [item for item in value if _is_integer(item) and 1 <= item <= highest]
            if len(numbers) == len(value):
                return tuple(numbers)
        self.refuse(key, f"is not a list of integers from 1 to {highest}", value, f"write `{key}: {example}`")
        return ()

    def shapes(self, key: str) -> Shapes:
        """A mapping from tensor names to lists of dimensions."""
        section = self.mapping(key, f"{key}: {{name: [-1, 8]}}")
        if section is None:
            return MappingProxyType({})
        return MappingProxyType({name: section.shape(name) for name in section._values})

    def shape(self, key: str) -> tuple[int, ...]:
        """A list of dimensions."""
        dims = self._values[key] if self.has(key) else None
        if isinstance(dims, list) and len(dims) <= MAX_RANK:
            shape = tuple(dim for dim in dims if _is_dimension(dim))
            if len(shape) == len(dims):
                return shape
        self.refuse(
            key,
            f"is not a list of at most {MAX_RANK} dimensions, each -1 or from 1 to {MAX_DIMENSION}",
            dims,
            f"write -1 for the batch dimension and positive sizes for the others, such as `{key}: [-1, 8]`",
        )
        return ()

    def words(self, *, flags: bool = False) -> dict[str, str]:
        """Every key of this section with its value as a text; texts and whole numbers only, or true and false too."""
        words: dict[str, str] = {}
        for key in self._values:
            self.has(key)
            value = self._values[key]
            if isinstance(value, str) or _is_integer(value):
                words[key] = str(value)
            elif flags and isinstance(value, bool):
                words[key] = str(value).lower()
            else:
                self.refuse(key, "is neither a text nor a whole number", value, f"write `{key}: '1'`")
        return words

    def integer_values(self, highest: int, example: int) -> dict[str, int]:
        """Every key of this section with its value, an integer from 1 to ``highest``."""
        return {key: self.integer(key, highest, example) for key in self._values}

    def subsections(self, example: str) -> Iterator[tuple[str, Section]]:
        """Every key of this section with the mapping it holds."""
        for key in self._values:
            section = self.mapping(key, example)
            if section is not None:
                yield key, section

    # --- keys --------------------------------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether the key is there; it is a known one from now on."""
        self._known.append(key)
        return key in self._values

    def refuse_unknown_keys(self) -> None:
        """Note each key that no other method of this section asked for."""
        for key in self._values:
            if key not in self._known:
                near = get_close_matches(key, self._known, n=1)
                remedy = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(set(self._known)))}"
                if self._problems.hidden:
                    self._problems.add(self._prefix.removesuffix("."), "has an unknown key", None, remedy)
                else:
                    self.refuse(key, "unknown key", None, remedy)

    def refuse(self, key: str, problem: str, value: object, remedy: str) -> None:
        """Note what is wrong with a key."""
        where = self._prefix + (printable(key, _MAX_KEY_SHOWN) or "''")
        self._problems.add(where, problem, shown_value(value), remedy)

    def _choice(self, key: str, value: object, allowed: Sequence[str]) -> str:
        if value not in allowed:
            self.refuse(key, "must be " + " or ".join(allowed), value, f"write `{key}: {allowed[0]}`")
        return str(value)

    def _text(self, key: str, value: object, example: str) -> str:
        if not isinstance(value, str) or not value:
            self.refuse(key, "is not a text", value, f"write a text, such as `{key}: {example}`")
        return str(value)

    def _integer(self, key: str, value: object, lowest: int, highest: int, example: int) -> int:
        if _is_integer(value) and lowest <= value <= highest:
            return value
        remedy = f"write a plain decimal number without quotes, such as `{key}: {example}`"
        self.refuse(key, f"is not an integer from {lowest} to {highest}", value, remedy)
        return example

    def _required(self, key: str, example: str | int) -> YamlValue:
        if self.has(key):
            return self._values[key]
        self.refuse(key, "required key is missing", None, f"add `{key}: {example}`")
        return example


def _is_integer(value: object) -> TypeGuard[int]:
    # YAML's true and false are integers to Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dimension(value: object) -> TypeGuard[int]:
    return _is_integer(value) and (value == -1 or 1 <= value <= MAX_DIMENSION)
