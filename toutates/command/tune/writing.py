"""Puts the configurations that were found where they are wanted: all of them or none, and nothing that it did not make
itself is overwritten."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError
from toutates.tune.server import CONFIG_NAME, PBTXT_NAME

__all__ = ["Written", "before", "changed_since", "seen", "write_beside_models", "write_files"]

_BEFORE: Final = ".before"

Seen = Mapping[Path, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Written:
    """What is written of a model.

    Attributes:
        folder: where to.
        texts: by the names of files. The first is the one that is put beside a model.
        copies: further files, by their names there, and where they are now.
    """

    folder: Path
    texts: Mapping[str, str]
    copies: Mapping[str, Path] = field(default_factory=dict)


def before(path: Path) -> Path:
    """Where the file that a path had before is kept."""
    return path.with_name(path.name + _BEFORE)


def seen(folders: Sequence[Path]) -> Seen:
    """What tells whether a file of these folders changes: inode, size and times, with those that are not there yet."""
    return {
        path: _stamp(path)
        for folder in folders
        for path in {folder / CONFIG_NAME, folder / PBTXT_NAME, *(one for one in folder.iterdir() if one.is_file())}
    }


def changed_since(then: Seen) -> list[Path]:
    """Files that were changed, or came, or went."""
    return sorted(path for path, stamp in then.items() if _stamp(path) != stamp)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_files(models: Sequence[Written]) -> list[Path]:
    """Write into folders that have none of these files; returns the files.

    Raises:
        ConfigurationError: a file is there, or cannot be written; then none of them is left.
    """
    made: list[Path] = []
    with _told("--output"), _undone(made):
        for model in models:
            model.folder.mkdir(parents=True, exist_ok=True)
            for name, text in model.texts.items():
                made.append(_put(model.folder / name, text))
            for name, source in model.copies.items():
                made.append(_put(model.folder / name, source))
    return made


def write_beside_models(models: Sequence[Written]) -> list[Path]:
    """Put the configuration where models have theirs, and keep the one that was there; returns the files.

    Raises:
        ConfigurationError: a file cannot be written, or one that was before is kept already; then all is as it was.
    """
    made: list[Path] = []
    replaced: list[Path] = []
    fresh: dict[Path, Path] = {}
    with _told("--write"), _undone(made, replaced):
        try:
            for model in models:
                for name, source in model.copies.items():
                    made.append(_put(model.folder / name, source))
                name, text = next(iter(model.texts.items()))
                new = fresh[model.folder / name] = model.folder / f".{name}.new"
                new.unlink(missing_ok=True)  # of a run that was killed
                _put(new, text)
            for own, new in fresh.items():
                if own.exists():
                    _link(own, before(own))  # and not renamed: a server never finds the folder without the file
                    replaced.append(own)
                else:
                    made.append(own)
                new.replace(own)
        finally:
            for new in fresh.values():
                new.unlink(missing_ok=True)
    return [*map(before, replaced), *fresh, *_copies(models)]


def _copies(models: Sequence[Written]) -> Iterator[Path]:
    for model in models:
        for name in model.copies:
            yield model.folder / name


def _put(path: Path, content: str | Path) -> Path:
    """Make a file that is not there yet, and all of it or nothing."""
    part = path.with_name(f".{path.name}.part")
    try:
        if isinstance(content, str):
            part.write_text(content, encoding="utf-8")
        else:
            shutil.copyfile(content, part)
        _link(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _link(path: Path, name: Path) -> None:
    """Give a file another name, which nothing has yet."""
    try:
        os.link(path, name)
    except FileExistsError:
        raise
    except OSError:  # a file system that has no links
        with name.open("xb") as target:
            target.write(path.read_bytes())


@contextlib.contextmanager
def _undone(made: list[Path], replaced: Sequence[Path] = ()) -> Iterator[None]:
    """Whatever ends the block, an interrupt too, leaves everything as it was."""
    try:
        yield
    except BaseException:
        for own in replaced:
            kept = before(own)
            with contextlib.suppress(OSError):
                kept.replace(own)
                kept.unlink(missing_ok=True)  # renaming one name of a file to another one of it does nothing
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        raise


@contextlib.contextmanager
def _told(key: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        path = error.filename2 or error.filename
        raise ConfigurationError(
            "is there already, and is not overwritten", key=key, value=str(path), remedy="move it"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"cannot be written: {error.strerror}", key=key, value=str(error.filename or "")
        ) from None
