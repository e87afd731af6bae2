"""Fetch the model of this example: silero-vad for 16 kHz, as its package on PyPI carries it.

    python examples/voice_activity/fetch.py

The package is downloaded once, 11 MB, and never installed. The model is kept in ``~/.cache/toutates`` (or under
``XDG_CACHE_HOME``).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.packages import CACHE, file_of

#: With the SHA-256 of the only file that is accepted.
REQUIREMENT = "silero-vad==6.2.3 --hash=sha256:7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
MODEL = "silero_vad/data/silero_vad_16k_op15.onnx"
KEPT = CACHE / "silero_vad_16k-6.2.3.onnx"


def fetch() -> Path:
    """The model's graph; fetched where it is not in the cache.

    Raises:
        subprocess.CalledProcessError: pip cannot download the package.
    """
    if not KEPT.is_file():
        content = file_of(REQUIREMENT, MODEL)
        CACHE.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: two may fetch at once.
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            whole = Path(work, KEPT.name)
            whole.write_bytes(content)
            os.replace(whole, KEPT)
    return KEPT


if __name__ == "__main__":
    print(fetch())
