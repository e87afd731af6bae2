"""``python -m fuzz.soak``: run the soak, print its account, and end with 1 if the server did not pass.

Invariant: every request is answered with what ONNX Runtime makes of it, or refused with a status that it may have, or
given up by its client; none is lost. Afterwards the server has no more files and threads than at the start, but for
those that are opened or started when they are first needed (two threads of each worker, and two of the server). Its
memory, the least of the last third of the rounds, is no more than once every attack had been made, after five minutes
or so, but for 10 % and 24 MiB. With ``--only`` one sort of clients comes alone, and memory is compared with that of the
first half of the time.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.page import replace_between

_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_BEGIN: Final = "<!-- begin of what `make soak` writes -->\n"
_END: Final = "<!-- end of what `make soak` writes -->\n"


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1, help="default: 1")
    parser.add_argument("--workers", type=int, default=2, help="of the server (default: 2)")
    parser.add_argument("--clients", type=int, default=6, help="connections of the storm (default: 6)")
    parser.add_argument("--python", default=sys.executable, help="the server's interpreter (default: this one)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", metavar="CLIENTS", default="", help="one sort, such as 'texts of any length'")
    parser.add_argument("--write", action="store_true", help="write the account into docs/reliability.md")
    arguments = parser.parse_args()
    # The tests' server takes its interpreter from here, when their module is imported.
    os.environ["TOUTATES_SERVER_PYTHON"] = arguments.python
    from fuzz.soak.clients import clients
    from fuzz.soak.soak import Plan, soak

    if arguments.only and arguments.only not in clients():
        parser.error(f"--only: there is no '{arguments.only}'; there are: {', '.join(clients())}")
    plan = Plan(arguments.minutes * 60, arguments.workers, arguments.clients, arguments.seed, arguments.only)
    with tempfile.TemporaryDirectory() as folder:
        account = soak(plan, Path(folder))
    section = account.markdown(_heading(arguments))
    print(section)
    if arguments.write and not arguments.only and not account.verdict():
        write(section)
    return int(bool(account.verdict()))


def _heading(arguments: argparse.Namespace) -> str:
    from tests.e2e.free_threading import is_free_threaded

    build = "free-threaded" if is_free_threaded() else "with the GIL"
    return (
        f"{arguments.minutes:g} minutes on {datetime.date.today()}, {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"{arguments.workers} workers, Python {build}, seed {arguments.seed}."
    )


def write(section: str) -> None:
    """Replace the account in the page."""
    _PAGE.write_text(replace_between(_PAGE.read_text(), _BEGIN, _END, f"\n{section}\n"))


if __name__ == "__main__":
    sys.exit(main())
