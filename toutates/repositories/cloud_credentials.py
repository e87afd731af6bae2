"""Triton's file of cloud credentials, which the variable TRITON_CLOUD_CREDENTIAL_PATH names.

    {"s3": {"": {"key_id": ..., "secret_key": ..., "session_token": ..., "region": ..., "profile": ...},
            "s3://bucket/prefix": {...}},
     "gs": ..., "as": ...}

Those of the longest path hold with which a repository's place begins; "" is of all. Sections of other clouds are passed
over. No secret of the file is ever in a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toutates.repositories.specification import S3Specification
from toutates.system.errors import ConfigurationError

__all__ = ["VARIABLE", "S3Credentials", "s3_credentials"]

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


def s3_credentials(place: S3Specification, environment: Mapping[str, str]) -> S3Credentials | None:
    """What the file says of a place; None without a file, or where it says nothing. Blocks.

    Args:
        place: a bucket, or a part of one.
        environment: may name the file.

    Raises:
        ConfigurationError: it cannot be read, or not so.
    """
    name = environment.get(VARIABLE, "")
    if not name:
        return None
    section = _read(Path(name)).get("s3", {})
    if not isinstance(section, dict):
        raise _refused(name, "s3", "is no object", "write the places, each with its credentials")
    forms = (place.url, f"s3://{place.endpoint}/{place.url.removeprefix('s3://')}")
    matching = [key for key in section if not key or any(_begins(form, key.rstrip("/")) for form in forms)]
    if not matching:
        return None
    chosen = max(matching, key=len)
    return _credentials(name, chosen, section[chosen])


def _begins(place: str, key: str) -> bool:
    return place == key or place.startswith(key + "/")


def _credentials(name: str, place: str, given: Any) -> S3Credentials:
    where = f"s3.{place or chr(34) * 2}"
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
