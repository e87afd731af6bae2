"""Making a model's folder in a repository: in a hidden directory, renamed into place when it is whole."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError

__all__ = ["work_directory"]

#: How the names of directories begin in which imports work, and how old one is that nobody works in any more.
_WORK: Final = ".import-"
_LEFTOVER_S: Final = 86_400


@contextmanager
def work_directory(repository: Path, source: Path, what: str) -> Iterator[Path]:
    """A directory in a repository to make a model in, which is removed afterwards. Blocks.

    Args:
        repository: which is made if it is not there.
        source: what is imported.
        what: it is, such as "the archive".

    Raises:
        ConfigurationError: the repository cannot be written, or lies in the source; also for the ``OSError`` of what
            writes there.
    """
    if repository == source or repository.is_relative_to(source):
        raise ConfigurationError(f"lies in {what}", source=repository, remedy="name another folder")
    made: Path | None = None
    try:
        if not repository.is_dir():
            repository.mkdir(exist_ok=True)  # another import may just have made it
            made = repository
        _clear_leftovers(repository)
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=repository))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ConfigurationError(problem, source=repository, remedy="name a folder of your own") from error
    try:
        yield work
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ConfigurationError(problem, source=repository, remedy="see that the disk has room") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if made is not None:
            with suppress(OSError):  # it holds a model now
                made.rmdir()


def _clear_leftovers(repository: Path) -> None:
    """Remove what imports have left that were killed."""
    for left in repository.glob(f"{_WORK}*"):
        with suppress(FileNotFoundError):  # of an import that has just ended
            if time.time() - left.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(left, ignore_errors=True)
