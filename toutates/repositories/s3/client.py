"""The one module that uses boto3: it lists and reads a bucket, and explains boto3's errors in our words.

Credentials are found by boto3's own chain: the environment, profiles, web identities, instance roles; those in Triton's
file of credentials come before it. Where there are none, requests are not signed: a bucket that anybody may read needs
none. They are never in a message of ours, and the libraries' own debug logs, which would show signed requests, stay off
whatever --log-level says.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from toutates.repositories.cloud_credentials import S3Credentials, s3_credentials
from toutates.repositories.pace import CHUNK, USUAL, Pace, Patience, TooSlow, paced_pools
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.store import ObjectChanged
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError, RepositoryError, ToutatesError
from toutates.system.text import one_line

__all__ = ["S3Client"]

_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 20
#: Attempts of one request, unless AWS_MAX_ATTEMPTS or a profile gives another number. botocore waits between them.
_ATTEMPTS: Final = 5
_PART: Final = 8 * 2**20  # bytes of an object that one request asks for
#: Downloads of one part that are tried, each with botocore's own retries: answers are cut off more often than refused.
_PART_ATTEMPTS: Final = 10
#: Chunks that may wait for the disk, of all objects.
_CHUNKS_QUEUED: Final = 64
#: More objects than this are no model repository but a bucket without --s3-prefix.
_MAX_OBJECTS: Final = 200_000
_MAX_SHOWN: Final = 300  # characters of a text that is not ours

_CREDENTIALS: Final = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile (AWS_PROFILE) or the role"
_SET_CREDENTIALS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role"
_WRONG_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_FORBIDDEN: Final = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"})
_WRONG_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)


class S3Client:
    """A repository's bucket. Its methods may be called in several threads at once.

    Args:
        specification: what the operator asked for.
        connections: how many threads will read at once.
        stopping: once it is set, no request is sent, nor tried again.
        patience: how long is waited.

    Raises:
        ConfigurationError: boto3 is not installed, or cannot be set up like this.
    """

    def __init__(
        self,
        specification: BucketSpecification,
        connections: int,
        stopping: threading.Event,
        patience: Patience = USUAL,
    ) -> None:
        self._specification = specification
        self._stopping = stopping
        self._patience = patience
        self._lock = threading.Lock()
        #: urllib3's responses whose contents are being read, with the key of the object
        self._responses: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        #: ETags of objects that are encrypted, so that the ETag is no MD5
        self._encrypted: set[str] = set()
        self._bucket = specification.bucket
        try:
            import boto3
            import botocore.session
            from boto3.s3.transfer import TransferConfig, create_transfer_manager
            from botocore import UNSIGNED
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.response import StreamingBody
        except ImportError as error:
            raise self._unusable(f"boto3, which reads S3, cannot be imported: {error}", "install boto3") from error
        self._body_of: Callable[[Any, Any], Any] = StreamingBody
        for name in ("boto3", "botocore", "urllib3"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            core = botocore.session.Session()
            given = s3_credentials(specification, os.environ) or S3Credentials()
            if given.profile:
                core.set_config_variable("profile", given.profile)
            if given.key_id:
                core.set_credentials(given.key_id, given.secret_key, given.session_token or None)
            retries: dict[str, Any] = {"mode": "standard"}
            if core.get_config_variable("max_attempts") is None:
                retries["total_max_attempts"] = _ATTEMPTS
            # The client itself would look for them now, too, and go on without. A bucket that anybody may read answers
            # what is not signed.
            self._is_unsigned = core.get_credentials() is None
            config = Config(
                signature_version=UNSIGNED if self._is_unsigned else None,
                retries=retries,
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=connections + 2,
                # Every service other than AWS's has the bucket in the path; few have a host name for each.
                s3={"addressing_style": "path"} if specification.endpoint else None,
                # The cache compares MD5, and these checksums do not cover the parts that large objects are read in.
                response_checksum_validation="when_required",
            )
            region = specification.region or given.region or core.get_config_variable("region")
            self._client: Any = boto3.Session(botocore_session=core).client(
                "s3",
                endpoint_url=specification.endpoint or None,
                region_name=region or ("us-east-1" if specification.endpoint else None),
                config=config,
            )
        except (BotoCoreError, ValueError) as error:
            remedy = "check the --s3 flags, AWS_PROFILE and the files of ~/.aws"
            raise self._unusable(f"boto3 cannot be set up: {_shown(error)}", remedy) from error
        # Heads and listings too, which are read where no event tells of them.
        pools = self._client._endpoint.http_session._pool_classes_by_scheme
        pools.update(paced_pools(pools, patience))
        self._transfers: Any = create_transfer_manager(
            self._client,
            TransferConfig(
                multipart_chunksize=_PART,
                max_concurrency=connections,
                num_download_attempts=_PART_ATTEMPTS,
                io_chunksize=CHUNK,
                max_io_queue=_CHUNKS_QUEUED,
                preferred_transfer_client="classic",  # whether or not Amazon's own in C is installed
            ),
        )
        self._client.meta.events.register("before-send.s3", self._check_stopping)
        self._client.meta.events.register("before-parameter-build.s3.GetObject", self._note_key)
        self._client.meta.events.register("needs-retry.s3.GetObject", self._note_response)

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

    def download(self, found: S3Object, target: Any, on_bytes: Callable[[int], None]) -> None:
        """Write an object's content to a file, in parts at once. Blocks.

        Args:
            found: as a listing showed it.
            target: a seekable file, which one thread at a time writes to.
            on_bytes: called in any thread with the bytes that have come; with a negative number for those of a part
                that begins anew.

        Raises:
            ObjectChanged: it is not what it was.
            ConfigurationError, RepositoryError: it cannot be read.
        """
        from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError, S3ValidationError

        url = f"s3://{self._bucket}/{found.key}"
        try:
            future = self._transfers.download(self._bucket, found.key, target, None, [_Subscriber(found, on_bytes)])
            future.result()
        except (ToutatesError, ObjectChanged):
            self._close_responses(found.key)
            raise
        except Exception as error:
            self._close_responses(found.key)
            self._check_stopping()
            code, status = _code(error)
            # The transfer manager's own error is for the one condition that it sets, If-Match.
            if status == 412 or isinstance(error, S3DownloadFailedError):
                raise ObjectChanged(f"'{url}' has changed") from error
            if status == 404 and code != "NoSuchBucket":
                raise ObjectChanged(f"'{url}' is gone") from error
            if status == 416:
                raise ObjectChanged(f"'{url}' has become smaller") from error
            if isinstance(error, S3ValidationError):
                raise RepositoryError(
                    f"{self._where()}: asked for a part of {found.key!r}, the endpoint sends something else; check "
                    "that it is an S3 service, and what lies between"
                ) from error
            cause = error.last_exception if isinstance(error, RetriesExceededError) else error
            raise self._explained(cause, f"object {found.key!r} cannot be read") from error
        # If-Match and Range are not understood by every implementation.
        size, etag = future.meta.size, future.meta.etag or found.etag
        if size != found.size or etag.strip('"') != found.etag.strip('"'):
            raise ObjectChanged(f"'{url}' has changed")

    def is_encrypted(self, found: S3Object) -> bool:
        """Whether the service has said of an object with this ETag that encryption makes the ETag something else than
        an MD5, since it was last asked for here.
        """
        with self._lock:
            try:
                self._encrypted.remove(found.etag.strip('"'))
            except KeyError:
                return False
            return True

    def close(self) -> None:
        """Let the connections go. Contents that are being read in other threads end early."""
        with self._lock:
            responses = list(self._responses)
        for response in responses:
            try:
                response.shutdown()
            except (OSError, ValueError, RuntimeError):
                pass  # it has ended by itself
        # It waits for what is being read, which ends soon, and for answers, whose time limit is longer.
        threading.Thread(target=self._transfers.shutdown, name="s3 end", daemon=True).start()
        self._client.close()

    def _close_responses(self, key: str) -> None:
        """Close answers that nobody reads any more after a failure: its traceback, a circle, still refers to them."""
        with self._lock:
            responses = [response for response, of in self._responses.items() if of == key]
        for response in responses:
            response.close()

    def _note_key(self, params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["toutates_key"] = params["Key"]

    def _note_response(self, response: tuple[Any, Any] | None, request_dict: dict[str, Any], **_: Any) -> None:
        """Take note of an answer whose content is to be read, before anybody reads it, and see that it comes."""
        if response is None:
            return
        answer, parsed = response
        if "Body" in parsed:
            parsed["Body"] = self._body_of(_Paced(answer.raw, self._patience), answer.headers.get("content-length"))
        with self._lock:
            self._responses[answer.raw] = request_dict["context"]["toutates_key"]
            if parsed.get("ServerSideEncryption", "").startswith("aws:kms") or "SSECustomerAlgorithm" in parsed:
                self._encrypted.add(parsed.get("ETag", "").strip('"'))
        self._check_stopping()  # `close` may have been called before the response was noted

    def _check_stopping(self, **_: Any) -> None:
        if self._stopping.is_set():
            raise RepositoryError("the server is stopping")

    def _unusable(self, problem: str, remedy: str) -> ConfigurationError:
        asked = self._specification
        return ConfigurationError(problem, key=asked.flag, value=asked.url, remedy=remedy)

    def _where(self) -> str:
        asked = self._specification
        return f"{asked.flag} {asked.url}" + (f" at {asked.endpoint}" if asked.endpoint else "")

    def _explained(self, error: Exception, problem: str) -> ToutatesError:
        """Our own error for one of boto3's, with what to do about it."""
        from botocore import exceptions as boto

        asked = self._specification

        def wrong(what: str, remedy: str) -> ConfigurationError:
            return self._unusable(f"{what}: it {problem}", remedy)

        code, status = _code(error)
        if isinstance(error, boto.ClientError):
            if code == "NoSuchBucket":
                return wrong("there is no such bucket", "correct the bucket's name or --s3-endpoint, or create it")
            if self._is_unsigned and (code in _WRONG_CREDENTIALS | _FORBIDDEN or status in (401, 403)):
                return wrong(f"no credentials were found, and without them access is denied ({code})", _SET_CREDENTIALS)
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
            return wrong("there are no credentials", _SET_CREDENTIALS)
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
        why = _shown(_slowness(error) or error)
        return RepositoryError(f"{self._where()}: {problem} now: {why}; check --s3-endpoint and that the service is up")


