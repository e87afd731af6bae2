"""A host and a TCP port to listen on, and which hosts are this machine."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = [
    "INFERENCE_PORTS",
    "Address",
    "full_host_name",
    "host_of",
    "is_address",
    "is_loopback",
    "names_loopback",
    "parse_address",
]

#: The names of the ports that inference is asked for by, as flags have them: --grpc-addr and --http-addr.
INFERENCE_PORTS: Final = ("grpc", "http")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a TCP port; port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, flag: str) -> Address:
    """``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        ConfigurationError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigurationError(
            "is not an address", key=flag, value=text, remedy="write HOST:PORT, such as 0.0.0.0:8001 or [::]:8001"
        )
    return Address(host, int(port))


def is_loopback(text: str) -> bool:
    """Whether this is an IP address of this machine alone."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_address(text: str) -> bool:
    """Whether this is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def host_of(text: str) -> str:
    """The host of HOST or HOST:PORT, as of a Host header, in lower case; "" if it is neither."""
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return ""
    else:
        name = text.partition(":")[0]
    return name.lower().rstrip(".")


def names_loopback(host: str) -> bool:
    """Whether HOST or HOST:PORT, as of a Host header, means this machine by a name that nobody can point elsewhere."""
    name = host_of(host)
    return name == "localhost" or is_loopback(name)


def full_host_name() -> str:
    """The name of this machine with its domain, in lower case, as ``hostname --fqdn`` has it; "" where none is known.

    Blocks: the system may ask the network.
    """
    name = socket.gethostname().lower()
    try:
        found = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)
    except (OSError, UnicodeError):
        return ""
    full = found[0][3].lower().rstrip(".")
    return full if full.startswith(f"{name}.") else ""
