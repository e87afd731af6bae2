"""What stands on a command line, in the environment and in the file of --config."""

from __future__ import annotations

import argparse
import ast
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import toutates
from toutates.command.flags import ALIASES, FLAGS, LIMIT, LIMITS, REFUSED, variable
from toutates.command.parser import SERVERS, Parser, server_parser
from toutates.command.parsers import PARSERS
from toutates.command.settings import Settings, read_settings
from toutates.command.triton_flags import TRITON_FLAGS, effect
from toutates.command.triton_translation import PROGRAM, defaults_of
from toutates.system.errors import ConfigurationError

__all__ = ["command_lines", "server_lines", "triton_lines"]

#: The part of a help text that says what a flag is without a value.
_DEFAULT: Final = re.compile(r"\(?\bdefault(?: of each)?: ([^()]*(?:\([^()]*\)[^()]*)*)\)?$")
#: An environment variable that belongs to somebody else by its name.
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9*]+)*")


def command_lines() -> list[str]:
    """Each command, and flags of those that do not serve, as their parsers have them."""
    lines = [f"{name}  serves" for name in ("toutates", *(f"toutates {server}" for server in SERVERS))]
    for command, make in sorted(PARSERS.items()):
        lines.append(f"toutates {command}")
        lines += _flags_of(f"toutates {command}", make())
    lines.append("toutates config show  prints settings of the server")
    own = {action for action in server_parser("toutates serve", takes_path=True)._actions}
    own = {action for action in own if not _is_setting(action)}
    lines += [_flag("toutates serve", action) for action in own]
    return sorted(lines)


def _is_setting(action: argparse.Action) -> bool:
    names = [option.removeprefix("--") for option in action.option_strings]
    return any(name in (*FLAGS, *ALIASES, *TRITON_FLAGS, *REFUSED) for name in names)


def _flags_of(command: str, parser: Parser) -> Iterator[str]:
    for action in parser._actions:
        yield _flag(command, action)


def _flag(command: str, action: argparse.Action) -> str:
    """An argument: its names, value, choices and default."""
    name = ", ".join(action.option_strings) or str(action.metavar)
    parts = [f"{command} {name}"]
    if type(action).__name__ == "_Refuse":
        return f"{parts[0]}  refused"
    if action.nargs != 0 and action.option_strings:
        value = str(action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}")
        parts.append(f"[{value}]" if action.nargs == "?" else value)
    if not action.option_strings:
        parts.append("required" if action.required else "may be left out")
        if action.nargs in ("*", "+"):
            parts.append("repeatable")
    if type(action).__name__ in ("_AppendAction", "_ExtendAction"):
        parts.append("repeatable")
    if action.choices is not None:
        parts.append("one of " + ",".join(map(str, action.choices)))
    told = _DEFAULT.search((action.help or "").replace("%%", "%"))
    if told is not None:
        parts.append(f"default {told[1]}")
    elif action.default not in (None, False, "", [], argparse.SUPPRESS):
        parts.append(f"default {action.default}")
    if action.default not in (None, False, "", [], argparse.SUPPRESS) and told is not None:
        parts.append(f"parsed as {action.default!r}")
    if action.help == argparse.SUPPRESS:
        parts.append("hidden")
    return "  ".join(parts)


def server_lines() -> list[str]:
    """Each setting of the server: its flag, its variable, its key in a file, its default; and foreign variables."""
    keys = set(_keys_of_files())
    defaults = Settings({})
    lines = []
    for name, flag in FLAGS.items():
        parts = [f"--{name} {flag.metavar}", variable(name), f"key {name}" if name in keys else "no key"]
        parts += ["repeatable"] if flag.repeatable else []
        parts += [f"alone {flag.bare}"] if flag.bare is not None else []
        parts += ["one of " + ",".join(flag.words)] if flag.words else []
        parts.append(f"default {flag.default_text or 'none'}")
        if flag.default is not None:
            parts.append(f"read as {_shown(defaults[name])}")
        lines.append("  ".join(parts))
    for name, limit in LIMITS.items():
        parts = [f"--limit {name}={limit.metavar}", f"key limit.{name}", f"default {limit.default_text}"]
        parts += [f"read as {_shown(defaults[LIMIT + name])}"] if limit.default is not None else []
        lines.append("  ".join(parts))
    for name, settings in ALIASES.items():
        kept = f"key {name}" if name in keys else "no key"
        lines.append(f"--{name}  {variable(name)}  {kept}  former name of {', '.join(settings)}")
    lines += [f"--{name}  refused" for name in REFUSED]
    lines += [f"environment {name}" for name in _foreign_variables()]
    return sorted(lines)


def _shown(value: object) -> str:
    """A value without what depends on Python: floats and integers as they are, everything else as text."""
    return repr(value) if isinstance(value, str | int | float | tuple) else str(value)


