"""A run of the tests on free-threaded Python fails if the GIL came back, and says who brought it (``conftest``)."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.extension import NAME, build_extension

if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.skip("needs a free-threaded build of Python", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, test: str, *options: str, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run one test file under the guard, with the repository's filters."""
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, *options, "-m", "pytest", "-p", "tests.conftest", "-W", "error", str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    environment.pop("PYTHON_GIL", None)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def old_fashioned(tmp_path: Path) -> Path:
    """A folder with an extension module that does not say that it can do without the GIL."""
    build_extension(tmp_path, sys.executable)
    return tmp_path


def test_a_run_without_the_gil_passes(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, "def test_it(): pass")
    assert ended.returncode == 0, ended.stdout
    assert "the GIL is on" not in ended.stdout


def test_a_module_that_switches_the_gil_on_unseen_fails_the_run_and_is_named(old_fashioned: Path) -> None:
    quiet = "import warnings\n\ndef test_it():\n    warnings.simplefilter('ignore')\n    import wants_the_gil\n"
    ended = run_pytest(old_fashioned, quiet)
    assert "1 passed" in ended.stdout
    assert f"switched the GIL on: module '{NAME}' has not declared" in ended.stdout
    assert ended.returncode == 1


def test_a_module_that_switches_the_gil_on_in_one_of_several_processes_fails_the_run(old_fashioned: Path) -> None:
    quiet = "import warnings\n\ndef test_it():\n    warnings.simplefilter('ignore')\n    import wants_the_gil\n"
    ended = run_pytest(old_fashioned, quiet, more=["-n", "2"])
    assert "1 passed" in ended.stdout
    assert f"switched the GIL on: module '{NAME}' has not declared" in ended.stdout
    assert ended.returncode == 1


def test_a_module_that_switches_the_gil_on_and_is_warned_of_fails_its_test_and_the_run(old_fashioned: Path) -> None:
    ended = run_pytest(old_fashioned, "def test_it():\n    import wants_the_gil\n")
    assert "1 failed" in ended.stdout
    assert f"enabled to load module '{NAME}'" in ended.stdout
    assert "something switched the GIL on" in ended.stdout
    assert ended.returncode == 1


def test_a_run_with_the_gil_from_the_start_fails(tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, "def test_it(): pass", "-X", "gil=1")
    assert "1 passed" in ended.stdout
    assert "PYTHON_GIL=1 or -X gil=1 did that" in ended.stdout
    assert ended.returncode == 1
