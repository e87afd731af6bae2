"""The parser of the command line: argparse finds the flags and their texts, which ``settings`` reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from toutates.command.flags import ALIASES, GROUPS, LIMITS, REFUSED, Flag
from toutates.system.errors import ConfigurationError
from toutates.system.version import package_version

__all__ = ["COMMANDS", "Parser", "add_flags", "server_parser"]

#: Subcommands, each of which has a parser of its own.
COMMANDS: Final = ("probe", "check", "config")

#: How like a name has to be to be suggested, as ``difflib`` counts it.
_LIKENESS: Final = 0.7


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, like every other wrong setting, instead of under the whole usage.

    Args:
        prog: the command.
        more: what ``argparse.ArgumentParser`` takes.

    Attributes:
        commands: names of subcommands, one of which an unknown argument may have meant.
    """

    commands: Sequence[str] = ()

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, formatter_class=_Formatter, **more)

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message, remedy=f"see '{self.prog} --help'")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """As ever, but what is unknown is shown without its value: it may be a secret under a misspelt flag."""
        flags: argparse.Namespace
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [argument.partition("=")[0] for argument in unknown]
            raise ConfigurationError(f"unrecognized arguments: {' '.join(names)}", remedy=self._remedy(names))
        return flags

    def _remedy(self, names: Sequence[str]) -> str:
        """What may have been meant, by the first name that is like one that there is."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for name in names:
            near = get_close_matches(name, known if name.startswith("-") else self.commands, n=1, cutoff=_LIKENESS)
            if near:
                return f"did you mean '{near[0]}'? See '{self.prog} --help'"
        if self.commands and not names[0].startswith("-"):
            return (
                f"name a repository by --model-repository; the commands are {', '.join(self.commands)}, "
                f"see '{self.prog} --help'"
            )
        return f"see '{self.prog} --help'"


class _Formatter(argparse.HelpFormatter):
    """Texts in a column of their own, beside most flags."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **more})


class _HelpLimits(argparse.Action):
    """Prints the names of --limit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        width = max(map(len, LIMITS))
        print("--limit NAME=VALUE, where NAME is one of\n")
        for name, limit in LIMITS.items():
            print(f"  {name:{width}}  {limit.metavar:7}  {limit.help} (default: {limit.default_text})")
        print("\nThe metric toutates_limit_hits_total counts by the same names how often clients met a limit.")
        parser.exit()


def server_parser(prog: str = "toutates") -> Parser:
    """The parser of the server's flags, for a command that takes them."""
    parser = Parser(
        prog,
        usage="toutates --model-repository DIR [options]\n       toutates probe ADDR [options]\n"
        "       toutates check REPOSITORY [options]\n       toutates config MODEL_DIR [options]\n"
        "       toutates config show [options]",
        description="Serve the ONNX models of a repository to Triton's gRPC clients.",
        epilog="Each setting may also be given by an environment variable, such as TOUTATES_GRPC_ADDR for --grpc-addr, "
        "or by a key of the file that --config names, such as grpc-addr; a flag goes before a variable, and a variable "
        "before the file. "
        "'toutates config show' prints every setting and where it comes from, 'toutates config MODEL_DIR' a model's "
        "configuration; 'toutates probe' checks a running server's health, 'toutates check' a repository; see their "
        "--help. Exit codes: 0 clean end, 1 failure, 2 a setting, the repository or the installation cannot be used.",
    )
    parser.commands = COMMANDS
    parser.add_argument("--version", action="version", version=f"toutates {package_version()}")
    parser.add_argument("--help-limits", action=_HelpLimits, nargs=0, help="show the names of --limit and exit")
    for title, flags in GROUPS.items():
        add_flags(parser.add_argument_group(title), flags)
    for name in ALIASES:
        parser.add_argument(f"--{name}", action="append", help=argparse.SUPPRESS)
    for name in REFUSED:
        parser.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)
    return parser


def add_flags(parser: argparse._ActionsContainer, flags: Iterable[Flag]) -> None:
    """Give a parser flags of the table; it keeps their texts, as lists."""
    for flag in flags:
        default = f" (default: {flag.default_text})" if flag.default_text else ""
        parser.add_argument(
            f"--{flag.name}",
            action="append",
            nargs=None if flag.bare is None else "?",
            const=flag.bare,
            metavar=flag.metavar,
            help=(flag.help + default.replace("default: required", "required")).replace("%", "%%"),
        )
