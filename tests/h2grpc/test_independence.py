"""``h2grpc`` could be a package of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toutates.h2grpc

PACKAGE = Path(toutates.h2grpc.__file__).parent
MODULES = sorted(PACKAGE.glob("**/*.py"))


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_imports_nothing_of_toutates_outside_h2grpc(module: Path) -> None:
    ours = {name for name in imported(module) if name.split(".")[0] == "toutates"}
    assert all(name.startswith("toutates.h2grpc") for name in ours)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_sockets_trio_and_clocks_stay_in_the_modules_that_drive(module: Path) -> None:
    drivers = {"worker.py", "transport.py", "tls_transport.py", "streaming.py", "inflation.py", "quiet_log.py"}
    if module.name not in drivers:
        assert not imported(module) & {"socket", "select", "threading", "time", "trio", "random", "os", "logging"}


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in toutates.h2grpc.__all__:
        assert hasattr(toutates.h2grpc, name)
    assert len(set(toutates.h2grpc.__all__)) == len(toutates.h2grpc.__all__)
