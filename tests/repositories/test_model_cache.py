"""The cache by itself: what filling costs, what servers that share it know of each other, and what counts."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from tests.repositories.support import want_all_room
from toutates.repositories.cache import contents as contents_module
from toutates.repositories.cache.files import CachedFile, ObjectIdentity, read_manifest
from toutates.repositories.cache.model_cache import ModelCache
from toutates.system.errors import RepositoryError

FILE = "m/1/model.onnx"


def identity_of(data: bytes) -> ObjectIdentity:
    return ObjectIdentity.of("place", "key", f'"{hashlib.md5(data).hexdigest()}"', len(data))


def fill(cache: ModelCache, fingerprint: str, data: bytes) -> bool:
    """Fill a directory with one file and release it; whether the file came from the cache."""
    filling = cache.begin(fingerprint, "m")
    assert filling is not None
    try:
        reused = cache.reuse(filling, {FILE: identity_of(data)})
        if not reused:
            cache.reserve(filling, {FILE: len(data)})
            with cache.open(filling, FILE, lambda end: None) as target:
                target.write(data)
        sha256 = hashlib.sha256(data).hexdigest()
        name = identity_of(data).names[0]
        cache.complete(filling, FILE, CachedFile(filling.path(FILE), name, len(data), sha256))
        cache.finish(filling)
    except BaseException:
        cache.abandon(filling)
        raise
    cache.release(fingerprint)
    return bool(reused)


def use(cache: ModelCache, fingerprint: str, time_s: int) -> None:
    """As if a directory had been used last at this time."""
    os.utime(cache.path(fingerprint, "m").parents[1] / "manifest", (time_s, time_s))


def complete(cache: ModelCache) -> set[str]:
    """Fingerprints of the directories that are complete."""
    return {path.name for path in cache.path("any", "m").parents[2].iterdir() if path.is_dir()}


def test_filling_a_directory_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(folder: Path) -> dict[str, CachedFile]:
        read.append(folder.name)
        return read_manifest(folder)

    monkeypatch.setattr(contents_module, "read_manifest", counted)
    cache = ModelCache(tmp_path, 1_000)
    for number in range(5):
        fill(cache, f"f{number}", b"data %d" % number)
    assert set(read) == {f"f{number}" for number in range(5)}
    last = read.index("f4")
    assert set(read[last:]) == {"f4"}


def test_servers_that_share_a_cache_know_what_the_others_add_and_remove(tmp_path: Path) -> None:
    one, other = ModelCache(tmp_path, 100), ModelCache(tmp_path, 100)
    fill(one, "a", b"a" * 40)
    assert fill(other, "b", b"a" * 40)  # the same file in another model takes no room
    assert not fill(one, "c", b"c" * 60)
    assert (one.used_bytes, complete(one)) == (100, {"a", "b", "c"})
    for at, fingerprint in enumerate("abc"):
        use(one, fingerprint, 1_000 + at)
    # Both directories with the first file have to go, before there is room for another.
    assert not fill(other, "d", b"d" * 40)
    assert (other.used_bytes, complete(other)) == (100, {"c", "d"})
    assert not fill(one, "e", b"a" * 40)
    assert complete(one) == {"d", "e"}


def test_what_was_used_after_it_was_found_old_stays(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 30)
    for at, fingerprint in enumerate("abc"):
        fill(cache, fingerprint, fingerprint.encode() * 10)
        use(cache, fingerprint, 1_000 + at)
    fill(cache, "d", b"d" * 10)
    assert complete(cache) == {"b", "c", "d"}
    use(cache, "b", 2_000)
    fill(cache, "e", b"e" * 10)
    assert complete(cache) == {"b", "d", "e"}
    assert cache.hold("b")
    fill(cache, "f", b"f" * 20)
    assert complete(cache) == {"b", "f"}
    with pytest.raises(RepositoryError, match=r"no room for 21 bytes beside the 10 in .* that are in use"):
        fill(cache, "g", b"g" * 21)
    assert complete(cache) == {"b"}


def test_a_copy_takes_room_where_the_file_system_has_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    cache = ModelCache(tmp_path, 100)
    fill(cache, "a", b"a" * 40)
    assert fill(cache, "b", b"a" * 40)
    assert cache.used_bytes == 80
    use(cache, "a", 1_000)
    assert fill(cache, "c", b"a" * 40)
    assert (cache.used_bytes, complete(cache)) == (80, {"b", "c"})
    # There is no room for a copy beside what is in use.
    assert cache.hold("b")
    assert cache.hold("c")
    with pytest.raises(RepositoryError, match="no room for 40 bytes beside the 80"):
        fill(cache, "d", b"a" * 40)


def test_a_file_that_was_damaged_is_taken_from_another_place(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 1_000)
    fill(cache, "a", b"data")
    fill(cache, "b", b"data")
    (cache.path("a", "m") / "1" / "model.onnx").unlink()
    assert fill(cache, "c", b"data")
    want_all_room(cache)
    assert complete(cache) == set()
