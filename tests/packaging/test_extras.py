"""The extras of the package, and what the docs say of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What is installed to work on the server, and not to run it.
OF_DEVELOPERS = {"bench", "clients", "deploy", "dev", "dist", "examples", "fuzz", "proto", "site"}


def described(page: str) -> dict[str, str]:
    """What the tables of a page say of extras, which stand there as `[NAME]`."""
    rows = re.findall(r"^\| `\[(\w+)\]` \| (.+) \|$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "one is there twice"
    return dict(rows)


def test_every_extra_is_described() -> None:
    rows = described("docs/installing.md")
    assert set(rows) == set(PROJECT["optional-dependencies"])
    assert all(len(text) > 20 for text in rows.values())


def test_the_readme_has_the_extras_of_users() -> None:
    assert set(described("README.md")) == set(PROJECT["optional-dependencies"]) - OF_DEVELOPERS


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_the_docs_name_the_packages_of_an_extra_of_users(extra: str) -> None:
    if extra in OF_DEVELOPERS:
        return
    packages = [re.split(r"[><=\[; ]", line)[0] for line in PROJECT["optional-dependencies"][extra]]
    text = described("docs/installing.md")[extra]
    assert [name for name in packages if f"`{name}`" not in text] == []


def test_what_is_bundled_has_its_license() -> None:
    found = {path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    assert {path.name for path in found} == {"LICENSE", "NOTICE", "triton-inference-server.txt"}
    notice = (ROOT / "NOTICE").read_text()
    for path in (ROOT / "proto").glob("*.proto"):
        assert path.name in notice, "where it comes from"


def test_the_version_comes_from_git() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
