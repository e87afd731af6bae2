"""A bucket of Google Cloud Storage, by its JSON API.

An object is known by its MD5 where the service has one, and else, as for objects that are composed of others, by its
generation, which each upload has anew.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from toutates.repositories.cloud_credentials import google_credentials
from toutates.repositories.pace import USUAL, Patience
from toutates.repositories.s3.download import THREADS
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.specification import BucketSpecification
from toutates.repositories.web.client import Asked, HttpClient, Refused
from toutates.repositories.web.credentials import GoogleToken
from toutates.repositories.web.listing import MAX_PAGE, listed, listed_object

__all__ = ["GoogleStore"]

ENDPOINT: Final = "https://storage.googleapis.com"
#: Names an emulator, as for Google's own clients. It is asked without credentials.
_EMULATOR: Final = "STORAGE_EMULATOR_HOST"
_PROBLEM: Final = "it cannot be listed"
_CREDENTIALS: Final = "name a service account's key file by GOOGLE_APPLICATION_CREDENTIALS, or use a workload identity"


class GoogleStore:
    """See ``ObjectStore``.

    Args:
        specification: what the operator asked for.
        stopping: once it is set, no request is sent, nor tried again.
        patience: how long is waited.
        endpoint: the service's URL, where no emulator is named.

    Raises:
        ConfigurationError: google-auth is not installed, or Triton's file of credentials cannot be used.
    """

    def __init__(
        self,
        specification: BucketSpecification,
        stopping: threading.Event,
        patience: Patience = USUAL,
        endpoint: str = ENDPOINT,
    ) -> None:
        emulator = os.environ.get(_EMULATOR, "").rstrip("/")
        self._endpoint = (emulator if "://" in emulator else f"http://{emulator}") if emulator else endpoint
        check = f"the network and {_EMULATOR}" if emulator else "the network and HTTPS_PROXY"
        self._asked = Asked(specification.flag, specification.url, "Google Cloud Storage", check)
        self._bucket = specification.bucket
        self._token: GoogleToken | None = None
        more: dict[str, Any] = {"patience": patience}
        if not emulator:
            self._token = more["authorize"] = GoogleToken(self._asked, google_credentials(specification, os.environ))
        self._client = HttpClient(self._asked, self._explain, stopping, THREADS + 2, **more)

    @property
    def endpoint(self) -> str:
        """The URL of the service."""
        return self._endpoint

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """See ``ObjectStore.objects``."""
        return listed(self._asked, "objects", lambda mark: self._page(prefix, mark))

    def _page(self, prefix: str, mark: str) -> tuple[list[S3Object], str]:
        query = {"prefix": prefix, "fields": "nextPageToken,items(name,size,generation,md5Hash)", "maxResults": "1000"}
        if mark:
            query["pageToken"] = mark
        url = f"{self._endpoint}/storage/v1/b/{quote(self._bucket, safe='')}/o?{urlencode(query)}"
        try:
            _, body, _ = self._client.read(url, MAX_PAGE, _PROBLEM)
            page = json.loads(body)
            return [_object(entry) for entry in page.get("items", ())], str(page.get("nextPageToken") or "")
        except Refused as error:
            if error.status == 404:
                raise self._asked.unusable(
                    "there is no such bucket (404)", "correct the bucket's name, or create it"
                ) from error
            raise self._asked.unreachable(_PROBLEM, error) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise self._asked.unusable(
                f"what answers at {self._endpoint} lists objects as no Google Cloud Storage does",
                f"check {_EMULATOR} and what lies between",
            ) from error

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """See ``ObjectStore.download``. MD5s are compared where the files are written."""
        query = {"alt": "media"}
        generation = "" if '"' in found.etag else found.etag
        if generation:
            query["generation"] = generation
        name = quote(found.key, safe="")
        url = f"{self._endpoint}/storage/v1/b/{quote(self._bucket, safe='')}/o/{name}?{urlencode(query)}"

        def check(headers: Mapping[str, str]) -> None:
            if generation and headers.get("x-goog-generation", generation) != generation:
                raise ObjectChanged(f"'gs://{self._bucket}/{found.key}' has changed")

        self._client.download(url, found, target, on_bytes, check=check)

    def is_encrypted(self, found: S3Object) -> bool:
        """See ``ObjectStore.is_encrypted``: the MD5s of the service are of contents."""
        return False

    def close(self) -> None:
        """See ``ObjectStore.close``."""
        self._client.close()

    def _explain(self, refused: Refused) -> tuple[str, str] | None:
        if refused.status in (401, 403) and self._token is not None:
            self._token.look_again()
        return _explained(refused)


def _object(entry: Any) -> S3Object:
    generation, md5 = str(entry["generation"]), entry.get("md5Hash")
    if not generation.isdigit():
        raise ValueError("a generation is no number")
    # In quotes, as the cache expects an ETag that is an MD5.
    etag = f'"{base64.b64decode(md5, validate=True).hex()}"' if md5 else generation
    return listed_object(entry["name"], etag, int(entry["size"]))


def _explained(refused: Refused) -> tuple[str, str] | None:
    if refused.status == 401:
        return f"credentials are missing or not accepted (401): {_PROBLEM}", _CREDENTIALS
    if refused.status == 403:
        return (
            "access is denied (403): it cannot be read",
            "give the account the role Storage Object Viewer, or use other credentials",
        )
    if refused.status == 400:
        return "the bucket's name is none (400)", "correct the bucket's name"
    return None
