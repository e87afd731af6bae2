"""A folder that an archive is unpacked into, which nothing leaves: neither what is written nor where its links lead.

Names prove nothing: a link that an earlier entry has made may stand in their way, and how long a path is decides what
libraries see of it (CVE-2025-4517). So every entry is made in its real parent, which is reached by descriptors, one
component after the other, and never by a link (``openat``, ``O_NOFOLLOW``). Nothing that is there is written again.
Where links lead is found by what the archive has put there, once all of it is there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["BadEntry", "UnpackedFolder", "parts_of"]

#: Bytes of the name of an entry, and of where a link leads: as many as the system takes.
_MAX_NAME: Final = 4_095
#: Links on one way, as in Linux.
_MAX_LINKS: Final = 40
#: Components of all links together that are followed, in less than a second: environments have fewer by far.
_MAX_STEPS: Final = 2_000_000
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[str, ...]


class BadEntry(Exception):
    """An entry that no archive should have.

    Attributes:
        name: of the entry.
        problem: what is wrong with it, a clause.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"'{name}' in it {problem}")
        self.name, self.problem = name, problem


def parts_of(name: str) -> Parts:
    """The components of the name of an entry, which lies in the folder; () for the folder itself.

    Raises:
        BadEntry: it leaves the folder, or no file can have it.
    """
    parts = tuple([part for part in name.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise BadEntry(name[:200], "leaves the archive's directory by '..'")
    if "\0" in name or len(os.fsencode(name)) > _MAX_NAME:
        raise BadEntry(name[:200], "has a name that no file should have")
    return parts


class UnpackedFolder:
    """Makes the entries of one archive in a folder. A context manager; one thread uses it.

    Methods that make an entry take the components of its name (``parts_of``), and raise OSError: FileExistsError where
    something is there, NotADirectoryError where a file or a link stands in its way.

    Args:
        folder: where it is; made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._root = os.open(folder, _FOLDER)
        #: the folder that the last entry was made in; most have the same as the one before
        self._last: tuple[Parts, int] = ((), os.dup(self._root))
        #: where links lead, by what they are
        self._links: dict[Parts, str] = {}

    def __enter__(self) -> UnpackedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._last[1])
        os.close(self._root)

    def put_folder(self, parts: Parts) -> None:
        """Make a folder, unless it is there."""
        self._reach(parts)

    def put_file(self, parts: Parts, pieces: Iterator[bytes], *, is_program: bool = False, mtime: float = -1) -> None:
        """Make a file.

        Args:
            parts: components of its name.
            pieces: of its content.
            is_program: whether it may be executed.
            mtime: when it was changed, seconds since 1970; a negative one for now.
        """
        if not parts:
            raise IsADirectoryError
        descriptor = os.open(parts[-1], _NEW_FILE, 0o755 if is_program else 0o644, dir_fd=self._reach(parts[:-1]))
        with open(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            if 0 <= mtime < 2**32:
                os.utime(descriptor, (mtime, mtime))

    def put_link(self, parts: Parts, target: str) -> None:
        """Make a symbolic link; ``check_links`` sees where it leads.

        Raises:
            BadEntry: it leads nowhere that a link may lead.
        """
        name = "/".join(parts)
        if not parts:
            raise FileExistsError
        if target.startswith("/"):
            raise BadEntry(name, "is a link to an absolute path")
        if not target or "\0" in target or len(os.fsencode(target)) > _MAX_NAME:
            raise BadEntry(name, "is a link to what no file is called")
        os.symlink(target, parts[-1], dir_fd=self._reach(parts[:-1]))
        self._links[parts] = target

    def put_hard_link(self, parts: Parts, source: Parts) -> None:
        """Make another name of a file, or of a link, that the archive has made before.

        Raises:
            BadEntry: there is no such file.
        """
        if source in self._links:  # it is the same relative to another folder, as the system has it
            self.put_link(parts, self._links[source])
            return
        if not parts or not source:
            raise BadEntry("/".join(parts), "is another name of no file")
        try:
            above = os.dup(self._reach(source[:-1], make=False))
        except OSError:
            raise BadEntry("/".join(parts), "is another name of a file that is not there") from None
        try:
            if not stat.S_ISREG(os.stat(source[-1], dir_fd=above, follow_symlinks=False).st_mode):
                raise BadEntry("/".join(parts), "is another name of what is no file")
            here = self._reach(parts[:-1])
            os.link(source[-1], parts[-1], src_dir_fd=above, dst_dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            raise BadEntry("/".join(parts), "is another name of a file that is not there") from None
        finally:
            os.close(above)

    def check_links(self) -> None:
        """See that no link leads out of the folder, by whatever others.

        Raises:
            BadEntry: one does, or they are more and longer than those of any environment.
        """
        steps = 0
        for parts in self._links:
            steps += self._follow(parts, _MAX_STEPS - steps)

    def _follow(self, link: Parts, most: int) -> int:
        """See where a link leads, in ``most`` steps; returns how many it took."""
        at: list[str] = []
        left = list(reversed(link))
        links = steps = 0
        while left:
            steps += 1 + (len(at) >> 4)  # a look takes as long as the way is
            if steps > most:
                raise BadEntry("/".join(link)[:200], "is one of too many long links")
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    raise BadEntry("/".join(link), "is a link that leaves the archive's directory")
                at.pop()
                continue
            at.append(part)
            target = self._links.get(tuple(at))
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    break  # the system follows it nowhere
                at.pop()
                pieces = target.split("/")
                steps += len(pieces) >> 4
                left += reversed(pieces)
        return steps

    def _reach(self, parts: Sequence[str], *, make: bool = True) -> int:
        """The descriptor of a folder, which is made if need be; it is valid until the next call."""
        known, descriptor = self._last
        if known == parts:
            return descriptor
        at = os.dup(self._root)
        try:
            for part in parts:
                if make:
                    try:
                        os.mkdir(part, 0o755, dir_fd=at)
                    except FileExistsError:
                        pass
                below = os.open(part, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        os.close(descriptor)
        self._last = tuple(parts), at
        return at
