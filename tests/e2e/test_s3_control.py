"""Models on S3 that come and go: polled for, or loaded and unloaded by tritonclient, with a service that can fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.e2e.control import EXPLICIT, POLL, answer, client_of, fails, index
from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.models import versioned_model
from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import triton
from tests.repositories.s3_services import Fault, Proxy, S3Service
from tests.text_models import hidden, ids_of, make_folder
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("s3_credentials")]

CONFIG: Final = b"backend: supertensor\nbatch_size: %d\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
#: Every connection is closed before its answer.
UNREACHABLE: Final = 10**9
SERVED_ON: Final = "what is served from there is served on"
READABLE_AGAIN: Final = "can be read again"


class Bucket:
    """A repository on S3, as those who deploy to it see it, and a proxy between it and the server.

    Args:
        service: where it is.
        proxy: before the service, for the server.
        models: what each version of each model adds, by "NAME/VERSION".
    """

    def __init__(self, service: S3Service, proxy: Proxy, models: Mapping[str, int]) -> None:
        self._service = service
        self._proxy = proxy
        self.name = service.bucket()
        for version, adds in models.items():
            self.put_model(version, adds)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/models"

    def put(self, name: str, content: bytes) -> None:
        self._service.put(self.name, f"models/{name}", content)

    def put_model(self, version: str, adds: int) -> None:
        self.put(f"{version}/model.onnx", versioned_model(adds))

    def remove(self, *names: str) -> None:
        for name in names:
            self._service.client.delete_object(Bucket=self.name, Key=f"models/{name}")

    def fail(self, pattern: str = "") -> None:
        """Let requests with this in their first line fail from now on; all of them without one."""
        self._proxy.faults = [Fault(pattern, times=UNREACHABLE, cut_at=0)]

    def mend(self) -> None:
        self._proxy.faults = []

    def fetched(self) -> list[str]:
        """Names of the objects that the server has asked for since the last call."""
        lines = [line for line in self._proxy.requests if "list-type" not in line]
        self._proxy.requests.clear()
        return sorted({line.split()[1].partition("/models/")[2] for line in lines})


@contextmanager
def serving(bucket: Bucket, proxy: Proxy, folder: Path, *flags: str) -> Iterator[tuple[ServerProcess, Any]]:
    """A server with a cache of its own, and a client of it; both have ended well in the end."""
    more = ["--s3-endpoint", proxy.endpoint, "--model-cache-dir", str(folder / "cache"), *flags]
    with running(bucket.url, folder, more) as process:
        with client_of(process) as client:
            yield process, client
        assert process.stop() == 0
        assert "Traceback" not in process.log
        assert_ran_without_gil(process)


def ready(client: Any) -> list[str]:
    """What the index has as ready, NAME/VERSION."""
    return [f"{name}/{version}" for name, version, state, _ in index(client) if state == "READY"]


def reason(client: Any, name: str, version: str) -> str:
    """Why a version is not ready, or not as the bucket has it; "" also where there is none."""
    return next((why for one, number, _, why in index(client) if (one, number) == (name, version)), "")


# --- poll


def test_polling_follows_the_bucket(moto_service: S3Service, proxy: Proxy, tmp_path: Path) -> None:
    bucket = Bucket(moto_service, proxy, {"stays/1": 1, "goes/1": 2})
    with serving(bucket, proxy, tmp_path, *POLL) as (_, client):
        assert (answer(client, "stays"), answer(client, "goes")) == (1, 2)
        assert bucket.fetched() == ["goes/1/model.onnx", "stays/1/model.onnx"]

        # A version more, a model more, and one less; nothing is downloaded but what is new.
        bucket.put_model("stays/2", 22)
        bucket.put_model("comes/1", 5)
        bucket.remove("goes/1/model.onnx")
        wait_until(lambda: ready(client) == ["comes/1", "stays/1", "stays/2"])
        assert (answer(client, "comes"), answer(client, "stays"), answer(client, "stays", "1")) == (5, 22, 1)
        wait_until(lambda: {one[0] for one in index(client)} == {"comes", "stays"})
        assert fails(lambda: answer(client, "goes"))[0] == "NOT_FOUND"
        assert bucket.fetched() == ["comes/1/model.onnx", "stays/2/model.onnx"]
        [stats] = client.get_inference_statistics("stays", "1").model_stats
        assert stats.inference_count == 2  # version 1 was not loaded again

        # Another graph for a version that is served.
        bucket.put_model("comes/1", 6)
        wait_until(lambda: answer(client, "comes") == 6)
        assert bucket.fetched() == ["comes/1/model.onnx"]
        assert client.is_server_ready()


def test_a_flat_folder_of_a_text_model_is_served_and_followed(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"adds/1": 1})
    pooling = ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True})
    folder = make_folder(tmp_path / "sentences", modules=[pooling])
    for path in (path for path in folder.rglob("*") if path.is_file()):
        bucket.put(f"sentences/{path.relative_to(folder)}", path.read_bytes())
    text = triton.InferInput("text", [1, 1], "BYTES").set_data_from_numpy(np.array([["one two"]], np.object_))
    with serving(bucket, proxy, tmp_path, *POLL) as (_, client):
        assert ready(client) == ["adds/1", "sentences/1"]

        def vector() -> Any:
            return client.infer("sentences", [text]).as_numpy("embedding")[0]

        np.testing.assert_allclose(vector(), hidden(ids_of("one two")).mean(0), rtol=1e-5)
        bucket.fetched()
        # Another module, in a file of its own: the vectors are those of the folder as it is now.
        bucket.put("sentences/1_Pooling/config.json", json.dumps({"pooling_mode_cls_token": True}).encode())
        wait_until(lambda: np.allclose(vector(), hidden(ids_of("one two"))[0], rtol=1e-5))
        assert bucket.fetched() == ["sentences/1_Pooling/config.json"]
        # A folder that cannot be read is not applied, and says why.
        bucket.put("sentences/modules.json", b"[")
        wait_until(lambda: "modules.json" in reason(client, "sentences", "1"))
        np.testing.assert_allclose(vector(), hidden(ids_of("one two"))[0], rtol=1e-5)


def test_polling_applies_configurations_that_change(moto_service: S3Service, proxy: Proxy, tmp_path: Path) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "m/2": 2})
    with serving(bucket, proxy, tmp_path, *POLL) as (_, client):
        assert client.get_model_config("m").config.max_batch_size == 64
        bucket.fetched()

        bucket.put("m/2/config.yaml", CONFIG % 5)
        wait_until(lambda: client.get_model_config("m").config.max_batch_size == 5)
        assert bucket.fetched() == ["m/2/config.yaml"]

        # One that was written halfway is not applied, and says why; the next one is.
        bucket.put("m/2/config.yaml", b"backend: supertensor\nbatch_si")
        wait_until(lambda: "config.yaml" in reason(client, "m", "2"))
        assert client.get_model_config("m").config.max_batch_size == 5
        assert (answer(client, "m"), client.is_server_ready()) == (2, True)
        bucket.put("m/2/config.yaml", CONFIG % 7)
        wait_until(lambda: client.get_model_config("m").config.max_batch_size == 7)

        # Triton's file chooses among the versions.
        bucket.put("m/config.pbtxt", b"version_policy { specific { versions: [1] } }")
        wait_until(lambda: ready(client) == ["m/1"])
        assert (answer(client, "m"), fails(lambda: answer(client, "m", "2"))[0]) == (1, "UNAVAILABLE")
        bucket.remove("m/config.pbtxt", "m/2/config.yaml")
        wait_until(lambda: ready(client) == ["m/1", "m/2"])
        wait_until(lambda: client.get_model_config("m").config.max_batch_size == 64)
        assert bucket.fetched() == ["m/2/config.yaml", "m/config.pbtxt"]  # graphs were there


@pytest.mark.parametrize("file", ["labels.txt", "more/labels.txt", "2/labels.txt"])
def test_labels_are_fetched_and_a_change_of_them_alone_is_one(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path, file: str
) -> None:
    output = f'output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 4 ] label_filename: "{file}" }}'
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "m/2": 2})
    bucket.put("m/config.pbtxt", b"max_batch_size: 2 " + output.encode())
    bucket.put(f"m/{file}", b"a\nb\nc\nd\n")
    tensor = triton.InferInput("INPUT", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.int32))
    asked = [triton.InferRequestedOutput("OUTPUT", class_count=1)]

    def best(client: Any) -> str:
        return str(client.infer("m", [tensor], outputs=asked).as_numpy("OUTPUT")[0, 0].decode())

    with serving(bucket, proxy, tmp_path, *POLL) as (_, client):
        assert best(client) == "6:3:d"
        assert bucket.fetched() == sorted([f"m/{file}", "m/2/model.onnx", "m/config.pbtxt"])
        bucket.put(f"m/{file}", b"w\nx\ny\nz\n")
        wait_until(lambda: best(client) == "6:3:z")
        assert bucket.fetched() == [f"m/{file}"]


def test_a_service_that_cannot_be_reached_for_a_while_takes_nothing_from_what_is_served(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "other/1": 10})
    with serving(bucket, proxy, tmp_path, *POLL) as (process, client):
        bucket.fail()
        wait_until(lambda: SERVED_ON in process.log)
        bucket.put_model("m/2", 2)
        bucket.remove("other/1/model.onnx")
        polls = len(proxy.requests)
        wait_until(lambda: len(proxy.requests) >= polls + 6)  # three more polls, of two requests each
        assert (answer(client, "m"), answer(client, "other")) == (1, 10)
        assert (ready(client), client.is_server_ready()) == (["m/1", "other/1"], True)
        assert READABLE_AGAIN not in process.log

        bucket.mend()
        wait_until(lambda: READABLE_AGAIN in process.log)
        wait_until(lambda: ready(client) == ["m/1", "m/2"])
        assert answer(client, "m") == 2
        assert process.log.count(SERVED_ON) == 1  # however many polls there were
        assert f"at {proxy.endpoint}: cannot be listed now" in process.log


def test_a_version_that_cannot_be_downloaded_leaves_the_old_one_and_comes_later(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    with serving(bucket, proxy, tmp_path, *POLL) as (process, client):
        bucket.fail("model.onnx")
        bucket.put_model("m/2", 2)
        bucket.put_model("new/1", 3)
        wait_until(lambda: "model 'm' cannot be loaded" in process.log)
        wait_until(lambda: "model 'new' cannot be loaded" in process.log)
        assert (answer(client, "m"), client.is_model_ready("new")) == (1, False)
        wait_until(lambda: "cannot be read now" in reason(client, "new", ""))
        assert not client.is_server_ready()  # which a new model that is missing is a reason for, as at the start

        bucket.mend()
        wait_until(lambda: ready(client) == ["m/1", "m/2", "new/1"])
        assert (answer(client, "m"), answer(client, "new"), client.is_server_ready()) == (2, 3, True)


def test_a_poll_serves_the_versions_of_a_new_model_that_can_be_loaded(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    with serving(bucket, proxy, tmp_path, *POLL) as (_, client):
        bucket.put("partly/1/model.onnx", b"nonsense")
        bucket.put_model("partly/2", 2)
        wait_until(lambda: ready(client) == ["m/1", "partly/2"])
        assert "cannot load" in reason(client, "partly", "1")
        bucket.put_model("partly/1", 1)
        wait_until(lambda: ready(client) == ["m/1", "partly/1", "partly/2"])
        assert (answer(client, "partly", "1"), answer(client, "partly")) == (1, 2)


# --- explicit


def test_explicit_fetches_what_is_asked_for_and_nothing_twice(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"first/1": 1, "second/1": 10, "second/2": 20})
    with serving(bucket, proxy, tmp_path, *EXPLICIT, "--load-model", "first") as (_, client):
        assert index(client) == [("first", "1", "READY", ""), ("second", "", "", "")]
        assert bucket.fetched() == ["first/1/model.onnx"]

        client.load_model("second")
        assert (answer(client, "second", "1"), answer(client, "second")) == (10, 20)
        assert bucket.fetched() == ["second/1/model.onnx", "second/2/model.onnx"]
        client.unload_model("second")
        wait_until(lambda: reason(client, "second", "2") == "unloaded")
        assert fails(lambda: answer(client, "second"))[0] == "NOT_FOUND"
        assert client.is_server_ready()
        client.load_model("second")
        assert (answer(client, "second"), bucket.fetched()) == (20, [])

        # What changes in the bucket changes here when it is asked for.
        bucket.put_model("second/2", 21)
        bucket.remove("second/1/model.onnx")
        assert answer(client, "second") == 20
        client.load_model("second")
        assert (answer(client, "second"), ready(client)) == (21, ["first/1", "second/2"])
        assert bucket.fetched() == ["second/2/model.onnx"]

        status, text = fails(lambda: client.load_model("third"))
        assert (status, "failed to load 'third'" in text, "no model repository has it" in text) == (
            "INTERNAL",
            True,
            True,
        )


def test_a_configuration_comes_with_the_request_and_the_files_from_the_bucket(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "m/2": 2})
    bucket.put("m/config.pbtxt", b"this is no configuration, and does not matter")
    with serving(bucket, proxy, tmp_path, *EXPLICIT) as (_, client):
        override = {"max_batch_size": 3, "version_policy": {"specific": {"versions": [1]}}}
        client.load_model("m", config=json.dumps(override))
        assert client.get_model_config("m").config.max_batch_size == 3
        assert (answer(client, "m"), ready(client)) == (1, ["m/1"])
        assert "m/2/model.onnx" not in bucket.fetched()
        client.load_model("m")  # while the objects do not change, it stays
        assert client.get_model_config("m").config.max_batch_size == 3
        bucket.put("m/config.pbtxt", b"max_batch_size: 4")
        client.load_model("m")
        assert (client.get_model_config("m").config.max_batch_size, answer(client, "m")) == (4, 2)


def test_paths_of_a_configuration_from_the_request_are_those_of_the_bucket(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    parameter = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
    with serving(bucket, proxy, tmp_path, *EXPLICIT) as (_, client):
        for own, path in ((None, "/env"), (parameter % "/env", "/etc"), ("no configuration", "/env")):
            if own is not None:
                bucket.put("m/config.pbtxt", own.encode())
            config = json.dumps({"parameters": {"EXECUTION_ENV_PATH": {"string_value": path}}})
            status, text = fails(lambda config=config: client.load_model("m", config=config))  # type: ignore[misc]
            assert (status, "leaves the model's directory" in text) == ("INVALID_ARGUMENT", True)
        assert "m/1/model.onnx" not in bucket.fetched()
        bucket.put("m/config.pbtxt", (parameter % "/env").encode())
        client.load_model("m", config=json.dumps({"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/env"}}}))
        assert answer(client, "m") == 1


def test_a_model_that_comes_with_the_request_does_not_need_the_service(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    with serving(bucket, proxy, tmp_path, *EXPLICIT, "--load-model", "*") as (_, client):
        assert answer(client, "m") == 1
        bucket.fail()
        client.load_model("m", config="{}", files={"file:7/model.onnx": versioned_model(70)})
        assert (answer(client, "m"), ready(client)) == (70, ["m/7"])
        bucket.mend()
        client.load_model("m")  # which leaves it as it is
        assert answer(client, "m") == 70
        client.unload_model("m")
        client.load_model("m")
        assert (answer(client, "m"), ready(client)) == (1, ["m/1"])


def test_a_load_while_the_service_cannot_be_reached_is_refused_and_costs_nothing(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1, "n/1": 10})
    with serving(bucket, proxy, tmp_path, *EXPLICIT, "--load-model", "m") as (process, client):
        known = [one[0] for one in index(client)]
        bucket.put_model("m/2", 2)
        bucket.fail()
        for name in ("m", "n"):
            status, text = fails(lambda name=name: client.load_model(name))  # type: ignore[misc]
            assert (status, f"not all could be read: {bucket.url}" in text) == ("INTERNAL", True)
        # Listings work again, and downloads do not.
        bucket.fail("model.onnx")
        for name in ("m", "n"):
            status, text = fails(lambda name=name: client.load_model(name))  # type: ignore[misc]
            assert (status, "cannot be read now" in text) == ("INTERNAL", True)
        bucket.fail()
        assert [one[0] for one in index(client)] == known == ["m", "n"]
        assert (answer(client, "m"), ready(client), client.is_server_ready()) == (1, ["m/1"], True)
        bucket.mend()
        for name in ("m", "n"):
            client.load_model(name)
        assert (answer(client, "m"), answer(client, "n")) == (2, 10)
        wait_until(lambda: READABLE_AGAIN in process.log)


def test_a_load_that_fails_leaves_what_is_served(moto_service: S3Service, proxy: Proxy, tmp_path: Path) -> None:
    bucket = Bucket(moto_service, proxy, {"m/1": 1})
    with serving(bucket, proxy, tmp_path, *EXPLICIT, "--load-model", "m") as (_, client):
        bucket.put("m/1/model.onnx", b"nonsense")
        bucket.put_model("m/2", 2)
        status, text = fails(lambda: client.load_model("m"))
        assert status == "INVALID_ARGUMENT"
        assert text.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: onnxruntime")
        assert (answer(client, "m"), ready(client), client.is_server_ready()) == (1, ["m/1"], True)
        assert "cannot load" in reason(client, "m", "1")
        bucket.put_model("m/1", 11)
        client.load_model("m")
        assert (answer(client, "m", "1"), answer(client, "m")) == (11, 2)


def test_an_unknown_model_at_the_start_is_named_with_its_flag(
    moto_service: S3Service, proxy: Proxy, tmp_path: Path
) -> None:
    bucket = Bucket(moto_service, proxy, {"resnet/1": 1})
    arguments = [*EXPLICIT, "--load-model", "resmet", "--s3-endpoint", proxy.endpoint]
    ended = run("--model-repository", bucket.url, *arguments, "--model-cache-dir", str(tmp_path))
    assert ended.returncode == 2
    remedy = "did you mean 'resnet'? the repository has: resnet"
    assert f"error: --load-model: no such model in the repository (got 'resmet'); {remedy}" in ended.stderr
