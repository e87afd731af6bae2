"""The values of all settings, and where each comes from: a flag, an environment variable, a file, or the default.

A flag overrides a variable, a variable overrides the file, and the file overrides the default. Lists such as those of
``--model-repository`` are replaced as a whole; each name of ``--limit`` is a setting of its own. Flags of tritonserver
are flags as all others, once ``triton_translation`` has made settings of them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from toutates.command.flags import ALIASES, FLAGS, LIMIT, LIMITS, OLD_LIMITS, Flag, variable
from toutates.command.triton_flags import TRITON_FLAGS
from toutates.command.triton_translation import Translation, defaults_of
from toutates.models.config.yaml_reader import read_nodes
from toutates.system.errors import ConfigurationError
from toutates.system.text import printable, shown

__all__ = ["Settings", "read_settings", "settings_of", "table", "text_of"]

#: The variable of triton-grpc-proxy-rs for the port that it listens on. It is anybody's, so it moves no port of ours.
PROXY_PORT: Final = "SERVER_PORT"
#: User and password in a URL.
_PASSWORD: Final = re.compile(r"//[^/\s]*@")


@dataclass(frozen=True, slots=True)
class _Given:
    """A setting as one source gives it.

    Attributes:
        texts: the values as they are written; several only of settings that may be repeated.
        key: the name of the setting in that source: ``--grpc-addr``, ``TOUTATES_GRPC_ADDR``, ``grpc-addr``.
        kind: of the source: "flag", "environment", "file", or "default of" for a command's own default.
        file: the file's path; None for other sources.
    """

    texts: tuple[str, ...]
    key: str
    kind: str
    file: Path | None = None

    def error(self, problem: str, value: object = None, remedy: str = "") -> ConfigurationError:
        """An error that names the setting as its source does."""
        return ConfigurationError(problem, source=self.file, key=self.key, value=value, remedy=remedy)

    def unreadable(self, text: str) -> ConfigurationError:
        """The error for a text that is not of the setting's form."""
        if self.kind == "flag":
            return ConfigurationError(f"argument {self.key}: {text}", remedy="see 'toutates --help'")
        return self.error(text, remedy="correct it there" if self.file else "correct or unset it")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.file else self.key


_Source = dict[str, _Given]


