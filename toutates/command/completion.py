"""``toutates completion SHELL``: a script that completes commands, flags and their values, made from the parsers.

A script is text that is ready when it is printed, so that completing starts no Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from toutates.command.flags import FLAGS, LIMITS
from toutates.command.parser import SERVERS, Parser, server_parser
from toutates.command.parsers import PARSERS

__all__ = ["SCRIPTS", "script"]

#: What a list of commands says of each.
_ABOUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "serve a model, or a repository",
        "probe": "ask a server for its health",
        "check": "say what is wrong with a repository",
        "config": "print the configuration of a model, or the settings of a server",
        "import": "make a model of a folder of sentence-transformers, or of an archive of TorchServe",
        "init": "write a repository to begin with",
        "bench": "measure a server",
        "tune": "find the best configuration of a model",
        "proto": "write the .proto files for clients",
        "completion": "print a script like this one",
    }
)
_FOLDERS: Final = ("DIR", "REPOSITORY", "MODEL_DIR")
_FILES: Final = ("FILE", "PATH", "PATHS", "HANDLER")
#: What the positional argument of a command may be beside a path.
_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"config": ("show",)})


@dataclass(frozen=True, slots=True)
class _Value:
    """What completes a value: words, or names of files or of folders; nothing of the three for free text."""

    name: str
    words: tuple[str, ...] = ()
    files: bool = False
    folders: bool = False


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag.

    Attributes:
        name: with its dashes.
        about: its help.
        value: None where it takes none.
        optional: whether the value may be left out, and stands behind an equals sign if it is not.
        repeatable: whether it may be given several times.
    """

    name: str
    about: str
    value: _Value | None
    optional: bool = False
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    """A command; ``name`` is "" for the server's flags without one. ``argument`` is what follows the command itself."""

    name: str
    flags: tuple[_Flag, ...]
    argument: _Value | None


def script(shell: str) -> str:
    """The script for a shell of ``SCRIPTS``."""
    served = SERVERS[0]
    parsers = {"": server_parser(), served: server_parser(f"toutates {served}", takes_path=True)}
    parsers |= {name: make() for name, make in PARSERS.items()}
    return SCRIPTS[shell]([_command(name, parser) for name, parser in parsers.items()])


def _command(name: str, parser: Parser) -> _Command:
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    flags = [
        _Flag(
            option,
            (action.help or "").replace("%%", "%"),
            None if action.nargs == 0 else _value(action, name, option),
            optional=action.nargs == "?",
            repeatable=option.removeprefix("--") in FLAGS and FLAGS[option.removeprefix("--")].repeatable,
        )
        for action in shown
        for option in action.option_strings
        if option.startswith("--")
    ]
    arguments = [_value(action, name) for action in shown if not action.option_strings]
    return _Command(name, tuple(flags), arguments[0] if arguments else None)


def _value(action: argparse.Action, command: str, option: str = "") -> _Value:
    name = str(action.metavar or action.dest)
    flag = FLAGS.get(option.removeprefix("--"))
    words = tuple(map(str, action.choices or ())) or (flag.words if flag is not None else ())
    if option == "--limit":
        words = tuple(f"{limit}=" for limit in LIMITS)
    elif name == "BOOL":
        words = ("true", "false")
    elif not option:
        words = words or _WORDS.get(command, ())
    return _Value(name, words, files=name in _FILES, folders=name in _FOLDERS)


# --- bash ------------------------------------------------------------------------------------------------------------


def _bash(commands: Sequence[_Command]) -> str:
    lines = [
        "# Completes toutates in bash: source <(toutates completion bash)",
        "_toutates() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command='' words='' what=''",
        # Of --flag=value bash makes three words.
        "    if [[ $cur == '=' ]]; then",
        "        cur=''",
        "    elif [[ $prev == '=' ]]; then",
        "        prev=${COMP_WORDS[COMP_CWORD-2]}",
        "    fi",
        "    COMPREPLY=()",
        "    if (( COMP_CWORD > 1 )); then",
        f"        case ${{COMP_WORDS[1]}} in {'|'.join(one.name for one in commands if one.name)})",
        "            command=${COMP_WORDS[1]} ;;",
        "        esac",
        "    fi",
        "    if (( COMP_CWORD == 1 )) && [[ $cur != -* ]]; then",
        f"        words={shlex.quote(' '.join(one.name for one in commands if one.name))}",
        "    elif [[ $cur == -* ]]; then",
        "        case $command in",
        *(
            f"            {shlex.quote(one.name)}) words={shlex.quote(' '.join(flag.name for flag in one.flags))} ;;"
            for one in commands
        ),
        "        esac",
        "    else",
        '        case "$command $prev" in',
        *_bash_values(commands),
        "            *) case $command in",
        *(
            f"                {shlex.quote(one.name)}) {_bash_value(one.argument)} ;;"
            for one in commands
            if one.argument is not None
        ),
        "            esac ;;",
        "        esac",
        "    fi",
        """    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")""",
        "    if [[ $what == files || $what == folders ]]; then",
        "        compopt -o filenames 2>/dev/null",
        "        local paths",
        '        [[ $what == files ]] && mapfile -t paths < <(compgen -f -- "$cur")',
        '        [[ $what == folders ]] && mapfile -t paths < <(compgen -d -- "$cur")',
        '        COMPREPLY+=("${paths[@]}")',
        "    fi",
        """    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null""",
        "    return 0",
        "}",
        "complete -F _toutates toutates",
    ]
    return "\n".join(lines) + "\n"


