"""``python -m fuzz.attacks``: list the attacks, run one, or run all and write the table of docs/security.md."""

from __future__ import annotations

import argparse
import sys

from fuzz.attacks.registry import ATTACKS
from fuzz.attacks.runner import run_and_print


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.attacks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the attacks")
    run = commands.add_parser("run", help="attack a server; prints 'ready', and a line of JSON at the end")
    run.add_argument("name", choices=ATTACKS, metavar="NAME")
    run.add_argument("--host", default="127.0.0.1")
    run.add_argument("--port", type=int, required=True)
    run.add_argument("--seconds", type=float, default=10, help="or until SIGTERM (default: 10)")
    run.add_argument("--pause", type=float, default=0, help="seconds between two connections (default: 0)")
    report = commands.add_parser("report", help="run every attack on a server of its own, and write the table")
    report.add_argument("--seconds", type=float, default=5, help="of each attack (default: 5)")
    report.add_argument("--only", nargs="+", choices=ATTACKS, metavar="NAME", default=list(ATTACKS), help="print these")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for attack in ATTACKS.values():
            print(f"{attack.name:24}{attack.summary}")
        return 0
    if arguments.command == "run":
        run_and_print(ATTACKS[arguments.name], arguments.host, arguments.port, arguments.seconds, arguments.pause)
        return 0
    # Imported only here: an attacker's own process needs none of it.
    from fuzz.attacks.report import write_report

    return write_report(arguments.only, arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
