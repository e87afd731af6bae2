"""Fuzz one target with cases that coverage guides: libFuzzer, by way of atheris.

    python fuzz/guided.py NAME [libFuzzer's options and corpus folders]

``fuzz/run.py`` runs this and says what came of it. Half of the mutations are libFuzzer's, the rest put a case of the
target's own making in the place of libFuzzer's, or behind the start of it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if __name__ == "__main__":
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["toutates"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """A mutation of a case."""
        rng = random.Random(seed)
        kind = rng.randrange(4)
        if kind < 2:
            return bytes(atheris.Mutate(data, max_size))
        own = target.make_case(rng)
        if kind == 2:
            own = data[: rng.randrange(len(data) + 1)] + own[rng.randrange(len(own) + 1) :]
        return own[:max_size]

    atheris.Setup(sys.argv, target.check, custom_mutator=mutate)
    atheris.Fuzz()
