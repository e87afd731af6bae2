"""A host and a TCP port to listen on."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.system.errors import ConfigurationError

__all__ = ["Address", "parse_address"]


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
