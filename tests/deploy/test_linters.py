"""Linters have nothing to say of the Dockerfile and of GitHub's workflows. `make test-deploy` installs them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.support import DEPLOY, ROOT

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def lint(tool: str, *arguments: str | Path) -> None:
    path = shutil.which(tool, path=sysconfig.get_path("scripts"))
    if path is None:
        pytest.skip(f"{tool} is not installed: tests/peers.sh")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_takes_the_dockerfile() -> None:
    # One of the images is a stage with a variable in its name, which has no tag.
    lint("hadolint", "--ignore", "DL3006", DEPLOY / "Dockerfile")


def test_the_workflows_fit_githubs_schema() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)


def test_the_workflows_let_nobody_in() -> None:
    lint("zizmor", "--offline", "--no-progress", "--min-severity", "medium", *WORKFLOWS)


def test_the_workflows_build_what_there_is() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([\w-]+)", text)) <= targets
    variants = set(re.findall(r"variant: ([\w-]+)", text))
    assert variants == set(re.findall(r" AS python-([\w-]+)", (DEPLOY / "Dockerfile").read_text()))
    assert all((ROOT / name).exists() for name in re.findall(r"deploy/[\w/]+(?:\.\w+)?|\.ci/run", text))
