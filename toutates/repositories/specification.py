"""The repositories that the command line asks for: directories, buckets, models of the Hugging Face Hub, and others.

They are checked as far as text can be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from toutates.system.errors import ConfigurationError

__all__ = [
    "ArtifactSpecification",
    "BucketSpecification",
    "FileSpecification",
    "HubSpecification",
    "RemoteSpecification",
    "Specification",
    "read_specifications",
]

_REPOSITORY: Final = "--model-repository"
_BUCKET: Final = "--s3-bucket"
# A bucket's name, a little wider than what AWS allows today; or the ARN of an access point.
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}|arn:[A-Za-z0-9:/._-]+")
#: What Triton writes before the bucket: s3://https://HOST:PORT/BUCKET, or s3://HOST:PORT/BUCKET for http.
_SERVICE: Final = re.compile(r"(https?://[^/]*|[^/]*:[0-9]+)(?:/+|$)(.*)", re.DOTALL)
# What the Hub allows in names, and the branches, tags and commits that have no slash.
_HUB: Final = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w-][\w.-]*))?(?:/(.*))?", re.ASCII)
_GOOGLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_AZURE: Final = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9.-]+)?/[a-z0-9$][a-z0-9-]{0,62}")
#: Host and port of a web server; a path with no query, whose signature would be a secret.
_WEB: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[^?#@\\]*)?")
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar", ".zip")
# As OCI has them. A registry is told from the first part of a name by its dot or port.
_OCI: Final = re.compile(
    r"((?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+(?::[0-9]{1,5})?|[A-Za-z0-9-]+:[0-9]{1,5}|localhost)"
    r"/([a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)(?::([\w][\w.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_FORMS: Final = (
    "a directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, as://ACCOUNT/CONTAINER/PREFIX, hf://ORG/MODEL, "
    "oci://REGISTRY/REPO:TAG or https://HOST/PATH"
)
_GRAPH: Final = ".onnx"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


#: What to do with a URL of another kind.
_OTHER_SCHEMES: Final = {
    "http": "; without TLS anybody on the way could change the models: have them served by https",
}


@dataclass(frozen=True, slots=True)
class BucketSpecification:
    """A bucket of S3 or Google Cloud Storage, a container of Azure, a web server, or a part of one.

    Attributes:
        scheme: s3, gs, as or https.
        bucket: its name, of a container ACCOUNT/CONTAINER, of a web server HOST or HOST:PORT.
        prefix: what all keys of the repository begin with; "" or ending in a slash.
        endpoint: of S3, an http or https URL; "" for AWS, or what boto3 is configured to use.
        region: of S3; "" for what boto3 is configured to use.
        flag: that asked for it, for messages.
        file: the object below the prefix that is the graph of the only model; "" where all is a repository.
        model_name: of that model.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    flag: str = field(default=_REPOSITORY, compare=False)
    file: str = ""
    model_name: str = ""

    @property
    def bucket_url(self) -> str:
        """The bucket alone."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def url(self) -> str:
        """What the operator calls it."""
        return f"{self.bucket_url}/{self.prefix}{self.file}".rstrip("/")

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class ArtifactSpecification:
    """What comes as a whole: an archive behind an https URL, or an artifact of an OCI registry.

    Attributes:
        url: what the operator calls it.
        request_url: https://HOST/PATH of the archive; https://HOST/NAME of the artifact, or http for this machine's.
        registry: as the operator has named it; "" for an archive.
        reference: tag or digest; "" for an archive.
        model_name: where there is one model that has no name of its own.
        flag: that asked for it, for messages.
    """

    url: str
    request_url: str
    registry: str = ""
    reference: str = ""
    model_name: str = ""
    flag: str = field(default=_REPOSITORY, compare=False)

    @property
    def bucket_url(self) -> str:
        """All of it."""
        return self.url

    @property
    def prefix(self) -> str:
        """What all paths begin with."""
        return ""

    @property
    def file(self) -> str:
        """None is named."""
        return ""

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class HubSpecification:
    """A model of the Hugging Face Hub, as a repository with one model.

    Attributes:
        bucket: the Hub's repository, ORG/MODEL.
        revision: branch, tag or commit; "" for the branch main.
        file: path of the graph in it; "" for the one that exporters write.
        model_name: of the model.
        flag: that asked for it, for messages.
    """

    bucket: str
    revision: str = ""
    file: str = ""
    model_name: str = ""
    flag: str = field(default=_REPOSITORY, compare=False)

    @property
    def prefix(self) -> str:
        """What all paths begin with."""
        return ""

    @property
    def bucket_url(self) -> str:
        """The Hub's repository, at the revision."""
        return f"hf://{self.bucket}" + (f"@{self.revision}" if self.revision else "")

    @property
    def url(self) -> str:
        """What the operator calls it."""
        return self.bucket_url + (f"/{self.file}" if self.file else "")

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


