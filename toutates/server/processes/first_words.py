"""What a process tells its parent, and its parent tells it, while neither runs Trio: the first word and the last."""

from __future__ import annotations

import pickle
import socket

import msgspec

from toutates.server.options import EXIT_FAILURE, EXIT_USAGE
from toutates.server.processes import messages
from toutates.server.processes.channel import HEAD_BYTES, frame_of_notice, frame_size
from toutates.server.processes.messages import Failed, Start
from toutates.system.errors import ConfigurationError

__all__ = ["read_start", "refuse_to_start", "tell_failure"]


def read_start(sock: socket.socket) -> Start | None:
    """Wait for the first word of the parent; None if it has ended."""
    head = _exactly(sock, HEAD_BYTES)
    message = None if head is None else _exactly(sock, frame_size(head))
    if message is None:
        return None
    start = pickle.loads(message)  # it is the parent's, who has started this process
    assert isinstance(start, Start)
    return start


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def tell_failure(sock: socket.socket, error: BaseException) -> None:
    """Tell the parent why this process cannot start, as its last word."""
    failed = Failed(str(error), isinstance(error, ConfigurationError))
    try:
        sock.setblocking(True)
        sock.sendall(frame_of_notice(messages.FAILED, msgspec.msgpack.encode(failed)))
    except OSError:
        pass  # it has ended


def refuse_to_start(sock: socket.socket, error: ConfigurationError) -> int:
    """Wait for the first word, and refuse; returns the exit code."""
    if read_start(sock) is None:
        return EXIT_FAILURE
    tell_failure(sock, error)
    return EXIT_USAGE
