"""What signs requests to Google Cloud Storage and Azure: tokens of their own libraries, and keys of accounts.

Credentials are found at the first request, in the thread that makes it: a library may ask services of its cloud for
them. google-auth and azure-identity are known to this module alone. No secret is ever in a message.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from toutates.repositories.web.client import Asked, tls_context
from toutates.system.errors import ToutatesError

__all__ = ["AzureToken", "GoogleToken", "shared_key"]

_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_only"
_AZURE_SCOPE: Final = "https://storage.azure.com/.default"
#: A token is not used in its last minutes.
_EARLY_S: Final = 300
_REFRESH_SECONDS: Final = 20
#: Headers that stand in what a key of Azure signs, in this order, after the method.
_SIGNED: Final = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip


class GoogleToken:
    """A token of google-auth: of a file, of this machine's account, or of a federation. Nothing where there is none.

    Args:
        asked: for messages.
        file: of a service account's key; "" for what google-auth finds.

    Raises:
        ConfigurationError: google-auth is not installed.
    """

    def __init__(self, asked: Asked, file: str) -> None:
        try:
            import google.auth
            import google.oauth2.service_account  # noqa: F401
        except ImportError as error:
            raise asked.unusable(
                f"google-auth, which finds credentials of Google Cloud, cannot be imported: {error}",
                "install toutates[gcs], which brings it",
            ) from error
        for name in ("google.auth", "google.auth.transport"):
            logging.getLogger(name).setLevel(logging.ERROR)  # it warns of a metadata server that is not there
        self._asked = asked
        self._file = file
        self._lock = threading.Lock()
        self._found: Any = None
        self._is_anonymous = False

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        with self._lock:
            if self._found is None and not self._is_anonymous:
                self._find()
            if self._is_anonymous:
                return {}
            if not self._found.valid:
                self._refresh()
            return {"Authorization": f"Bearer {self._found.token}"}

    def look_again(self) -> None:
        """Look for credentials anew before the next request, if there were none: a machine may tell its own late."""
        with self._lock:
            self._is_anonymous = False

    def _find(self) -> None:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

        named = self._file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
        try:
            if self._file:
                from google.oauth2.service_account import Credentials

                of_account: Any = Credentials
                self._found = of_account.from_service_account_file(self._file, scopes=[_GOOGLE_SCOPE])
            else:
                self._found, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
        except DefaultCredentialsError as error:
            if named:
                raise self._unusable_file(named) from error
            self._is_anonymous = True
        except (GoogleAuthError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable_file(named) from error

    def _refresh(self) -> None:
        import google.auth.transport.urllib3
        import urllib3
        from google.auth.exceptions import GoogleAuthError, TransportError

        transport: Any = google.auth.transport.urllib3
        with urllib3.PoolManager(timeout=_REFRESH_SECONDS, ssl_context=tls_context()) as pool:
            try:
                self._found.refresh(transport.Request(pool))
            except TransportError as error:
                raise self._asked.unreachable("a token cannot be had", error) from error
            except (GoogleAuthError, ValueError) as error:
                raise self._asked.unusable(
                    f"Google gives no token for the credentials ({type(error).__name__})",
                    "make a new key, or see that the account may be used, and name it by "
                    "GOOGLE_APPLICATION_CREDENTIALS",
                ) from error

    def _unusable_file(self, named: str) -> ToutatesError:
        return self._asked.unusable(
            f"{named!r} holds no credentials of Google Cloud that can be used",
            "name a service account's key file, as Google gives it, by GOOGLE_APPLICATION_CREDENTIALS",
        )


class AzureToken:
    """A token of azure-identity: of a client by environment, of a workload, or of the machine. Nothing without one.

    Args:
        asked: for messages.
        refused: makes the error to raise where there is a token; None where it may be sent.
    """

    def __init__(self, asked: Asked, refused: Callable[[], ToutatesError] | None = None) -> None:
        self._asked = asked
        self._refused = refused
        self._lock = threading.Lock()
        self._credential: Any = None
        self._token: Any = None
        self._is_anonymous = False

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        with self._lock:
            if not self._is_anonymous and (self._token is None or self._token.expires_on - _EARLY_S < time.time()):
                self._renew()
            if self._is_anonymous:
                return {}
            if self._refused is not None:
                raise self._refused()
            return {"Authorization": f"Bearer {self._token.token}"}

    def look_again(self) -> None:
        """See ``GoogleToken.look_again``."""
        with self._lock:
            if self._is_anonymous:
                self._is_anonymous, self._credential = False, None

    def _renew(self) -> None:
        try:
            from azure.core.exceptions import AzureError, ClientAuthenticationError
            from azure.identity import CredentialUnavailableError, DefaultAzureCredential
        except ImportError:
            self._is_anonymous = True  # the answer to a request says what to do
            return
        for name in ("azure", "msal"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            if self._credential is None:
                # Those of a developer's desktop start other programs.
                self._credential = DefaultAzureCredential(
                    exclude_cli_credential=True,
                    exclude_developer_cli_credential=True,
                    exclude_powershell_credential=True,
                    exclude_shared_token_cache_credential=True,
                    exclude_visual_studio_code_credential=True,
                    exclude_broker_credential=True,
                )
            self._token = self._credential.get_token(_AZURE_SCOPE)
        except CredentialUnavailableError:
            self._is_anonymous = True
        except ClientAuthenticationError as error:
            if not any(os.environ.get(name) for name in ("AZURE_CLIENT_ID", "IDENTITY_ENDPOINT", "MSI_ENDPOINT")):
                self._is_anonymous = True  # none of them is meant
                return
            raise self._asked.unusable(
                f"Azure gives no token ({type(error).__name__})",
                "check AZURE_CLIENT_ID, AZURE_TENANT_ID and the secret or identity, or give AZURE_STORAGE_KEY",
            ) from error
        except AzureError as error:
            raise self._asked.unreachable("a token cannot be had", error) from error


def shared_key(account: str, key: bytes) -> Callable[[str, str, Mapping[str, str]], Mapping[str, str]]:
    """What signs requests with the key of a storage account, as Azure's "Authorize with Shared Key" has it.

    Args:
        account: its name.
        key: its bytes.
    """

    def sign(method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        parts = urlsplit(url)
        own = {**headers, "x-ms-date": formatdate(usegmt=True)}
        lines = [method, *(own.get(name, "") for name in _SIGNED)]
        lines += [f"{name.lower()}:{own[name]}" for name in sorted(own, key=str.lower) if name.startswith("x-ms-")]
        resource = [f"/{account}{parts.path}"]
        resource += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(parts.query, True))]
        text = "\n".join([*lines, *resource]).encode()
        signature = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        return {"x-ms-date": own["x-ms-date"], "Authorization": f"SharedKey {account}:{signature}"}

    return sign
