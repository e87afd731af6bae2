"""``toutates serve PATH``, as a newcomer uses it: one command, and the lines that it prints are run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.process import ServerProcess, run, running
from tests.e2e.support import triton
from tests.optional import skip_without
from tests.repositories.hub import hub
from tests.repositories.s3_services import S3Service
from tests.triton_repository import adder, negative
from tests.waiting import wait_until

pytestmark = pytest.mark.long

skip_without("tritonclient")

FLAGS = ("--http-addr", "127.0.0.1:0")
NOWHERE = ("--grpc-addr", "127.0.0.1:0", "--http-addr", "off", "--metrics-addr", "off")


def ask(server: ServerProcess, model: str, value: int) -> int:
    with triton.InferenceServerClient(server.address) as client:
        tensor = triton.InferInput("INPUT", [1, 4], "INT32")
        tensor.set_data_from_numpy(np.full((1, 4), value, np.int32))
        answer: int = client.infer(model, [tensor]).as_numpy("OUTPUT")[0, 0]
        return answer


def printed(server: ServerProcess) -> tuple[str, str]:
    """The code for Python, and the command line with curl."""
    wait_until(lambda: re.search(r"/infer'?\n\n", server.log))
    python, curl = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", server.log.partition("Ask for ")[2])
    return textwrap.dedent(python), textwrap.dedent(curl)


def outputs(server: ServerProcess) -> tuple[str, str]:
    """What the two print."""
    python, curl = printed(server)
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True)
    asked = subprocess.run(
        ["bash", "-c", curl.replace("curl ", "curl -sS ")], capture_output=True, text=True, check=True
    )
    return done.stdout, asked.stdout


@pytest.mark.quick
def test_a_file_is_served_with_lines_to_copy_and_reloaded_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(adder(3), path)
    (tmp_path / "config.yaml").write_text("learning_rate: 0.1\n")  # of something else
    words = ("toutates", "serve", str(path))
    with running(None, tmp_path, [*FLAGS, "--repository-poll-secs", "0.1"], module=words) as server:
        python, curl = outputs(server)
        assert python.strip() == "[[3 3 3 3]]"
        assert '"data":[3,3,3,3]' in curl.replace(" ", "")
        onnx.save(adder(5), tmp_path / "next")
        (tmp_path / "next").replace(path)
        wait_until(lambda: ask(server, "add", 1) == 6)
        path.write_bytes(b"no graph")
        wait_until(lambda: "cannot be served" in server.log)
        assert ask(server, "add", 1) == 6, "what cannot be loaded changes nothing"
        assert server.stop() == 0


def test_the_lines_are_right_for_strings_pictures_and_several_inputs(tmp_path: Path) -> None:
    names: list[tuple[str, int, list[str | int | None]]] = [
        ("text", TensorProto.STRING, ["n", 1]),
        ("image", TensorProto.FLOAT, ["n", 3, "h", "w"]),
    ]
    names += [("it's", TensorProto.BOOL, ["n", 2]), ("half", TensorProto.FLOAT16, ["n", 2])]
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"of {name}"]) for name, _, _ in names],
        "identities",
        [helper.make_tensor_value_info(*one) for one in names],
        [helper.make_tensor_value_info(f"of {name}", datatype, shape) for name, datatype, shape in names],
    )
    path = tmp_path / "it's.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with running(None, tmp_path, FLAGS, module=("toutates", "serve", str(path), "--name", "it's")) as server:
        python, curl = outputs(server)
        assert "[[b'text']]" in python
        assert "[[False False]]" in python
        assert '"shape":[1,3,224,224]' in curl.replace(" ", "")


@pytest.mark.quick
def test_a_file_that_is_no_graph_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no graph")
    done = run("serve", str(tmp_path / "net.onnx"), *NOWHERE)
    assert done.returncode == 1
    assert "model 'net' version 1 cannot be served" in done.stderr
    assert "Ask for" not in done.stdout


@pytest.mark.usefixtures("s3_credentials")
def test_a_file_on_s3_is_served_with_its_weights(moto_service: S3Service, tmp_path: Path) -> None:
    onnx.save_model(
        _large(), tmp_path / "net.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0
    )
    files = {f"some/{name}": (tmp_path / name).read_bytes() for name in ("net.onnx", "net.onnx.data")}
    bucket = moto_service.bucket(files | {"some/net.safetensors": b"x", "some/net.onnx.d/x": b"x"})
    flags = ["--s3-endpoint", moto_service.endpoint, "--model-cache-dir", str(tmp_path / "cache")]
    words = ("toutates", "serve", f"s3://{bucket}/some/net.onnx")
    with running(None, tmp_path, [*flags, *FLAGS], module=words) as server:
        assert outputs(server)[0].strip() == "[[0. 0.]]"
        kept = {path.name for path in (tmp_path / "cache").rglob("1/*")}
        assert "net.safetensors" not in kept
        assert "net.onnx.data" in kept
    missing = run("serve", f"s3://{bucket}/some/other.onnx", *flags, "--grpc-addr", "127.0.0.1:0", "--http-addr", "off")
    assert missing.returncode == 2
    assert "there is no such object" in missing.stderr


def test_a_model_of_the_hub_is_served_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("huggingface_hub")
    with hub() as here:
        monkeypatch.setenv("HF_ENDPOINT", here.endpoint)
        here.models["acme/add-net"] = {
            "onnx/model.onnx": adder(4).SerializeToString(),
            "onnx/model_fp16.onnx": b"of another precision",
            "config.json": b"{}",
            "model.safetensors": b"weights",
        }
        flags = ["--model-cache-dir", str(tmp_path / "cache")]
        words = ("toutates", "serve", "hf://acme/add-net")
        with running(None, tmp_path, [*flags, *FLAGS], module=words) as server:
            assert ask(server, "add-net", 1) == 5
            assert {path.name for path in (tmp_path / "cache").rglob("1/*")} == {"model.onnx"}
            assert server.stop() == 0


def _large() -> onnx.ModelProto:
    weights = onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "weights")
    tensors = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weights"], ["y"])], "net", tensors, outs, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_processes_print_the_lines_once(tmp_path: Path) -> None:
    onnx.save(negative(), tmp_path / "net.onnx")
    words = ("toutates", "serve", str(tmp_path / "net.onnx"))
    with running(None, tmp_path, [*FLAGS, "--processes", "2"], module=words) as server:
        assert outputs(server)[0].strip() == "[[-0. -0. -0. -0.]]"
        assert server.log.count("Ask for 'net'") == 1
