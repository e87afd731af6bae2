"""Servers that start while S3 does not answer, or refuses: what they serve, what they say, and how they catch up."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control import EXPLICIT, POLL, answer, client_of, fails, index
from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.models import versioned_model
from tests.e2e.process import ServerProcess, command, environment, running
from tests.e2e.test_s3_control import Bucket
from tests.repositories.s3_services import Fault, Proxy, S3Service, cached_files
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("s3_credentials")]

HTTP = ("--metrics-addr", "127.0.0.1:0")
#: Asked again soon, in every mode.
SOON = ("--repository-poll-secs", "0.2")
FROM_CACHE = "are served from the cache as they were listed"


def flags(proxy: Proxy, folder: Path, *more: str) -> list[str]:
    return ["--s3-endpoint", proxy.endpoint, "--model-cache-dir", str(folder / "cache"), *HTTP, *more]


@contextmanager
def serving(bucket: Bucket, proxy: Proxy, folder: Path, *more: str) -> Iterator[tuple[ServerProcess, Any]]:
    """A server, and a client of it; both have ended well in the end."""
    with running(bucket.url, folder, flags(proxy, folder, *more)) as process:
        with client_of(process) as client:
            yield process, client
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


@contextmanager
def starting(folder: Path, *arguments: str, before: str = "pass") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A server that need not get as far as to serve, and its log; ``before`` is code that it runs first."""
    log = folder / "log"
    python, _, _, *words = command("--grpc-addr", "127.0.0.1:0", *arguments)
    code = f"{before}\nimport sys; from toutates.command.entry import main; sys.exit(main())"
    with log.open("wb") as output:
        process = subprocess.Popen([python, "-c", code, *words], stdout=output, stderr=output, env=environment())
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(120)


def get(log: str, path: str) -> tuple[int, str]:
    """Status and text of a path of the HTTP side whose address the log has."""
    found = re.search(r"status page on (http://\S+?)/,", log)
    assert found is not None, log
    try:
        with urllib.request.urlopen(found[1] + path, timeout=120) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(process: ServerProcess, name: str) -> float:
    """The value of a metric with one series."""
    _, text = get(process.log, "/metrics")
    [line] = [line for line in text.splitlines() if line.startswith(name + "{")]
    return float(line.rpartition(" ")[2])


def fill_cache(bucket: Bucket, proxy: Proxy, folder: Path, *more: str) -> None:
    """Let a server put everything of a bucket into the cache."""
    (folder / "before").mkdir()
    with running(bucket.url, folder / "before", flags(proxy, folder, *more)) as process:
        assert process.stop() == 0
    proxy.requests.clear()


# --- S3 that does not answer, and a cache that has everything


@pytest.mark.parametrize("mode", [SOON, POLL], ids=["none", "poll"])
def test_a_server_starts_from_its_cache_and_catches_up_when_s3_is_back(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "gone/1": 10})
    fill_cache(bucket, proxy, tmp_path)
    bucket.fail()
    bucket.put_model("m/2", 2)
    bucket.put_model("new/1", 3)
    bucket.remove("gone/1/model.onnx")
    with serving(bucket, proxy, tmp_path, *mode) as (process, client):
        assert (answer(client, "m"), answer(client, "gone"), client.is_server_ready()) == (1, 10, True)
        assert get(process.log, "/health/ready")[0] == 200
        assert process.log.count(FROM_CACHE) == 1
        assert f"the model repository '{bucket.url}' does not answer: --model-repository" in process.log
        assert metric(process, "toutates_repository_answers") == 0
        assert 0 < metric(process, "toutates_repository_listing_age_seconds") < 300
        asked = len(proxy.requests)
        wait_until(lambda: len(proxy.requests) >= asked + 4)  # it is asked again and again
        assert answer(client, "m") == 1

        bucket.mend()
        wait_until(lambda: [one[:3] for one in index(client)] == [
            ("m", "1", "READY"), ("m", "2", "READY"), ("new", "1", "READY")
        ])  # fmt: skip
        assert (answer(client, "m"), answer(client, "new")) == (2, 3)
        assert fails(lambda: answer(client, "gone"))[0] == "NOT_FOUND"
        wait_until(lambda: metric(process, "toutates_repository_answers") == 1)  # once all of it has been loaded
        wait_until(lambda: "can be read again" in process.log)
        if mode is SOON:  # it has been answered once
            bucket.put_model("m/3", 30)
            asked = len(proxy.requests)
            time.sleep(1.0)  # several times as long as it would wait
            assert len(proxy.requests) == asked
            assert answer(client, "m") == 2


