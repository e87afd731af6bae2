"""What S3, the network and the disk can do wrong: what is tried again, what is said, and that nothing wrong is kept."""

from __future__ import annotations

import gc
import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import dead_port
from tests.repositories.answers import dripping
from tests.repositories.s3_services import Fault, Proxy, S3Service, cached_files, files_in, nothing_is_left, quiet
from tests.repositories.support import repository, s3_repository
from tests.waiting import wait_until
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.pace import Patience
from toutates.repositories.s3.repository import S3Repository
from toutates.repositories.specification import BucketSpecification
from toutates.system.errors import ConfigurationError, RepositoryError
from toutates.system.file_lock import try_lock

pytestmark = pytest.mark.long

LARGE = os.urandom(1024) * (9 * 1024)  # two parts


@pytest.fixture
def bucket(moto_service: S3Service) -> str:
    return moto_service.bucket({"m/1/model.onnx": b"graph", "m/1/config.yaml": b"x: 12\n"})


def fetched_files(remote: S3Repository) -> dict[str, bytes]:
    return files_in(remote.fetch(remote.scan()[0], quiet).path)


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_at", [0, 5, 700])
def test_a_listing_that_is_cut_off_is_asked_for_again(proxy: Proxy, bucket: str, tmp_path: Path, cut_at: int) -> None:
    proxy.faults = [Fault("list-type", cut_at=cut_at)]
    with repository(proxy, bucket, tmp_path) as remote:
        assert len(remote.scan()) == 1
    assert len(proxy.requests) == 2


@pytest.mark.parametrize(
    ("begins", "goes_on", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", "the head of its answer has not come in time"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "the head of its answer has not come in time"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", "--download-min-rate"),
    ],
    ids=["head", "no head", "listing"],
)
@pytest.mark.quick
@pytest.mark.usefixtures("s3_credentials")
def test_a_listing_that_comes_by_the_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begins: bytes, goes_on: bytes, text: str
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with dripping(begins, goes_on) as endpoint:
        place = BucketSpecification("s3", "b", "", endpoint)
        patience = Patience(10**6 if "rate" in text else 0, window_s=0.3, head_s=0.2)
        one = s3_repository(place, ModelCache(tmp_path, 2**30), patience)
        with pytest.raises(RepositoryError, match=text):
            one.scan()
        one.stop()


