"""Runs one of several processes."""

from __future__ import annotations

import socket
from dataclasses import replace

from toutates.server.late_end import LateEnd
from toutates.server.options import EXIT_FAILURE, EXIT_USAGE
from toutates.server.processes.first_words import read_start, tell_failure
from toutates.server.processes.member import Member
from toutates.server.running import run_logged
from toutates.server.server import Server
from toutates.system.errors import ConfigurationError
from toutates.system.logs.setup import start_logs

__all__ = ["run_member"]


def run_member(sock: socket.socket) -> int:
    """Be one of several processes; returns its exit code.

    Args:
        sock: to the parent.
    """
    start = read_start(sock)
    if start is None:
        return EXIT_FAILURE
    options = start.options
    try:
        with start_logs(options.log_level, options.log_format, process=start.number) as logs:
            if start.known is not None:
                logs.only_news(start.known)
                logs = replace(logs, has_tables=False)
            member = Member(start, sock, logs)
            return run_logged(lambda: Server(options, logs, member, LateEnd(logs)).run)
    except ConfigurationError as error:
        tell_failure(sock, error)
        return EXIT_USAGE
