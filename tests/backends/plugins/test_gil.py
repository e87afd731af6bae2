"""A backend of a package that switches the GIL on is named in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.backends.plugins.packages import ROOT, install
from tests.extension import NAME, build_extension

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
    build_extension(tmp_path, sys.executable)
    install(tmp_path, "old", "", head=f"import {NAME}")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    environment.pop("PYTHON_GIL", None)
    command = [sys.executable, "-c", LOADS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert f"the backend 'old' has switched the GIL on: the GIL was switched on by module '{NAME}'" in ended.stderr
