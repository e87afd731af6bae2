"""TLS by the settings: which files, which ports, and what an operator of keys and tokens may not expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toutates.command.settings import Settings
from toutates.command.triton_translation import GRPC_CERT
from toutates.server.options import TlsFiles
from toutates.system.address import Address, is_loopback, names_loopback
from toutates.system.errors import ConfigurationError

__all__ = ["plain_ways", "tls_files"]

#: A flag and the address that it gives.
_Port = tuple[str, Address]

_NEEDED: Final = {"--tls-cert": "the server's certificate", "--tls-key": "the certificate's private key"}


def tls_files(settings: Settings) -> TlsFiles | None:
    """The files of TLS; None where no port speaks it. Triton's flags are for gRPC's port alone.

    Raises:
        ConfigurationError: one is missing.
    """
    given = {f"--{name}": settings[name] for name in ("tls-cert", "tls-key", "tls-client-ca")}
    missing = [flag for flag in _NEEDED if given[flag] is None]
    if not any(given.values()) and len(missing) == len(_NEEDED):
        return None
    if missing:
        flag = next(flag for flag, value in given.items() if value is not None)
        remedy = " and ".join(f"{name} FILE, {_NEEDED[name]}" for name in missing)
        raise ConfigurationError(
            f"needs {' and '.join(missing)} too", key=flag, value=given[flag], remedy="add " + remedy
        )
    origin = settings.origin("tls-cert")
    client_ca = given["--tls-client-ca"]
    return TlsFiles(
        Path(given["--tls-cert"]),
        Path(given["--tls-key"]),
        None if client_ca is None else Path(client_ca),
        for_rest=origin is None or origin.key != GRPC_CERT,
    )


def plain_ways(settings: Settings, tls: TlsFiles | None) -> list[str]:
    """What an operator of TLS, or of keys and tokens, may not expect: ports in clear."""
    warnings = []
    if tls is not None and not tls.for_rest and (rest := [*_rest_ports(settings)]):
        warnings.append(
            f"--grpc-use-ssl is for gRPC alone, as with Triton: {_listed(rest)} speak{'' if rest[1:] else 's'} no TLS; "
            "--tls-cert and --tls-key, in the place of --grpc-server-cert and --grpc-server-key, encrypt all ports"
        )
    if settings["access-file"] is not None:
        ports = [*_plain_ports(settings, tls)]
        if settings["metrics-addr"] is not None and not settings["metrics-tls"]:
            ports.append(("--metrics-addr", settings["metrics-addr"]))
        # What comes to a loopback address leaves the machine nowhere.
        if exposed := [(flag, address) for flag, address in ports if not _is_own(address)]:
            warnings.append(
                f"--access-file: keys and tokens come in clear to {_listed(exposed)}, unless a proxy before "
                f"{'them' if exposed[1:] else 'it'} speaks TLS"
            )
    return warnings


def _rest_ports(settings: Settings) -> Iterator[_Port]:
    if settings["http-addr"] is not None:
        yield "--http-addr", settings["http-addr"]
    if settings["torchserve-api"] and settings["torchserve-management-addr"] is not None:
        yield "--torchserve-management-addr", settings["torchserve-management-addr"]


def _plain_ports(settings: Settings, tls: TlsFiles | None) -> Iterator[_Port]:
    if tls is None:
        yield "--grpc-addr", settings["grpc-addr"]
    if tls is None or not tls.for_rest:
        yield from _rest_ports(settings)


def _listed(ports: list[_Port]) -> str:
    return " and ".join(", ".join(f"{flag} {address}" for flag, address in ports).rsplit(", ", 1))


def _is_own(address: Address) -> bool:
    return is_loopback(address.host) or names_loopback(address.host)
