"""How a registry is asked: with the password that `docker login` has written, or with a token that it gives for it."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from toutates.repositories.web.client import Asked, HttpClient, Refused
from toutates.repositories.web.redirects import origin

__all__ = ["LOGIN", "RegistryLogin"]

#: What to do about a login.
LOGIN: Final = "log in with 'docker login', and name the folder of its config.json by DOCKER_CONFIG"

_PARAMETER: Final = re.compile(r'\b(\w++)="([^"]*+)"')
_MAX_ANSWER: Final = 2**20  # bytes
_MAX_FILE: Final = 2**20
#: How long a token holds that does not say it, and how early another one is asked for.
_USUAL_S: Final = 60
_EARLY_S: Final = 10
_DOCKER: Final = ("docker.io", "registry-1.docker.io")
_DOCKER_KEY: Final = "https://index.docker.io/v1/"


class RegistryLogin:
    """Adds to requests what shows who asks. Methods may be called in several threads.

    Args:
        asked: for messages.
        registry: the host, with its port.
        url: of the registry.
    """

    def __init__(self, asked: Asked, registry: str, url: str) -> None:
        self._asked = asked
        self._registry = registry
        self._origin = origin(url)
        self._lock = threading.RLock()
        self._client: HttpClient | None = None
        self._challenge: tuple[str, dict[str, str]] | None = None
        self._header = ""
        self._until = 0.0

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        if origin(url) != self._origin:
            return {}  # the server of tokens, which gets the password by itself
        with self._lock:
            if self._client is not None and self._challenge is not None and time.monotonic() > self._until:
                self._renew(self._client)
            return {"Authorization": self._header} if self._header else {}

    def answer(self, refused: Refused, client: HttpClient) -> bool:
        """Do what an answer with status 401 asks for; whether there is something new to try.

        Raises:
            ConfigurationError, RepositoryError: there is no token to be had.
        """
        if refused.origin != self._origin:
            return False  # where the registry's answer redirects to, nobody may ask for its password
        asks = refused.headers.get("WWW-Authenticate", "")
        kind, _, rest = asks.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        with self._lock:
            self._client = client
            if kind.lower() == "basic":
                password = self._password()
                before, self._header = self._header, f"Basic {password}" if password else ""
                return bool(self._header) and self._header != before
            if kind.lower() != "bearer" or not parameters.get("realm"):
                return False
            realm = parameters["realm"]
            try:
                scheme, host, _ = origin(realm)
            except ValueError:
                scheme, host = "", ""
            if scheme != "https" and (scheme, host) != self._origin[:2]:
                raise self._asked.unusable(
                    "the registry wants the password sent to a server without TLS", "check that it is a registry"
                )
            before = self._header
            self._challenge = (realm, {key: parameters[key] for key in ("service", "scope") if parameters.get(key)})
            self._renew(client)
            return self._header != before

    def _renew(self, client: HttpClient) -> None:
        assert self._challenge is not None
        realm, query = self._challenge
        password = self._password()
        headers = {"Authorization": f"Basic {password}"} if password else {}
        problem = "a token of the registry cannot be had"
        try:
            # The server of tokens may be the registry itself: the old token must not go in place of the password.
            self._header = ""
            self._until = time.monotonic() + _USUAL_S
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            _, body, _ = client.read(url, _MAX_ANSWER, problem, headers)
            given = json.loads(body)
            token = given.get("token") or given["access_token"]
            lasts = float(given.get("expires_in", _USUAL_S))
            if not isinstance(token, str) or not token.isascii() or not token.isprintable():
                raise ValueError("it is no token")
            self._until = time.monotonic() + max(0.0, lasts - _EARLY_S)
        except Refused as error:
            raise self._asked.unusable(f"{problem} (status {error.status})", LOGIN) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise self._asked.unusable(f"{problem}: what answers gives none", "check that it is a registry") from error
        self._header = f"Bearer {token}"

    def _password(self) -> str:
        """Name and password as base64, as they stand in Docker's file; "" for none."""
        file = os.environ.get("REGISTRY_AUTH_FILE", "")
        folder = os.environ.get("DOCKER_CONFIG", "")
        path = Path(file) if file else Path(folder or Path.home() / ".docker") / "config.json"
        try:
            with path.open("rb") as opened:
                known: Any = json.loads(opened.read(_MAX_FILE))
            auths = known.get("auths", {})
            keys = (self._registry, f"https://{self._registry}", f"https://{self._registry}/v1/")
            if self._registry in _DOCKER:
                keys = (*_DOCKER, _DOCKER_KEY)
            given: Any = next((auths[key] for key in keys if key in auths), {})
            if given.get("auth"):
                base64.b64decode(given["auth"], validate=True)
                return str(given["auth"])
            if given.get("username"):
                return base64.b64encode(f"{given['username']}:{given['password']}".encode()).decode()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
            raise self._asked.unusable(
                f"'{path}' cannot be read as Docker's file of passwords ({type(error).__name__})", LOGIN
            ) from error
        return ""