def test_a_download_that_is_cut_off_is_tried_again(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    # More often than a request is.
    proxy.faults = [Fault("model.onnx", times=6, cut_at=1_500_000)]
    with repository(proxy, bucket, tmp_path) as remote:
        assert fetched_files(remote) == {"1/model.onnx": LARGE}
    assert nothing_is_left(tmp_path)


def test_a_download_that_gets_nowhere_ends(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        head = 500  # of about 600 bytes, none of which is content
        proxy.faults = [Fault("model.onnx", times=100, cut_at=head)]
        with pytest.raises(RepositoryError, match=r"m/1/model\.onnx.*cannot be read now"):
            remote.fetch(folder, quiet)
        assert nothing_is_left(tmp_path)
        proxy.faults = []
        assert fetched_files(remote).keys() == {"1/model.onnx", "1/config.yaml"}


def test_content_that_was_changed_on_its_way_is_downloaded_again(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    proxy.faults = [Fault("model.onnx", garble_at=100_000)]
    with repository(proxy, bucket, tmp_path) as remote:
        assert fetched_files(remote) == {"1/model.onnx": LARGE}
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("times", [1, 1_000])
def test_a_part_that_is_slower_than_allowed_is_asked_for_again_and_then_given_up(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path, times: int
) -> None:
    patience = Patience(20_000, window_s=0.5)
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    proxy.faults = [Fault("model.onnx", times=times, slow=True)]  # 10,000 bytes a second
    with repository(proxy, bucket, tmp_path, patience=patience) as remote:
        (folder,) = remote.scan()
        gc.disable()  # which would close connections too, some time later
        try:
            if times == 1:
                assert files_in(remote.fetch(folder, quiet).path) == {"1/model.onnx": LARGE}
                assert len([line for line in proxy.requests if "model.onnx" in line]) > 2
            else:
                with pytest.raises(
                    RepositoryError, match=r"cannot be read now: .*20000 bytes per second of --download"
                ):
                    remote.fetch(folder, quiet)
            wait_until(lambda: not proxy.connections)
        finally:
            gc.enable()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_connection_of_an_answer_that_nobody_reads_is_closed(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path, is_stopped: bool
) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        wait_until(lambda: not proxy.connections)
        other_part = (rb"(?i)(content-range: bytes) 0-", rb"\1 1-")
        proxy.faults = [Fault("model.onnx", slow=True, replace=None if is_stopped else other_part)]
        if is_stopped:
            proxy.before = lambda line: remote.stop()
        gc.disable()  # which would close it too, some time later
        try:
            with pytest.raises(RepositoryError, match="stopping" if is_stopped else "sends something else"):
                remote.fetch(folder, quiet)
            wait_until(lambda: not proxy.connections)
        finally:
            gc.enable()


def test_a_service_that_is_not_there_is_named(tmp_path: Path, moto_service: S3Service) -> None:
    with (
        dead_port() as port,
        repository(S3Service(port, None), "bucket", tmp_path) as remote,
        pytest.raises(RepositoryError, match=rf"s3://bucket at http://127\.0\.0\.1:{port}.*--s3-endpoint"),
    ):
        remote.scan()


def test_a_server_that_is_no_s3_service_is_a_wrong_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(65_536)
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<p>Hello world!")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            repository(S3Service(listener.getsockname()[1], None), "bucket", tmp_path) as remote,
            pytest.raises((ConfigurationError, RepositoryError), match="--s3-endpoint"),
        ):
            remote.scan()
        socket.create_connection(listener.getsockname()).close()
        thread.join(120)


# --- who may ---------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_a_wrong_setting(
    s3rver_service: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with (
        repository(s3rver_service, s3rver_service.bucket(), tmp_path) as remote,
        pytest.raises(ConfigurationError, match=r"not accepted \(InvalidAccessKeyId\).*check AWS_ACCESS_KEY_ID"),
    ):
        remote.scan()


@pytest.fixture
def guarded(moto_service: S3Service) -> Iterator[S3Service]:
    """moto while it looks at who may do what."""

    def unguarded_requests(count: str) -> None:
        request = urllib.request.Request(
            f"{moto_service.endpoint}/moto-api/reset-auth", count.encode(), {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request, timeout=120).close()

    unguarded_requests("0")
    yield moto_service
    unguarded_requests("inf")


@pytest.fixture
def key(moto_service: S3Service) -> dict[str, str]:
    """The key of a user who may do nothing."""
    import boto3

    iam = boto3.Session("a", "b", region_name="us-east-1").client("iam", endpoint_url=moto_service.endpoint)
    name = f"user-{os.urandom(4).hex()}"
    iam.create_user(UserName=name)
    made: dict[str, str] = iam.create_access_key(UserName=name)["AccessKey"]
    iam.close()
    return made


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("hunter2", r"not accepted \(SignatureDoesNotMatch\).*check AWS_ACCESS_KEY_ID"),
        (None, r"access is denied \(AccessDenied\).*allow s3:ListBucket and s3:GetObject"),
    ],
)
def test_credentials_that_may_not_are_a_wrong_setting_and_not_shown(
    bucket: str,
    key: dict[str, str],
    guarded: S3Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    secret: str | None,
    message: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or key["SecretAccessKey"])
    caplog.set_level(logging.DEBUG)
    with repository(guarded, bucket, tmp_path) as remote, pytest.raises(ConfigurationError, match=message) as raised:
        remote.scan()
    shown = str(raised.value) + caplog.text
    assert key["AccessKeyId"] not in shown
    assert (secret or key["SecretAccessKey"]) not in shown
    assert "Signature=" not in shown


def test_half_a_key_is_a_wrong_setting(
    moto_service: S3Service, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with (
        pytest.raises(ConfigurationError, match="AWS_"),
        repository(moto_service, bucket, tmp_path) as remote,
    ):
        remote.scan()


def test_an_unknown_profile_is_a_wrong_setting(
    moto_service: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match=r"nobody.*AWS_PROFILE"), repository(moto_service, "bucket", tmp_path):
        pass


# --- what happens to objects -----------------------------------------------------------------------------------------


def test_an_object_that_changes_while_it_is_downloaded_is_downloaded_anew(
    proxy: Proxy, moto_service: S3Service, tmp_path: Path
) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    new = LARGE[::-1]

    def before(line: str) -> None:
        if len(proxy.reads) == 2 and "model.onnx" in line:
            moto_service.put(bucket, "m/1/model.onnx", new)

    proxy.before = before
    with repository(proxy, bucket, tmp_path) as remote:
        (seen,) = remote.scan()
        fetched = remote.fetch(seen, quiet)
        assert files_in(fetched.path) == {"1/model.onnx": new}
        assert fetched.fingerprint != seen.fingerprint
        assert [fetched] == remote.scan()


def test_a_model_of_which_another_file_changes_meanwhile_is_no_mixture(
    proxy: Proxy, bucket: str, moto_service: S3Service, tmp_path: Path
) -> None:
    def before(line: str) -> None:
        # config.yaml has been read by now, the listing that is checked against has not.
        if len(proxy.requests) == 4:
            moto_service.put(bucket, "m/1/config.yaml", b"y: 2\n")

    proxy.before = before
    with repository(proxy, bucket, tmp_path) as remote:
        assert fetched_files(remote) == {"1/model.onnx": b"graph", "1/config.yaml": b"y: 2\n"}


def test_an_object_that_never_stays_is_given_up(
    proxy: Proxy, bucket: str, moto_service: S3Service, tmp_path: Path
) -> None:
    def before(line: str) -> None:
        if "model.onnx" in line:
            moto_service.put(bucket, "m/1/model.onnx", os.urandom(8))

    proxy.before = before
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        with pytest.raises(
            RepositoryError, match=r"'m' .* kept changing.*5 times.*m/1/model\.onnx' has changed.*upload"
        ):
            remote.fetch(folder, quiet)
    assert nothing_is_left(tmp_path)


def test_an_object_that_is_removed_meanwhile_is_no_longer_wanted(
    proxy: Proxy, bucket: str, moto_service: S3Service, tmp_path: Path
) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        moto_service.client.delete_object(Bucket=bucket, Key="m/1/config.yaml")
        assert files_in(remote.fetch(folder, quiet).path) == {"1/model.onnx": b"graph"}


def test_a_model_that_is_removed_meanwhile_is_said_to_be(
    proxy: Proxy, bucket: str, moto_service: S3Service, tmp_path: Path
) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        for name in ("config.yaml", "model.onnx"):
            moto_service.client.delete_object(Bucket=bucket, Key=f"m/1/{name}")
        with pytest.raises(RepositoryError, match=f"'m' is no longer in 's3://{bucket}'"):
            remote.fetch(folder, quiet)


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [pytest.param("content", marks=pytest.mark.quick), "size", "record", "no record"])
def test_a_damaged_file_is_downloaded_again(proxy: Proxy, bucket: str, tmp_path: Path, damage: str) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        fetched_files(remote)
    (path,) = (path for path in cached_files(tmp_path) if path.stat().st_size == 5)
    manifest = path.parents[3] / "manifest"
    path.chmod(0o600)
    if damage == "content":
        path.write_bytes(b"Graph")
    elif damage == "size":
        path.write_bytes(b"gra")
    else:
        lines = manifest.read_text().splitlines()
        [own] = [line for line in lines if "model.onnx" in line]
        lines.remove(own)
        if damage == "record":
            lines.append(own[:-10])
        manifest.write_text("\n".join(lines) + "\n")
    reads = len(proxy.reads)
    with repository(proxy, bucket, tmp_path) as remote:
        assert fetched_files(remote) == {"1/model.onnx": b"graph", "1/config.yaml": b"x: 12\n"}
        assert proxy.reads[reads:] == [f"GET /{bucket}/m/1/model.onnx HTTP/1.1"]
        assert fetched_files(remote) == {"1/model.onnx": b"graph", "1/config.yaml": b"x: 12\n"}
        assert len(proxy.reads) == reads + 1


def test_what_a_crash_left_is_begun_anew(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        remote.release(remote.fetch(remote.scan()[0], quiet))
    [complete] = (tmp_path / "models").iterdir()
    left = tmp_path / "filling" / complete.name
    complete.rename(left)
    lines = (left / "manifest").read_text().splitlines()
    [own] = [line for line in lines if "config.yaml" in line]
    (left / "manifest").write_text(own + "\n" + lines[0][:7])
    (left / "files" / "m" / "1" / "other").write_bytes(b"1234")
    other = tmp_path / "filling" / "other" / "files" / "n"
    other.mkdir(parents=True)
    (other / "model.onnx").write_bytes(b"1234")
    reads = len(proxy.reads)
    with repository(proxy, bucket, tmp_path) as remote:
        assert [path.name for path in left.rglob("*") if path.is_file() and path.parent != left] == ["config.yaml"]
        assert fetched_files(remote) == {"1/model.onnx": b"graph", "1/config.yaml": b"x: 12\n"}
        assert proxy.reads[reads:] == [f"GET /{bucket}/m/1/model.onnx HTTP/1.1"]
        assert not list((tmp_path / "filling").iterdir())


def test_what_a_failed_download_has_got_is_not_downloaded_again(
    proxy: Proxy, bucket: str, moto_service: S3Service, tmp_path: Path
) -> None:
    with repository(proxy, bucket, tmp_path) as remote:
        (folder,) = remote.scan()
        done = threading.Event()

        def before(line: str) -> None:
            if "model.onnx" in line:
                done.wait(120)

        proxy.before = before
        proxy.faults = [Fault("model.onnx", times=100, cut_at=500)]

        def until_the_other_is_there(got: int, total: int) -> None:
            if got == 6:
                done.set()

        with pytest.raises(RepositoryError, match="cannot be read now"):
            remote.fetch(folder, until_the_other_is_there)
        assert nothing_is_left(tmp_path)
        assert not list((tmp_path / "models").iterdir())
        proxy.faults = []
        # Another state of the model has another fingerprint, and the same file.
        moto_service.put(bucket, "m/1/model.onnx", b"Graph")
        proxy.requests.clear()
        assert fetched_files(remote) == {"1/model.onnx": b"Graph", "1/config.yaml": b"x: 12\n"}
        assert proxy.reads == [f"GET /{bucket}/m/1/model.onnx HTTP/1.1"]


def test_a_directory_has_its_place_once_it_is_complete(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    proxy.before = lambda line: seen.append(
        (len(list((tmp_path / "models").iterdir())), len(list((tmp_path / "filling").iterdir())))
    )
    with repository(proxy, bucket, tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert {path.stat().st_mode & 0o777 for path in fetched.path.rglob("*") if path.is_file()} == {0o400}
    assert seen == [(0, 0), (0, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_cache_of_an_older_version_is_removed_once_no_server_uses_it(
    bucket: str, moto_service: S3Service, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_used: bool
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("objects/md5-1", "objects/md5-1.json", "partial/x", "views/v/files/m/1/model.onnx", "views/v/lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    with ExitStack() as stack:
        if is_used:
            descriptor = try_lock(tmp_path / "views" / "v" / "lock", shared=True)
            assert descriptor is not None
            stack.callback(os.close, descriptor)
        with repository(moto_service, bucket, tmp_path) as remote:
            assert fetched_files(remote).keys() == {"1/model.onnx", "1/config.yaml"}
    assert (tmp_path / "objects").exists() == (tmp_path / "views").exists() == is_used
    assert f"'{tmp_path}' ha" in caplog.text


def test_two_servers_download_an_object_once(proxy: Proxy, moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE, "m/1/config.yaml": b"x"})
    hold = threading.Event()
    proxy.faults = [Fault("model.onnx", hold=hold)]
    found: list[dict[str, bytes]] = []
    with repository(proxy, bucket, tmp_path) as one, repository(proxy, bucket, tmp_path) as other:
        threads = [threading.Thread(target=lambda r=r: found.append(fetched_files(r))) for r in (one, other)]
        for thread in threads:
            thread.start()
        while len(proxy.reads) < 2 or sum("list-type" in line for line in proxy.requests) < 2:
            threads[0].join(0.01)
        threads[1].join(0.3)  # the second has met the first one's locks by now, or it would be late
        hold.set()
        for thread in threads:
            thread.join(120)
    assert found == [{"1/model.onnx": LARGE, "1/config.yaml": b"x"}] * 2
    assert len(proxy.reads) == 3  # two parts, and config.yaml


def test_a_server_takes_over_what_another_gives_up(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    hold = threading.Event()
    proxy.faults = [Fault("model.onnx", hold=hold, cut_at=0)]
    with repository(proxy, bucket, tmp_path) as one, repository(proxy, bucket, tmp_path) as other:
        failed: list[BaseException] = []

        def fetch() -> None:
            try:
                fetched_files(one)
            except RepositoryError as error:
                failed.append(error)

        first = threading.Thread(target=fetch)
        first.start()
        while not any("model.onnx" in line for line in proxy.reads):
            first.join(0.01)
        one.stop()
        hold.set()
        assert fetched_files(other) == {"1/model.onnx": b"graph", "1/config.yaml": b"x: 12\n"}
        first.join(120)
        assert len(failed) == 1


def test_what_was_used_longest_ago_makes_room(moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({f"{name}/1/model.onnx": name.encode() * 1000 for name in "abc"})
    with repository(moto_service, bucket, tmp_path, size=2500) as remote:
        folders = {folder.name: folder for folder in remote.scan()}
        for number, name in enumerate("aba"):
            fetched = remote.fetch(folders[name], quiet)
            remote.release(fetched)
            os.utime(fetched.path.parents[1] / "manifest", (number, number))
        remote.fetch(folders["c"], quiet)
        assert sorted(path.name for path in (tmp_path / "models").glob("*/files/*")) == ["a", "c"]
        assert sum(path.stat().st_size for path in cached_files(tmp_path)) == 2000


def test_what_a_server_uses_does_not_make_room(moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({f"{name}/1/model.onnx": name.encode() * 1000 for name in "abc"})
    with repository(moto_service, bucket, tmp_path, size=2500) as one:
        folders = {folder.name: folder for folder in one.scan()}
        kept = [one.fetch(folders[name], quiet) for name in "ab"]
        with repository(moto_service, bucket, tmp_path, size=2500) as other:
            other.scan()
            with pytest.raises(RepositoryError, match=r"--model-cache-size 2500: .*1000 bytes.*2000.*raise it"):
                other.fetch(folders["c"], quiet)
            assert all(folder.versions[0].model_path.exists() for folder in kept)
            one.release(kept[0])
            other.fetch(folders["c"], quiet)
            assert [folder.versions[0].model_path.exists() for folder in kept] == [False, True]


def test_a_process_that_has_ended_uses_nothing(moto_service: S3Service, tmp_path: Path) -> None:
    bucket = moto_service.bucket({f"{name}/1/model.onnx": name.encode() * 1000 for name in "ab"})
    with repository(moto_service, bucket, tmp_path, size=1500) as remote:
        folders = {folder.name: folder for folder in remote.scan()}
        script = (
            "import os, sys; from pathlib import Path; from tests.repositories.support import repository\n"
            "from tests.repositories.s3_services import S3Service, quiet\n"
            "with repository(S3Service(int(sys.argv[1]), None), sys.argv[2], Path(sys.argv[3])) as remote:\n"
            "    remote.fetch(remote.scan(['a'])[0], quiet); os._exit(7)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script, str(moto_service.port), bucket, str(tmp_path)], timeout=120, check=False
        )
        assert ended.returncode == 7
        remote.fetch(folders["b"], quiet)
        assert sorted(path.name for path in (tmp_path / "models").glob("*/files/*")) == ["b"]


def test_a_directory_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"--model-cache-dir.*Not a directory.*file/below.*writable"):
        ModelCache(tmp_path / "file" / "below", 1)


def test_a_full_disk_is_said_before_the_download(moto_service: S3Service, proxy: Proxy, tmp_path: Path) -> None:
    bucket = moto_service.bucket({"m/1/model.onnx": LARGE})
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk takes the right to mount one")
    try:
        with repository(proxy, bucket, tmp_path) as remote:
            (folder,) = remote.scan()
            with pytest.raises(RepositoryError, match=rf"--model-cache-dir {tmp_path}.*No space left.*make room"):
                remote.fetch(folder, quiet)
            assert nothing_is_left(tmp_path)
        assert proxy.reads == []
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_repository_that_is_stopped_ends_its_downloads(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    specification = BucketSpecification("s3", bucket, "", proxy.endpoint)
    remote = s3_repository(specification, ModelCache(tmp_path, 2**40))
    (folder,) = remote.scan()
    remote.stop()
    with pytest.raises(RepositoryError, match="stopping"):
        remote.fetch(folder, quiet)
    assert nothing_is_left(tmp_path)
