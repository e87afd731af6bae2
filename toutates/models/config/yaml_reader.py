"""A strict reader for the small YAML files that operators write by hand.

It takes the part of YAML that such a file needs: one document of nested mappings, lists and plain scalars. PyYAML
parses; its constructors are not used, because they take the last of two equal keys in silence, read ``010`` as 8 and
``1:30`` as 90, and build dates, sets and shared (even self-containing) objects. Whatever is outside the part is refused
with its line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, cast

import yaml

from toutates.models.config.small_file import read_small_file
from toutates.system.errors import ConfigurationError
from toutates.system.text import MAX_SHOWN, printable

__all__ = ["NULL", "Null", "YamlValue", "mapping_of", "read_file", "read_mapping", "read_nodes", "shown_value"]

_MAX_FILE_BYTES: Final = 2**16  # a hundred times what a real file holds; PyYAML takes half a second for the worst one

# 20 digits hold every number of 64 bits, and stay far below the length at which int() itself refuses to work.
_DECIMAL: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,19})")
_FRACTION: Final = re.compile(r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?")
_BOOLEANS: Final = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
_ESCAPE: Final = re.compile(rb"\\U([0-9a-fA-F]{8})")
_TAG: Final = "tag:yaml.org,2002:"


class Null:
    """The value of ``key:`` with nothing behind it; not None, so that an error can show it as what was written."""

    def __repr__(self) -> str:
        return "null"


NULL: Final = Null()

_T = TypeVar("_T")

YamlValue = str | int | float | bool | Null | list["YamlValue"] | dict[str, "YamlValue"]


def read_mapping(source: Path, *, hidden: bool = False) -> dict[str, YamlValue] | None:
    """Read a file that holds one mapping.

    Args:
        source: the file.
        hidden: whether no error shows what stands in it, which may be a secret.

    Returns:
        The mapping, with texts as keys; None where there is no such file.

    Raises:
        ConfigurationError: the file cannot be read, is not UTF-8 or not YAML, has no mapping at its top, or uses
            something outside the part of YAML described above.
    """
    data = read_file(source)
    return None if data is None else _read(data, source, _mapping, hidden=hidden)


def read_file(source: Path) -> bytes | None:
    """The bytes of a file for ``mapping_of``; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read.
    """
    return read_small_file(source, _MAX_FILE_BYTES)


def mapping_of(data: bytes, source: Path, *, may_be_empty: bool = False) -> dict[str, YamlValue]:
    """The mapping that a file's bytes are.

    Args:
        data: all of the file.
        source: the file, for errors.
        may_be_empty: whether a file without any key is a mapping too.

    Raises:
        ConfigurationError: as ``read_mapping``.
    """
    return _read(data, source, _mapping, may_be_empty=may_be_empty)


def read_nodes(source: Path) -> list[tuple[yaml.Node, yaml.Node]] | None:
    """Read a file that holds one mapping, and leave its keys and values, in their order, as the parser found them.

    Returns:
        The mapping's keys and values; None where there is no such file.

    Raises:
        ConfigurationError: as ``read_mapping``, but for what the parser alone does not see. It shows nothing that
            stands in the file, which may be a secret.
    """
    data = read_file(source)
    return None if data is None else _read(data, source, lambda node: list(node.value), hidden=True)


def _read(
    data: bytes,
    source: Path,
    convert: Callable[[yaml.MappingNode], _T],
    *,
    hidden: bool = False,
    may_be_empty: bool = False,
) -> _T:
    try:
        node = yaml.compose(data.decode(), Loader=_NodeLoader)
        if node is None and may_be_empty:
            node = yaml.MappingNode("tag:yaml.org,2002:map", [])
        if node is None:
            raise ConfigurationError("is empty", source=source, remedy="write the settings, or remove the file")
        if not isinstance(node, yaml.MappingNode):
            value = None if hidden else shown_value(_value(node))
            raise ConfigurationError("is not a mapping", source=source, value=value, remedy="write `key: value` lines")
        return convert(node)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ConfigurationError(f"line {line}: is not UTF-8", source=source, remedy="save it as UTF-8") from exc
    except ValueError as exc:  # PyYAML lets chr() complain of "\U00110000"
        raise ConfigurationError(_describe_escape(data), source=source, remedy="correct the YAML there") from exc
    except yaml.YAMLError as exc:
        # Not with its cause, whose text has a piece of the file.
        raise ConfigurationError(_describe(exc, hidden=hidden), source=source, remedy="correct the YAML there") from (
            None if hidden else exc
        )
    except RecursionError as exc:
        raise ConfigurationError("is nested too deeply", source=source, remedy="write `key: value` lines") from exc


def shown_value(value: object) -> object:
    """A value as an error shows it: cut short when a hostile or mistaken file holds a very long one."""
    text = repr(value)
    return value if len(text) <= MAX_SHOWN else printable(text, MAX_SHOWN)


class _NodeLoader(yaml.SafeLoader):
    """PyYAML's parser, without the aliases that turn a tree into a graph, and a few lines into billions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # missing in its stubs
            raise _refused("aliases (*name) are not used here; write the value out", mark)
        return super().compose_node(parent, index)


def _value(node: yaml.Node) -> YamlValue:
    """Turn a node into a value.

    Raises:
        yaml.MarkedYAMLError: something outside the part of YAML that is read here.
    """
    if isinstance(node, yaml.MappingNode):
        return _mapping(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    return _scalar(cast(yaml.ScalarNode, node))


def _mapping(node: yaml.MappingNode) -> dict[str, YamlValue]:
    result: dict[str, YamlValue] = {}
    for key_node, value_node in node.value:
        # Tensor names may look like numbers (PyTorch exports "0" and "input.1"), so a key is taken as it is written.
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refused("a key must be a plain text", key_node.start_mark)
        key = _text(key_node)
        if key in result:
            raise _refused(f"key {key[:MAX_SHOWN]!r} is given twice", key_node.start_mark)
        result[key] = _value(value_node)
    return result


def _scalar(node: yaml.ScalarNode) -> YamlValue:
    text = _text(node)
    match node.tag.removeprefix(_TAG):
        case "str":
            return text
        case "int" if _DECIMAL.fullmatch(text):
            return int(text)
        case "float" if _FRACTION.fullmatch(text):
            return float(text)
        case "bool" if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        case "null":
            return NULL
    raise _refused(f"{text[:MAX_SHOWN]!r} is not a plain decimal number or text", node.start_mark)


def _text(node: yaml.ScalarNode) -> str:
    # Escapes such as "\0" and "\ud800" would pass here, then fail where the text meets the operating system or a log.
    text: str = node.value
    if not text.isprintable():
        raise _refused(f"{text[:MAX_SHOWN]!r} has a character that cannot be printed", node.start_mark)
    return text


def _refused(problem: str, mark: yaml.Mark | None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _describe_escape(data: bytes) -> str:
    """Where the first escape is that stands for no character; the parser does not say."""
    at = next((match.start() for match in _ESCAPE.finditer(data) if int(match[1], 16) > sys.maxunicode), 0)
    line = data.count(b"\n", 0, at) + 1
    return f"line {line}: an escape \\U stands for no character"


def _describe(error: Exception, *, hidden: bool) -> str:
    """One line for PyYAML's several; its own text quotes the file over and over."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        if hidden:
            return f"line {mark.line + 1}, column {mark.column + 1}: is no YAML that is read here, or a key given twice"
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return "is no YAML" if hidden else str(error).splitlines()[0]