class Settings:
    """The value of every setting, by the name of its flag; of limits by ``limit.NAME``.

    Args:
        given: the settings that a source gives, by name.
        problems: what is wrong with the sources themselves.
        warnings: sentences about flags that have no effect.

    Attributes:
        warnings: as given.

    Raises:
        ConfigurationError: there are problems, or values cannot be read; with a line for each.
    """

    def __init__(
        self,
        given: Mapping[str, _Given],
        problems: Iterable[ConfigurationError] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        self.warnings = tuple(warnings)
        self._given = given
        self._values: dict[str, Any] = {}
        wrong = list(problems)
        for name, flag in _all_settings():
            found = given.get(name)
            try:
                self._values[name] = flag.default_value if found is None else _read(flag, found)
            except ConfigurationError as error:
                wrong.append(error)
        if wrong:
            # A value that sets two settings may be wrong in both.
            raise ConfigurationError("\n".join(dict.fromkeys(map(str, wrong))))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def origin(self, name: str) -> _Given | None:
        """The setting as its source gives it; None if it has its default."""
        return self._given.get(name)

    def refused(self, name: str, problem: str) -> ConfigurationError:
        """The error for a given setting whose value cannot be used."""
        return self._given[name].error(problem)

    def located(self, error: ConfigurationError) -> ConfigurationError:
        """``error``, which names a flag, with the name that the setting has in its source."""
        name = error.key.removeprefix("--")
        given = self._given.get(name)
        if given is None or given.key == error.key:
            return error
        return given.error(error.problem, error.value, error.remedy)


def read_settings(
    flags: argparse.Namespace,
    environment: Mapping[str, str],
    program: str = "",
    own_defaults: Mapping[str, str] = {},
) -> Settings:
    """Read the settings that flags, environment variables and the file of ``--config`` give.

    Args:
        flags: the parsed command line.
        environment: the variables.
        program: the command, which may have defaults of its own.
        own_defaults: such of this call, by setting.

    Raises:
        ConfigurationError: values cannot be used; with a line for each.
    """
    problems: list[ConfigurationError] = []
    warnings: list[str] = []
    given = _gathered(flags, environment, problems, warnings)
    of_program = {**defaults_of(program, _found(flags)), **own_defaults}
    defaults = {name: _Given((text,), program, "default of") for name, text in of_program.items()}
    if environment.get(PROXY_PORT) and "http-addr" not in given:
        warnings.append(
            f"{PROXY_PORT} is set and moves no port of this server: the port of REST is that of --http-addr"
        )
    return Settings(defaults | given, problems, warnings)


def text_of(name: str, flags: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """The text that is given for a setting, whatever is wrong with any of them; "" if there is none."""
    given = _gathered(flags, environment, [], []).get(name)
    return given.texts[-1] if given else ""


def _gathered(
    flags: argparse.Namespace,
    environment: Mapping[str, str],
    problems: list[ConfigurationError],
    warnings: list[str],
) -> _Source:
    given = _from_environment(environment, problems) | _from_command_line(flags, problems, warnings)
    return _from_file(given["config"], problems) | given if "config" in given else given


def settings_of(flags: argparse.Namespace) -> Settings:
    """The settings that the command line alone gives."""
    problems: list[ConfigurationError] = []
    return Settings(_from_command_line(flags, problems, []), problems)


def _found(flags: argparse.Namespace) -> dict[str, list[str]]:
    """The texts of a parsed command line, by flag."""
    return {name.replace("_", "-"): values for name, values in vars(flags).items() if isinstance(values, list)}


def _from_command_line(flags: argparse.Namespace, problems: list[ConfigurationError], warnings: list[str]) -> _Source:
    """The settings that a parsed command line gives."""
    found = _found(flags)
    of_triton = {name: values for name, values in found.items() if name in TRITON_FLAGS and name not in FLAGS}
    own = {name: _Given(tuple(values), f"--{name}", "flag") for name, values in found.items() if name not in of_triton}
    given = _resolved(own, problems)
    translation = Translation(of_triton)
    problems += translation.problems
    warnings += translation.warnings
    for setting, (texts, key) in translation.settings.items():
        twin = given.get(setting)
        if twin is None:
            given[setting] = _Given(texts, key, "flag")
        elif setting in FLAGS and FLAGS[setting].repeatable:
            given[setting] = _Given((*twin.texts, *texts), f"{twin.key} {key}", "flag")
        else:
            problems.append(ConfigurationError(f"is the same as {twin.key}", key=key, remedy="leave one of them out"))
    return given


def _from_environment(environment: Mapping[str, str], problems: list[ConfigurationError]) -> _Source:
    """The settings that environment variables give. An empty variable counts as unset."""
    given: _Source = {}
    for name in (*FLAGS, *ALIASES):
        text = environment.get(variable(name), "")
        if text:
            repeatable = name in FLAGS and FLAGS[name].repeatable
            texts = tuple(line.strip() for line in text.splitlines() if line.strip()) if repeatable else (text,)
            given[name] = _Given(texts, variable(name), "environment")
    return _resolved(given, problems)


def _from_file(config: _Given, problems: list[ConfigurationError]) -> _Source:
    """The settings that a file gives: keys are names of flags, and values are written as on the command line."""
    source = Path(config.texts[-1])
    try:
        nodes = read_nodes(source)
    except ConfigurationError as error:
        problems.append(error)
        return {}
    if nodes is None:
        problems.append(config.error("there is no such file", str(source), "create it, or correct the path"))
        return {}
    known = [name for name in (*FLAGS, *ALIASES) if name != "config"]
    given: _Source = {}
    for key, node in _entries(nodes, source, "", known, problems):
        if key == "limit" and isinstance(node, yaml.MappingNode):
            entries = _entries(node.value, source, LIMIT, list(LIMITS), problems)
            given.update(_texts({LIMIT + name: value for name, value in entries}, source, problems))
        else:
            given.update(_texts({key: node}, source, problems))
    return _resolved(given, problems)


def _entries(
    nodes: Iterable[tuple[yaml.Node, yaml.Node]],
    source: Path,
    prefix: str,
    known: Sequence[str],
    problems: list[ConfigurationError],
) -> Iterator[tuple[str, yaml.Node]]:
    """The keys of a mapping that are known, each once, and their values; the others become problems."""
    seen: dict[str, int] = {}
    for key_node, value in nodes:
        line = key_node.start_mark.line + 1
        key = shown(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
        if key in seen:
            problem = f"line {line}: is given twice, first in line {seen[key]}"
            problems.append(ConfigurationError(problem, source=source, key=prefix + key, remedy="leave one of them"))
        elif key not in known:
            old = OLD_LIMITS.get(key.replace("_", "-")) if prefix else None
            near = get_close_matches(key, known, n=1)
            meant = old.removeprefix(LIMIT) if old else near[0] if near else ""
            remedy = (
                f"did you mean '{meant}'?" if meant else "see 'toutates --help' for the names, without their dashes"
            )
            if prefix and not meant:
                remedy = f"choose from {', '.join(known)}"
            problems.append(
                ConfigurationError(f"line {line}: unknown key", source=source, key=prefix + key, remedy=remedy)
            )
        else:
            yield key, value
        seen.setdefault(key, line)


def _texts(
    nodes: Mapping[str, yaml.Node], source: Path, problems: list[ConfigurationError]
) -> Iterator[tuple[str, _Given]]:
    """The values of a file as texts."""
    for name, node in nodes.items():
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        repeatable = name in FLAGS and FLAGS[name].repeatable
        wanted = "a text or a list of texts" if repeatable else "one plain value"
        if name == "limit":
            wanted = "a mapping of names to values"
        texts = tuple(item.value for item in items if isinstance(item, yaml.ScalarNode) and _says_something(item))
        given = _Given(texts, name, "file", source)
        if texts and len(texts) == len(items) and (repeatable or node is items[0]):
            yield name, given
        else:
            line = node.start_mark.line + 1
            problems.append(
                given.error(f"line {line}: is not {wanted}", remedy=f"write {wanted}, or leave the key out")
            )


def _says_something(node: yaml.ScalarNode) -> bool:
    return node.tag != "tag:yaml.org,2002:null" and node.value.isprintable()


def _resolved(given: _Source, problems: list[ConfigurationError]) -> _Source:
    """The settings of one source, with each limit as a setting, and settings by their present names."""
    limits = given.pop("limit", None)
    for text in limits.texts if limits else ():
        assert limits is not None
        name, equals, value = text.partition("=")
        if equals and name in LIMITS:
            given[LIMIT + name] = _Given((value,), f"{limits.key} {name}", limits.kind, limits.file)
        else:
            near = get_close_matches(name, LIMITS, n=1)
            problem = "there is no such limit" if equals else "is not NAME=VALUE"
            remedy = f"did you mean '{near[0]}'?" if near and equals else f"choose from {', '.join(LIMITS)}"
            problems.append(limits.error(problem, name, remedy))
    for alias, settings in ALIASES.items():
        found = given.pop(alias, None)
        if found is None:
            continue
        for setting in settings:
            if setting in given and len(settings) == 1:
                problems.append(found.error(f"is the same as {given[setting].key}", remedy="leave one of them out"))
            given.setdefault(setting, found)
    return given


def _all_settings() -> Iterator[tuple[str, Flag]]:
    for name, flag in FLAGS.items():
        if name != "limit":
            yield name, flag
    for name, limit in LIMITS.items():
        yield LIMIT + name, limit


def _read(flag: Flag, given: _Given) -> Any:
    """Read the value of a setting.

    Raises:
        ConfigurationError: they cannot be read.
    """
    try:
        if flag.repeatable:
            return tuple(flag.read(text) for text in given.texts)
        return flag.read(given.texts[-1])
    except argparse.ArgumentTypeError as error:
        raise given.unreadable(str(error)) from None
    except ConfigurationError as error:
        raise given.error(error.problem, error.value, error.remedy) from None


def table(settings: Settings) -> str:
    """A table of every setting, its value and its source, without secrets."""
    rows = [("SETTING", "VALUE", "FROM")]
    for name, flag in _all_settings():
        given = settings.origin(name)
        if given is None:
            rows.append((name, flag.default_text, "default"))
            continue
        texts = given.texts if flag.repeatable else given.texts[-1:]
        value = _PASSWORD.sub("//***@", printable(", ".join(flag.shown(text) for text in texts)))
        rows.append((name, value, f"{given.kind} {given}"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}" for row in rows)
