"""The tree is the architecture: which room imports which, and that no module imports itself by way of others.

Imports are read from the source, those inside functions and for type checkers too, so that a rule cannot be got round
by importing late.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import toutates

ROOT = Path(toutates.__file__).parent

#: Rooms of the package, and those each may import beside itself; from top to bottom. "toutates" is the package's own
#: __init__.
ALLOWED: dict[str, set[str]] = {
    "__main__": {"command"},
    # A client: it has messages, their errors, types of tensors and the names of gRPC's statuses.
    "bench": {"h2grpc", "protocol", "system"},
    "command": {
        "access",
        "api",
        "backends",
        "bench",
        "h2grpc",
        "infer",
        "models",
        "net",
        "protocol",
        "repositories",
        "server",
        "system",
        "tune",
    },
    # A user of the client; models and their configuration are the command's.
    "tune": {"bench", "protocol", "system"},
    "server": {
        "access",
        "api",
        "backends",
        "h2grpc",
        "infer",
        "models",
        "net",
        "observe",
        "protocol",
        "repositories",
        "system",
    },
    # It makes copies of other processes' models, and so of their signatures.
    "observe": {
        "access",
        "api",
        "engine",
        "h2grpc",
        "http1",
        "infer",
        "models",
        "net",
        "protocol",
        "repositories",
        "system",
    },
    # Of the backends it has what an API needs of a text model (``backends.text.interface``).
    "api": {
        "access",
        "backends",
        "engine",
        "h2grpc",
        "http1",
        "infer",
        "models",
        "net",
        "protocol",
        "repositories",
        "system",
    },
    "infer": {"access", "engine", "models", "net", "protocol", "system"},
    "backends": {"engine", "models", "protocol", "system"},
    # Its file is read as those of models are.
    "access": {"models", "system"},
    "repositories": {"models", "protocol", "system"},
    "models": {"engine", "protocol", "system"},
    "engine": {"protocol", "system"},
    "protocol": {"system"},
    # It drives both protocols. The machine lies below its driver: addresses, errors, the limit of log lines.
    "net": {"h2grpc", "http1", "system"},
    "h2grpc": set(),
    "http1": set(),
    "system": set(),
    "toutates": set(),
}

#: Rooms and modules that a newcomer finds in the package.
MOST_ENTRIES = 19

#: Rooms that are bytes only, and what these must not import.
SANS_IO = {"h2grpc", "http1"}
IO_MODULES = {"asyncio", "logging", "os", "random", "select", "selectors", "socket", "ssl", "threading", "time", "trio"}

#: The folder of functions that every transport calls, and what these must not import.
DATA_PLANE = ROOT / "api" / "dataplane"
TRANSPORTS = ("toutates.api.grpc", "toutates.h2grpc", "toutates.net")

#: Rooms in which modules still import each other, for type checkers.
CIRCLES: set[str] = set()

MODULES = sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))
KNOWN = frozenset(MODULES)


def room_of(name: str) -> str:
    """The room that a dotted name such as ``toutates.models.table`` belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def own_room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem.replace("__init__", "toutates")


@cache
def all_imports_of(path: Path) -> tuple[str, ...]:
    """Full names of everything a module imports; for ``from a import b``, ``a.b``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole module"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def imports_of(path: Path) -> list[str]:
    """Of what a module imports, what is of this package."""
    return [name for name in all_imports_of(path) if name.split(".")[0] == "toutates"]


def modules_imported(path: Path) -> set[Path]:
    """The modules of this package that one imports, itself left out."""
    found = set()
    for name in imports_of(path):
        for dotted in (name, name.rpartition(".")[0]):
            parts = dotted.split(".")[1:]
            file = ROOT.joinpath(*parts).with_suffix(".py") if parts else ROOT
            if file in KNOWN:
                found.add(file)
                break
    return found - {path}


def test_every_room_has_a_rule() -> None:
    assert {own_room(path) for path in MODULES} == set(ALLOWED)
    assert len(ALLOWED) <= MOST_ENTRIES


def test_modules_import_only_what_their_room_may() -> None:
    for path in MODULES:
        own = own_room(path)
        for name in imports_of(path):
            assert room_of(name) in ALLOWED[own] | {own}, f"{path}: {own} must not import {name}"


def test_others_use_only_what_h2grpc_exports() -> None:
    from toutates import h2grpc

    for path in MODULES:
        if own_room(path) not in ("h2grpc", "net"):  # which drives it
            names = {name.removeprefix("toutates.h2grpc.") for name in imports_of(path) if room_of(name) == "h2grpc"}
            assert names <= set(h2grpc.__all__), path


def test_protocol_cores_have_no_sockets_clocks_or_threads() -> None:
    for path in MODULES:
        if own_room(path) in SANS_IO:
            assert not {name.partition(".")[0] for name in all_imports_of(path)} & IO_MODULES, path


def test_the_data_plane_knows_no_transport() -> None:
    for path in DATA_PLANE.glob("*.py"):
        assert not [name for name in imports_of(path) if name.startswith(TRANSPORTS)], path


def test_rooms_have_no_circle() -> None:
    rules: Mapping[str, set[str]] = ALLOWED
    while rules:
        free = {room for room, allowed in rules.items() if not allowed & set(rules)}
        assert free, f"a circle among {sorted(rules)}"
        rules = {room: allowed for room, allowed in rules.items() if room not in free}


def test_modules_have_no_circle() -> None:
    left = {path: modules_imported(path) for path in MODULES if own_room(path) not in CIRCLES}
    while left:
        free = {path for path, imported in left.items() if not imported & set(left)}
        assert free, f"a circle among {sorted(str(path.relative_to(ROOT)) for path in left)}"
        left = {path: imported for path, imported in left.items() if path not in free}