#: What is not on this machine.
RemoteSpecification = BucketSpecification | ArtifactSpecification | HubSpecification
Specification = Path | FileSpecification | RemoteSpecification


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
    if not any(isinstance(one, BucketSpecification) and one.scheme == "s3" for one in found):
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
        raise ConfigurationError("is empty", key=flag, remedy=f"name {_FORMS}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    kind, rest = scheme[1].lower(), text[len(scheme[0]) :]
    if kind == "hf":
        return _hub(rest, flag)
    if kind == "gs":
        bucket, _, prefix = rest.partition("/")
        return _bucket(kind, bucket, prefix, _GOOGLE, "write gs://BUCKET/PREFIX", flag)
    if kind == "as":
        account, _, more = rest.partition("/")
        container, _, prefix = more.partition("/")
        remedy = "write as://ACCOUNT/CONTAINER/PREFIX, and a SAS token to AZURE_STORAGE_SAS_TOKEN"
        return _bucket(kind, f"{account}/{container}", prefix, _AZURE, remedy, flag)
    if kind == "https":
        return _web(rest, flag)
    if kind == "oci":
        return _oci(rest, flag)
    if kind != "s3":
        # Only the scheme is shown: what follows it may hold a password.
        raise ConfigurationError(
            "there are no repositories of this kind",
            key=flag,
            value=scheme[0],
            remedy=f"name {_FORMS}, the host of an S3 service by --s3-endpoint" + _OTHER_SCHEMES.get(kind, ""),
        )
    service = _SERVICE.fullmatch(rest)
    if service is not None:
        written = service[1] if "://" in service[1] else f"http://{service[1]}"
        _check_endpoint(written, flag)
        endpoint, rest = written, service[2]
    bucket, _, prefix = rest.partition("/")
    return _s3(bucket, prefix, endpoint, region, flag)


def _hub(rest: str, flag: str) -> HubSpecification:
    found = _HUB.fullmatch(rest.rstrip("/"))
    if found is None:
        raise ConfigurationError(
            "is no model of the Hugging Face Hub",
            key=flag,
            value="hf://",  # hf://TOKEN@... is written for some tools
            remedy="write hf://ORG/MODEL, hf://ORG/MODEL@REVISION or hf://ORG/MODEL/PATH.onnx, a token to HF_TOKEN",
        )
    bucket, revision, file = found[1], found[2] or "", found[3] or ""
    if file and not file.endswith(_GRAPH):
        raise ConfigurationError(
            f"the path in the model is no graph: {file!r}",
            key=flag,
            value=f"hf://{bucket}",
            remedy="name the model alone, or a file of it that ends in .onnx",
        )
    return HubSpecification(bucket, revision, file, bucket.partition("/")[2], flag)


def _bucket(
    scheme: str, bucket: str, prefix: str, name: re.Pattern[str], remedy: str, flag: str
) -> BucketSpecification:
    if name.fullmatch(bucket) is None or "?" in prefix:  # which begins a signature
        # What stands there may hold a password.
        raise ConfigurationError("names no bucket of its kind", key=flag, value=f"{scheme}://", remedy=remedy)
    prefix = prefix.strip("/")
    return BucketSpecification(scheme, bucket, prefix + "/" if prefix else "", flag=flag)


def _web(rest: str, flag: str) -> BucketSpecification | ArtifactSpecification:
    found = _WEB.fullmatch(rest)
    if found is None:
        raise ConfigurationError(
            "is no URL of a file or folder",
            key=flag,
            value="https://",  # what follows may hold a password or a signature
            remedy="write https://HOST/PATH without a query, and name and password of the host into ~/.netrc",
        )
    host, path = found[1] + (found[2] or ""), unquote(found[3] or "/")
    folder, _, name = path.lstrip("/").rpartition("/")
    folder = folder + "/" if folder else ""
    archive = next((end for end in _ARCHIVES if name.lower().endswith(end)), "")
    if archive:
        url = f"https://{host}{path}"
        return ArtifactSpecification(
            url, f"https://{host}{quote(path)}", model_name=name[: -len(archive)] or "model", flag=flag
        )
    if name.endswith(_GRAPH):
        model = name.removesuffix(_GRAPH) or "model"
        return BucketSpecification("https", host, folder, flag=flag, file=name, model_name=model)
    return BucketSpecification("https", host, folder + (name + "/" if name else ""), flag=flag)


def _oci(rest: str, flag: str) -> ArtifactSpecification:
    found = _OCI.fullmatch(rest)
    if found is None:
        raise ConfigurationError(
            "is no artifact of a registry",
            key=flag,
            value="oci://",  # what follows may hold a password
            remedy="write oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@sha256:DIGEST, the registry's host in full",
        )
    registry, name, tag, digest = found[1], found[2], found[3] or "", found[4] or ""
    host, path = registry, name
    if registry in ("docker.io", "index.docker.io"):
        host, path = "registry-1.docker.io", name if "/" in name else f"library/{name}"
    is_here = host.partition(":")[0] in ("localhost", "127.0.0.1")
    return ArtifactSpecification(
        f"oci://{rest}",
        f"{'http' if is_here else 'https'}://{host}/{path}",
        registry,
        digest or tag or "latest",
        name.rpartition("/")[2],
        flag,
    )


def _s3(bucket: str, prefix: str, endpoint: str, region: str, flag: str) -> BucketSpecification:
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
    return BucketSpecification("s3", bucket, prefix + "/" if prefix else "", endpoint, region, flag)


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
