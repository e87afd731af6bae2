"""Copies of files that a library is about to map."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from toutates.system import private_copies
from toutates.system.private_copies import TRIES, FileChanged, NoRoom, PrivateCopies, read_whole


def files_in(folder: Path) -> dict[str, Path]:
    """Two files, one in a folder, by the paths that their copies have."""
    (folder / "sub").mkdir(parents=True)
    found = {"graph": folder / "graph", "sub/weights": folder / "sub" / "weights"}
    for name, path in found.items():
        path.write_bytes(name.encode() * 1_000)
    return found


def test_copies_are_there_until_they_are_closed_and_theirs_alone(tmp_path: Path) -> None:
    files = files_in(tmp_path / "model")
    copies = PrivateCopies(tmp_path / "made" / "root")
    first, second = copies.make(files), copies.make(files)
    assert first.folder != second.folder
    for name, path in files.items():
        path.write_bytes(b"")
        assert (first.folder / name).read_bytes() == name.encode() * 1_000
        assert (first.folder / name).stat().st_mode & 0o077 == 0
    PrivateCopies(tmp_path / "made" / "root").clean()  # leaves what is in use
    assert (second.folder / "graph").exists()
    first.close()
    second.close()
    second.close()
    assert os.listdir(tmp_path / "made" / "root") == []


def test_processes_find_the_copies_of_the_same_files(tmp_path: Path) -> None:
    files = files_in(tmp_path / "model")
    one, other = (PrivateCopies(tmp_path / "root", shared=True) for _ in range(2))
    first, second = one.make(files), other.make(files)
    assert first.folder == second.folder
    first.close()
    assert (second.folder / "graph").exists()
    files["graph"].write_bytes(b"new")
    third = one.make(files)
    assert third.folder != second.folder
    second.close()
    third.close()
    assert os.listdir(tmp_path / "root") == []


def test_what_was_being_copied_by_a_process_that_was_killed_is_copied_again(tmp_path: Path) -> None:
    files = files_in(tmp_path / "model")
    copies = PrivateCopies(tmp_path / "root", shared=True)
    first = copies.make(files)
    folder = first.folder
    os.rename(folder, tmp_path / "kept")
    first.close()
    os.rename(tmp_path / "kept", folder)  # without the mark that it is whole
    (folder / "graph").write_bytes(b"half")
    second = copies.make(files)
    assert second.folder == folder
    assert (folder / "graph").read_bytes() == b"graph" * 1_000
    second.close()


@pytest.mark.parametrize("replaced", [False, True], ids=["written", "replaced"])
def test_a_file_that_changes_while_it_is_copied_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    files = files_in(tmp_path / "model")
    really_send = os.sendfile

    def change(target: int, source: int, at: int, count: int) -> int:
        if replaced:
            (tmp_path / "new").write_bytes(b"new")
            (tmp_path / "new").rename(files["graph"])
        else:
            with files["graph"].open("ab") as file:
                file.write(b"more")
        return really_send(target, source, at, count)

    monkeypatch.setattr(os, "sendfile", change)
    monkeypatch.setattr(private_copies, "_FICLONE", 0)
    with pytest.raises(FileChanged, match="model/graph"):
        PrivateCopies(tmp_path / "root").make(files)
    assert os.listdir(tmp_path / "root") == []


@pytest.mark.parametrize("problem", ["full", "write", "file", "others", "none"])
def test_where_there_is_no_room_it_is_said_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    files = files_in(tmp_path / "model")
    monkeypatch.setattr(private_copies, "_FICLONE", 0)
    roots = [tmp_path / "root"]
    if problem == "full":
        monkeypatch.setattr(os, "fstatvfs", lambda descriptor: os.statvfs_result((1,) * 10))
    elif problem == "write":

        def fail(*arguments: Any) -> int:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        monkeypatch.setattr(os, "sendfile", fail)
    elif problem == "file":
        (tmp_path / "root").write_bytes(b"")
        roots = [tmp_path / "root" / "below"]
    elif problem == "others":
        roots[0].mkdir()
        roots[0].chmod(0o777)
    else:
        roots = []
    with pytest.raises(NoRoom):
        PrivateCopies(*roots).make(files)
    if problem in ("full", "write"):
        assert os.listdir(tmp_path / "root") == []
    monkeypatch.undo()
    copy = PrivateCopies(*roots, tmp_path / "second").make(files)
    assert copy.folder.parent == (tmp_path / ("root" if problem in ("full", "write") else "second"))
    copy.close()


def test_a_file_is_read_as_it_was_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 100)
    assert bytes(read_whole(path)) == b"abc" * 100
    looks = 0
    really_look = private_copies.identity_of

    def look(status: os.stat_result) -> private_copies.Identity:
        nonlocal looks
        looks += 1
        found = really_look(status)
        return (*found[:3], looks) if looks <= changes else found

    changes = 2
    monkeypatch.setattr(private_copies, "identity_of", look)
    assert bytes(read_whole(path)) == b"abc" * 100
    looks, changes = 0, 2 * TRIES
    with pytest.raises(FileChanged):
        read_whole(path)
