"""Choose, of many cases, the few that reach all that the many reach, and put them into a target's corpus.

    python fuzz/distil.py NAME FOLDER ... [--largest 400]

What a case reaches is the set of the lines of toutates that follow each other while it is checked. A case is kept if it
adds to what smaller ones reach. The corpus, which the suite replays and the guided fuzzer starts from, is replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.targets import CORPUS, TARGETS  # noqa: E402 - found by the path above

PACKAGE: Final = str(ROOT / "toutates")

Arc = tuple[str, int, int]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(TARGETS), metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of cases, a file each")
    parser.add_argument("--largest", type=int, default=400, help="bytes of a case that may be kept")
    arguments = parser.parse_args()
    folder = CORPUS / arguments.name
    files = [file for given in (*arguments.folders, folder) if given.is_dir() for file in given.iterdir()]
    cases = {case for case in (file.read_bytes() for file in files) if len(case) <= arguments.largest}
    reached: set[Arc] = set()
    kept: list[bytes] = []
    for case in sorted(cases, key=lambda case: (len(case), case)):
        arcs = _arcs(arguments.name, case)
        if not arcs <= reached:
            reached |= arcs
            kept.append(case)
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for case in kept:
        (folder / hashlib.sha1(case).hexdigest()[:12]).write_bytes(case)
    print(f"{len(kept)} of {len(cases)} cases, {sum(map(len, kept))} bytes, reach {len(reached)} pairs of lines")


def _arcs(name: str, case: bytes) -> set[Arc]:
    """The pairs of lines that follow each other in a function of the package."""
    arcs: set[Arc] = set()
    before: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event in ("call", "line"):
            arcs.add((frame.f_code.co_filename, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        elif event == "return":
            before.pop(frame, None)
        return trace

    sys.settrace(trace)
    try:
        TARGETS[name].check(case)
    finally:
        sys.settrace(None)
    return arcs


if __name__ == "__main__":
    main()
