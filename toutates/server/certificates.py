"""Makes TLS contexts of files with certificates and keys. Errors name the flag of the file and a remedy."""

from __future__ import annotations

import codecs
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from toutates.net import describe_tls_error, harden_tls
from toutates.server.options import TlsFiles
from toutates.server.replaced_files import ReplacedFiles
from toutates.system.errors import ConfigurationError

__all__ = ["ServerCertificate", "ServerTls", "client_context", "load_server_tls"]

logger = logging.getLogger(__name__)

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]++-----END CERTIFICATE-----")
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
#: OpenSSL's errors for a key that belongs to another certificate: one of another kind, or of the same.
_MISMATCHES: Final = ("KEY_TYPE_MISMATCH", "KEY_VALUES_MISMATCH")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS contexts of a server.

    Attributes:
        contexts: one per worker, which alone uses it.
        valid_until: end of the certificate's validity, as OpenSSL writes it; "" if it is not valid, see ``warning``.
        warning: why clients will refuse the certificate, or "".
        names: of hosts that the certificate is for; none if it is not valid.
    """

    contexts: tuple[ssl.SSLContext, ...]
    valid_until: str
    warning: str
    names: tuple[str, ...]


def load_server_tls(files: TlsFiles, count: int) -> ServerTls:
    """Make the contexts of ``count`` workers, all or none.

    Raises:
        ConfigurationError: a file cannot be read or used, or certificate and key do not belong together.
    """
    contexts = tuple(_server_context(files) for _ in range(count))
    rehearsal = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden_tls(rehearsal)
    _load_certificate(rehearsal, files.cert, files.key, "--tls-cert", "--tls-key")
    return ServerTls(contexts, *_rehearse(rehearsal, files))


class ServerCertificate:
    """The server's certificate: loaded at the start, and again whenever its files are replaced. For the main thread.

    Args:
        files: paths of certificate, key and authorities; None serves plaintext.
        workers: number of contexts.
        on_change: takes the new contexts after each reload.

    Attributes:
        contexts: one per worker; none for plaintext.
        for_monitoring: that of the HTTP side, which speaks HTTP/1.1 only; None for plaintext.
        names: of hosts that the certificate is for; none for plaintext.
        files: to be watched; none for plaintext.

    Raises:
        ConfigurationError: see ``load_server_tls``.
    """

    def __init__(
        self,
        files: TlsFiles | None,
        workers: int,
        on_change: Callable[[Sequence[ssl.SSLContext]], object] = lambda contexts: None,
    ) -> None:
        self.contexts: tuple[ssl.SSLContext, ...] = ()
        self.for_monitoring: ssl.SSLContext | None = None
        self.names: tuple[str, ...] = ()
        self._files = files
        self._workers = workers
        self._on_change = on_change
        self.files: list[ReplacedFiles] = []
        if files is not None:
            paths = [path for path in (files.cert, files.key, files.client_ca) if path is not None]
            kept = "the certificate loaded before stays in use"
            # Before the files are read: those that change meanwhile are read again.
            self.files = [ReplacedFiles(lambda: paths, self.reload, kept)]
            self._load(files)

    def reload(self) -> None:
        """Read the files again, and hand the new contexts out.

        Raises:
            ConfigurationError: a file cannot be used; nothing has changed.
        """
        if self._files is not None:
            self._load(self._files)
            self._on_change(self.contexts)

    def _load(self, files: TlsFiles) -> None:
        tls = load_server_tls(files, self._workers + 1)
        self.contexts = tls.contexts[:-1]
        tls.contexts[-1].set_alpn_protocols(["http/1.1"])
        self.for_monitoring = tls.contexts[-1]
        self.names = tls.names
        validity = f"valid until {tls.valid_until}" if tls.valid_until else "which is not valid"
        clients = "clients need one too" if files.client_ca is not None else "clients need none"
        logger.info("TLS with the certificate %s, %s; %s", files.cert, validity, clients)
        if tls.warning:
            logger.warning("%s", tls.warning)


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Make the context of a client, for ``toutates probe``.

    Args:
        ca: file of authorities, or of the server's own certificate; None for the system's authorities.
        cert, key: files of the client's certificate and its key, both or neither.

    Raises:
        ConfigurationError: a file cannot be read or used, or certificate and key do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    harden_tls(context)
    if ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, ca, "--tls-ca")
    if cert is not None and key is not None:
        _load_certificate(context, cert, key, "--tls-cert", "--tls-key")
    return context


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden_tls(context)
    _load_certificate(context, files.cert, files.key, "--tls-cert", "--tls-key")
    if files.client_ca is not None:
        _load_authorities(context, files.client_ca, "--tls-client-ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# --- files -----------------------------------------------------------------------------------------------------------


def _read(path: Path, flag: str) -> bytes:
    try:
        if not path.is_file():  # such as a pipe, which can be read only once
            problem = "is not a file" if path.exists() else "there is no such file"
            raise ConfigurationError(problem, key=flag, value=str(path), remedy="correct the path")
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}",
            key=flag,
            value=str(path),
            remedy="let the user that the server runs as read the file and its folders",
        ) from error


def _certificates(path: Path, flag: str, what: str) -> list[str]:
    """The certificates in a file, checked, as text for OpenSSL."""
    found = [match.decode("latin-1") for match in _CERTIFICATE.findall(_read(path, flag))]
    problem = "holds no certificate in PEM form"
    if found:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata="\n".join(found))
        except (ssl.SSLError, ValueError) as error:
            reason = describe_tls_error(error) if isinstance(error, ssl.SSLError) else "it is not ASCII"
            problem = f"holds a certificate that cannot be read: {reason}"
            found = []
    if not found:
        raise ConfigurationError(problem, key=flag, value=str(path), remedy=f"name a PEM file with {what}")
    return found


def _load_certificate(context: ssl.SSLContext, cert: Path, key: Path, cert_flag: str, key_flag: str) -> None:
    def encrypted() -> NoReturn:
        raise ConfigurationError(
            "the key is encrypted, and the server cannot ask for its password",
            key=key_flag,
            value=str(key),
            remedy=f"decrypt it with 'openssl pkey -in {key} -out FILE', and let no other user read FILE",
        )

    _certificates(cert, cert_flag, "the certificate and, after it, its intermediates")
    chain, private = _read(cert, cert_flag), _read(key, key_flag)
    if not _PRIVATE_KEY.search(private):
        raise ConfigurationError(
            "holds no private key in PEM form", key=key_flag, value=str(key), remedy=f"name the key of {cert}"
        )
    try:
        # What was looked at above is what is loaded, and a byte order mark, which OpenSSL does not take, is left out.
        with _in_memory(chain) as chain_path, _in_memory(private) as private_path:
            context.load_cert_chain(chain_path, private_path, password=encrypted)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise ConfigurationError(
                f"is not the key of the certificate {cert}",
                key=key_flag,
                value=str(key),
                remedy=f"name the key that the first certificate of {cert_flag} was made for",
            ) from error
        raise ConfigurationError(
            f"OpenSSL refuses the certificate or its key: {describe_tls_error(error)}",
            key=f"{cert_flag}, {key_flag}",
            value=f"{cert}, {key}",
            remedy="make both anew, with an ECDSA key on P-256 or an RSA key of 2048 bits at least",
        ) from error
    except OSError as error:  # no descriptor or memory is left
        raise ConfigurationError(
            f"cannot be read: {error.strerror}", key=f"{cert_flag}, {key_flag}", value=f"{cert}, {key}"
        ) from error


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """The path of a file in memory alone, which OpenSSL reads from: a key is written nowhere."""
    file = os.memfd_create("pem")
    try:
        os.write(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _load_authorities(context: ssl.SSLContext, path: Path, flag: str) -> None:
    certificates = _certificates(path, flag, "the certificates of the authorities to trust")
    context.load_verify_locations(cadata="\n".join(certificates))
    # Every certificate in the file is trusted, also an intermediate without its root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


# --- whether it works ------------------------------------------------------------------------------------------------


def _rehearse(server: ssl.SSLContext, files: TlsFiles) -> tuple[str, str, tuple[str, ...]]:
    """Try a handshake with a client in memory that trusts this certificate alone.

    Returns:
        The end of the certificate's validity, and why clients will refuse it; one of the two is "". And the names of
        hosts that it is for, if it is valid.

    Raises:
        ConfigurationError: no handshake is possible.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=_certificates(files.cert, "--tls-cert", "the server's certificate")[0])
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(downwards, upwards)
    answerer = server.wrap_bio(upwards, downwards, server_side=True)
    try:
        for side in (caller, answerer, caller):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLCertVerificationError as error:
        return "", f"clients will refuse the certificate {files.cert}: {error.verify_message}", ()
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"no handshake is possible with this certificate: {describe_tls_error(error)}",
            key="--tls-cert",
            value=str(files.cert),
            remedy="use a certificate with an ECDSA key on P-256, or an RSA key of 2048 bits at least",
        ) from error
    certificate: Mapping[str, Any] = caller.getpeercert() or {}
    names = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS")
    return str(certificate.get("notAfter", "")), "", names
