"""Stress a server of several workers with clients of every manner, for as long as you like.

Invariant: that of ``tests/e2e/stress.py``. A request is answered under its own id with what ONNX Runtime makes of its
rows, or fails as its client asked for; whenever the storm pauses, rings, connections and counters show nothing of it.

    python fuzz/stress_workers.py [--seconds 60] [--workers 4] [--clients 12] [--python PATH] [--seed N]

Needs tritonclient; ``--python`` names another interpreter for the server, such as a free-threaded one. What breaks the
invariant is printed with the seed, and the end of the server's log. The seed settles what each client sends, not in
which order the threads run: repeat it with several ``--seconds`` and ``--workers``.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

#: The storm pauses so often, to see that it leaves nothing behind.
STORM_SECONDS = 10.0


def main() -> int:
    """Run the command line; returns the exit code, 1 if the invariant broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=4, help="of the server")
    parser.add_argument("--clients", type=int, default=12, help="connections at a time")
    parser.add_argument("--python", default=sys.executable, help="the server's interpreter")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    # The tests' server takes its interpreter from here, when their module is imported.
    os.environ["TOUTATES_SERVER_PYTHON"] = arguments.python
    with tempfile.TemporaryDirectory() as folder:
        try:
            return stress(arguments, Path(folder))
        except Exception:
            traceback.print_exc()
            log = (Path(folder) / "log").read_text(errors="replace")
            print(f"seed {arguments.seed}; the end of the server's log:\n{log[-4000:]}")
            return 1


def stress(arguments: argparse.Namespace, folder: Path) -> int:
    """Storms with pauses between them until time is up; raises what breaks the invariant."""
    from tests.e2e.process import FRESH, running
    from tests.e2e.stress import MODELS, Storm, build_kinds

    models = folder / "models"
    models.mkdir()
    kinds = build_kinds(models, arguments.seed)
    flags = ["--load-models", ",".join(MODELS), "--processing-cores", str(arguments.workers)]
    end = time.monotonic() + arguments.seconds
    with running(models, folder, flags, FRESH) as server:
        storm = Storm(server, kinds, arguments.seed, arguments.clients)
        while (left := end - time.monotonic()) > 0:
            storm.rage(min(left, STORM_SECONDS))
            storm.check_calm()
        exit_code = server.stop()
        assert exit_code == 0, f"the server ended with {exit_code}"
    for model, tally in storm.tallies.items():
        print(f"{model}: {tally}")
    print(f"seed {arguments.seed}: the invariant holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
