"""What is said of the interpreter, and of a module that switches the GIL on, in interpreters of their own.

The module is a real one: C code that is compiled here, and does not declare that it can run without the GIL.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.extension import NAME, build_extension, free_threaded_python
from toutates.system.interpreter import describe_interpreter, gil_enabled, gil_problem

ROOT: Final = Path(__file__).parents[2]
FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

#: What is asked of runs on its standard library alone, so that any such interpreter will do.
PYTHON_WITHOUT: Final = free_threaded_python()

free_threaded = pytest.mark.skipif(
    PYTHON_WITHOUT is None, reason="there is no free-threaded interpreter: PYTHON314T, or python3.14t on PATH"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that holds the module."""
    path = tmp_path_factory.mktemp("extension")
    assert PYTHON_WITHOUT is not None
    build_extension(path, PYTHON_WITHOUT)
    return path


def run(
    code: str, folder: Path, *flags: str, python: str = PYTHON_WITHOUT or sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", **variables}
    return subprocess.run(
        [python, *flags, "-c", "from toutates.system.interpreter import *\n" + code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=True,
    )


LOAD: Final = f"import {NAME}\nprint(gil_enabled(), gil_problem())"
WATCH: Final = "watch_gil()\n"


def test_the_interpreter_is_described_with_version_build_and_gil() -> None:
    build = " free-threaded" if FREE_THREADED else ""
    gil = "with" if gil_enabled() else "without"
    assert describe_interpreter() == f"CPython {platform.python_version()}{build} {gil} the GIL"


@pytest.mark.skipif(FREE_THREADED, reason="this interpreter is free-threaded")
def test_a_build_with_the_gil_has_it_and_no_problem_of_it() -> None:
    assert gil_enabled()
    assert gil_problem() == ""


@free_threaded
def test_a_free_threaded_interpreter_runs_without_the_gil(tmp_path: Path) -> None:
    code = WATCH + "print(gil_enabled(), describe_interpreter(), gil_problem(), platform.python_version())"
    said, _, version = run("import platform\n" + code, tmp_path).stdout.strip().rpartition(" ")
    assert said == f"False CPython {version} free-threaded without the GIL "


@free_threaded
@pytest.mark.parametrize("flags", [(), ("-W", "ignore"), ("-W", "error")])
def test_a_module_that_switches_the_gil_on_is_named(folder: Path, flags: tuple[str, ...]) -> None:
    ended = run(WATCH + LOAD, folder, *flags)
    assert ended.stdout.startswith(f"True the GIL was switched on by module '{NAME}', which does not declare ")
    assert "supports free-threaded Python" in ended.stdout
    assert "PYTHON_GIL=0" in ended.stdout
    assert f"RuntimeWarning: The global interpreter lock (GIL) has been enabled to load module '{NAME}'" in ended.stderr


@free_threaded
def test_a_module_loaded_before_anybody_watched_is_a_problem_without_a_name(folder: Path) -> None:
    ended = run(f"import {NAME}\n" + WATCH + LOAD, folder)
    assert ended.stdout.startswith("True the GIL was switched on by a module that was loaded before the server's own")


@free_threaded
@pytest.mark.parametrize(
    ("flags", "variables", "asked"),
    [(("-X", "gil=1"), {}, "-X gil=1"), ((), {"PYTHON_GIL": "1"}, "PYTHON_GIL=1")],
)
def test_a_user_who_asked_for_the_gil_is_told_so(
    folder: Path, flags: tuple[str, ...], variables: dict[str, str], asked: str
) -> None:
    ended = run(WATCH + LOAD, folder, *flags, **variables)
    assert ended.stdout.startswith(f"True the GIL is on because {asked} asks for it")
    assert ended.stdout.endswith("start without it\n")


@free_threaded
def test_a_gil_kept_off_is_no_problem(folder: Path) -> None:
    assert run(WATCH + LOAD, folder, PYTHON_GIL="0").stdout == "False \n"


@pytest.mark.parametrize("flags", [(), ("-W", "ignore")])
def test_other_warnings_are_shown_as_before(tmp_path: Path, flags: tuple[str, ...]) -> None:
    code = "import warnings\nwarnings.warn('something else', RuntimeWarning)"
    watched = run(WATCH + code, tmp_path, *flags, python=sys.executable)
    unwatched = run("\n" + code, tmp_path, *flags, python=sys.executable)
    assert watched.stderr == unwatched.stderr
    assert ("something else" in watched.stderr) == (not flags)
