"""Ends what models have forked once the server is gone: ``python group_guard.py``, told on standard input.

A line ``+NUMBER`` adds a process group, ``-NUMBER`` takes it off. The input ends with the server, whatever its
cause: then all groups that are left are killed. The kernel ends a model's own process with the server
(``bootstrap``), but not what that has forked.
"""

import os
import signal
import sys


def main() -> None:
    """Note groups until the server ends."""
    groups = set()
    for line in sys.stdin:
        sign, group = line[0], int(line[1:])
        if sign == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass  # it is empty


if __name__ == "__main__":
    main()
