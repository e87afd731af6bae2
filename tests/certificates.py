"""Certificates of the tests: authorities and what they issue, made anew in each run."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

__all__ = ["AUTHORITY", "EXPIRED", "SERVER_NAME", "STRANGER", "Files", "client_context", "issue"]

SERVER_NAME: Final = "triton.test"
#: The one that servers and clients of the tests trust, and one that they do not.
AUTHORITY: Final = trustme.CA()
STRANGER: Final = trustme.CA()
#: An end of validity that has passed.
EXPIRED: Final = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate with its chain, its key, and the authority's certificate, as PEM files."""

    cert: Path
    key: Path
    ca: Path

    def server_flags(self, *, mutual: bool = False) -> list[str]:
        """The server's flags; ``mutual`` wants certificates of the same authority from clients."""
        flags = ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]
        return [*flags, "--tls-client-ca", str(self.ca)] if mutual else flags


def issue(
    folder: Path,
    name: str = "server",
    *,
    authority: trustme.CA = AUTHORITY,
    expires: datetime.datetime | None = None,
    key_type: trustme.KeyType = trustme.KeyType.ECDSA,
) -> Files:
    """A new certificate for ``SERVER_NAME`` and the loopback addresses, good for servers and clients."""
    not_before = None if expires is None else min(expires, EXPIRED) - datetime.timedelta(days=1)
    leaf = authority.issue_cert(
        SERVER_NAME, "localhost", "127.0.0.1", "::1", not_before=not_before, not_after=expires, key_type=key_type
    )
    files = Files(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.ca")
    files.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    files.key.write_bytes(leaf.private_key_pem.bytes())
    files.ca.write_bytes(authority.cert_pem.bytes())
    return files


def client_context(certificate: Files | None = None, *, alpn: tuple[str, ...] = ("h2",)) -> ssl.SSLContext:
    """A client that trusts ``AUTHORITY``, with a certificate of its own or without."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    if certificate is not None:
        context.load_cert_chain(certificate.cert, certificate.key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context