def test_a_server_that_loads_on_request_starts_from_its_cache(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "other/1": 10})
    mode = (*EXPLICIT, *SOON, "--load-model", "m")
    fill_cache(bucket, proxy, tmp_path, *mode)
    bucket.fail()
    bucket.put_model("m/2", 2)
    with serving(bucket, proxy, tmp_path, *mode) as (process, client):
        assert (answer(client, "m"), client.is_server_ready()) == (1, True)
        assert FROM_CACHE in process.log
        assert fails(lambda: client.load_model("other"))[0] == "INTERNAL"
        bucket.mend()
        wait_until(lambda: answer(client, "m") == 2)
        client.load_model("other")
        assert answer(client, "other") == 10


def test_what_was_unloaded_on_request_stays_so_when_s3_is_back(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "other/1": 10})
    mode = (*EXPLICIT, *SOON, "--load-model", "*")
    fill_cache(bucket, proxy, tmp_path, *mode)
    bucket.fail()
    with serving(bucket, proxy, tmp_path, *mode) as (process, client):
        client.unload_model("m")
        bucket.put_model("other/1", 11)
        bucket.mend()
        wait_until(lambda: answer(client, "other") == 11)
        wait_until(lambda: ("m", "1", "UNAVAILABLE", "unloaded") in index(client))
        assert "model 'm' has been loaded" not in process.log


def test_a_model_whose_files_are_not_in_the_cache_is_unready_until_s3_is_back(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "lost/1": 10})
    fill_cache(bucket, proxy, tmp_path)
    [lost] = [path for path in cached_files(tmp_path / "cache") if path.read_bytes() == versioned_model(10)]
    lost.unlink()
    bucket.fail()
    with serving(bucket, proxy, tmp_path, *SOON) as (_, client):
        assert (answer(client, "m"), client.is_model_ready("lost"), client.is_server_ready()) == (1, False, False)
        [reason] = [one[3] for one in index(client) if one[0] == "lost"]
        assert "1 of its 1 files are not in the cache" in reason
        assert "cannot be downloaded: --model-repository" in reason
        bucket.mend()
        wait_until(client.is_server_ready)
        assert answer(client, "lost") == 10  # it was not ready while the model was only being loaded


