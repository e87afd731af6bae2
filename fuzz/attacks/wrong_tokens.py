"""Callers whom nobody knows (``--access-file``): keys that are wrong, and tokens whose signatures are dear to check."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

import trio

from fuzz.attacks.attack import Attack
from fuzz.attacks.peer import Peer
from fuzz.attacks.wire import INFER, framed, greeting, infer_message, request_block, unary

__all__ = ["WrongTokens"]

_ISSUER: Final = "https://login.example.com"
_AUDIENCE: Final = "toutates"
_KEY_ID: Final = "first"
#: Of the issuer's key, and of a signature.
_KEY_BYTES: Final = 256
_AT_ONCE: Final = 50
_WRONG_KEYS: Final = 10
_PATIENCE_S: Final = 1.0
#: A time that is larger than every floating-point number.
_NO_FLOAT: Final = 10**400


class WrongTokens(Attack):
    """Every second connection is of HTTP/1.1; all keys and tokens differ."""

    name = "wrong-tokens"
    summary = (
        "wrong keys, and tokens whose RS256 signature is wrong or whose `exp` has 401 digits, each another one, 50 at "
        "a time over gRPC and 11 over REST, on 16 connections"
    )
    limit = (
        "UNAUTHENTICATED, 401; HTTP's connections end with the first wrong signature, those of gRPC after some hundred "
        "refused calls"
    )
    stops = ("GOAWAY ENHANCE_YOUR_CALM",)
    connections = 16
    honest_key: ClassVar[str] = "of-the-honest-clients"

    def __init__(self) -> None:
        self._connections = count()
        self._numbers = count()

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``: one key, which honest clients send, and an issuer of tokens."""
        from cryptography.hazmat.primitives.asymmetric import rsa

        numbers = rsa.generate_private_key(65_537, 8 * _KEY_BYTES).public_key().public_numbers()
        public = {"n": _coded(numbers.n.to_bytes(_KEY_BYTES, "big")), "e": "AQAB"}
        issued = {"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", **public}
        (folder / "jwks.json").write_text(json.dumps({"keys": [issued]}))
        rules = {
            "keys": [
                {
                    "name": "honest",
                    "sha256": hashlib.sha256(self.honest_key.encode()).hexdigest(),
                    "groups": ["inference", "metadata"],
                }
            ],
            "tokens": [{"issuer": _ISSUER, "audience": _AUDIENCE, "jwks": "jwks.json", "groups": ["inference"]}],
        }
        (folder / "access.yaml").write_text(json.dumps(rules))  # JSON is YAML
        return ("--access-file", str(folder / "access.yaml"))

    async def strike(self, peer: Peer) -> None:
        """See ``Attack``."""
        if next(self._connections) % 2:
            await self._strike_rest(peer)
        else:
            await self._strike_grpc(peer)

    async def _strike_grpc(self, peer: Peer) -> None:
        await peer.send(greeting())
        message = framed(infer_message("victim", [1, 4], bytes(16)))
        ids = count(1, 2)
        while True:
            answered = peer.answered + _AT_ONCE
            calls = []
            for at in range(_AT_ONCE):
                block = request_block(INFER, self._wrong(is_token=at % 2 > 0))
                calls.append(unary(next(ids), block, message))
            await peer.send(b"".join(calls), _AT_ONCE)
            while peer.answered < answered:
                await peer.wait_answer()

    async def _strike_rest(self, peer: Peer) -> None:
        requests = []
        for at in range(_WRONG_KEYS + 1):
            name, value = self._wrong(is_token=at == _WRONG_KEYS)
            requests.append(f"GET /v2/models/victim HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n\r\n".encode())
        await peer.send(b"".join(requests), len(requests))
        with trio.move_on_after(_PATIENCE_S):
            await peer.over.wait()

    def _wrong(self, *, is_token: bool) -> tuple[str, str]:
        number = next(self._numbers)
        if not is_token:
            return "authorization", f"Bearer wrong-{os.getpid()}-{number}"
        ends = _NO_FLOAT + number if number % 4 == 1 else int(time.time()) + 3_600
        claims = {"iss": _ISSUER, "aud": _AUDIENCE, "sub": f"s{number}", "exp": ends}
        parts = [_coded_json({"alg": "RS256", "kid": _KEY_ID}), _coded_json(claims)]
        # Below every modulus of this size: a number above it is refused without a computation.
        return "authorization", "Bearer " + ".".join([*parts, _coded(b"\x01" + os.urandom(_KEY_BYTES - 1))])


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _coded_json(document: Mapping[str, object]) -> str:
    return _coded(json.dumps(document).encode())
