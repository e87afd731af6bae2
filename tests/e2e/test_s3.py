"""Models from S3: the server from outside, with a real S3 service behind it and tritonclient before it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.process import ServerProcess, command, environment, run, running
from tests.e2e.support import triton
from tests.repositories.s3_services import Fault, Proxy, S3Service, cached_files, nothing_is_left
from tests.waiting import wait_until

#: Large enough to be read in two ranges.
WEIGHTS = np.random.default_rng(1).standard_normal((1536, 2048), np.float32)


pytestmark = [pytest.mark.long, pytest.mark.usefixtures("s3_credentials")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small model with a config.yaml, and one whose weights are a file beside it."""
    folder = tmp_path_factory.mktemp("models")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1536])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2048])
    weights = numpy_helper.from_array(WEIGHTS, "weights")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weights"], ["y"])], "large", [x], [y], [weights])
    large = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(large, folder / "model.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 4])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 4])
    add = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "small", [a], [b])
    small = helper.make_model(add, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    config = b"backend: supertensor\nbatch_size: 3\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"
    return {
        "models/large/1/model.onnx": (folder / "model.onnx").read_bytes(),
        "models/large/1/weights.data": (folder / "weights.data").read_bytes(),
        "models/small/1/model.onnx": small.SerializeToString(),
        "models/small/1/config.yaml": config,
    }


def flags(service: S3Service | Proxy, cache: Path) -> list[str]:
    return ["--s3-endpoint", service.endpoint, "--model-cache-dir", str(cache)]


def from_s3(bucket: str) -> str:
    return f"s3://{bucket}/models"


def check_answers(server: ServerProcess) -> None:
    """Both models answer, and the small one has the settings of its config.yaml."""
    client = triton.InferenceServerClient(server.address)
    try:
        x = np.random.default_rng(2).standard_normal((2, 1536), np.float32)
        tensor = triton.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        np.testing.assert_allclose(client.infer("large", [tensor]).as_numpy("y"), x @ WEIGHTS, rtol=1e-3, atol=1e-3)
        tensor = triton.InferInput("a", (1, 4), "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        assert client.infer("small", [tensor]).as_numpy("b").tolist() == [[2.0] * 4]
        assert client.get_model_config("small").config.max_batch_size == 3
        assert client.is_server_ready()
    finally:
        client.close()


def test_models_are_served_from_s3_and_not_downloaded_again(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = moto_service.bucket(files)
    for number in range(2):
        with running(from_s3(bucket), tmp_path, flags(proxy, tmp_path / "cache")) as server:
            check_answers(server)
            assert server.stop() == 0
            assert "Traceback" not in server.log
            assert_ran_without_gil(server)
            assert ("bytes downloaded" in server.log) == (number == 0)
        if number == 0:
            first = len(proxy.reads)
            assert first == 5  # four files, one of them in two ranges
    assert len(proxy.reads) == first


def test_models_are_served_from_another_implementation_and_a_directory(
    s3rver_service: S3Service, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = s3rver_service.bucket({name: files[name] for name in files if "/large/" in name})
    for name in files:
        if "/small/" in name:
            path = tmp_path / "local" / Path(name).relative_to("models")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
    more = [*flags(s3rver_service, tmp_path / "cache"), "--s3-bucket", bucket, "--s3-prefix", "models"]
    with running(tmp_path / "local", tmp_path, more) as server:
        check_answers(server)


def test_two_servers_that_start_at_once_share_a_cache(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = moto_service.bucket(files)
    arguments = ["--grpc-addr", "127.0.0.1:0", "--model-repository", from_s3(bucket)]
    (tmp_path / "one").mkdir()
    with (tmp_path / "other.log").open("wb") as log:
        other = subprocess.Popen(
            command(*arguments, *flags(proxy, tmp_path / "cache")), stdout=log, stderr=log, env=environment()
        )
        try:
            with running(from_s3(bucket), tmp_path / "one", flags(proxy, tmp_path / "cache")) as server:
                check_answers(server)
            wait_until(lambda: "serving gRPC" in (tmp_path / "other.log").read_text())
            assert ", ready" in (tmp_path / "other.log").read_text()
        finally:
            other.send_signal(signal.SIGTERM)
            assert other.wait(120) == 0, (tmp_path / "other.log").read_text()
    assert len(proxy.reads) == 5


def test_a_damaged_cache_is_mended_at_the_start(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = moto_service.bucket(files)
    with running(from_s3(bucket), tmp_path, flags(proxy, tmp_path / "cache")):
        pass
    reads = len(proxy.reads)
    (path,) = (path for path in cached_files(tmp_path / "cache") if path.stat().st_size > 10_000_000)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"damage")
    with running(from_s3(bucket), tmp_path, flags(proxy, tmp_path / "cache")) as server:
        check_answers(server)
        assert "is damaged, and is downloaded again" in server.log
    assert len(proxy.reads) == reads + 2


def test_a_model_that_cannot_be_had_is_unavailable_and_the_others_are_served(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = moto_service.bucket(files)
    proxy.faults = [Fault("weights.data", times=1000, cut_at=0)]
    with running(from_s3(bucket), tmp_path, flags(proxy, tmp_path / "cache")) as server:
        client = triton.InferenceServerClient(server.address)
        try:
            assert client.is_model_ready("small")
            assert not client.is_model_ready("large")
            assert not client.is_server_ready()
        finally:
            client.close()
        assert "model 'large' cannot be loaded: --model-repository s3://" in server.log
        assert "weights.data' cannot be read now" in server.log


def fail_to_start(*arguments: str) -> str:
    """What a server says that does not start."""
    ended = run("--grpc-addr", "127.0.0.1:0", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def test_a_start_without_the_service_or_the_bucket_says_what_is_wrong(moto_service: S3Service, tmp_path: Path) -> None:
    cache = ["--model-cache-dir", str(tmp_path), "--exit-on-error", "true"]
    said = fail_to_start("--model-repository", "s3://bucket/m", "--s3-endpoint", "http://127.0.0.1:9", *cache)
    assert said.startswith("toutates: error: --model-repository s3://bucket/m at http://127.0.0.1:9: cannot be listed")
    assert "check --s3-endpoint" in said
    said = fail_to_start("--s3-bucket", "nowhere", "--s3-endpoint", moto_service.endpoint, *cache)
    assert said.startswith("toutates: error: --s3-bucket: there is no such bucket")
    assert "(got 's3://nowhere'); correct" in said


def test_credentials_are_not_in_the_log_of_debugging(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDFORTHETEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "sessiontokenforthetest")
    bucket = moto_service.bucket({name: files[name] for name in files if "/small/" in name})
    with running(from_s3(bucket), tmp_path, [*flags(proxy, tmp_path / "cache"), "--log-level", "debug"]) as server:
        for secret in ("AKIDFORTHETEST", "hunter2hunter2", "sessiontokenforthetest", "Signature="):
            assert secret not in server.log


def test_a_server_that_is_told_to_stop_stops_downloading(
    moto_service: S3Service, proxy: Proxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    bucket = moto_service.bucket(files)
    proxy.faults = [Fault("weights.data", times=1000, slow=True)]
    log = tmp_path / "log"
    with log.open("wb") as output:
        arguments = ["--grpc-addr", "127.0.0.1:0", "--model-repository", from_s3(bucket)]
        process = subprocess.Popen(
            command(*arguments, *flags(proxy, tmp_path / "cache")), stdout=output, stderr=output, env=environment()
        )
        try:
            wait_until(lambda: any("weights.data" in line for line in proxy.reads))
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
            assert "Traceback" not in log.read_text()
        finally:
            process.kill()
            process.wait(120)
    assert nothing_is_left(tmp_path / "cache")
