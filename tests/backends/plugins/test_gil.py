"""A backend of a package that switches the GIL on is named in the log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.backends.plugins.packages import ROOT, install
from tests.test_gil_guard import EXTENSION

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded build of Python"
)

LOADS = """
import logging
from toutates.system.interpreter import watch_gil
watch_gil()
logging.basicConfig()
from toutates.backends.plugins.catalogue import Catalogue
from toutates.backends.plugins.importing import import_backend
import_backend("old", Catalogue())
"""


def test_it_is_named_with_the_module_that_did_it(tmp_path: Path) -> None:
    compiler, include = shutil.which("cc"), sysconfig.get_paths()["include"]
    if compiler is None or not (Path(include) / "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    source = tmp_path / "old_fashioned.c"
    source.write_text(EXTENSION)
    target = tmp_path / f"old_fashioned{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, "-shared", "-fPIC", "-I", include, source, "-o", target], check=True, timeout=120)
    install(tmp_path, "old", "", head="import old_fashioned")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    environment.pop("PYTHON_GIL", None)
    command = [sys.executable, "-c", LOADS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert (
        "the backend 'old' has switched the GIL on: the GIL was switched on by module 'old_fashioned'" in ended.stderr
    )
