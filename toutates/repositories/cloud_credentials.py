"""Triton's file of cloud credentials, which the variable TRITON_CLOUD_CREDENTIAL_PATH names.

    {"s3": {"": {"key_id": ..., "secret_key": ..., "session_token": ..., "region": ..., "profile": ...},
            "s3://bucket/prefix": {...}},
     "gs": {"": "PATH OF A KEY FILE", "gs://bucket": ...},
     "as": {"": {"account_str": ..., "account_key": ...}, "as://account/container": {...}}}

Those of the longest path hold with which a repository's place begins; "" is of all. Only the section of the
repository's cloud is read. No secret of the file is ever in a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError

__all__ = ["VARIABLE", "S3Credentials", "azure_credentials", "google_credentials", "s3_credentials"]

VARIABLE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_KEYS: Final = ("key_id", "secret_key", "session_token", "region", "profile")
#: The file has a few lines; what is larger is something else.
_MAX_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials of a place on S3; "" for what is not given.

    Attributes:
        key_id, secret_key, session_token: of an access key; the first two or none.
        region: of the bucket.
        profile: of the files in ~/.aws, in place of a key.
    """

    key_id: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    profile: str = ""


def s3_credentials(place: BucketSpecification, environment: Mapping[str, str]) -> S3Credentials | None:
    """What the file says of a place; None without a file, or where it says nothing. Blocks.

    Args:
        place: a bucket, or a part of one.
        environment: may name the file.

    Raises:
        ConfigurationError: it cannot be read, or not so.
    """
    forms = (place.url, f"s3://{place.endpoint}/{place.url.removeprefix('s3://')}")
    found = _entry("s3", forms, environment)
    return None if found is None else _credentials(environment[VARIABLE], *found)


def google_credentials(place: BucketSpecification, environment: Mapping[str, str]) -> str:
    """The path of the file with credentials of Google Cloud that is for a place; "" where nothing is said. Blocks.

    Args:
        place: a bucket, or a part of one.
        environment: may name Triton's file.

    Raises:
        ConfigurationError: it cannot be read, or not so.
    """
    found = _entry("gs", (place.url,), environment)
    if found is None:
        return ""
    key, path = found
    if not isinstance(path, str):
        raise _refused(environment[VARIABLE], _where("gs", key), "is no text", "write the path of a key file in quotes")
    return path


def azure_credentials(place: BucketSpecification, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and key of the storage account for a place; None where nothing is said. Blocks.

    Args:
        place: a container, or a part of one.
        environment: may name Triton's file.

    Returns:
        Both, "" for what is not given: the name is then that of the place.

    Raises:
        ConfigurationError: it cannot be read, or not so.
    """
    found = _entry("as", (place.url,), environment)
    if found is None:
        return None
    key, given = found
    name, where = environment[VARIABLE], _where("as", key)
    remedy = "write account_str and account_key, each with a text"
    if not isinstance(given, dict) or not set(given) <= {"account_str", "account_key"}:
        raise _refused(name, where, "is no account with its key", remedy)
    if not all(isinstance(value, str) for value in given.values()):
        raise _refused(name, where, "has what is no text", remedy)
    return given.get("account_str", ""), given.get("account_key", "")


def _entry(cloud: str, forms: Sequence[str], environment: Mapping[str, str]) -> tuple[str, Any] | None:
    """The longest key of a section with which a place begins, in any of its forms, and what stands there."""
    name = environment.get(VARIABLE, "")
    if not name:
        return None
    section = _read(Path(name)).get(cloud, {})
    if not isinstance(section, dict):
        raise _refused(name, cloud, "is no object", "write the places, each with its credentials")
    matching = [key for key in section if not key or any(_begins(form, key.rstrip("/")) for form in forms)]
    if not matching:
        return None
    chosen = max(matching, key=len)
    return chosen, section[chosen]


def _where(cloud: str, key: str) -> str:
    return f"{cloud}.{key or chr(34) * 2}"


def _begins(place: str, key: str) -> bool:
    return place == key or place.startswith(key + "/")


def _credentials(name: str, place: str, given: Any) -> S3Credentials:
    where = _where("s3", place)
    if not isinstance(given, dict):
        raise _refused(name, where, "is no object", f"write some of {', '.join(_KEYS)}")
    for key, value in given.items():
        if key not in _KEYS:
            raise _refused(name, f"{where}.{key}", "is unknown", f"write some of {', '.join(_KEYS)}")
        if not isinstance(value, str):
            raise _refused(name, f"{where}.{key}", "is no text", "write it in quotes")
    found = S3Credentials(**given)
    if bool(found.key_id) is not bool(found.secret_key):
        missing = "secret_key" if found.key_id else "key_id"
        raise _refused(name, where, f"has no {missing}", "write key_id and secret_key, or none of them")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _refused(str(path), "", f"cannot be read: {error.strerror}", f"correct or unset {VARIABLE}") from error
    if len(text) > _MAX_BYTES:
        raise _refused(str(path), "", f"has more than {_MAX_BYTES} bytes", f"correct or unset {VARIABLE}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None  # the error's own text could show what is there
    if not isinstance(found, dict):
        raise _refused(str(path), "", "is no JSON object", "write it as Triton's documentation has it")
    return found


def _refused(name: str, key: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=Path(name), key=key or VARIABLE, remedy=remedy)
