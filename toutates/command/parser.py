"""The parser of the command line: argparse finds the flags and their texts; ``settings`` turns these into values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from toutates.command.flags import ALIASES, FLAGS, GROUPS, LIMITS, REFUSED, Flag
from toutates.command.triton_flags import TRITON_FLAGS
from toutates.command.triton_translation import PROGRAM
from toutates.system.errors import ConfigurationError
from toutates.system.version import package_version

__all__ = ["COMMANDS", "SERVERS", "Parser", "add_flags", "server_parser"]

#: Subcommands that serve, as the command without one does.
SERVERS: Final = ("serve", PROGRAM)

#: Subcommands, each of which has a parser of its own.
COMMANDS: Final = ("probe", "check", "config", "import", "init", "bench", "tune", "proto", "completion")

#: Least similarity of a name that is suggested, from 0 to 1 (``difflib.get_close_matches``).
_LIKENESS: Final = 0.7


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that reports a mistake as a ConfigurationError of one line, without the usage.

    Args:
        prog: the command.
        more: further arguments of ``argparse.ArgumentParser``.

    Attributes:
        commands: names of subcommands, which are suggested for an unknown argument like one of them.
    """

    commands: Sequence[str] = ()

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog=prog, allow_abbrev=False, formatter_class=_Formatter, **more)

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message, remedy=f"see '{self.prog} --help'")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse as ``ArgumentParser`` does; unknown flags are shown without their values, which may be secrets."""
        flags: argparse.Namespace
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [argument.partition("=")[0] for argument in unknown]
            raise ConfigurationError(f"unrecognized arguments: {' '.join(names)}", remedy=self._remedy(names))
        return flags

    def _remedy(self, names: Sequence[str]) -> str:
        """What to do about unknown arguments: the known name that one of them resembles, or the help."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for name in names:
            near = get_close_matches(name, known if name.startswith("-") else self.commands, n=1, cutoff=_LIKENESS)
            if near:
                return f"did you mean '{near[0]}'? See '{self.prog} --help'"
        if self.commands and not names[0].startswith("-"):
            if self.prog != "toutates":
                return f"there is one PATH; see '{self.prog} --help'"
            return (
                f"serve a model by 'toutates serve {names[0]}', or name a repository by --model-repository; "
                f"the commands are {', '.join(self.commands)}, see '{self.prog} --help'"
            )
        return f"see '{self.prog} --help'"


class _Formatter(argparse.HelpFormatter):
    """A formatter whose column of help texts begins far enough to the right for most flags."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **more})


class _HelpLimits(argparse.Action):
    """The action of --help-limits: prints the names of --limit and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        width = max(map(len, LIMITS))
        print("--limit NAME=VALUE sets one of these limits:\n")
        for name, limit in LIMITS.items():
            print(f"  {name:{width}}  {limit.metavar:7}  {limit.help} (default: {limit.default_text})")
        print("\nThe metric toutates_limit_hits_total counts by the same names how often clients met a limit.")
        parser.exit()


def server_parser(prog: str = "toutates", *, takes_path: bool = False) -> Parser:
    """The parser of all flags of the server.

    Args:
        prog: the command.
        takes_path: whether it is ``serve``, which may be told one model by its path.
    """
    parser = Parser(
        prog,
        usage="toutates serve PATH [--name NAME] [options]\n"
        "       toutates [serve] --model-repository DIR [options]\n       toutates probe ADDR [options]\n"
        "       toutates check REPOSITORY [options]\n       toutates config MODEL_DIR [options]\n"
        "       toutates config show [options]\n       toutates import PATH [options]\n"
        "       toutates init DIR [options]\n       toutates tune MODEL_DIR [options]\n"
        "       toutates proto DIR\n       toutates completion SHELL",
        description="Serve the ONNX models of a repository to Triton's gRPC clients.",
        epilog="Each flag can also be given by an environment variable, such as TOUTATES_GRPC_ADDR for --grpc-addr, or "
        "by a key of the file that --config names, such as grpc-addr. A flag overrides a variable, and a variable "
        "overrides the file. Flags of tritonserver, such as --model-store and --grpc-port, are taken too; "
        "docs/migrating-from-triton.md lists them. 'toutates config show' prints every setting and where it comes "
        "from; 'toutates config MODEL_DIR' prints a model's configuration; 'toutates check' checks a repository; "
        "'toutates probe' checks the health of a running server; 'toutates import' makes a model of a folder of "
        "sentence-transformers or of an archive of TorchServe; 'toutates init' writes a repository to begin with; "
        "'toutates tune' finds a model's best configuration; 'toutates proto' writes the .proto files for clients; "
        "'toutates completion' prints a script for a shell. Each of them has a --help. Exit codes: 0 clean end, 1 "
        "failure, 2 a setting, the repository or the installation cannot be used.",
    )
    parser.commands = (SERVERS[0], *COMMANDS)
    if takes_path:
        parser.add_argument(
            "path",
            metavar="PATH",
            nargs="?",
            help="serve this file or folder, KEY.onnx of s3://, gs://, as:// or https://, hf://ORG/MODEL, "
            "oci://REGISTRY/REPO:TAG, or a whole repository",
        )
        parser.add_argument(
            "--name",
            dest="model_name",
            action="append",
            metavar="NAME",
            help="serve the model of PATH by this name (default: that of the file or folder)",
        )
    parser.add_argument("--version", action="version", version=f"toutates {package_version()}")
    parser.add_argument("--help-limits", action=_HelpLimits, nargs=0, help="show the names of --limit and exit")
    for title, flags in GROUPS.items():
        add_flags(parser.add_argument_group(title), flags)
    for name in ALIASES:
        parser.add_argument(f"--{name}", action="append", help=argparse.SUPPRESS)
    for name, flag in TRITON_FLAGS.items():
        if name not in FLAGS:
            nargs = None if flag.bare is None else "?"
            parser.add_argument(f"--{name}", action="append", nargs=nargs, const=flag.bare, help=argparse.SUPPRESS)
    for name in REFUSED:
        parser.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)
    return parser


def add_flags(parser: argparse._ActionsContainer, flags: Iterable[Flag]) -> None:
    """Add flags of the table to a parser, which keeps the texts of their values as lists."""
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
