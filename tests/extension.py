"""An extension module without the declaration that it can run without the GIL, compiled by the test that wants it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

__all__ = ["NAME", "build_extension", "free_threaded_python", "is_free_threaded"]

NAME: Final = "wants_the_gil"

_SOURCE: Final = f"""
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{NAME}", NULL, 0, NULL}};
PyMODINIT_FUNC PyInit_{NAME}(void) {{ return PyModuleDef_Init(&module); }}
"""

_ASK: Final = (
    "import json, sysconfig; "
    "variables = map(sysconfig.get_config_var, ('EXT_SUFFIX', 'Py_GIL_DISABLED')); "
    "print(json.dumps([sysconfig.get_path('include'), *variables]))"
)


def _ask(python: str) -> tuple[str, str, bool]:
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=120)
    include, suffix, free_threaded = json.loads(done.stdout)
    return include, suffix, bool(free_threaded)


def is_free_threaded(python: str) -> bool:
    """Whether an interpreter is of the free-threaded build."""
    return _ask(python)[2]


def free_threaded_python() -> str | None:
    """An interpreter of the free-threaded build, this one or another; for sure it has the standard library alone."""
    for path in (sys.executable, os.environ.get("PYTHON314T"), shutil.which("python3.14t")):
        with suppress(OSError, subprocess.CalledProcessError):  # PATH may have a name of pyenv's without a Python
            if path and is_free_threaded(path):
                return path
    return None


def build_extension(folder: Path, python: str) -> None:
    """Compile the module for an interpreter into ``folder``; skips the test where that cannot be done."""
    include, suffix, free_threaded = _ask(python)
    compiler = shutil.which("cc")
    if compiler is None or not (Path(include) / "Python.h").is_file():
        pytest.skip("there is no C compiler, or no header files of the interpreter")
    if not free_threaded:
        pytest.skip("this interpreter always has the GIL")
    source = folder / f"{NAME}.c"
    source.write_text(_SOURCE)
    target = folder / f"{NAME}{suffix}"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(target)], check=True, timeout=120
    )
