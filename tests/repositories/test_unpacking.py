from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.attacks.management import write_lying_zip
from tests.torchserve_archives import contents, mar, tgz
from toutates.repositories.torchserve.importing import import_archive
from toutates.repositories.unpacking import Bounds, unpack
from toutates.system.errors import ConfigurationError


def zip_with(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents().items():
            archive.writestr(name, content)
        for info, content_bytes in members:
            archive.writestr(info, content_bytes)
    return path


def named(name: str) -> Callable[[Path], Path]:
    return lambda path: zip_with(path / "a.mar", (zipfile.ZipInfo(name), b"x"))


def linked(path: Path) -> Path:
    info = zipfile.ZipInfo("link")
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zip_with(path / "a.mar", (info, b"/etc/passwd"))


def encrypted(path: Path) -> Path:
    archive = mar(path / "a.mar")
    data = bytearray(archive.read_bytes())
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    archive.write_bytes(data)
    return archive


def bomb(path: Path) -> Path:
    info = zipfile.ZipInfo("weights.pt")
    info.compress_type = zipfile.ZIP_DEFLATED
    return zip_with(path / "a.mar", (info, bytes(17 * 2**20)))


def many(path: Path) -> Path:
    with zipfile.ZipFile(path / "a.mar", "w") as archive:
        for number in range(10_001):
            archive.writestr(f"{number}", b"")
    return path / "a.mar"


def long_table(path: Path) -> Path:
    archive = mar(path / "a.mar")
    data = bytearray(archive.read_bytes())
    struct.pack_into("<L", data, data.rfind(b"PK\x05\x06") + 12, 2**30)
    archive.write_bytes(data)
    return archive


@pytest.mark.filterwarnings("ignore:Duplicate name")
def twice(path: Path) -> Path:
    with zipfile.ZipFile(path / "a.mar", "w") as archive:
        archive.writestr("a.py", b"1")
        archive.writestr("./a.py", b"2")
    return path / "a.mar"


def cut_off(path: Path) -> Path:
    archive = mar(path / "a.mar")
    archive.write_bytes(archive.read_bytes()[:-40])
    return archive


def damaged(path: Path) -> Path:
    archive = zip_with(path / "a.mar", (zipfile.ZipInfo("weights"), b"weights" * 100))
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"weights" * 5, b"WEIGHTS" * 5, 1))
    return archive


def both(path: Path) -> Path:
    return zip_with(path / "a.mar", (zipfile.ZipInfo("x"), b""), (zipfile.ZipInfo("x/y"), b""))


def tar_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path / "a.tar.gz", "w:gz") as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return path / "a.tar.gz"


def tar_named(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[Path], Path]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return lambda path: tar_with(path, info)


def tar_bomb(path: Path) -> Path:
    info = tarfile.TarInfo("weights")
    info.size = 17 * 2**20
    return tar_with(path, info)


def tar_with_a_huge_head(path: Path) -> Path:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "x" * (2 * 2**20)}
    return tar_with(path, info)


def folder_with_a_link(path: Path) -> Path:
    folder = path / "folder"
    folder.mkdir()
    (folder / "handler.py").symlink_to("/etc/passwd")
    return folder


def folder_with_a_pipe(path: Path) -> Path:
    folder = path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "handler.py")
    return folder


def text(path: Path) -> Path:
    (path / "a.mar").write_text("hello")
    return path / "a.mar"


HOSTILE = [
    ("dots", named("../../evil.py"), "leaves the archive's directory"),
    ("dots within", named("a/../../evil.py"), "leaves the archive's directory"),
    ("absolute", named("/etc/evil"), "has an absolute path"),
    ("drive", named("C:evil"), "has an absolute path"),
    ("backslash", named("a\\..\\b"), "has a name that no file should have"),
    ("control", named("a\x1b[2J"), "has a name that no file should have"),
    ("long name", named("a" * 2_000), "has a name that no file should have"),
    ("link", linked, "is a link or no plain file"),
    ("encrypted", encrypted, "is encrypted"),
    ("bomb", bomb, "to fill the disk"),
    ("many files", many, "has more than 10000 files"),
    ("long table", long_table, "is broken: "),
    (
        "large table",
        lambda path: write_lying_zip(path / "a.mar", 80, 60_000),
        "its table of contents has more than 4194304 bytes",
    ),
    (
        "many entries",
        lambda path: write_lying_zip(path / "a.mar", 40_001),
        "its table of contents has more than 4194304 bytes or 40000 entries",
    ),
    ("twice", twice, "is there twice"),
    ("file and folder", both, "is a file and a folder at once"),
    ("cut off", cut_off, "is broken"),
    ("damaged", damaged, "is broken"),
    ("tar dots", tar_named("../evil"), "leaves the archive's directory"),
    ("tar absolute", tar_named("/evil"), "has an absolute path"),
    ("tar link", tar_named("a", tarfile.SYMTYPE, "/etc/passwd"), "is a link or no plain file"),
    ("tar hard link", tar_named("a", tarfile.LNKTYPE, "/etc/passwd"), "is a link or no plain file"),
    ("tar device", tar_named("a", tarfile.CHRTYPE), "is a link or no plain file"),
    ("tar bomb", tar_bomb, "to fill the disk"),
    ("tar huge head", tar_with_a_huge_head, "a head of more than a megabyte"),
    ("folder with a link", folder_with_a_link, "is a link or no plain file"),
    ("folder with a pipe", folder_with_a_pipe, "is a link or no plain file"),
    ("text", text, "is neither a zip nor a .tar.gz"),
    ("nothing", lambda path: path / "missing.mar", "is no file and no folder"),
]


@pytest.mark.parametrize(("make", "sentence"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    make: Callable[[Path], Path], sentence: str, tmp_path: Path
) -> None:
    source, repository = tmp_path / "source", tmp_path / "repository"
    source.mkdir()
    archive = make(source)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        import_archive(archive, repository)
    assert "\x1b" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before
    repository.mkdir()
    with pytest.raises(ConfigurationError):
        import_archive(archive, repository)
    assert list(repository.iterdir()) == []


def test_what_comes_out_is_counted_whatever_the_archive_says_of_itself(tmp_path: Path) -> None:
    archive = mar(tmp_path / "a.mar", {"large": bytes(5_000)})
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<L", data, data.find(signature) + offset, 10)
    archive.write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigurationError):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("make", [mar, tgz])
def test_bounds_of_files_and_bytes_hold(make: Callable[..., Path], tmp_path: Path) -> None:
    archive = make(tmp_path / "a", {"a": bytes(600), "b": bytes(600)})
    for number, (bounds, fits) in enumerate(
        [(Bounds(2, 10_240), True), (Bounds(1, 10_240), False), (Bounds(2, 1_000), False)]
    ):
        target = tmp_path / str(number)
        target.mkdir()
        if fits:
            unpack(archive, target, bounds)
            assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
        else:
            with pytest.raises(ConfigurationError):
                unpack(archive, target, bounds)
