"""The tree is the architecture: which part imports which.

    cli -> server -> service -> {models, batching} -> protocol        server, service -> h2grpc

Imports are read from the source, those inside functions too, so that a rule cannot be got round by importing late.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import toutates

ROOT = Path(toutates.__file__).parent

#: Parts of the package, and the parts each may import beside itself. "toutates" is the package's own __init__.
ALLOWED: dict[str, set[str]] = {
    "toutates": set(),
    "errors": set(),
    "h2grpc": set(),
    "logs": set(),
    "access": {"errors"},
    "options": {"access", "errors", "h2grpc", "repositories", "tracing"},
    "protocol": {"errors"},
    "batching": {"errors", "protocol"},
    "models": {"errors", "protocol", "batching", "memory", "placement"},
    "repositories": {"errors", "models", "placement", "protocol"},
    "tracing": {"errors"},
    "service": {"access", "errors", "logs", "protocol", "batching", "models", "h2grpc", "tracing"},
    "metrics": {"batching", "h2grpc", "interpreter", "models", "repositories", "service"},
    "monitoring": {
        "batching",
        "errors",
        "h2grpc",
        "interpreter",
        "models",
        "options",
        "placement",
        "repositories",
        "service",
    },
    "providers": {"errors", "options", "batching"},
    "certificates": {"errors", "h2grpc", "options"},
    "probe": {"errors", "h2grpc", "options", "protocol"},
    "topology": set(),
    "placement": {"errors", "topology"},
    "interpreter": set(),
    "memory": set(),
    "standard_streams": set(),
    "startup_table": {"interpreter", "models", "placement", "protocol", "topology"},
    "server": {
        "batching",
        "certificates",
        "errors",
        "h2grpc",
        "interpreter",
        "logs",
        "memory",
        "metrics",
        "models",
        "monitoring",
        "options",
        "placement",
        "providers",
        "repositories",
        "service",
        "standard_streams",
        "startup_table",
        "topology",
        "tracing",
        "version",
    },
    "check": {"batching", "errors", "memory", "models", "options", "providers", "repositories"},
    "config_command": {"batching", "errors", "models"},
    "version": set(),
    "flags": {"errors", "logs", "options", "repositories", "tracing", "version"},
    "cli": {
        "access",
        "certificates",
        "check",
        "config_command",
        "errors",
        "flags",
        "h2grpc",
        "interpreter",
        "logs",
        "options",
        "probe",
        "repositories",
        "server",
        "standard_streams",
        "topology",
        "tracing",
    },
    "__main__": {"cli"},
}

MODULES = sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))


def part_of(name: str) -> str:
    """The part that a dotted name such as ``toutates.models.table`` belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def own_part(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem.replace("__init__", "toutates")


def imports_of(path: Path) -> Iterator[str]:
    """Full names of everything a module imports from this package; for ``from a import b``, ``a.b``."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole module"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "toutates")


def test_every_part_of_the_package_has_a_rule() -> None:
    assert {own_part(path) for path in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_its_part_may(path: Path) -> None:
    own = own_part(path)
    for name in imports_of(path):
        assert part_of(name) in ALLOWED[own] | {own}, f"{own} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_others_use_only_what_h2grpc_exports(path: Path) -> None:
    from toutates import h2grpc

    if own_part(path) != "h2grpc":
        for name in imports_of(path):
            if part_of(name) == "h2grpc":
                assert name.removeprefix("toutates.h2grpc.") in h2grpc.__all__


def test_rules_have_no_circle() -> None:
    rules = ALLOWED
    while rules:
        free = {part for part, allowed in rules.items() if not allowed & set(rules)}
        assert free, f"a circle among {sorted(rules)}"
        rules = {part: allowed for part, allowed in rules.items() if part not in free}