def test_s3_that_does_not_answer_is_waited_for_some_seconds_where_the_cache_has_everything(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    fill_cache(bucket, proxy, tmp_path)
    held = threading.Event()
    proxy.faults = [Fault("", times=10**9, hold=held)]
    with serving(bucket, proxy, tmp_path, *SOON) as (process, client):
        assert (answer(client, "m"), client.is_server_ready()) == (1, True)
        # How much later than after a second depends on the machine; that it is the only line at this level does not.
        waiting = rf"INFO .*waiting for {bucket.url}: the first listing, \d+ s so far"
        assert len(re.findall(waiting, process.log)) == 1, process.log
        assert "does not answer: it has not answered for 10 s" in process.log
        bucket.put_model("m/2", 2)
        proxy.faults = []
        held.set()
        wait_until(lambda: answer(client, "m") == 2)


def test_servers_that_share_a_cache_both_start_from_it(moto_service: S3Service, proxy: Proxy, tmp_path: Path) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    fill_cache(bucket, proxy, tmp_path)
    bucket.fail()
    (tmp_path / "other").mkdir()
    with (
        serving(bucket, proxy, tmp_path, *POLL) as (_, client),
        running(bucket.url, tmp_path / "other", flags(proxy, tmp_path, *POLL)) as other,
        client_of(other) as other_client,
    ):
        assert (answer(client, "m"), answer(other_client, "m")) == (1, 1)
        bucket.put_model("m/1", 2)
        bucket.mend()
        wait_until(lambda: (answer(client, "m"), answer(other_client, "m")) == (2, 2))


# --- S3 that refuses


class _Denies(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_bucket_to_which_access_is_refused_is_an_error_and_nothing_of_it_is_served(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    fill_cache(bucket, proxy, tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Denies) as denies:
        threading.Thread(target=denies.serve_forever, daemon=True).start()
        proxy.upstream = denies.server_address[1]
        with serving(bucket, proxy, tmp_path, *SOON) as (process, client):
            assert fails(lambda: answer(client, "m"))[0] == "NOT_FOUND"
            assert not client.is_server_ready()
            status, text = get(process.log, "/health/ready")
            assert (status, "access is denied (AccessDenied)" in text) == (503, True)
            assert FROM_CACHE not in process.log
            assert "ERROR" in process.log
            assert "allow s3:ListBucket and s3:GetObject" in process.log
            proxy.upstream = moto_service.port  # access is granted
            wait_until(client.is_server_ready)
            assert answer(client, "m") == 1
        proxy.upstream = denies.server_address[1]
        arguments = ["--model-repository", bucket.url, *flags(proxy, tmp_path), "--exit-on-error", "true"]
        with starting(tmp_path, *arguments) as (process_itself, log):
            assert process_itself.wait(120) == 2
            assert "access is denied" in log.read_text()
        denies.shutdown()


# --- repositories of which nothing is known


def test_a_dead_repository_does_not_keep_the_others_from_being_served(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    bucket.fail()
    local = tmp_path / "local" / "here" / "1"
    local.mkdir(parents=True)
    (local / "model.onnx").write_bytes(versioned_model(5))
    both = flags(proxy, tmp_path, *SOON, "--model-repository", str(tmp_path / "local"))
    with running(bucket.url, tmp_path, both) as process, client_of(process) as client:
        assert (answer(client, "here"), client.is_server_ready()) == (5, False)
        status, text = get(process.log, "/health/ready")
        expected = f"not ready: the model repository '{bucket.url}' cannot be read: --model-repository {bucket.url}"
        assert (status, text.startswith(expected)) == (503, True), text
        assert get(process.log, "/health/live")[0] == 200
        bucket.mend()
        wait_until(client.is_server_ready)
        assert (answer(client, "m"), answer(client, "here")) == (1, 5)
        assert process.stop() == 0
    bucket.fail()
    (tmp_path / "cache" / "listings").rename(tmp_path / "elsewhere")
    (tmp_path / "again").mkdir()
    arguments = ["--model-repository", bucket.url, *both, "--exit-on-error", "true"]
    with starting(tmp_path / "again", *arguments) as (ending, log):
        assert ending.wait(120) == 2
        assert "error: --model-repository" in log.read_text()
        assert "cannot be listed now" in log.read_text()


def test_a_directory_that_cannot_be_read_leaves_the_server_up_and_is_served_once_it_can(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.symlink_to(root)  # whoever runs this may read what is only forbidden
    with running(root, tmp_path, [*HTTP, *SOON]) as process, client_of(process) as client:
        assert not client.is_server_ready()
        status, text = get(process.log, "/health/ready")
        assert (status, "cannot be read" in text) == (503, True)
        made = tmp_path / "made" / "m" / "1"
        made.mkdir(parents=True)
        (made / "model.onnx").write_bytes(versioned_model(4))
        root.unlink()
        made.parent.parent.rename(root)
        wait_until(client.is_server_ready)
        assert answer(client, "m") == 4
        assert process.stop() == 0


def test_while_nothing_answers_the_http_side_does_and_a_signal_ends_the_server_at_once(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    proxy.faults = [Fault("", times=10**9, hold=threading.Event())]
    # An attempt of a listing takes an hour here, so that a server that waits for its end is not seen to end.
    patience = "from toutates.repositories.s3 import client; client._READ_SECONDS = 3_600"
    arguments = ["--model-repository", bucket.url, *flags(proxy, tmp_path)]
    with starting(tmp_path, *arguments, before=patience) as (process, log):
        wait_until(lambda: "status page on" in log.read_text())
        assert get(log.read_text(), "/health/live") == (200, "live\n")
        wait_until(lambda: "waiting for" in get(log.read_text(), "/health/ready")[1])  # the page is there before that
        status, text = get(log.read_text(), "/health/ready")
        assert status == 503
        assert re.fullmatch(rf"not ready: waiting for {bucket.url}: the first listing, \d+ s so far\n", text), text
        wait_until(lambda: log.read_text().count(f"waiting for {bucket.url}: the first listing") >= 2)
        assert "serving gRPC" not in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert "Traceback" not in log.read_text()
