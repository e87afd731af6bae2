"""Programs that print the port that they listen on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["running"]

_SECONDS: Final = 120.0


@contextmanager
def running(command: list[str], announced: str, log: Path, **environment: str) -> Iterator[int]:
    """A process that prints its port, as the group of this pattern."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        assert process.stdout is not None
        port = 0
        with process.stdout as printed:
            for line in printed:
                output.write(line)
                if match := re.search(announced, line.decode(errors="replace")):
                    port = int(match[1])
                    break
            drain = threading.Thread(target=shutil.copyfileobj, args=(printed, output))
            drain.start()
            try:
                output.flush()
                assert port, log.read_text()
                yield port
            finally:
                process.kill()
                process.wait(_SECONDS)
                drain.join(_SECONDS)
