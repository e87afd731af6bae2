"""Tests from outside import nothing of the product: they hold for any Toutates that is installed (``TOUTATES``)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

#: What imports the product all the same, itself or by way of other modules of the tests. It only gets shorter.
EXCEPTIONS: Final = frozenset(
    {
        # It runs in the server, where it changes what a GPU is; no test imports it.
        "tests.e2e.bound_tensors",
        # The client that makes the load is that of ``toutates bench``.
        "tests.e2e.test_latency_target",
        "tests.e2e.test_traffic_load",
        # Emulators and registries that tests of the product's own clients have too.
        "tests.e2e.test_sources",
    }
)


def file_of(module: str) -> Path | None:
    """The file of a module of the checkout that is no part of the product."""
    if module.split(".")[0] not in ("tests", "fuzz", "bench", "examples"):
        return None
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Everything that a file imports, those inside functions too; names of modules may be names in them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, file
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def way_to_the_product(module: str) -> list[str]:
    """How a module comes to import the product: modules that import each other, the product's at the end; or none."""
    ways = [[module]]
    seen = {module}
    for way in ways:
        file = file_of(way[-1])
        for name in sorted(imports_of(file)) if file is not None else ():
            if name.split(".")[0] == "toutates":
                return [*way, name]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def test_tests_from_outside_import_nothing_of_the_product() -> None:
    files = (ROOT / "tests" / "e2e").rglob("*.py")
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    ways = {module: way for module in sorted(modules) if (way := way_to_the_product(module))}
    assert set(ways) == EXCEPTIONS, "\n".join(" -> ".join(way) for way in ways.values())
