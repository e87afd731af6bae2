"""Whether the server under test can do without the GIL, and whether it did."""

from __future__ import annotations

import subprocess
from functools import cache

from tests.e2e.process import PYTHON, ServerProcess

__all__ = ["assert_ran_without_gil", "is_free_threaded"]


@cache
def is_free_threaded() -> bool:
    """Whether the interpreter that serves is a free-threaded build."""
    ask = "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    ended = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, timeout=120, check=True)
    return ended.stdout.strip() == "1"


def assert_ran_without_gil(server: ServerProcess) -> None:
    """On a free-threaded build, the GIL was off at the start, and nothing has switched it on since, of which Python
    would have warned; elsewhere there is nothing to see."""
    if is_free_threaded():
        assert "without the GIL" in server.log
        assert "global interpreter lock" not in server.log
