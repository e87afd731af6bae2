"""Listings on disk: what was listed comes back, and what is damaged, foreign or half-written does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repositories.s3_services import Proxy, S3Service, cached_files, files_in, quiet
from tests.repositories.support import repository
from toutates.repositories.s3 import listings as module
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.s3.listings import Listings
from toutates.system.errors import RepositoryError

PLACE = "s3://bucket at http://s3"
OBJECTS = [S3Object("p/m/1/model.onnx", '"etag"', 12), S3Object("p/\ud800\n\x85ü/1/x", '"a-2"', 0)]


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(tmp_path: Path, clock: Clock) -> Listings:
    listings = Listings(tmp_path, PLACE, clock)
    listings.keep("p/", OBJECTS, if_empty=True)
    return listings


def only_file(cache: Path) -> Path:
    [path] = (cache / "listings").iterdir()
    return path


def test_what_was_listed_comes_back_with_its_time(kept: Listings, tmp_path: Path) -> None:
    found = Listings(tmp_path, PLACE).recall("p/")
    assert found is not None
    assert (list(found.objects), found.time_s) == (OBJECTS, 1_000.0)
    assert kept.recall("other/") is None
    assert Listings(tmp_path, "s3://other at http://s3").recall("p/") is None


def test_an_empty_listing_is_one(kept: Listings) -> None:
    kept.keep("p/", [], if_empty=True)
    found = kept.recall("p/")
    assert found is not None
    assert found.objects == ()


def test_names_that_anybody_asks_for_leave_nothing(kept: Listings, tmp_path: Path) -> None:
    kept.keep("p/unknown/", [], if_empty=False)
    assert len(list((tmp_path / "listings").iterdir())) == 1
    kept.keep("p/m/", OBJECTS[:1], if_empty=False)
    kept.keep("p/m/", [], if_empty=False)  # it was there, and is gone
    found = kept.recall("p/m/")
    assert found is not None
    assert found.objects == ()


def test_a_listing_that_does_not_change_is_written_again_for_its_time_only(
    kept: Listings, tmp_path: Path, clock: Clock
) -> None:
    path = only_file(tmp_path)
    before = path.stat().st_ino
    clock.now_s += 299
    kept.keep("p/", OBJECTS, if_empty=True)
    assert path.stat().st_ino == before
    clock.now_s += 2
    kept.keep("p/", OBJECTS, if_empty=True)
    found = kept.recall("p/")
    assert found is not None
    assert found.time_s == clock.now_s
    clock.now_s += 1
    kept.keep("p/", OBJECTS[:1], if_empty=True)
    found = kept.recall("p/")
    assert found is not None
    assert (len(found.objects), found.time_s) == (1, clock.now_s)


def test_what_another_server_wrote_meanwhile_is_replaced_by_what_was_listed_last(
    kept: Listings, tmp_path: Path, clock: Clock
) -> None:
    Listings(tmp_path, PLACE, clock).keep("p/", OBJECTS[:1], if_empty=True)
    kept.keep("p/", OBJECTS, if_empty=True)
    found = kept.recall("p/")
    assert found is not None
    assert list(found.objects) == OBJECTS


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[:-20],
    "cut off after a line": lambda data: data[: data.rindex(b"\n", 0, -1) + 1],
    "empty": lambda data: b"",
    "another time": lambda data: data.replace(b"1000.0", b"9000.0"),
    "another ETag": lambda data: data.replace(b"etag", b"gate"),
    "something else": lambda data: b"this is no listing\n" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_listing_is_not_used_and_said(
    kept: Listings, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = only_file(tmp_path)
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    assert kept.recall("p/") is None
    assert f"the listing in '{path}' is not used: it is damaged, or was written halfway" in caplog.text


def test_a_listing_of_another_bucket_in_its_place_is_not_used(
    kept: Listings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = only_file(tmp_path)
    Listings(tmp_path, "s3://other at http://s3").keep("p/", OBJECTS, if_empty=True)
    [other] = set((tmp_path / "listings").iterdir()) - {path}
    other.replace(path)
    assert kept.recall("p/") is None
    assert "is not used: it is of another bucket, endpoint or prefix" in caplog.text


def test_a_listing_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "listings").write_text("in the way")
    listings = Listings(tmp_path, PLACE)
    for _ in range(3):
        listings.keep("p/", OBJECTS, if_empty=True)
    assert caplog.text.count("cannot be written") == 1
    assert "it cannot start from the cache" in caplog.text


def test_there_are_never_more_than_so_many_and_what_crashes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FILES", 3)
    listings = Listings(tmp_path, PLACE)
    for number in range(5):
        listings.keep(f"{number}/", OBJECTS, if_empty=True)
        for age, path in enumerate(sorted((tmp_path / "listings").iterdir(), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(path, (age, age))
    assert [listings.recall(f"{number}/") is not None for number in range(5)] == [False, False, True, True, True]
    (tmp_path / "listings" / ".left").touch()
    (tmp_path / "listings" / ".being-written").touch()
    os.utime(tmp_path / "listings" / ".left", (1, 1))
    listings.keep("0/", OBJECTS, if_empty=True)
    names = [path.name for path in (tmp_path / "listings").iterdir()]
    assert (".left" in names, ".being-written" in names, len(names)) == (False, True, 4)


# --- repositories


def test_a_repository_recalls_what_it_last_listed_and_serves_it_from_the_cache(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"a/1/model.onnx": b"a", "b/1/model.onnx": b"b"})
    with repository(proxy, bucket, tmp_path) as remote:
        before = remote.scan()
        for folder in before:
            remote.fetch(folder, quiet)
    asked = len(proxy.requests)
    with repository(proxy, bucket, tmp_path) as remote:
        recalled = remote.recall(None, "it is down")
        assert recalled is not None
        assert recalled.folders == before
        assert remote.statistics().listed_s == recalled.listed_s
        assert files_in(remote.fetch(recalled.folders[0], quiet).path) == {"1/model.onnx": b"a"}
        [path] = [path for path in cached_files(tmp_path) if path.read_bytes() == b"b"]
        path.unlink()
        with pytest.raises(RepositoryError, match=r"1 of its 1 files are not in the cache .*downloaded: it is down"):
            remote.fetch(recalled.folders[1], quiet)
        assert len(proxy.requests) == asked
        remote.scan()  # it is back
        assert files_in(remote.fetch(recalled.folders[1], quiet).path) == {"1/model.onnx": b"b"}


def test_models_asked_for_by_name_are_recalled_from_the_newer_of_two_listings(
    moto_service: S3Service, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"a/1/model.onnx": b"a", "b/1/model.onnx": b"b"})

    def recalled(*only: str) -> list[tuple[str, int]]:
        with repository(moto_service, bucket, tmp_path) as remote:
            found = remote.recall(only, "")
            return [(folder.name, len(folder.versions)) for folder in found.folders] if found is not None else []

    with repository(moto_service, bucket, tmp_path) as remote:
        assert recalled("a") == []
        remote.scan(["a"])
        assert (recalled("a"), recalled("b"), recalled("a", "b")) == ([("a", 1)], [], [("a", 1)])
        moto_service.put(bucket, "a/2/model.onnx", b"a")
        remote.scan()
        assert (recalled("a"), recalled("b")) == ([("a", 2)], [("b", 1)])
        moto_service.put(bucket, "a/3/model.onnx", b"a")
        remote.scan(["a"])
        assert recalled("a", "b") == [("a", 3), ("b", 1)]
