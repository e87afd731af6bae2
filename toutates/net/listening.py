"""Sockets to listen on: bound here for every service of the server, whatever it speaks."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any, Final

from toutates.system.address import Address
from toutates.system.errors import ConfigurationError

__all__ = ["bind", "listen"]


#: Hosts that are all addresses of the machine.
_ALL: Final = ("0.0.0.0", "::")
#: Servers that may start together on one port, each on an address of its own.
_PLACES: Final = 16


def _hold(name: str) -> socket.socket:
    """Hold the name of an abstract socket: one process of a network namespace can have it.

    Raises:
        OSError: another one has it.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0toutates port {name}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # else the system has no such names, and nobody holds any
            claim.close()
            raise
    return claim


def _claim(target: Any) -> ExitStack:
    """Hold the names of an address: its own and one place of its port, or all places where it is every address.

    Raises:
        OSError: another one has them, on the same address or on one that includes it.
    """
    host, port = target[:2]
    with ExitStack() as held:
        if host in _ALL:
            for place in range(_PLACES):
                held.enter_context(_hold(f"{port} {place}"))
        else:
            held.enter_context(_hold(f"{port} {host}"))
            for place in range(_PLACES):
                try:
                    held.enter_context(_hold(f"{port} {place}"))
                    break
                except OSError:
                    if place == _PLACES - 1:
                        raise
        return held.pop_all()


def _cannot_listen(error: OSError, key: str, address: object, otherwise: str) -> ConfigurationError:
    return ConfigurationError(
        f"cannot listen: {error.strerror}",
        key=key,
        value=str(address),
        remedy="choose an address of this machine and a port that is free" + otherwise,
    )


def listen(listener: socket.socket, backlog: int) -> None:
    """Have a bound socket listen.

    Raises:
        ConfigurationError: another one listens there since it was bound.
    """
    try:
        listener.listen(backlog)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _cannot_listen(error, "", Address(host, port), "") from error


def bind(
    address: Address,
    flag: str,
    *,
    sockets: int = 1,
    shared: bool = False,
    otherwise: str = "",
    claims: ExitStack | None = None,
) -> list[socket.socket]:
    """Sockets that share an address, bound, non-blocking, and not listening yet.

    Several share their port with SO_REUSEPORT, and the kernel spreads connections among them. Where the address is of
    IPv6, '::' takes IPv4 too, as users of Triton expect.

    The kernel refuses a port where somebody listens. Two servers that start together listen later, so each holds names
    for its port meanwhile: ``claims`` gets them, to be closed once the sockets listen.

    Args:
        address: whose port may be 0; the system then chooses one, the same for all of them.
        flag: that gives the address, for errors.
        sockets: how many.
        shared: whether sockets of others may share the port too, as long as they are of the same user.
        claims: see above; None for no name.
        otherwise: what else than another address would do, to end the remedy of an error.

    Raises:
        ConfigurationError: there cannot be one. Then none is left open.
    """
    with ExitStack() as opened:
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            if sockets > 1 and address.port and not shared:
                # Otherwise SO_REUSEPORT would share the port with another server of the same user, in silence.
                with socket.socket(family, kind, protocol) as alone:
                    alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    alone.bind(target)
            claim = None
            if claims is not None and address.port and not shared:
                claim = opened.enter_context(_claim(target))
            bound: list[socket.socket] = []
            for _ in range(sockets):
                listener = opened.enter_context(socket.socket(family, kind, protocol))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if sockets > 1 or shared:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.setblocking(False)
                listener.bind(target)
                target = (*listener.getsockname()[:2], *target[2:])
                bound.append(listener)
            if claims is not None and claim is not None:
                claims.enter_context(claim)
        except OSError as error:
            raise _cannot_listen(error, flag, address, otherwise) from error
        opened.pop_all()
    return bound
