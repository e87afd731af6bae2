"""Where a server is and how it is spoken to: read from a URL."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from toutates.system.address import Address, parse_address
from toutates.system.errors import ConfigurationError

__all__ = ["GRPC", "HTTP", "Endpoint", "Tls", "parse_endpoint"]

GRPC: Final = "grpc"
HTTP: Final = "http"

#: Of a URL's scheme: the protocol, and whether by TLS.
_SCHEMES: Final = {
    "grpc": (GRPC, False),
    "grpcs": (GRPC, True),
    "http": (HTTP, False),
    "https": (HTTP, True),
}
#: Triton's ports.
_PORTS: Final = {GRPC: 8001, HTTP: 8000}
#: How TLS names the protocols (RFC 7301).
_ALPN: Final = {GRPC: "h2", HTTP: "http/1.1"}


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server is known, and how the client is.

    Attributes:
        ca: file of authorities to trust (PEM); "" for the system's.
        cert, key: the client's own certificate and key (PEM); "" for none.
        server_name: in the server's certificate; "" for the host of the URL.
        verify: whether the certificate has to be trusted and to have the name.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    verify: bool = True

    def context(self, protocol: str) -> ssl.SSLContext:
        """For connections of a protocol.

        Raises:
            ConfigurationError: a file cannot be used.
        """
        with _refused("--tls-ca", self.ca):
            context = ssl.create_default_context(cafile=self.ca or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            # Each is opened first: OpenSSL does not say which of the two it cannot use.
            for flag, name in (("--tls-cert", self.cert), ("--tls-key", self.key or self.cert)):
                with _refused(flag, name), open(name, "rb"):
                    pass
            with _refused("--tls-cert", f"{self.cert} with {self.key}" if self.key else self.cert):
                context.load_cert_chain(self.cert, self.key or None)
        context.set_alpn_protocols([_ALPN[protocol]])
        return context


@contextlib.contextmanager
def _refused(flag: str, name: str) -> Iterator[None]:
    """A block that uses the file of a flag.

    Raises:
        ConfigurationError: it cannot be used.
    """
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"cannot be used: {error.strerror or error}", key=flag, value=name) from None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address with a protocol.

    Attributes:
        protocol: GRPC or HTTP.
        host, port: of the server.
        tls: None for plaintext.
    """

    protocol: str
    host: str
    port: int
    tls: Tls | None = None

    @property
    def authority(self) -> str:
        """``host:port``, as requests name the server."""
        return str(Address(self.host, self.port))

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.tls else ''}://{self.authority}"


def parse_endpoint(text: str, protocol: str = "", tls: Tls | None = None, flag: str = "URL") -> Endpoint:
    """Read ``[grpc|grpcs|http|https://]HOST[:PORT]``.

    Args:
        text: as it was given.
        protocol: of a text without a scheme; "" for gRPC.
        tls: used where the scheme asks for TLS, or there is none.
        flag: which said so, for errors.

    Raises:
        ConfigurationError: it is none, or its scheme is another one than ``protocol``.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = protocol or GRPC, text
        secure = tls is not None
    elif scheme in _SCHEMES:
        secure = _SCHEMES[scheme][1]
        if tls is not None and not secure:
            raise ConfigurationError(
                "has no TLS", key=flag, value=text, remedy=f"write {scheme}s://, or leave the flags of TLS out"
            )
    else:
        raise ConfigurationError(
            "has an unknown scheme",
            key=flag,
            value=text,
            remedy="write HOST:PORT, grpc://, grpcs://, http:// or https://",
        )
    spoken = _SCHEMES[scheme][0]
    if protocol and spoken != protocol:
        raise ConfigurationError(f"is not the protocol {protocol}", key=flag, value=text, remedy="name it once")
    host, _, path = rest.partition("/")
    if path:
        raise ConfigurationError(
            "has a path", key=flag, value=text, remedy="name the server alone; paths are those of the v2 protocol"
        )
    if not host.rpartition(":")[2].isdigit() or host.endswith("]"):
        host += f":{_PORTS[spoken]}"
    address = parse_address(host, flag)
    if address.port == 0:
        raise ConfigurationError("has no port to connect to", key=flag, value=text)
    return Endpoint(spoken, address.host, address.port, (tls or Tls()) if secure else None)
