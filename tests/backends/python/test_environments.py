"""``EXECUTION_ENV_PATH``: folders and archives, and what is wrong with them."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.waiting import wait_until
from toutates.backends.python.environments import Environments
from toutates.backends.python.process import Interpreter
from toutates.system.errors import ModelLoadError

PROGRAM = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


def make_folder(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "activate").write_text("")
    (path / "bin" / "python").write_text(PROGRAM)
    (path / "bin" / "python").chmod(0o755)
    return path


def make_archive(path: Path, names: dict[str, str], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in names.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def test_the_servers_python_is_the_default(tmp_path: Path) -> None:
    assert Environments().interpreter("", tmp_path).command == (sys.executable,)


def test_a_folder_may_be_beside_the_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model" / "env")
    interpreter = Environments().interpreter("$$TRITON_MODEL_DIRECTORY/env", tmp_path / "model")
    assert interpreter.command == (str(folder / "bin" / "python"),)
    assert interpreter.environment["VIRTUAL_ENV"] == str(folder)
    assert interpreter.environment["PATH"].startswith(f"{folder}/bin:")


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    archive = make_archive(
        tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM, "conda-meta/history": ""}
    )
    environments = Environments()
    first = environments.interpreter(str(archive), tmp_path)
    (link := tmp_path / "link.tar.gz").symlink_to(archive)
    assert environments.interpreter(str(link), tmp_path) == first
    assert first.environment["CONDA_PREFIX"]
    assert Path(first.command[0]).exists()


def test_an_environment_is_let_go_while_another_one_is_unpacked(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM})
    environments = Environments()
    first = environments.interpreter(str(archive), tmp_path)
    os.mkfifo(slow := tmp_path / "slow.tar")

    def unpack() -> None:
        with pytest.raises(ModelLoadError, match="cannot be used"):
            environments.interpreter(str(slow), tmp_path)

    unpacking = Thread(target=unpack, daemon=True)
    unpacking.start()
    with slow.open("wb") as content:  # opened once the other side reads
        letting_go = Thread(target=first.release, daemon=True)
        letting_go.start()
        wait_until(lambda: not letting_go.is_alive())
        wait_until(lambda: not Path(first.command[0]).exists())
        assert unpacking.is_alive()
        content.write(b"no archive")
    unpacking.join()


@pytest.mark.parametrize("name", ["../evil", "/tmp/toutates-evil", "bin/../../evil"])
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM, name: "evil"})
    if name.startswith("/"):
        # Taken as a name within the folder.
        Environments().interpreter(str(archive), tmp_path)
        assert not Path(name).exists()
        return
    with pytest.raises(ModelLoadError, match=r"EXECUTION_ENV_PATH .* cannot be used"):
        Environments().interpreter(str(archive), tmp_path)
    assert not list(tmp_path.rglob("evil"))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM}, {"lib": "../.."})
    with pytest.raises(ModelLoadError, match="cannot be used"):
        Environments().interpreter(str(archive), tmp_path)


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    environments = Environments()
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ModelLoadError, match=r"Path .*/empty/bin/activate does not exist\. The Python environment"):
        environments.interpreter(str(tmp_path / "empty"), tmp_path)
    with pytest.raises(ModelLoadError, match="cannot be used"):
        environments.interpreter(str(tmp_path / "text"), tmp_path)
    with pytest.raises(ModelLoadError, match="No such file"):
        environments.interpreter(str(tmp_path / "absent"), tmp_path)


def test_a_process_gets_the_variables_that_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LANG", "C")
    assert Interpreter().variables()["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert Interpreter(environment={"A": "b"}, kept=frozenset(("LANG", "ABSENT"))).variables() == {
        "LANG": "C",
        "A": "b",
    }
    assert Interpreter(kept=frozenset(("",))).variables() == {}


def test_what_is_no_environment_once_it_is_unpacked_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    environments = Environments()
    for names in ({"zeros": "0" * 1_000}, {"bin/activate": "", "zeros": ""}):
        archive = make_archive(tmp_path / "env.tar.gz", names)
        with pytest.raises(ModelLoadError, match=r"bin/activate does not exist|has no program bin/python"):
            environments.interpreter(str(archive), tmp_path)
        assert not list((tmp_path / "scratch").glob("*/*"))
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM})
    assert Path(environments.interpreter(str(archive), tmp_path).command[0]).exists()


# --- archives

OF_ENVIRONMENT = {"bin/activate": "", "bin/python": PROGRAM}
Entry = tuple[str, bytes, str]
FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def tar_of(path: Path, *entries: Entry, mode: str = "w:gz") -> Path:
    """An environment, and entries behind it: name, kind, and what a file has or where a link leads."""
    every: list[Entry] = [*((name, FILE, text) for name, text in OF_ENVIRONMENT.items()), *entries]
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, kind, text in every:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, 0o6777, 1_000_000_000
            if kind == FILE:
                member.size = len(text.encode())
            else:
                member.linkname = text
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def zip_of(path: Path, *entries: Entry) -> Path:
    """The same as a zip."""
    every: list[Entry] = [*((name, FILE, text) for name, text in OF_ENVIRONMENT.items()), *entries]
    kinds = {FILE: stat.S_IFREG, LINK: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR, FOLDER: stat.S_IFDIR}
    with zipfile.ZipFile(path, "w") as archive:
        for name, kind, text in every:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (kinds[kind] | 0o755) << 16
            archive.writestr(info, text)
    return path


def links_longer_than_paths() -> list[Entry]:
    """Links whose path is longer than what the system takes, so that libraries do not see where they lead."""
    entries: list[Entry] = []
    path, component = "", "d" * 247
    steps = "abcdefghijklmno"
    for step in steps:
        entries += [(path + component, FOLDER, ""), (path + step, LINK, component)]
        path += component + "/"
    way = "/".join(steps) + "/" + "l" * 254
    entries += [(way, LINK, "../" * len(steps)), ("escape", LINK, way + "/../..")]
    return [*entries, ("flag", HARD, "escape/victim"), ("flag", FILE, "evil")]


HOSTILE: dict[str, list[Entry]] = {
    "a link, and a file through it": [("out", LINK, "../.."), ("out/victim", FILE, "evil")],
    "a link within, and a file through it": [("lib", FOLDER, ""), ("lib64", LINK, "lib"), ("lib64/a", FILE, "evil")],
    "a link over which a file is written": [("a", LINK, "../../victim"), ("a", FILE, "evil")],
    "a folder that becomes a link": [("a/b", FILE, ""), ("a", LINK, "../..")],
    "links that leave only together": [("a/b", FOLDER, ""), ("x", LINK, "a/b"), ("y", LINK, "x/../../..")],
    "a link that leaves behind another": [("y", LINK, "x/../../victim"), ("a/b", FOLDER, ""), ("x", LINK, "a")],
    "an absolute link": [("a", LINK, "/etc")],
    "dots": [("../../victim", FILE, "evil")],
    "dots within": [("bin/../../../victim", FILE, "evil")],
    "a device": [("a", tarfile.CHRTYPE, "")],
    "a file twice": [("bin/python", FILE, "evil")],
    "a file twice by another name": [("./bin//python", FILE, "evil")],
    "a file below a file": [("bin/python/a", FILE, "evil")],
    "a name that is too long": [("/".join(["a" * 200] * 21), FILE, "")],
}
HOSTILE_TARS: dict[str, list[Entry]] = {
    **HOSTILE,
    "links longer than paths": links_longer_than_paths(),
    "a hard link to outside": [("a", HARD, "../../victim")],
    "a hard link by a link": [("out", LINK, "../.."), ("a", HARD, "out/victim"), ("a", FILE, "evil")],
    "a hard link to nothing": [("a", HARD, "b")],
    "a hard link to a folder": [("a", HARD, "bin")],
    "a hard link to a link that leaves": [("a", LINK, "../.."), ("b", HARD, "a")],
    "a pipe": [("a", tarfile.FIFOTYPE, "")],
}


@pytest.mark.parametrize(
    ("make", "entries"),
    [(tar_of, entries) for entries in HOSTILE_TARS.values()] + [(zip_of, entries) for entries in HOSTILE.values()],
    ids=[*HOSTILE_TARS, *(f"{name} (zip)" for name in HOSTILE)],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_archive_writes_nothing_outside_and_leaves_nothing(
    make: Callable[..., Path], entries: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders := tmp_path / "folders").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    for place in (tmp_path, folders):
        (place / "victim").write_text("unhurt")
    archive = make(tmp_path / "environment", *entries)
    environments = Environments()
    with pytest.raises(ModelLoadError, match=r"EXECUTION_ENV_PATH .* cannot be used: "):
        environments.interpreter(str(archive), tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["environment", "folders", "victim"]
    for place in (tmp_path, folders):
        assert (place / "victim").read_text() == "unhurt"
        assert (place / "victim").stat().st_nlink == 1
    [own] = [one for one in folders.iterdir() if one.is_dir()]
    assert not list(own.iterdir())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_an_environment_has_links_of_its_own(tmp_path: Path, mode: str) -> None:
    archive = tar_of(
        tmp_path / "environment",
        (".", FOLDER, ""),
        ("./lib/python3.11/site-packages", FOLDER, ""),
        ("lib/python3.11/a.py", FILE, "a = 1"),
        ("lib64", LINK, "lib"),
        ("bin/python3", LINK, "python"),
        ("bin/lib", LINK, "../lib64/python3.11"),
        ("lib/b.py", HARD, "./lib/python3.11/a.py"),
        ("lib/dangling", LINK, "nowhere"),
        ("lib/round", LINK, "round"),
        ("bin/python3.11", HARD, "bin/python3"),
        mode=mode,
    )
    environments = Environments()
    interpreter = environments.interpreter(str(archive), tmp_path)
    folder = Path(interpreter.command[0]).parent.parent
    assert (folder / "lib64" / "python3.11" / "a.py").read_text() == "a = 1"
    assert (folder / "bin" / "lib" / "a.py").samefile(folder / "lib" / "b.py")
    assert os.readlink(folder / "bin" / "python3.11") == "python"
    assert stat.S_IMODE((folder / "bin" / "python").stat().st_mode) == 0o755
    assert (folder / "lib" / "b.py").stat().st_mtime == 1_000_000_000


def test_an_environment_may_be_a_zip(tmp_path: Path) -> None:
    archive = zip_of(
        tmp_path / "environment.zip", ("lib/", FOLDER, ""), ("lib/a.py", FILE, "a = 1"), ("lib64", LINK, "lib")
    )
    environments = Environments()
    folder = Path(environments.interpreter(str(archive), tmp_path).command[0]).parent.parent
    assert (folder / "lib64" / "a.py").read_text() == "a = 1"


def test_what_came_out_goes_with_the_last_version_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    archive = make_archive(tmp_path / "env.tar.gz", OF_ENVIRONMENT)
    environments = Environments()
    first, second = (environments.interpreter(str(archive), tmp_path) for _ in range(2))
    first.release()
    assert Path(second.command[0]).exists()
    second.release()
    wait_until(lambda: not list((tmp_path / "scratch").glob("*/*")))
    again = environments.interpreter(str(archive), tmp_path)
    assert Path(again.command[0]).exists()
    # A folder of the model's own is nobody's to remove.
    environments.interpreter(str(make_folder(tmp_path / "own")), tmp_path).release()
    assert (tmp_path / "own" / "bin" / "python").exists()


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_all_links_together_are_bounded(tmp_path: Path, make: Callable[..., Path]) -> None:
    # Each is followed by all that come after it, and has as many components as a name may have.
    way = "a/.." + "/a/.." * 800
    links = [(f"l{number}", LINK, f"{way}/l{number + 1}") for number in range(100)]
    archive = make(tmp_path / "environment", ("a/", FOLDER, ""), *links)
    with pytest.raises(ModelLoadError, match="is one of too many long links"):
        Environments().interpreter(str(archive), tmp_path)


def test_many_short_links_are_not_refused(tmp_path: Path) -> None:
    links = [(f"lib/x{number}.so", LINK, f"../lib/./x{number}.so.1") for number in range(2_000)]
    archive = tar_of(tmp_path / "environment", ("lib/", FOLDER, ""), *links)
    assert Path(Environments().interpreter(str(archive), tmp_path).command[0]).name == "python"


def test_what_comes_out_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("MAX_UNPACKED_BYTES", 10_000), ("MAX_ENTRIES", 2)):
        with monkeypatch.context() as patched:
            patched.setattr(f"toutates.backends.python.environment_archives.{limit}", value)
            for make in (tar_of, zip_of):
                archive = make(tmp_path / "environment", ("a", FILE, "x" * 20_000))
                with pytest.raises(ModelLoadError, match="than any environment"):
                    Environments().interpreter(str(archive), tmp_path)
