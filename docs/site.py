"""Builds the site of the documentation into build/site: python docs/site.py

MkDocs wants all pages in one folder, and ours are in several: the README, the changelog, docs, and the examples. They
are gathered in build/site-pages as they lie in the checkout, so that a link on GitHub and on the site is the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["build", "gather"]

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "site-pages"
FOLDERS: Final = ("docs", "examples")
FILES: Final = ("README.md", "CHANGELOG.md", "LICENSE")


def gather(target: Path = PAGES) -> None:
    """Copy every page, and what pages show and link to, into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", *(["*.py"] if folder == "docs" else []))
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)


def build() -> None:
    """Build the site; a link that leads nowhere ends it.

    Raises:
        subprocess.CalledProcessError: MkDocs has said why.
    """
    gather()
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--clean", "--quiet"], cwd=ROOT, check=True)


if __name__ == "__main__":
    build()
