"""Public keys of token issuers: a JSON Web Key Set (RFC 7517) in a file.

The algorithm of a key is fixed by the key alone, never by a token. Only keys of asymmetric algorithms are taken: with a
symmetric one, whoever can read the file could make tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toutates.models.config.problems import Problems
from toutates.models.config.small_file import read_small_file
from toutates.system.errors import ConfigurationError
from toutates.system.text import printable

__all__ = ["Jwks", "PublicKey", "read_jwks"]

MAX_FILE_BYTES: Final = 1_048_576
MAX_KEYS: Final = 256
MIN_RSA_BITS: Final = 2_048
MAX_RSA_BITS: Final = 8_192

#: By the kind of key, or its curve, the algorithms that it may name; the first one where it names none.
_ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
_PRIVATE: Final = ("d", "p", "q", "k")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and the only algorithm that it is used with."""

    key: Any
    algorithm: str


@dataclass(frozen=True, slots=True)
class Jwks:
    """The keys of an issuer.

    Attributes:
        by_id: by ``kid``; "" for a key without one, which has to be alone.
    """

    by_id: dict[str, PublicKey] = field(default_factory=dict)

    def find(self, key_id: str | None) -> PublicKey | None:
        """The key that a token names; the only one for a token that names none."""
        if key_id is None:
            return next(iter(self.by_id.values())) if len(self.by_id) == 1 else None
        return self.by_id.get(key_id)


def read_jwks(source: Path, problems: Problems) -> Jwks:
    """Read a key set.

    Args:
        source: its file.
        problems: get what is wrong.

    Raises:
        ConfigurationError: tokens cannot be read at all, because a library is missing.
    """
    try:
        import jwt  # here, because a server without tokens needs none of it
    except ImportError:
        raise ConfigurationError(
            "tokens need PyJWT and cryptography, which are not installed",
            source=source,
            remedy="install the extra: pip install 'toutates[jwt]'",
        ) from None
    try:
        document = _document(source)
    except ConfigurationError as error:
        problems.add("tokens", str(error), None, "")
        return Jwks()
    found: dict[str, PublicKey] = {}
    for at, entry in enumerate(document):
        where = f"{source}: keys[{at}]"
        if not isinstance(entry, dict):
            problems.add(where, "is not a JSON Web Key", None, "write an object with `kty`")
            continue
        if entry.get("use", "sig") != "sig":
            continue  # for encryption
        problem = _problem(entry)
        key_id = entry.get("kid", "")
        if not problem and (not isinstance(key_id, str) or key_id in found or (len(document) > 1 and not key_id)):
            problem = "needs a `kid` of its own"
        if problem:
            problems.add(where, problem, None, "take the key out, or have the issuer publish another one")
            continue
        algorithm = entry.get("alg") or _ALGORITHMS[entry.get("crv") or "RSA"][0]
        try:
            public = jwt.PyJWK({**entry, "alg": algorithm}).key
        except Exception as error:  # PyJWT and cryptography raise many kinds of their own and of the language
            text = printable(f"{type(error).__name__}: {error}", 200)
            problems.add(where, f"cannot be read: {text}", None, "have the issuer publish it again")
            continue
        if not MIN_RSA_BITS <= getattr(public, "key_size", MIN_RSA_BITS) <= MAX_RSA_BITS and entry["kty"] == "RSA":
            text = f"is an RSA key of {public.key_size} bits"
            problems.add(where, text, None, f"use one of {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
            continue
        found[key_id] = PublicKey(public, algorithm)
    if not found and not any(isinstance(entry, dict) for entry in document):
        problems.add(str(source), "has no key", None, "write the issuer's public keys into `keys`")
    return Jwks(found)


def _document(source: Path) -> list[Any]:
    data = read_small_file(source, MAX_FILE_BYTES)
    if data is None:
        raise ConfigurationError("there is no such file", source=source, remedy="correct `jwks`")
    try:
        keys = json.loads(data).get("keys")
    except (ValueError, AttributeError, RecursionError):
        keys = None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        remedy = f'write {{"keys": [...]}} with {MAX_KEYS} keys at most'
        raise ConfigurationError("is not a JSON Web Key Set", source=source, remedy=remedy)
    return keys


def _problem(entry: dict[str, Any]) -> str:
    """Why a key is not taken; "" if it may be."""
    kind = entry.get("kty")
    if kind == "oct":
        return "is a symmetric key, with which whoever reads it could make tokens"
    name = "RSA" if kind == "RSA" else entry.get("crv")
    if kind not in ("RSA", "EC", "OKP") or not isinstance(name, str) or name not in _ALGORITHMS:
        return f"is of a kind that is not taken: {printable(str(kind), 20)} {printable(str(name), 20)}"
    if any(member in entry for member in _PRIVATE):
        return "has the private key, which belongs to the issuer alone"
    if entry.get("alg") is not None and entry["alg"] not in _ALGORITHMS[name]:
        return f"names the algorithm {printable(str(entry['alg']), 20)}, not one of {', '.join(_ALGORITHMS[name])}"
    return ""
