"""Prefixes of a bucket that are given as a model repository and are something else, and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from toutates.models.config.misplaced import near_name
from toutates.models.repository import is_version
from toutates.repositories.s3.keys import ModelFiles, S3Object

__all__ = ["empty_prefix", "wrong_prefix"]

_SUFFIX: Final = ".onnx"
#: Objects that are looked at for names that are like the one that was given.
_MAX_LOOKED_AT: Final = 5_000


def wrong_prefix(models: Mapping[str, ModelFiles], url: str) -> str:
    """What a prefix is that has no models with versions; "" for what may be a repository.

    Args:
        models: what was found under the prefix, by name.
        url: of the prefix, without a slash at the end.

    Returns:
        Problem and remedy, joined by a semicolon.
    """
    if any(files.versions for files in models.values()):
        return ""
    for name, files in models.items():
        if is_version(name) and any("/" not in path and path.endswith(_SUFFIX) for path in files.files):
            return (
                f"is the prefix of one model, whose version {name} lies in it, and not of a model repository; "
                f"name '{_parent(url)}'"
            )
    for name, files in models.items():
        if any(is_version(directory.partition("/")[2]) for directory in files.directories):
            return f"has no models, but '{name}/' in it has some; name '{url}/{name}'"
    return ""


def empty_prefix(objects: Callable[[str], Iterable[S3Object]], bucket_url: str, prefix: str) -> str:
    """Which URL may be right where there are no models under a prefix; "" if that cannot be told. Blocks.

    Args:
        objects: lists what begins with a prefix.
        bucket_url: such as s3://models.
        prefix: that was given; "" or ending in a slash.

    Returns:
        A sentence without a full stop.

    Raises:
        ConfigurationError, RepositoryError: the bucket cannot be listed.
    """
    url = f"{bucket_url}/{prefix}".rstrip("/")
    for found in islice(objects(prefix), _MAX_LOOKED_AT):
        name = found.key[len(prefix) :]
        if "/" in name or not name.endswith(_SUFFIX):
            continue
        if is_version(url.rpartition("/")[2]):
            return f"it is a version of a model; name '{_parent(_parent(url))}'"
        model = name.removesuffix(_SUFFIX) if name != "model.onnx" else "NAME"
        return f"'{bucket_url}/{found.key}' lies in no model's directory; move it to '{url}/{model}/1/model.onnx'"
    above, _, own = prefix.removesuffix("/").rpartition("/")
    above = above + "/" if above else ""
    if not own:
        return "the bucket has none"
    names = {found.key[len(above) :].partition("/")[0] for found in islice(objects(above), _MAX_LOOKED_AT)}
    near = near_name(own, names - {own})
    if near:
        return f"did you mean '{bucket_url}/{above}{near}'?"
    few = sorted(names)[:5]
    return f"there is {', '.join(few)} in '{f'{bucket_url}/{above}'.rstrip('/')}'" if few else ""


def _parent(url: str) -> str:
    return url.rpartition("/")[0]
