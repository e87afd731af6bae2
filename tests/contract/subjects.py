"""What users have, by subject: each is a file of lines beside this one, made of the product by a function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.contract.commands import command_lines, server_lines, triton_lines
from tests.contract.configuration import access_lines, config_pbtxt_lines, config_yaml_lines, traffic_lines
from tests.contract.errors import error_lines
from tests.contract.logs import format_lines
from tests.contract.packaging import packaging_lines
from tests.contract.seams import backend_lines, python_model_lines

__all__ = ["FOLDER", "LIVE", "STATIC", "all_lines", "path_of", "text_of"]

FOLDER: Final = Path(__file__).parent

#: Subjects that are read from the product itself.
STATIC: Final[Mapping[str, Callable[[], list[str]]]] = MappingProxyType(
    {
        "access-file": access_lines,
        "backend-interface": backend_lines,
        "commands": command_lines,
        "config-pbtxt": config_pbtxt_lines,
        "config-yaml": config_yaml_lines,
        "error-statuses": error_lines,
        "log-formats": format_lines,
        "packaging": packaging_lines,
        "python-models": python_model_lines,
        "server-flags": server_lines,
        "traffic-file": traffic_lines,
        "tritonserver-flags": triton_lines,
    }
)
#: Subjects that a real server, or commands, have to be asked for: ``live.observe`` makes them.
LIVE: Final = ("error-words", "exit-codes", "log", "metrics", "routes", "rpcs", "signals")

_HEAD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "access-file": "Keys of the file of --access-file: what each takes, said as of a value that fits nowhere.",
        "backend-interface": "Public names of toutates.backends.interface, which packages of backends import.",
        "commands": "Commands, and flags of those that do not serve: value, default.",
        "config-pbtxt": "Fields of config.pbtxt and what becomes of each; keys of `parameters`; backends.",
        "config-yaml": "Keys of config.yaml: what each takes, said as of a value that fits nowhere; its default.",
        "error-statuses": "Errors, and the status of each over every API; the form of errors of the APIs for text.",
        "error-words": "Questions that are refused, and the status and words that a server answers.",
        "exit-codes": "Exit codes of commands, as they end, and where they write.",
        "log": "Lines of a server's log: where it serves, and its access log.",
        "log-formats": "Levels, areas, and the same record in each format of the log; 9 stands for a digit of a time.",
        "metrics": "Metrics: type, labels, unit, when it is there; and what a scrape of a server has.",
        "packaging": "What pyproject.toml promises: Python, commands, packages, extras.",
        "python-models": "What a Python model finds in triton_python_backend_utils.",
        "routes": "Paths over HTTP by port: methods, status, media type of a request that fits where there is one.",
        "rpcs": "RPCs: status and words for a message that fits, an empty one, and one that cannot be read.",
        "server-flags": "Settings of the server: flag, variable, key of the --config file, default.",
        "signals": "Signals, what a server does on each, and what it logs.",
        "traffic-file": "Keys of the file of --traffic-file: what each takes, said as of a value that fits nowhere.",
        "tritonserver-flags": "Flags of tritonserver, what becomes of each, and what command lines come to.",
    }
)


def path_of(subject: str) -> Path:
    """The file of a subject."""
    return FOLDER / f"{subject}.txt"


def text_of(subject: str, lines: list[str]) -> str:
    """What the file of a subject has to hold."""
    return "\n".join((f"# {_HEAD[subject]} Written by `make contract`.", *lines)) + "\n"


def all_lines() -> Iterator[tuple[str, list[str]]]:
    """Each subject with its lines. A server is started for some of them."""
    from tests.contract.live import observe

    for subject, make in STATIC.items():
        yield subject, make()
    with tempfile.TemporaryDirectory() as folder:
        yield from observe(Path(folder)).items()
