"""Texts that no UTF-8 can encode: names of files in Latin-1, half an emoji in an exception. Every answer is written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e import models
from tests.e2e.http import get, peer_of, post
from tests.e2e.process import ServerProcess, command, environment, running
from tests.e2e.streams import conversation
from tests.e2e.support import Tensor, bytes_tensor, channel_to, infer, pb, request
from tests.waiting import wait_until

QUOTES = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.get_input_tensor_by_name(requests[0], "j").as_numpy()[0].decode()
        if text == "silent":
            raise ValueError
        if text == "parameter":
            y = pb_utils.Tensor("y", __import__("numpy").ones(1, "float32"))
            return [pb_utils.InferenceResponse([y], parameters={"said": chr(0xd83d), chr(0xd83d): "x"})]
        if text == "error":
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("half " + chr(0xd83d)))]
        pb_utils.Logger.log_error("logged " + chr(0xd83d))
        raise ValueError("unknown label " + json.loads(text))
"""
CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "j" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def ask(channel: grpc.Channel, rpc: str, message: Any, answer: Any) -> Any:
    path = f"/inference.GRPCInferenceService/{rpc}"
    return channel.unary_unary(path, type(message).SerializeToString, answer.FromString)(message, timeout=120)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    models.add_model(root, "good", models.negating_model(1))
    (root / "latin" / "1").mkdir(parents=True)
    (root / "latin" / "1" / os.fsdecode(b"mod\xe8le.onnx")).write_bytes(b"x")
    (root / "half" / "1").mkdir(parents=True)
    (root / "half" / "1" / "model.onnx").write_bytes(models.negating_model(1))
    (root / "half" / "1" / "config.yaml").write_text('backend: "\\uD83D"\n')
    (root / "quote" / "1").mkdir(parents=True)
    (root / "quote" / "1" / "model.py").write_text(QUOTES)
    (root / "quote" / "config.pbtxt").write_text(CONFIG)
    return root


@pytest.fixture(scope="module", params=["text", "json"])
def server(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    flags = [
        "--http-addr",
        "127.0.0.1:0",
        "--metrics-addr",
        "127.0.0.1:0",
        "--log-format",
        request.param,
        "--model-control-mode",
    ]
    with running(repository, tmp_path_factory.mktemp("log"), [*flags, "explicit", "--load-model", "*"]) as process:
        yield process
        assert process.stop() == 0


def test_the_index_and_loads_answer_over_both_protocols(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer, channel_to(server.address) as channel:
        index = peer.ask(post("/v2/repository/index", "{}"))
        assert index.status == 200
        by_name = {entry["name"]: entry for entry in index.document}
        assert r"mod\xe8le.onnx" in by_name["latin"]["reason"]
        assert by_name["good"]["state"] == "READY"
        told = ask(channel, "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
        assert {entry.name: entry.reason for entry in told.models}["latin"] == by_name["latin"]["reason"]
        for name in ("latin", "half"):
            answer = peer.ask(post(f"/v2/repository/models/{name}/load", "{}"))
            assert answer.status == 400
            assert answer.document["error"].startswith(f"load failed for model '{name}'")
            load = pb.RepositoryModelLoadRequest(model_name=name)
            with pytest.raises(grpc.RpcError) as raised:
                ask(channel, "RepositoryModelLoad", load, pb.RepositoryModelLoadResponse)
            assert raised.value.details().startswith(f"load failed for model '{name}'")
        assert peer.ask(post("/v2/repository/models/latin/unload", "{}")).status == 200
    with peer_of(server.http_port) as pages:
        assert pages.ask(get("/status.json")).status == 200
        assert pages.ask(get("/metrics")).status == 200


def test_an_exception_says_what_it_can(server: ServerProcess) -> None:
    def refusals(text: str) -> list[str]:
        """What both protocols say."""
        with pytest.raises(grpc.RpcError) as raised:
            infer(channel, request("quote", Tensor("j", "BYTES", (1,), bytes_tensor(text.encode()))))
        tensor = {"name": "j", "datatype": "BYTES", "shape": [1], "data": [text]}
        answer = peer.ask(post("/v2/models/quote/infer", json.dumps({"inputs": [tensor]})))
        assert answer.status == 500
        return [raised.value.details() or "", answer.document["error"]]

    with channel_to(server.address) as channel, peer_of(server.rest_port) as peer:
        for text, said in (
            (r'"\ud83d x"', r"ValueError: unknown label \ud83d x"),
            ("silent", "message: ValueError\n"),
            ("error", r"half \ud83d"),
        ):
            assert all(said in refusal for refusal in refusals(text))
        answer = infer(channel, request("quote", Tensor("j", "BYTES", (1,), bytes_tensor(b"parameter"))))
        assert answer.parameters["said"].string_param == r"\ud83d"
        assert answer.parameters[r"\ud83d"].string_param == "x"
        np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), [1])
    wait_until(lambda: r"logged \ud83d" in server.log.replace("\\\\", "\\"))


def test_a_stream_says_it_too_and_goes_on(server: ServerProcess) -> None:
    def asked(text: bytes) -> Any:
        return request("quote", Tensor("j", "BYTES", (1,), bytes_tensor(text)))

    with channel_to(server.address) as channel, conversation(channel) as stream:
        assert r"unknown label \ud83d x" in stream.ask(asked(rb'"\ud83d x"')).error_message
        assert stream.ask(asked(b"parameter")).infer_response.parameters["said"].string_param == r"\ud83d"


def test_check_names_such_files_where_the_terminal_speaks_ascii(repository: Path) -> None:
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    found = subprocess.run(
        command("check", str(repository)), env=environment() | ascii, capture_output=True, timeout=120, check=False
    )
    assert found.returncode == 1
    assert rb"mod\xe8le.onnx" in found.stdout
    assert b"Traceback" not in found.stderr
