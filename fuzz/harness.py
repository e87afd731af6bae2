"""What every fuzzer's command line does: run a check on random cases until time is up, and show the case that fails."""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections.abc import Callable

__all__ = ["run"]


def run(description: str, make_case: Callable[[random.Random], bytes], check: Callable[[bytes, int], None]) -> int:
    """Check random cases for ``--seconds``; returns the exit code, 1 if a check raised anything.

    Args:
        description: for ``--help``.
        make_case: a case from a source of randomness.
        check: raises whatever it likes where the invariant breaks; gets the case, and a number to be random with.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    end = time.monotonic() + arguments.seconds
    cases = 0
    while time.monotonic() < end:
        case, number = make_case(rng), rng.randrange(2**32)
        try:
            check(case, number)
        except Exception:
            traceback.print_exc()
            print(f"seed {arguments.seed}, case {cases}, number {number}:\n{case.hex()}")
            return 1
        cases += 1
    print(f"{cases} cases, seed {arguments.seed}: the invariant holds")
    return 0
