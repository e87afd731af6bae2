"""What an installer sees: Pythons, commands, packages that are required, and extras."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

__all__ = ["packaging_lines"]

PROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"
#: Extras of those who work on the product; no user installs them.
_OURS: Final = frozenset({"bench", "clients", "deploy", "dev", "dist", "fuzz", "proto", "site"})


def packaging_lines() -> list[str]:
    """What pyproject.toml promises users."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    lines = [f"python {project['requires-python']}", f"license {project['license']}"]
    lines += [f"command {name} = {target}" for name, target in project["scripts"].items()]
    lines += [f"requires {requirement}" for requirement in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in _OURS:
            lines += [f"extra {extra} requires {requirement}" for requirement in requirements]
    lines += [f"classifier {one}" for one in project["classifiers"] if "Python ::" in one or "Operating System" in one]
    for group, entries in project.get("entry-points", {}).items():
        lines += [f"entry point {group} {name} = {target}" for name, target in entries.items()]
    return sorted(lines)
