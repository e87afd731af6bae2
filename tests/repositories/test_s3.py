"""Repositories on S3: what is found, what is fetched, and what is not fetched twice."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.repositories.s3_services import PAGE, Proxy, S3Service, files_in, quiet
from tests.repositories.support import repository
from toutates.models import repository as local
from toutates.repositories.cache.files import read_manifest
from toutates.repositories.interface import RepositoryStatistics
from toutates.system.errors import ConfigurationError, RepositoryError

pytestmark = pytest.mark.long

MODEL = {"m/1/model.onnx": b"graph", "m/1/config.yaml": b"batch_size: 4\n", "m/config.pbtxt": b'name: "m"\n'}


def under(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {prefix + name: content for name, content in files.items()}


def test_scan_sees_what_a_directory_of_the_same_files_would_show(service: S3Service, tmp_path: Path) -> None:
    files = {
        **MODEL,
        "m/10/model.onnx": b"10",
        "m/2/model.onnx/model.onnx": b"2",
        "m/2/model.onnx/weights.data": b"w",
        "m/01/model.onnx": b"no version",
        "m/configs/a.pbtxt": b"",
        "m/.git/x": b"",
        "empty/readme": b"",
        "without/1/other": b"",
        ".hidden/1/model.onnx": b"",
        "text/modules.json": b"[]",
        "text/model.onnx": b"text",
        "text/1_Pooling/config.json": b"{}",
        "readme": b"",
    }
    for name, content in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    bucket = service.bucket(under("a/b/", files))
    with repository(service, bucket, tmp_path / "cache", "a/b/") as remote:
        found = remote.scan()
        expected = local.scan(tmp_path / "root")
        assert [folder.name for folder in found] == [folder.name for folder in expected]
        for folder, wanted in zip(found, expected, strict=True):
            # Which versions config.pbtxt chooses is known once it has been fetched.
            by_number = {version.number: version for version in folder.versions}
            assert by_number.keys() >= {version.number for version in wanted.versions}
            for other in wanted.versions:
                version = by_number[other.number]
                assert version.model_path.relative_to(folder.path) == other.model_path.relative_to(wanted.path)
                assert bool(version.problem) == bool(other.problem)
            assert len(folder.warnings) == len(wanted.warnings)
            assert bool(folder.problem) == bool(wanted.problem)
            assert folder.source == f"s3://{bucket}/a/b/{folder.name}"
        assert [folder.name for folder in remote.scan(["m", "unknown"])] == ["m"]
        assert remote.scan(["m"]) == [folder for folder in found if folder.name == "m"]


@pytest.mark.quick
def test_fetch_makes_every_file_local_beside_the_others(service: S3Service, tmp_path: Path) -> None:
    files = {**MODEL, "m/1/model.onnx": b"graph", "m/1/weights/a.data": os.urandom(100_000), "m/1/empty": b""}
    bucket = service.bucket(under("models/", {**files, "m/backup/model.onnx": b"no version"}))
    progress: list[tuple[int, int]] = []
    with repository(service, bucket, tmp_path, "models/") as remote:
        (folder,) = remote.scan()
        fetched = remote.fetch(folder, lambda done, total: progress.append((done, total)))
        assert fetched == replace(folder, versions=fetched.versions)
        assert [version.number for version in fetched.versions] == [1]
        assert fetched.versions[0].fingerprint == folder.versions[0].fingerprint
        assert fetched.versions[0].triton is not None
        assert under("m/", files_in(fetched.path)) == files
        assert fetched.versions[0].model_path.read_bytes() == b"graph"
        # ONNX Runtime follows no symbolic link out of the model's directory.
        assert not any(path.is_symlink() for path in fetched.path.rglob("*"))
    total = sum(map(len, files.values()))
    assert progress[-1] == (total, total)
    assert progress == sorted(progress)


def test_only_the_versions_wanted_are_fetched(service: S3Service, tmp_path: Path) -> None:
    bucket = service.bucket({**MODEL, "m/2/model.onnx": b"2"})
    with repository(service, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        two = remote.fetch(folder, quiet, [2])
        assert files_in(two.path) == {"2/model.onnx": b"2", "config.pbtxt": b'name: "m"\n'}
        assert [version.number for version in two.versions] == [2]
        none = remote.fetch(folder, quiet, [])
        assert files_in(none.path) == {"config.pbtxt": b'name: "m"\n'}
        assert none.fingerprint == two.fingerprint == folder.fingerprint


def test_config_pbtxt_says_which_versions_are_fetched_and_what_the_graph_is_called(
    service: S3Service, tmp_path: Path
) -> None:
    config = b'name: "m" version_policy { specific { versions: [1, 3] } } default_model_filename: "graph.onnx"'
    graphs = {f"m/{number}/graph.onnx": b"graph %d" % number for number in (1, 2, 3)}
    bucket = service.bucket({**graphs, "m/config.pbtxt": config})
    with repository(service, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        fetched = remote.fetch(folder, quiet)
        assert files_in(fetched.path).keys() == {"1/graph.onnx", "3/graph.onnx", "config.pbtxt"}
        assert [(version.number, version.problem) for version in fetched.versions] == [(1, ""), (3, "")]
        assert fetched.versions[1].model_path.read_bytes() == b"graph 3"
        assert not fetched.problem


def test_config_pbtxt_that_cannot_be_read_is_the_models_problem(service: S3Service, tmp_path: Path) -> None:
    bucket = service.bucket({**MODEL, "m/config.pbtxt": b"nome: 1"})
    with repository(service, bucket, tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert "failed to read text proto" in fetched.problem


def test_large_files_are_read_in_ranges_at_once(s3rver_service: S3Service, tmp_path: Path) -> None:
    content = os.urandom(1024) * (64 * 1024) + b"odd end"
    bucket = s3rver_service.bucket({"m/1/model.onnx": content})
    proxy = Proxy(s3rver_service.port)
    third = threading.Event()
    waited: list[bool] = []

    def before(line: str) -> None:
        # The first range may be asked for alone: from 0.19 on, s3transfer learns the size of an object by it.
        if "model.onnx" in line and len(proxy.reads) > 1:
            if len(proxy.reads) > 2:
                third.set()
            waited.append(third.wait(120))

    proxy.before = before
    try:
        with repository(proxy, bucket, tmp_path) as remote:
            fetched = remote.fetch(remote.scan()[0], quiet)
            assert fetched.versions[0].model_path.read_bytes() == content
    finally:
        proxy.close()
    assert len(proxy.reads) == 9
    assert waited == [True] * 8, "one range after the other"


def test_files_uploaded_in_parts_are_read_in_ranges(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    content = os.urandom(1024) * (20 * 1024)
    bucket = moto_service.bucket()
    etag = moto_service.put_in_parts(bucket, "m/1/model.onnx", content)
    assert "-" in etag  # no MD5: nothing but its size and ETag say what is right
    with repository(proxy, bucket, tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert fetched.versions[0].model_path.read_bytes() == content
    assert len(proxy.reads) == 3


def test_what_is_in_the_cache_is_not_downloaded_again(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket(MODEL)
    with repository(proxy, bucket, tmp_path) as remote:
        first = remote.fetch(remote.scan()[0], quiet)
    assert len(proxy.reads) == len(MODEL)
    with repository(proxy, bucket, tmp_path) as remote:
        second = remote.fetch(remote.scan()[0], quiet)
        assert second == first
    assert len(proxy.reads) == len(MODEL)


def test_a_new_version_downloads_what_is_new(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    model = {**MODEL, "m/config.pbtxt": b"version_policy { all {} }"}
    bucket = moto_service.bucket(model)
    with repository(proxy, bucket, tmp_path) as remote:
        (before,) = remote.scan()
        old = remote.fetch(before, quiet)
        moto_service.put(bucket, "m/2/model.onnx", b"new")
        (after,) = remote.scan()
        assert after.fingerprint != before.fingerprint
        assert after.versions[0].fingerprint == before.versions[0].fingerprint
        new = remote.fetch(after, quiet)
        assert proxy.reads[len(model) :] == [f"GET /{bucket}/m/2/model.onnx HTTP/1.1"]
        assert files_in(new.path).keys() == {*files_in(old.path), "2/model.onnx"}
        assert new.path != old.path


@pytest.mark.parametrize("change", ["m/1/model.onnx", "m/1/config.yaml", "m/config.pbtxt", "m/1/new"])
def test_any_change_is_another_fingerprint(moto_service: S3Service, tmp_path: Path, change: str) -> None:
    bucket = moto_service.bucket(MODEL)
    with repository(moto_service, bucket, tmp_path) as remote:
        (before,) = remote.scan()
        assert remote.scan() == [before]
        moto_service.put(bucket, change, b"other")
        (after,) = remote.scan()
        assert after.fingerprint != before.fingerprint
        assert (after.versions[0].fingerprint != before.versions[0].fingerprint) == change.startswith("m/1/")
        assert after.path != before.path


def test_equal_files_of_two_buckets_are_downloaded_once_if_their_etags_are_md5(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path
) -> None:
    for _ in range(2):
        bucket = moto_service.bucket({"m/1/model.onnx": b"the same"})
        with repository(proxy, bucket, tmp_path) as remote:
            fetched = remote.fetch(remote.scan()[0], quiet)
            assert fetched.versions[0].model_path.read_bytes() == b"the same"
    assert len(proxy.reads) == 1


def test_files_whose_etags_are_no_md5_are_kept_apart(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    content = os.urandom(6 * 2**20)
    for _ in range(2):
        bucket = moto_service.bucket()
        moto_service.put_in_parts(bucket, "m/1/model.onnx", content)
        with repository(proxy, bucket, tmp_path) as remote:
            fetched = remote.fetch(remote.scan()[0], quiet)
            assert fetched.versions[0].model_path.read_bytes() == content
    assert len(proxy.reads) == 2


def test_encrypted_objects_whose_etag_only_looks_like_an_md5_are_taken(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path
) -> None:
    bucket = moto_service.bucket()
    moto_service.client.put_object(
        Bucket=bucket, Key="m/1/model.onnx", Body=b"secret", ServerSideEncryption="aws:kms", SSEKMSKeyId="key"
    )
    with repository(proxy, bucket, tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert fetched.versions[0].model_path.read_bytes() == b"secret"
        names = [file.name for folder in (tmp_path / "models").iterdir() for file in read_manifest(folder).values()]
        assert names, "something is cached"
        assert all(name.startswith("key-") for name in names)
    with repository(proxy, bucket, tmp_path) as remote:
        remote.fetch(remote.scan()[0], quiet)
    assert len(proxy.reads) == 1


def test_two_equal_files_of_one_model_are_downloaded_once(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": b"same", "m/2/model.onnx": b"same"})
    with repository(proxy, bucket, tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert files_in(fetched.path) == {"1/model.onnx": b"same", "2/model.onnx": b"same"}
    assert len(proxy.reads) == 1


def test_listings_of_several_pages_are_read_to_the_end(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({f"m/{number}/model.onnx": b"" for number in range(1, 3 * PAGE)})
    with repository(proxy, bucket, tmp_path) as remote:
        assert len(remote.scan()[0].versions) == 3 * PAGE - 1
    assert len(proxy.requests) == 3


def test_an_empty_bucket_is_an_empty_repository(service: S3Service, tmp_path: Path) -> None:
    with repository(service, service.bucket(), tmp_path) as remote:
        assert remote.scan() == []


def test_a_missing_bucket_is_a_wrong_setting(service: S3Service, tmp_path: Path) -> None:
    with (
        repository(service, "not-there", tmp_path) as remote,
        pytest.raises(ConfigurationError, match=r"--s3-bucket.*no such bucket.*'s3://not-there'.*correct"),
    ):
        remote.scan()


def test_what_is_downloaded_is_counted_and_what_is_cached_is_not(service: S3Service, tmp_path: Path) -> None:
    bucket = service.bucket({**MODEL, "n/1/model.onnx": b"other"})
    with repository(service, bucket, tmp_path, size=1_000) as remote:
        assert remote.statistics() == RepositoryStatistics(cache=(str(tmp_path), 0, 1_000))
        folders = {folder.name: folder for folder in remote.scan()}
        remote.fetch(folders["m"], quiet)
        first = remote.statistics()
        size = sum(map(len, MODEL.values()))
        assert (first.objects, first.bytes, first.failures) == (3, size, 0)
        assert first.duration_ns > 0
        assert first.cache == (str(tmp_path), size, 1_000)
        remote.fetch(folders["m"], quiet)
        assert remote.statistics() == first
        remote.fetch(folders["n"], quiet)
        assert remote.statistics().bytes == size + 5
    with repository(service, bucket, tmp_path, size=1_000) as again:
        # What other servers have brought is there from the start.
        assert again.statistics() == RepositoryStatistics(cache=(str(tmp_path), size + 5, 1_000))


def test_a_download_that_fails_is_counted(service: S3Service, tmp_path: Path) -> None:
    bucket = service.bucket({"m/1/model.onnx": bytes(2_000)})
    with repository(service, bucket, tmp_path, size=1_000) as remote:
        (folder,) = remote.scan()
        with pytest.raises(RepositoryError, match="there is no room"):
            remote.fetch(folder, quiet)
        statistics = remote.statistics()
        assert (statistics.objects, statistics.bytes, statistics.failures) == (0, 0, 1)
