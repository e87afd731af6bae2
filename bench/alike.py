"""How often ``toutates bench --compare`` calls two servers different that are alike: a check of the comparison itself.

    python -m bench.alike [--comparisons 20]

Two servers of this checkout with the same model run at once. More than one wrong of twenty comparisons fails: of a
hundred, one is expected.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import models
from bench.servers import Server, running, toutates

__all__ = ["compare", "main"]


def compare(servers: Sequence[Server], model: str, options: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """The differences that ``toutates bench`` finds between two servers, of each figure.

    Raises:
        RuntimeError: it found none to tell of, because it could not measure.
    """
    first, second = (server.address for server in servers)
    command = [sys.executable, "-m", "toutates", "bench", first, "--model", model, "--compare", second, "--json"]
    done = subprocess.run(
        [*command, "--seed", str(seed), *options], capture_output=True, text=True, check=False, timeout=600
    )
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    differences: list[dict[str, Any]] = found.get("differences", [])
    if not differences:
        raise RuntimeError(f"toutates bench ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return differences


def main(arguments: Sequence[str]) -> int:
    """Compare, and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.alike", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=20, metavar="N", help="how many (default: 20)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each load (default: 0.3)")
    parser.add_argument("--blocks", type=int, default=4, help="of four loads, of each comparison (default: 4)")
    options = parser.parse_args(arguments)
    length = ("--seconds", f"{options.seconds:g}", "--warmup", "0.05", "--repeats", str(options.blocks))
    shape = ("--concurrency", "64", "--connections", "16", *length)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="toutates-alike-") as folder, contextlib.ExitStack() as stack:
        served = [models.mlp(Path(folder, "models"))]
        kind = toutates("toutates", "this checkout", sys.executable, ("--processing-cores", "1"))
        servers = [stack.enter_context(running(kind, served, Path(folder, name))) for name in "AB"]
        for number in range(1, options.comparisons + 1):
            found = compare(servers, served[0].name, shape, number)
            told = [
                f"{one['figure']} {one['ratio']:.3f} ({one['interval'][0]:.3f} to {one['interval'][1]:.3f})"
                for one in found
            ]
            different = [one["figure"] for one in found if one["different"]]
            wrong += bool(different)
            verdict = f"DIFFERENT in {', '.join(different)}" if different else "no difference"
            print(f"{number}: {', '.join(told)}: {verdict}", flush=True)
    allowed = max(1, options.comparisons // 20)
    print(f"{wrong} of {options.comparisons} comparisons of alike servers say that they differ; {allowed} may")
    return 0 if wrong <= allowed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
