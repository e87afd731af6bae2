"""``python -m toutates.command.process DESCRIPTOR``: one of several processes, which its parent starts.

DESCRIPTOR is a socket to the parent. The exit codes are those of the server.
"""

from __future__ import annotations

import signal
import socket
import sys

from toutates.system.early_signals import hold_signals

__all__ = ["main"]


def main(descriptor: int) -> int:
    """Be the process; returns its exit code."""
    hold_signals()
    # A terminal sends it to all processes; until this one listens to signals, its parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from toutates.command.main import prepare_onnxruntime
    from toutates.system.errors import ConfigurationError
    from toutates.system.interpreter import watch_gil
    from toutates.system.standard_streams import standard_streams

    watch_gil()  # before the extension modules below
    problem: ConfigurationError | None = None
    try:
        prepare_onnxruntime()
    except ConfigurationError as error:
        problem = error
    with socket.socket(fileno=descriptor) as sock, standard_streams():
        sock.set_inheritable(False)
        if problem is not None:
            from toutates.server.processes.first_words import refuse_to_start

            return refuse_to_start(sock, problem)
        from toutates.server.processes.starting import run_member

        return run_member(sock)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