def _bash_values(commands: Iterable[_Command]) -> Iterable[str]:
    """A case for each flag that takes a value; flags alike in several commands share one."""
    cases: dict[str, list[str]] = {}
    for one in commands:
        for flag in one.flags:
            if flag.value is not None and not flag.optional:
                cases.setdefault(_bash_value(flag.value), []).append(shlex.quote(f"{one.name} {flag.name}"))
    return [f"            {'|'.join(names)}) {value} ;;" for value, names in cases.items()]


def _bash_value(value: _Value) -> str:
    what = "files" if value.files else "folders" if value.folders else ""
    return f"words={shlex.quote(' '.join(value.words))} what={shlex.quote(what)}"


# --- zsh -------------------------------------------------------------------------------------------------------------


def _zsh(commands: Sequence[_Command]) -> str:
    lines = [
        "#compdef toutates",
        "# Completes toutates in zsh: source <(toutates completion zsh), after compinit",
        "_toutates() {",
        "    local -a commands=(",
        *(f"        {shlex.quote(f'{one.name}:{_ABOUT[one.name]}')}" for one in commands if one.name),
        "    )",
        "    if (( CURRENT == 2 )) && [[ $PREFIX != -* ]]; then",
        "        _describe command commands",
        "        return",
        "    fi",
        "    case $words[2] in",
    ]
    for one in commands:
        if one.name:
            lines += [f"        ({one.name})", "            shift words", "            (( CURRENT-- ))"]
            lines += [*_zsh_arguments(one), "            ;;"]
    lines += ["        (*)", *_zsh_arguments(next(one for one in commands if not one.name)), "            ;;"]
    lines += [
        "    esac",
        "}",
        # Found by its name in fpath, the file is the function's body; sourced, it has to be made known.
        'if [[ $funcstack[1] == _toutates ]]; then _toutates "$@"; else compdef _toutates toutates; fi',
    ]
    return "\n".join(lines) + "\n"


def _zsh_arguments(command: _Command) -> list[str]:
    specs = [_zsh_flag(flag) for flag in command.flags]
    if command.argument is not None and _zsh_action(command.argument) != " ":  # which would be shown beside flags
        specs.append(f"1:{command.argument.name}:{_zsh_action(command.argument)}")
    return ["            _arguments \\"] + [
        f"                {shlex.quote(spec)}{' ' + chr(92) if number < len(specs) - 1 else ''}"
        for number, spec in enumerate(specs)
    ]


def _zsh_flag(flag: _Flag) -> str:
    about = flag.about.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    start = "*" if flag.repeatable else ""
    if flag.value is None:
        return f"{start}{flag.name}[{about}]"
    name = flag.value.name.replace(":", "\\:")
    if flag.optional:
        return f"{start}{flag.name}=-[{about}]::{name}:{_zsh_action(flag.value)}"
    return f"{start}{flag.name}=[{about}]:{name}:{_zsh_action(flag.value)}"


def _zsh_action(value: _Value) -> str:
    paths = "_files" if value.files else "_files -/" if value.folders else ""
    if value.words and paths:
        # With a space before it, no options are put behind it.
        return f" _alternative 'words:word:({' '.join(value.words)})' 'files:file:{paths}'"
    return f"({' '.join(value.words)})" if value.words else paths or " "


# --- fish ------------------------------------------------------------------------------------------------------------


def _fish(commands: Sequence[_Command]) -> str:
    names = " ".join(one.name for one in commands if one.name)
    lines = ["# Completes toutates in fish: toutates completion fish | source", "complete -c toutates -f"]
    first = "complete -c toutates -n __fish_use_subcommand"
    lines += [f"{first} -a {one.name} -d {_fish_quoted(_ABOUT[one.name])}" for one in commands if one.name]
    for one in commands:
        when = f"__fish_seen_subcommand_from {one.name}" if one.name else f"not __fish_seen_subcommand_from {names}"
        start = f"complete -c toutates -n {_fish_quoted(when)}"
        if one.argument is not None:
            lines.append(f"{start} {_fish_value(one.argument)}")
        lines += [f"{start} -l {flag.name[2:]}{_fish_flag(flag)} -d {_fish_quoted(flag.about)}" for flag in one.flags]
    return "\n".join(lines) + "\n"


def _fish_flag(flag: _Flag) -> str:
    if flag.value is None:
        return ""
    return f" {'' if flag.optional else '-r '}{_fish_value(flag.value)}"


def _fish_value(value: _Value) -> str:
    words = " ".join(value.words)
    if value.folders:
        words += " (__fish_complete_directories)"
    paths = "-F" if value.files else "-f"
    return f"{paths} -a {_fish_quoted(words.strip())}" if words else paths


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


#: What makes the script, by shell.
SCRIPTS: Final[Mapping[str, Callable[[Sequence[_Command]], str]]] = MappingProxyType(
    {"bash": _bash, "zsh": _zsh, "fish": _fish}
)
