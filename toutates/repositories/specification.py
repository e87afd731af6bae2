"""The repositories that the command line asks for: directories and S3 locations, checked as far as text can be."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from toutates.system.errors import ConfigurationError

__all__ = ["FileSpecification", "S3Specification", "Specification", "read_specifications"]

_REPOSITORY: Final = "--model-repository"
_BUCKET: Final = "--s3-bucket"
# A bucket's name, a little wider than what AWS allows today; or the ARN of an access point.
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}|arn:[A-Za-z0-9:/._-]+")
#: What Triton writes before the bucket: s3://https://HOST:PORT/BUCKET, or s3://HOST:PORT/BUCKET for http.
_SERVICE: Final = re.compile(r"(https?://[^/]*|[^/]*:[0-9]+)(?:/+|$)(.*)", re.DOTALL)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class S3Specification:
    """A bucket, or a part of one.

    Attributes:
        bucket: its name.
        prefix: what all keys of the repository begin with; "" or ending in a slash.
        endpoint: an http or https URL; "" for AWS, or what boto3 is configured to use.
        region: "" for what boto3 is configured to use.
        flag: that asked for it, for messages.
        file: the object below the prefix that is the graph of the only model; "" where all is a repository.
        model_name: of that model.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    flag: str = field(default=_BUCKET, compare=False)
    file: str = ""
    model_name: str = ""

    @property
    def url(self) -> str:
        """What the operator calls it."""
        return f"s3://{self.bucket}/{self.prefix}{self.file}".rstrip("/")

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class FileSpecification:
    """A file of a graph, as a repository with one model.

    Attributes:
        path: the file.
        model_name: of the model.
    """

    path: Path
    model_name: str

    def __str__(self) -> str:
        return str(self.path)


Specification = Path | FileSpecification | S3Specification


def read_specifications(
    repositories: Sequence[str],
    *,
    endpoint: str | None,
    bucket: str | None = None,
    prefix: str | None = None,
    region: str | None,
    flag: str = _REPOSITORY,
) -> tuple[Specification, ...]:
    """Every repository that the flags ask for, in their order, --s3-bucket's last.

    Args:
        repositories: values of --model-repository.
        endpoint, bucket, prefix, region: values of the --s3 flags; None where they are not given.
        flag: the flag or argument that ``repositories`` come from, for errors.

    Raises:
        ConfigurationError: there is none, one cannot be used, or flags do not go together.
    """
    _check_endpoint(endpoint)
    if region is not None and not re.fullmatch(r"[A-Za-z0-9-]+", region):
        raise ConfigurationError(
            "is not a region", key="--s3-region", value=region, remedy="write one such as eu-west-1"
        )
    if prefix is not None and bucket is None:
        raise ConfigurationError(
            "is of use only with --s3-bucket", key="--s3-prefix", remedy="name the bucket with --s3-bucket"
        )
    found: list[Specification] = [_read(text, endpoint or "", region or "", flag) for text in repositories]
    if bucket is not None:
        found.append(_s3(bucket, prefix or "", endpoint or "", region or "", _BUCKET))
    if not found:
        raise ConfigurationError(
            "a model repository is required", remedy="give --model-repository or --s3-bucket, see 'toutates --help'"
        )
    if not any(isinstance(one, S3Specification) for one in found):
        for name, value in (("--s3-endpoint", endpoint), ("--s3-region", region)):
            if value is not None:
                given = "give --s3-bucket, " if flag == _REPOSITORY else ""
                raise ConfigurationError(
                    "is of use only with a repository on S3",
                    key=name,
                    remedy=f"{given}write s3://BUCKET/PREFIX as {flag}, or leave {name} out",
                )
    # One that is given twice is one, as with Triton.
    unique: dict[Specification | str, Specification] = {}
    for one in found:
        unique.setdefault(_identity(one), one)
    return tuple(unique.values())


def _identity(one: Specification) -> Specification | str:
    return os.path.abspath(one) if isinstance(one, Path) else one


def _read(text: str, endpoint: str, region: str, flag: str) -> Specification:
    if not text:
        raise ConfigurationError("is empty", key=flag, remedy="name a directory or s3://BUCKET/PREFIX")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    if scheme[1].lower() != "s3":
        # Only the scheme is shown: what follows it may hold a password.
        raise ConfigurationError(
            "repositories are directories or on S3",
            key=flag,
            value=scheme[0],
            remedy="name a directory or s3://BUCKET/PREFIX, the host of an S3 service by --s3-endpoint",
        )
    rest = text[len(scheme[0]) :]
    service = _SERVICE.fullmatch(rest)
    if service is not None:
        written = service[1] if "://" in service[1] else f"http://{service[1]}"
        _check_endpoint(written, flag)
        endpoint, rest = written, service[2]
    bucket, _, prefix = rest.partition("/")
    return _s3(bucket, prefix, endpoint, region, flag)


def _s3(bucket: str, prefix: str, endpoint: str, region: str, flag: str) -> S3Specification:
    if _BUCKET_NAME.fullmatch(bucket) is None:
        remedy = "name the bucket alone" if flag == _BUCKET else "write s3://BUCKET/PREFIX"
        raise ConfigurationError(
            "the bucket has no name that a bucket can have",
            key=flag,
            # s3://KEY:SECRET@HOST/... is written for some tools.
            value=None if "@" in bucket else bucket,
            remedy=f"{remedy}, the host of an S3 service by --s3-endpoint",
        )
    prefix = prefix.strip("/")
    return S3Specification(bucket, prefix + "/" if prefix else "", endpoint, region, flag)


def _check_endpoint(endpoint: str | None, key: str = "--s3-endpoint") -> None:
    if endpoint is None:
        return
    remedy = "write a URL such as http://minio.example:9000"
    try:
        url = urlsplit(endpoint)
        secret = url.username is not None or url.password is not None
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        good, secret = False, "@" in endpoint
    if secret:  # and not shown
        raise ConfigurationError(
            "holds a user name or a password",
            key=key,
            remedy="give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role",
        )
    if not good or url.query or url.fragment or not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        raise ConfigurationError("is not an endpoint", key=key, value=endpoint, remedy=remedy)
