"""Models on S3 that are loaded when a request needs them: memory before the cache on disk before S3."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.e2e.control import answer, fails, index
from tests.e2e.test_s3_control import Bucket, ready, serving
from tests.repositories.s3_services import Proxy, S3Service
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("s3_credentials")

#: Memory for one model alone.
FLAGS: Final = ("--model-control-mode", "on-demand", "--model-memory", "300K", "--model-min-stay", "0")
MODELS: Final = {"a/1": 1, "b/1": 2, "b/2": 22, "c/1": 3, "d/1": 4}


def files(bucket: Bucket) -> list[str]:
    return [name for name in bucket.fetched() if name]


def test_a_model_comes_from_s3_first_and_from_the_disk_after_it_has_left(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, MODELS)
    with serving(bucket, proxy, tmp_path, *FLAGS) as (_, client):
        assert files(bucket) == [], "the index alone is read"
        assert {name for name, *_ in index(client)} == {"a", "b", "c", "d"}
        assert ready(client) == []
        assert answer(client, "a") == 1
        assert files(bucket) == ["a/1/model.onnx"]
        assert answer(client, "c") == 3
        assert files(bucket) == ["c/1/model.onnx"]
        wait_until(lambda: ready(client) == ["c/1"])
        assert answer(client, "a") == 1
        assert files(bucket) == [], "it was on the disk"
        wait_until(lambda: ready(client) == ["a/1"])

        bucket.fail()
        for _ in range(2):  # each makes the other leave
            assert answer(client, "c") == 3
            assert answer(client, "a") == 1


def test_a_failure_of_s3_is_told_remembered_and_over_when_somebody_loads_the_model(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, MODELS)
    with serving(bucket, proxy, tmp_path, *FLAGS) as (_, client):
        assert answer(client, "a") == 1
        bucket.fail()
        status, text = fails(lambda: answer(client, "d"))
        assert status == "UNAVAILABLE"
        assert text.startswith("model 'd' cannot be loaded: ")
        assert bucket.name in text
        bucket.fetched()
        for _ in range(20):
            assert fails(lambda: answer(client, "d")) == (status, text)
        assert files(bucket) == [], "S3 is not asked for each request"
        assert client.is_server_ready()
        assert not client.is_model_ready("d")
        assert answer(client, "a") == 1

        bucket.mend()
        client.load_model("d")
        assert answer(client, "d") == 4


@pytest.mark.long
def test_a_server_that_starts_without_s3_loads_what_its_disk_has(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, MODELS)
    with serving(bucket, proxy, tmp_path, *FLAGS) as (_, client):
        assert answer(client, "a") == 1
    bucket.fail()
    with serving(bucket, proxy, tmp_path, *FLAGS, "--repository-poll-secs", "0.2") as (_, client):
        assert answer(client, "a") == 1
        status, text = fails(lambda: answer(client, "d"))
        assert (status, bucket.name in text) == ("UNAVAILABLE", True), text
        bucket.put_model("later/1", 9)
        bucket.mend()
        wait_until(lambda: client.is_model_ready("later"))
        assert answer(client, "later") == 9


@pytest.mark.long
def test_a_model_whose_objects_have_gone_is_unknown_once_the_listing_says_so(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, MODELS)
    with serving(bucket, proxy, tmp_path, *FLAGS, "--repository-poll-secs", "0.2") as (_, client):
        bucket.remove("d/1/model.onnx")
        wait_until(lambda: not client.is_model_ready("d"))
        assert fails(lambda: answer(client, "d"))[0] == "NOT_FOUND"
        assert answer(client, "c") == 3
