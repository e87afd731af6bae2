"""The sockets that the server listens on: one field of ``Listeners`` per flag that names an address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Final

from toutates.net.listening import bind
from toutates.server.options import Options

__all__ = ["OR_OFF", "Listeners", "open_listeners"]

OR_OFF: Final = ", or write 'off' to do without"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Sockets that are bound, and not listening yet.

    Attributes:
        grpc: one per worker; they share the port of ``--grpc-addr``.
        http: one per worker; they share the port of ``--http-addr``. Empty where that is off.
        monitoring: of ``--metrics-addr``; None where that is off.
        management: of ``--torchserve-management-addr``; None where that is off.
    """

    grpc: tuple[socket.socket, ...]
    http: tuple[socket.socket, ...]
    monitoring: socket.socket | None
    management: socket.socket | None = None


@contextmanager
def open_listeners(options: Options, workers: int) -> Iterator[Listeners]:
    """Bind every address; the sockets are closed at the end of the block.

    Args:
        options: which addresses.
        workers: how many workers will listen.

    Raises:
        ConfigurationError: an address is in use, or not of this machine.
    """
    with ExitStack() as opened:
        shared = options.shared_ports
        grpc = bind(options.grpc_addr, "--grpc-addr", sockets=workers, shared="grpc" in shared)
        for listener in grpc:
            opened.enter_context(closing(listener))
        http: list[socket.socket] = []
        if options.http_addr is not None:
            http = bind(options.http_addr, "--http-addr", sockets=workers, shared="http" in shared, otherwise=OR_OFF)
        for listener in http:
            opened.enter_context(closing(listener))
        monitoring = None
        if options.metrics_addr is not None:
            [monitoring] = bind(options.metrics_addr, "--metrics-addr", otherwise=OR_OFF)
            opened.enter_context(closing(monitoring))
        management = None
        if options.torchserve is not None and options.torchserve.management_addr is not None:
            flag = "--torchserve-management-addr"
            [management] = bind(options.torchserve.management_addr, flag, otherwise=OR_OFF)
            opened.enter_context(closing(management))
        yield Listeners(tuple(grpc), tuple(http), monitoring, management)