class _Paced:
    """The content of an answer, as botocore's ``StreamingBody`` reads it; TooSlow is tried again as what is cut off.

    Args:
        raw: urllib3's response.
        patience: how long is waited.
    """

    def __init__(self, raw: Any, patience: Patience) -> None:
        self._raw = raw
        self._chunks = Pace(patience).chunks(raw.read1)

    def read(self, size: int | None = None) -> bytes:
        """The next piece; CHUNK bytes or less, whatever the size; empty at the end."""
        try:
            return next(self._chunks, b"")
        except TooSlow:
            self._raw.close()  # and with it the connection: nobody else does
            raise

    def close(self) -> None:
        """Close the connection: nobody reads it any more."""
        self._raw.close()


class _Subscriber:
    """Tells the transfer manager what is known of an object, and is told how much has come."""

    def __init__(self, found: S3Object, on_bytes: Callable[[int], None]) -> None:
        self._found = found
        self._on_bytes = on_bytes

    def on_queued(self, future: Any, **_: Any) -> None:
        """Every request for the object is to have If-Match with this ETag."""
        future.meta.provide_transfer_size(self._found.size)
        future.meta.provide_object_etag(self._found.etag)

    def on_progress(self, bytes_transferred: int, **_: Any) -> None:
        """Some bytes have come."""
        self._on_bytes(bytes_transferred)


def _slowness(error: BaseException | None) -> TooSlow | None:
    """What urllib3 has made a timeout of, and botocore another one."""
    while error is not None and not isinstance(error, TooSlow):
        error = error.__cause__ or error.__context__
    return error


def _code(error: Exception) -> tuple[str, int]:
    """The service's error code and HTTP status; "" and 0 where it did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return "", 0
    code = response.get("Error", {}).get("Code", "")
    return str(code), int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _shown(error: BaseException) -> str:
    """The text of a library's error, on one line of bounded length."""
    return one_line(error, _MAX_SHOWN) or type(error).__name__
