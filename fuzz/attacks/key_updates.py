"""A client of TLS 1.3 that changes its keys over and over (RFC 8446 section 4.6.3), by records made by hand."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

__all__ = ["KeyUpdates"]


class KeyUpdates:
    """The client's records after the handshake, which has agreed on TLS_AES_256_GCM_SHA384.

    Args:
        keys: the log of the connection's secrets (``SSLContext.keylog_filename``).
    """

    def __init__(self, keys: str) -> None:
        [line] = [line for line in keys.splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
        self._secret = bytes.fromhex(line.split()[2])
        self._begin_key()

    def _begin_key(self) -> None:
        self._key = AESGCM(self._expand("key", 32))
        self._iv = int.from_bytes(self._expand("iv", 12), "big")
        self._number = 0

    def _expand(self, label: str, size: int) -> bytes:
        # HKDF-Expand-Label with an empty context, RFC 8446 section 7.1
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)

    def change(self, *, answer: bool, padding: int = 0) -> bytes:
        """A record that changes the key; with ``answer`` the server has to change its own."""
        # type and length of the message, its content, the record's true type
        record = self._record(bytes([24, 0, 0, 1, answer, 22]) + bytes(padding))
        self._secret = self._expand("traffic upd", 48)
        self._begin_key()
        return record

    def data(self, content: bytes) -> bytes:
        """A record with data."""
        return self._record(content + bytes([23]))

    def _record(self, inner: bytes) -> bytes:
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        head = bytes([23, 3, 3]) + (len(inner) + 16).to_bytes(2, "big")
        return head + self._key.encrypt(nonce, inner, head)
