"""Keys, key sets and tokens for tests of access."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

ISSUER = "https://issuer.example"
NOW_S = 4_000_000_000.0


@cache
def private_key(name: str) -> Any:
    """The same key for the same name: "rsa", "other", "small", "ec" or "ed"."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if name == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    if name == "ed":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65_537, key_size=1_024 if name == "small" else 2_048)


def public_jwk(name: str, **more: Any) -> dict[str, Any]:
    """The public key as a JSON Web Key with the name as its id."""
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    algorithm: Any = {"ec": ECAlgorithm, "ed": OKPAlgorithm}.get(name, RSAAlgorithm)
    found: dict[str, Any] = json.loads(algorithm.to_jwk(private_key(name).public_key()))
    return {**found, "kid": name, **more}


def token(name: str = "rsa", algorithm: str = "RS256", *, head: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """A token that is in order, but for these claims; None leaves one out."""
    import jwt

    whole = {"iss": ISSUER, "aud": "toutates", "sub": "alice", "exp": int(NOW_S) + 600, **claims}
    said = {claim: value for claim, value in whole.items() if value is not None}
    given = {"kid": name, **(head or {})}
    shown = {key: value for key, value in given.items() if value is not None}
    return str(jwt.encode(said, private_key(name), algorithm, headers=shown))


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def write_keys(folder: Path, keys: Sequence[Any]) -> Path:
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": list(keys)}))
    return path


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()