def _keys_of_files() -> Iterator[str]:
    """What a file may have as a key, by reading one with every name."""
    names = [*FLAGS, *ALIASES, *(name for name in TRITON_FLAGS if name not in FLAGS)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings"
        file.write_text("".join(f"{name}: [[]]\n" for name in names))
        try:
            read_settings(argparse.Namespace(config=[str(file)]), {})
        except ConfigurationError as error:
            refused = str(error)
    return (name for name in names if f": {name}: " not in _unknown(refused))


def _unknown(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "unknown key" in line)


def _foreign_variables() -> list[str]:
    """Environment variables that the product reads by a name in its text, but for those of flags."""
    found: set[str] = set()
    for path in sorted(Path(toutates.__file__).parent.rglob("*.py")):
        text = path.read_text()
        if "environ" not in text:
            continue
        tree = ast.parse(text)
        constants = _constants(tree)
        for node in ast.walk(tree):
            found |= set(_names_read(node, constants))
    return sorted(found)


def _constants(tree: ast.Module) -> Mapping[str, Sequence[str]]:
    """Texts by the name that a module, or a loop, gives them."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        target: ast.expr | None = None
        value: ast.expr | None = None
        if isinstance(node, ast.AnnAssign):
            target, value = node.target, node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.For | ast.comprehension):
            target, value = node.target, node.iter
        if isinstance(target, ast.Name) and value is not None:
            found.setdefault(target.id, []).extend(_texts(value, found))
    return found


def _texts(node: ast.expr, constants: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names of variables that an expression comes to, or is made of; what is put into a name is shown as a star."""
    parts: Iterable[ast.expr | None] = [node]
    if isinstance(node, ast.Tuple):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.keys
    for part in parts:
        if isinstance(part, ast.Name):
            yield from constants.get(part.id, ())
            continue
        texts = part.values if isinstance(part, ast.JoinedStr) else [part]
        text = "".join(str(one.value) if isinstance(one, ast.Constant) else "*" for one in texts)
        if _VARIABLE.fullmatch(text):
            yield text


def _names_read(node: ast.AST, constants: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names in ``os.environ.get(NAME)``, ``environment[NAME]`` and ``NAME in environment``."""
    place: ast.expr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr not in ("get", "setdefault", "pop"):
            return
        place, key = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript):
        place, key = node.value, node.slice
    else:
        return
    if not ast.unparse(place).endswith(("environ", "environment")):
        return
    yield from _texts(key, constants)


#: What scripts and containers give tritonserver; shows what flags mean that are read together.
_EXAMPLES: Final = (
    "--allow-http=false",
    "--allow-metrics=false",
    "--allow-grpc=false",
    "--backend-config=onnxruntime,intra_op_thread_count=3",
    "--backend-config=onnxruntime,default-max-batch-size=4",
    "--cache-config=local,size=1024",
    "--cache-config=redis,host=here",
    "--disable-auto-complete-config",
    "--exit-timeout-secs=5",
    "--grpc-address=127.0.0.1 --grpc-port=9001",
    "--grpc-infer-response-compression-level=high",
    "--grpc-keepalive-time=7200000",
    "--grpc-use-ssl=true",
    "--http-address=127.0.0.1 --http-port=9000",
    "--http-address=127.0.0.1",
    "--id=here",
    "--log-error=false",
    "--log-info=false",
    "--log-verbose=1",
    "--log-warning=false --log-info=false",
    "--metrics-port=9002",
    "--model-config-name=mine",
    "--model-store=/models",
    "--reuse-grpc-port=true",
    "--strict-model-config=true",
    "--trace-config=mode=opentelemetry --trace-config=rate=10 --trace-config=opentelemetry,url=http://here:4318",
)


def triton_lines() -> list[str]:
    """Each flag of tritonserver with what becomes of it; and what common command lines come to."""
    lines = []
    for name, flag in TRITON_FLAGS.items():
        verdict, _ = effect(flag, FLAGS)
        parts = [f"--{name}", verdict.value]
        parts += [f"sets {flag.setting}"] if flag.setting and name not in FLAGS else []
        parts += [f"harmless {flag.harmless!r}"] if flag.harmless is not None else []
        parts += [f"alone {flag.bare}"] if flag.bare is not None and name not in FLAGS else []
        lines.append("  ".join(parts))
    lines += [f"tritonserver  default {name}={text}" for name, text in defaults_of(PROGRAM, {}).items()]
    for example in _EXAMPLES:
        lines += [f"tritonserver {example}  {outcome}" for outcome in _outcome(example)]
    return sorted(lines)


def _outcome(example: str) -> Iterator[str]:
    parser = server_parser("tritonserver")
    try:
        settings = read_settings(parser.parse_args(example.split()), {}, PROGRAM)
    except ConfigurationError as error:
        yield from (f"error {line}" for line in str(error).splitlines())
        return
    for name in (*FLAGS, *(LIMIT + limit for limit in LIMITS)):
        given = None if name == "limit" else settings.origin(name)
        if given is not None and given.kind != "default of":
            yield f"{name}={','.join(given.texts)}"
    for warning in settings.warnings:
        yield f"warning {warning}"
