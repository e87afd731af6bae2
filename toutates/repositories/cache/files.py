"""Files of the cache: what they are named by, and the manifest that lists those of a directory."""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toutates.repositories.interface import fingerprint_of

__all__ = ["CachedFile", "ObjectIdentity", "link", "note", "read_manifest", "write_file"]

_MD5: Final = re.compile(r'"([0-9a-f]{32})"')
#: Errors of file systems without hard links, and of a file that has the greatest number of links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """What tells an object's content from others before it is read.

    An ETag that is an MD5 identifies the same content in every bucket, once a download has shown that it is right. Any
    other ETag says only that this key of this bucket has not changed, so the name is made from these as well. A bucket
    so cannot plant a file that another bucket's ETag would find.

    Attributes:
        size: bytes.
        md5: hexadecimal, if the ETag looks like one; else "".
        shared: the name in the cache if the ETag is an MD5; else "".
        own: the name in the cache otherwise.
    """

    size: int
    md5: str
    shared: str
    own: str

    @classmethod
    def of(cls, place: str, key: str, etag: str, size: int) -> ObjectIdentity:
        """The identity of the object of this key and ETag in a place, which is an endpoint and a bucket."""
        match = _MD5.fullmatch(etag)
        md5 = match[1] if match else ""
        own = f"key-{fingerprint_of((place, key, etag))}-{size}"
        return cls(size, md5, f"md5-{md5}-{size}" if md5 else "", own)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it may have."""
        return (self.shared, self.own) if self.shared else (self.own,)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file that was complete when the manifest of its directory was written.

    Attributes:
        path: where it is.
        name: of its content, one of ``ObjectIdentity.names``.
        size: bytes.
        sha256: hexadecimal.
    """

    path: Path
    name: str
    size: int
    sha256: str


def read_manifest(folder: Path) -> dict[str, CachedFile]:
    """The complete files of a directory of the cache, by path below its ``files``. Damaged lines are left out."""
    try:
        lines = (folder / "manifest").read_bytes().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            path, name, size, sha256 = json.loads(line)
            found[str(path)] = CachedFile(folder / "files" / path, name, size, sha256)
        except (ValueError, TypeError, RecursionError):
            continue
    return found


def note(folder: Path, path: str, file: CachedFile) -> None:
    """Add a file, which is complete and on the disk, to the manifest of its directory."""
    line = json.dumps([path, file.name, file.size, file.sha256]).encode() + b"\n"
    # One write, so that lines of several threads do not mix; a line that a crash has cut is left out when it is read.
    descriptor = os.open(folder / "manifest", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> bool:
    """Have a file in a second place too; False where the file system has no hard link for it.

    Not by a symbolic link: ONNX Runtime refuses external data that one leads out of the model's directory.
    """
    try:
        target.hardlink_to(source)
    except FileExistsError:
        pass  # the same file, from a download that was given up
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def write_file(path: Path, data: bytes) -> None:
    """Write a small file so that others, and those after a crash, see all of it or none."""
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
