"""A container of Azure Blob Storage, by its REST API.

A blob is known by its ETag, which each write changes, and every request for its content says which one it expects.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from toutates.repositories.cloud_credentials import azure_credentials
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.specification import BucketSpecification
from toutates.repositories.web.client import Asked, Authorize, HttpClient, Refused
from toutates.repositories.web.credentials import AzureToken, shared_key
from toutates.repositories.web.listing import MAX_PAGE, listed, listed_object
from toutates.system.address import names_loopback
from toutates.system.errors import ConfigurationError

__all__ = ["AzureStore"]

_VERSION: Final = {"x-ms-version": "2021-12-02"}
_SUFFIX: Final = ".blob.core.windows.net"
#: The URL of the blob service, for emulators and clouds of their own, as for Azure's command line.
_ENDPOINT: Final = "AZURE_STORAGE_SERVICE_ENDPOINT"
_TOKEN: Final = "a token of the identity"
_PROBLEM: Final = "it cannot be listed"
_CREDENTIALS: Final = (
    "give AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or an identity by "
    "toutates[azure] that has the role Storage Blob Data Reader"
)


class AzureStore:
    """See ``ObjectStore``.

    Args:
        specification: what the operator asked for.
        stopping: once it is set, no request is sent, nor tried again.
        patience: how long is waited.

    Raises:
        ConfigurationError: the environment, or Triton's file of credentials, cannot be used.
    """

    def __init__(
        self, specification: BucketSpecification, stopping: threading.Event, patience: Patience = USUAL
    ) -> None:
        host, _, self._container = specification.bucket.partition("/")
        account = host.partition(".")[0]
        service = os.environ.get(_ENDPOINT, "").rstrip("/")
        self._asked = Asked(
            specification.flag,
            specification.url,
            "Azure Blob Storage",
            f"{_ENDPOINT} and the network" if service else "the account's name, the network and HTTPS_PROXY",
        )
        if service and not service.startswith(("https://", "http://")):
            raise ConfigurationError("is no URL", key=_ENDPOINT, remedy="write https://HOST")
        #: Whether whoever is on the way to the service could read and use a token.
        self._is_open = service.startswith("http://") and not names_loopback(urlsplit(service).netloc)
        self._endpoint = service or f"https://{host if '.' in host else host + _SUFFIX}"
        self._sas = ""
        self._authorize = self._chosen(specification, account)
        self._client = HttpClient(self._asked, self._explain, stopping, THREADS + 2, self._authorize, patience=patience)

    def _chosen(self, specification: BucketSpecification, account: str) -> Authorize:
        """By Triton's file, by the account's key, by a SAS token, or by an identity; the first that is there."""
        given = azure_credentials(specification, os.environ)
        if given is None:
            own = os.environ.get("AZURE_STORAGE_ACCOUNT", account) in ("", account)
            given = ("", os.environ.get("AZURE_STORAGE_KEY", "")) if own else ("", "")
            sas = os.environ.get("AZURE_STORAGE_SAS_TOKEN", "").lstrip("?") if own else ""
            if sas and not given[1]:
                if self._is_open:
                    raise self._in_plain_text("AZURE_STORAGE_SAS_TOKEN")
                self._sas = "&" + sas
                return lambda method, url, headers: {}
        name, key = given
        if not key:
            return AzureToken(self._asked, partial(self._in_plain_text, _TOKEN) if self._is_open else None)
        try:
            return shared_key(name or account, base64.b64decode(key, validate=True))
        except (binascii.Error, ValueError) as error:
            raise self._asked.unusable(
                "the account's key is not base64", "copy AZURE_STORAGE_KEY as Azure shows it"
            ) from error

    def _in_plain_text(self, secret: str) -> ConfigurationError:
        return ConfigurationError(
            f"{secret} would go there in plain text, and whoever reads it on the way could use it",
            key=_ENDPOINT,
            value=os.environ.get(_ENDPOINT, ""),
            remedy="write https://HOST, or give AZURE_STORAGE_KEY, of which requests hold signatures alone",
        )

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        return self._endpoint

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """See ``ObjectStore.objects``."""
        return listed(self._asked, "blobs", lambda mark: self._page(prefix, mark))

    def _page(self, prefix: str, mark: str) -> tuple[list[S3Object], str]:
        query = {"restype": "container", "comp": "list", "prefix": prefix}
        if mark:
            query["marker"] = mark
        url = f"{self._endpoint}/{self._container}?{urlencode(query, quote_via=quote)}{self._sas}"
        try:
            _, body, _ = self._client.read(url, MAX_PAGE, _PROBLEM, _VERSION)
            return _read_page(body)
        except Refused as error:
            raise self._asked.unreachable(_PROBLEM, error) from error
        except (ElementTree.ParseError, ValueError) as error:
            raise self._asked.unusable(
                f"what answers at {self._endpoint} lists objects as no Azure Blob Storage does",
                f"check {_ENDPOINT} and what lies between",
            ) from error

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """See ``ObjectStore.download``."""
        url = f"{self._endpoint}/{self._container}/{quote(found.key)}" + (f"?{self._sas[1:]}" if self._sas else "")
        headers: Mapping[str, str] = {**_VERSION, "If-Match": found.etag}
        self._client.download(url, found, target, on_bytes, headers)

    def is_encrypted(self, found: S3Object) -> bool:
        """See ``ObjectStore.is_encrypted``: no ETag here looks like an MD5."""
        return False

    def close(self) -> None:
        """See ``ObjectStore.close``."""
        self._client.close()

    def _explain(self, refused: Refused) -> tuple[str, str] | None:
        explained = _explained(refused)
        if explained is not None and isinstance(self._authorize, AzureToken):
            self._authorize.look_again()
        return explained


def _read_page(body: bytes) -> tuple[list[S3Object], str]:
    """Blobs of a page of a listing, without directories, and the marker of the next page; "" if there is none."""
    text = body.decode("utf-8-sig")  # in another encoding a document type could hide
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("it has a document type")
    root = ElementTree.fromstring(text)
    blobs = root.find("Blobs")
    if root.tag != "EnumerationResults" or blobs is None:
        raise ValueError("it is no listing")
    found = []
    for blob in blobs.iter("Blob"):
        if blob.findtext("Properties/ResourceType") == "directory":
            continue
        etag, size = blob.findtext("Properties/Etag", ""), int(blob.findtext("Properties/Content-Length", "-1"))
        if not etag:
            raise ValueError("a blob has no ETag")
        found.append(listed_object(blob.findtext("Name"), etag if etag.startswith('"') else f'"{etag}"', size))
    return found, root.findtext("NextMarker", "") or ""


def _explained(refused: Refused) -> tuple[str, str] | None:
    code = refused.headers.get("x-ms-error-code", "") or str(refused.status)
    code = code if code.isascii() and code.isalnum() else str(refused.status)
    if code == "ContainerNotFound":
        return f"there is no such container ({code})", "correct the container's name, or create it"
    if code in ("AuthenticationFailed", "InvalidAuthenticationInfo"):
        return f"the credentials are not accepted ({code}): it cannot be read", _CREDENTIALS
    if code == "ConditionNotMet" or refused.status in (412, 416):
        return None
    if code in ("BlobNotFound",):
        return None
    if refused.status in (401, 403, 409) or code in ("ResourceNotFound", "NoAuthenticationInformation"):
        return f"access is denied ({code}): it cannot be read", _CREDENTIALS
    if refused.status == 400:
        return f"Azure refuses the request ({code})", "correct the account's and the container's name"
    return None
