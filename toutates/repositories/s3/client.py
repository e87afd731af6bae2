"""boto3, and nothing else of this package knows of it: listing, reading, and its errors in our words.

Credentials come by boto3's own chain: the environment, profiles, web identities, instance roles. They are never in a
text of ours, and the libraries' own debug logs, which would show signed requests, stay off whatever --log-level says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from toutates.repositories.s3.keys import S3Object
from toutates.repositories.specification import S3Specification
from toutates.system.errors import ConfigurationError, RepositoryError, ToutatesError
from toutates.system.text import one_line

__all__ = ["ObjectChanged", "ObjectReader", "ReadInterrupted", "S3Client"]

_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 20
#: Of one request, with botocore's waits between them, where AWS_MAX_ATTEMPTS or a profile does not say otherwise.
_ATTEMPTS: Final = 5
_CHUNK: Final = 128 * 1024
#: More objects than this are no model repository but a bucket without --s3-prefix.
_MAX_OBJECTS: Final = 200_000
_MAX_SHOWN: Final = 300  # characters of a text that is not ours

_CREDENTIALS: Final = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile (AWS_PROFILE) or the role"
_WRONG_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_FORBIDDEN: Final = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"})
_WRONG_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)


class ObjectChanged(Exception):
    """An object is no longer what a listing showed: it has other content, or is gone. Says what, with the URL."""


class ReadInterrupted(Exception):
    """An object's content ended too early. The rest may be asked for."""


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """A part of an object's content, on its way.

    Attributes:
        etag_is_md5: False if the service says that the object is encrypted in a way that makes its ETag something else.
    """

    etag_is_md5: bool
    _body: Any
    _forget: Callable[[Any], None]

    def chunks(self) -> Iterator[bytes]:
        """The content, in pieces.

        Raises:
            ReadInterrupted: the connection was lost, or nothing came for a while.
        """
        from botocore.exceptions import BotoCoreError, HTTPClientError
        from urllib3.exceptions import HTTPError

        try:
            while chunk := self._body.read(_CHUNK):
                yield chunk
        except (BotoCoreError, HTTPClientError, HTTPError, OSError) as error:
            raise ReadInterrupted(_shown(error)) from error
        finally:
            self._forget(self._body)
            self._body.close()


