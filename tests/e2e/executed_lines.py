"""Which lines of the product servers execute for each file of tests, for who chooses tests by it (``make mutants``).

The environment variable TOUTATES_TEST_LINES names a folder. Each server that is forked then writes its lines there,
again and again until its end, which may be SIGKILL.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from pathlib import Path
from typing import Final

import coverage

__all__ = ["VARIABLE", "executed_lines", "record_lines"]

VARIABLE: Final = "TOUTATES_TEST_LINES"
#: Seconds between two writings: what a server has executed since is lost where it is killed.
_PAUSE_S: Final = 0.5
#: In the name of a file: between folders, as a slash is in the name of a test, and before the number of the process.
_SLASH: Final = "+"
_OF_PROCESS: Final = "@"


def record_lines(folder: str) -> None:
    """In a server that was forked: write the lines that it executes from now on.

    Args:
        folder: where to.
    """
    # pytest says so in the environment, which the server has from it.
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    file = Path(folder, f"{test.replace('/', _SLASH)}{_OF_PROCESS}{os.getpid()}")
    recorder = coverage.Coverage(data_file=str(file), config_file=False, source=["toutates"])
    recorder.start()
    saving = threading.Lock()

    def save() -> None:
        with saving:
            recorder.save()

    def save_ever() -> None:
        while True:
            time.sleep(_PAUSE_S)
            save()

    threading.Thread(target=save_ever, daemon=True).start()
    atexit.register(save)


def executed_lines(folder: Path, root: Path) -> dict[tuple[str, int], set[str]]:
    """Which files of tests have had servers execute a line.

    Args:
        folder: where servers have written to.
        root: of the checkout.

    Returns:
        By file and number of the line: files of tests. All file names are those below the root.
    """
    found: dict[tuple[str, int], set[str]] = {}
    for written in sorted(folder.iterdir()):
        test, _, process = written.name.partition(_OF_PROCESS)
        if not process.isdecimal():  # a file beside the database that coverage writes
            continue
        data = coverage.CoverageData(str(written))
        try:
            data.read()
        except coverage.exceptions.DataError:
            continue  # killed while it wrote for the first time
        for path in data.measured_files():
            file = str(Path(path).relative_to(root))
            for line in data.lines(path) or ():
                found.setdefault((file, line), set()).add(test.replace(_SLASH, "/"))
    return found
