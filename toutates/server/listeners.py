"""The sockets that the server listens on: one field of ``Listeners`` per flag that names an address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from toutates.net.listening import bind
from toutates.server.options import Options
from toutates.system.address import Address
from toutates.system.errors import ConfigurationError

__all__ = ["OR_OFF", "Listeners", "check_ports", "open_listeners"]

_ALL_HOSTS: Final = frozenset(("0.0.0.0", "::"))
OR_OFF: Final = ", or write 'off' to do without"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Sockets that are bound, and not listening yet.

    Attributes:
        grpc: one per worker; they share the port of ``--grpc-addr``.
        http: one per worker; they share the port of ``--http-addr``. Empty where that is off.
        monitoring: of ``--metrics-addr``; None where that is off.
        management: of ``--torchserve-management-addr``; None where that is off.
        claims: keep other servers from these ports until all of them listen; then it is to be closed.
    """

    grpc: tuple[socket.socket, ...]
    http: tuple[socket.socket, ...]
    monitoring: socket.socket | None
    management: socket.socket | None = None
    claims: ExitStack = field(default_factory=ExitStack)


def check_ports(options: Options) -> None:
    """See that each flag has a port of its own.

    Raises:
        ConfigurationError: two have the same.
    """
    management = None if options.torchserve is None else options.torchserve.management_addr
    named: list[tuple[str, Address]] = []
    for flag, address in (
        ("--grpc-addr", options.grpc_addr),
        ("--http-addr", options.http_addr),
        ("--metrics-addr", options.metrics_addr),
        ("--torchserve-management-addr", management),
    ):
        if address is None or not address.port:
            continue
        for other_flag, other in named:
            hosts = {address.host, other.host}
            if other.port == address.port and (len(hosts) == 1 or hosts & _ALL_HOSTS):
                raise ConfigurationError(
                    f"is the port of {other_flag}, {other}",
                    key=flag,
                    value=str(address),
                    remedy=f"give each a port of its own{OR_OFF}",
                )
        named.append((flag, address))


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
        claims = opened.enter_context(ExitStack())
        own = partial(bind, claims=claims)
        shared = options.shared_ports
        grpc = own(options.grpc_addr, "--grpc-addr", sockets=workers, shared="grpc" in shared)
        for listener in grpc:
            opened.enter_context(closing(listener))
        http: list[socket.socket] = []
        if options.http_addr is not None:
            http = own(options.http_addr, "--http-addr", sockets=workers, shared="http" in shared, otherwise=OR_OFF)
        for listener in http:
            opened.enter_context(closing(listener))
        monitoring = None
        if options.metrics_addr is not None:
            [monitoring] = own(options.metrics_addr, "--metrics-addr", otherwise=OR_OFF)
            opened.enter_context(closing(monitoring))
        management = None
        if options.torchserve is not None and options.torchserve.management_addr is not None:
            flag = "--torchserve-management-addr"
            [management] = own(options.torchserve.management_addr, flag, otherwise=OR_OFF)
            opened.enter_context(closing(management))
        yield Listeners(tuple(grpc), tuple(http), monitoring, management, claims)