class S3Client:
    """A repository's bucket. Its methods may be called in several threads at once.

    Args:
        specification: what the operator asked for.
        connections: how many threads will read at once.
        stopping: once it is set, no request is sent, nor tried again.

    Raises:
        ConfigurationError: boto3 is not installed, or cannot be set up like this.
    """

    def __init__(self, specification: S3Specification, connections: int, stopping: threading.Event) -> None:
        self._specification = specification
        self._stopping = stopping
        self._lock = threading.Lock()
        #: contents that are being read
        self._bodies: set[Any] = set()
        self._bucket = specification.bucket
        try:
            import boto3
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise self._unusable(f"boto3, which reads S3, cannot be imported: {error}", "install boto3") from error
        for name in ("boto3", "botocore", "urllib3"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            core = botocore.session.Session()
            retries: dict[str, Any] = {"mode": "standard"}
            if core.get_config_variable("max_attempts") is None:
                retries["total_max_attempts"] = _ATTEMPTS
            config = Config(
                retries=retries,
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=connections + 2,
                # Every service other than AWS's has the bucket in the path; few have a host name for each.
                s3={"addressing_style": "path"} if specification.endpoint else None,
                # The cache compares MD5, and these checksums do not cover the parts that large objects are read in.
                response_checksum_validation="when_required",
            )
            region = specification.region or core.get_config_variable("region")
            self._client: Any = boto3.Session(botocore_session=core).client(
                "s3",
                endpoint_url=specification.endpoint or None,
                region_name=region or ("us-east-1" if specification.endpoint else None),
                config=config,
            )
        except (BotoCoreError, ValueError) as error:
            remedy = "check the --s3 flags, AWS_PROFILE and the files of ~/.aws"
            raise self._unusable(f"boto3 cannot be set up: {_shown(error)}", remedy) from error
        self._client.meta.events.register("before-send.s3", self._heed)

    @property
    def endpoint(self) -> str:
        """The URL of the service, whoever has named it."""
        return str(self._client.meta.endpoint_url)

    def objects(self, prefix: str) -> Iterator[S3Object]:
        """Every object whose key begins with the prefix, in the order of keys.

        Raises:
            ConfigurationError: an operator has to mend something.
            RepositoryError: the bucket cannot be listed now.
        """
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        count = 0
        try:
            for page in pages:
                for entry in page.get("Contents", ()):
                    if not entry.get("ETag"):
                        raise self._unusable(
                            f"the service lists {entry['Key']!r} without an ETag, so that no change of it would show",
                            "use a service that has ETags",
                        )
                    yield S3Object(entry["Key"], entry["ETag"], entry["Size"])
                count += page.get("KeyCount", len(page.get("Contents", ())))
                if count > _MAX_OBJECTS:
                    raise self._unusable(
                        f"there are more than {_MAX_OBJECTS} objects",
                        "keep the models under a prefix of their own, and name it",
                    )
        except ToutatesError:
            raise
        except Exception as error:
            raise self._explained(error, "cannot be listed") from error

    def read(self, found: S3Object, start: int, end: int) -> ObjectReader:
        """Ask for the bytes from start to end of an object, end excluded.

        Raises:
            ObjectChanged: it is not what it was.
            ConfigurationError, RepositoryError: it cannot be read.
        """
        url = f"s3://{self._bucket}/{found.key}"
        whole = start == 0 and end == found.size
        arguments = {} if whole else {"Range": f"bytes={start}-{end - 1}"}
        try:
            response = self._client.get_object(Bucket=self._bucket, Key=found.key, IfMatch=found.etag, **arguments)
        except ToutatesError:
            raise
        except Exception as error:
            code, status = _code(error)
            if status == 412 or code == "PreconditionFailed":
                raise ObjectChanged(f"'{url}' has changed") from error
            if status == 404 and code != "NoSuchBucket":
                raise ObjectChanged(f"'{url}' is gone") from error
            if status == 416:
                raise ObjectChanged(f"'{url}' has become smaller") from error
            raise self._explained(error, f"object {found.key!r} cannot be read") from error
        body, status = response["Body"], response["ResponseMetadata"]["HTTPStatusCode"]
        # If-Match and Range are not understood by every implementation.
        etag = response.get("ETag", found.etag)
        if etag.strip('"') != found.etag.strip('"') or (whole and response["ContentLength"] != found.size):
            body.close()
            raise ObjectChanged(f"'{url}' has changed")
        if not whole and (status != 206 or response["ContentLength"] != end - start):
            body.close()
            raise RepositoryError(
                f"{self._where()}: asked for a part of {found.key!r}, the endpoint sends something else; check that it "
                "is an S3 service, and what lies between"
            )
        encrypted = response.get("ServerSideEncryption", "").startswith("aws:kms")
        with self._lock:
            self._bodies.add(body)
        if self._stopping.is_set():  # `close` may have been before
            self._forget(body)
            body.close()
            self._heed()
        return ObjectReader(not encrypted and "SSECustomerAlgorithm" not in response, body, self._forget)

    def close(self) -> None:
        """Let the connections go. Contents that are being read in other threads end early."""
        with self._lock:
            bodies = list(self._bodies)
        for body in bodies:
            # Of urllib3 since 2.3; without it, a read ends with its chunk or its time.
            shutdown = getattr(getattr(body, "_raw_stream", None), "shutdown", None)
            try:
                if shutdown is not None:
                    shutdown()
            except (OSError, ValueError, RuntimeError):
                pass  # it has ended by itself
        self._client.close()

    def _forget(self, body: Any) -> None:
        with self._lock:
            self._bodies.discard(body)

    def _heed(self, **_: Any) -> None:
        if self._stopping.is_set():
            raise RepositoryError("the server is stopping")

    def _unusable(self, problem: str, remedy: str) -> ConfigurationError:
        asked = self._specification
        return ConfigurationError(problem, key=asked.flag, value=asked.url, remedy=remedy)

    def _where(self) -> str:
        asked = self._specification
        return f"{asked.flag} {asked.url}" + (f" at {asked.endpoint}" if asked.endpoint else "")

    def _explained(self, error: Exception, problem: str) -> ToutatesError:
        """The error in our words, with what to do about it."""
        from botocore import exceptions as boto

        asked = self._specification

        def wrong(what: str, remedy: str) -> ConfigurationError:
            return self._unusable(f"{what}: it {problem}", remedy)

        code, status = _code(error)
        if isinstance(error, boto.ClientError):
            if code == "NoSuchBucket":
                return wrong("there is no such bucket", "correct the bucket's name or --s3-endpoint, or create it")
            if code in _WRONG_CREDENTIALS:
                return wrong(f"the credentials are not accepted ({code})", _CREDENTIALS)
            if code in _FORBIDDEN or status in (401, 403):
                return wrong(
                    f"access is denied ({code})", "allow s3:ListBucket and s3:GetObject, or use other credentials"
                )
            if code in _WRONG_REGION:
                return wrong(f"it is in another region ({code})", "name the bucket's region with --s3-region")
            if code == "InvalidBucketName" or (status == 404 and not asked.endpoint):
                return wrong(f"there is no such bucket ({code})", "correct the bucket's name")
            if status == 404:
                return wrong(f"nothing is there ({code})", "check the bucket and that --s3-endpoint is an S3 service")
        if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
            return wrong(
                "there are no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile"
            )
        if isinstance(error, (boto.CredentialRetrievalError, boto.SSOError, boto.ProfileNotFound)):
            return wrong(f"no credentials can be had: {_shown(error)}", _CREDENTIALS)
        if isinstance(error, (boto.NoRegionError, boto.InvalidRegionError)):
            return wrong("no region is known", "name the bucket's region with --s3-region")
        if isinstance(error, boto.ParamValidationError):
            return wrong("the bucket has no name that a bucket can have", "correct the bucket's name")
        if "ResponseParserError" in (kind.__name__ for kind in type(error).__mro__):
            what = f"what answers is no S3 service: it {problem}"
            remedy = "name the S3 service's API, not its console or another server"
            if asked.endpoint:
                return ConfigurationError(what, key="--s3-endpoint", value=asked.endpoint, remedy=remedy)
            return self._unusable(what, remedy)
        return RepositoryError(
            f"{self._where()}: {problem} now: {_shown(error)}; check --s3-endpoint and that the service is up"
        )


def _code(error: Exception) -> tuple[str, int]:
    """The service's error code and HTTP status; "" and 0 where it did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return "", 0
    code = response.get("Error", {}).get("Code", "")
    return str(code), int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _shown(error: BaseException) -> str:
    """A foreign text on one line of bounded length."""
    return one_line(error, _MAX_SHOWN) or type(error).__name__
